#!/usr/bin/env python3
"""What the server adds to the engine's own time, and how many tiny requests it can answer.

For each model and protocol: one client, one request at a time. The engine's time is taken from the server's own
statistics for the same requests (compute_infer), so that both see the same machine; added = latency - mean engine time.
Then requests a second on the tiny model with 64 in flight.

    python bench/thin.py [--seconds 10] [--repository DIR]
"""
import argparse

import harness

MODELS = ["tiny_mlp", "resnet50"]


def infer_step(server, model):
    stats = server.get(f"/v2/models/{model}/stats")["model_stats"][0]["inference_stats"]
    return {k: (v["count"], v["ns"]) for k, v in stats.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--repository", default=str(harness.ROOT / "build/samples"))
    args = parser.parse_args()
    repository = harness.samples(args.repository, *MODELS)
    rows, runs = [], []
    with harness.only(repository, *MODELS) as models, harness.Server(models) as server:
        for model in MODELS:
            for protocol, url in (("http", server.http_url), ("grpc", server.grpc_url)):
                harness.load(url, [model], "--process", "closed:1", "--duration", 1)
                before = infer_step(server, model)
                result = harness.load(url, [model], "--process", "closed:1", "--duration", args.seconds)
                after = infer_step(server, model)
                mean = lambda step: (after[step][1] - before[step][1]) / max(1, after[step][0] - before[step][0]) / 1e6
                engine = mean("compute_infer")
                runs.append({"model": model, "protocol": protocol, "engine_mean_ms": engine, "queue_mean_ms": mean("queue"),
                             "input_mean_ms": mean("compute_input"), "output_mean_ms": mean("compute_output"),
                             "load": result})
                rows.append([model, protocol, result["on_time"], f"{engine:.3f}", f"{result['p50_ms']:.3f}",
                             f"{result['p99_ms']:.3f}", f"{result['p50_ms'] - engine:.3f}",
                             f"{result['p99_ms'] - engine:.3f}"])
        harness.table(rows, ["model", "protocol", "requests", "engine mean ms", "p50 ms", "p99 ms", "added p50 ms",
                             "added p99 ms"])
        print()
        many = []
        for protocol, url in (("http", server.http_url), ("grpc", server.grpc_url)):
            result = harness.load(url, ["tiny_mlp"], "--process", "closed:64", "--duration", args.seconds)
            runs.append({"model": "tiny_mlp", "protocol": protocol, "in_flight": 64, "load": result})
            many.append([protocol, f"{result['goodput_rps']:.0f}", f"{result['p50_ms']:.2f}", f"{result['p99_ms']:.2f}",
                         result["failed"]])
        harness.table(many, ["tiny_mlp, 64 in flight", "requests/s", "p50 ms", "p99 ms", "failed"])
    harness.save("thin", {"runs": runs})


if __name__ == "__main__":
    main()
