#!/usr/bin/env python3
"""200 small models, room for 40: all answer, models come and go, nothing is lost. Cold and warm latency.

Each model takes one page of 512 KiB of the cache, which has 40. First each model once, in order (every request cold), then
40 models again and again (warm), then Poisson arrivals over all 200.

    python bench/many_models.py [--models 200] [--room 40] [--seconds 20]
"""
import argparse
import pathlib
import shutil
import tempfile

import harness


def percentile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--room", type=int, default=40, help="at least 32: the cache has 16 MiB or more")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rate", type=float, default=200, help="requests a second over all models, in the last part")
    parser.add_argument("--repository", default=str(harness.ROOT / "build/samples"))
    args = parser.parse_args()
    source = harness.samples(args.repository, "tiny_cnn") / "tiny_cnn"

    with tempfile.TemporaryDirectory() as folder:
        names = [f"cnn_{i:03d}" for i in range(args.models)]
        for name in names:
            shutil.copytree(source, pathlib.Path(folder) / name)
            config = pathlib.Path(folder) / name / "config.pbtxt"
            config.write_text(config.read_text().replace('"tiny_cnn"', f'"{name}"'))
        with harness.Server(folder, "--page-cache", f"{512 * args.room} KiB") as server:
            cold = warm = mixed = None
            latencies = {"cold": [], "warm": []}
            failures = 0
            import time
            import numpy as np
            import tritonclient.http as client_lib
            client = client_lib.InferenceServerClient(f"127.0.0.1:{server.http}")
            spec = client.get_model_metadata(names[0])["inputs"][0]
            shape = [1 if d < 0 else d for d in spec["shape"]]
            tensor = client_lib.InferInput(spec["name"], shape, spec["datatype"])
            tensor.set_data_from_numpy(np.random.default_rng(1).random(shape, dtype=np.float32))

            def ask(name, kind):
                begin = time.perf_counter()
                client.infer(name, [tensor])
                latencies[kind].append(1e3 * (time.perf_counter() - begin))

            for name in names:
                ask(name, "cold")
            for _ in range(50):
                for name in names[-args.room // 2:]:
                    ask(name, "warm")
            rate = args.rate / args.models
            mixed = harness.load(server.http_url, [f"{n},rate={rate}" for n in names], "--deadline", 1000,
                                 "--duration", args.seconds)
            metrics = server.metrics()
            loads = sum(v for (n, _), v in metrics.items() if n.startswith("carillon_model_loads"))
            unloads = sum(v for (n, _), v in metrics.items() if n.startswith("carillon_model_unloads"))
    harness.table([[kind, len(v), f"{percentile(v, .5):.2f}", f"{percentile(v, .99):.2f}", f"{max(v):.2f}"]
                   for kind, v in latencies.items()], ["one at a time", "requests", "p50 ms", "p99 ms", "max ms"])
    lost = mixed["unanswered"]
    print(f"\nmixed: {mixed['sent']} sent, {mixed['on_time']} on time, {mixed['late']} late, {mixed['refused']} refused, "
          f"{mixed['failed']} failed, {lost} lost; p50 {mixed['p50_ms']:.2f} ms, p99 {mixed['p99_ms']:.2f} ms")
    print(f"loads {loads:.0f}, unloads {unloads:.0f}")
    mixed.pop("models")
    harness.save("many_models", {"models": args.models, "room": args.room, "loads": loads, "unloads": unloads,
                                 "cold_ms": {"p50": percentile(latencies["cold"], .5), "p99": percentile(latencies["cold"], .99)},
                                 "warm_ms": {"p50": percentile(latencies["warm"], .5), "p99": percentile(latencies["warm"], .99)},
                                 "mixed": mixed})
    if lost or mixed["failed"] or not unloads:
        raise SystemExit("requests were lost or failed, or nothing was evicted")


if __name__ == "__main__":
    main()
