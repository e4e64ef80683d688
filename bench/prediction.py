#!/usr/bin/env python3
"""How predictable execution is: 10,000 executions of ResNet-50 on an otherwise idle machine, and how well the scheduler
predicted them.

One client, one request at a time, without a deadline, through the whole server. The execution times are the server's
own measurements (carillon_exec_seconds), the errors |predicted - measured| of the prediction that the scheduler made when
it sent each one (carillon_prediction_error_quantile_seconds).

    python bench/prediction.py [--executions 10000] [--model resnet50]
"""
import argparse

import harness


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executions", type=int, default=10000)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--repository", default=str(harness.ROOT / "build/samples"))
    args = parser.parse_args()
    repository = harness.samples(args.repository, args.model)
    with harness.only(repository, args.model) as models, harness.Server(models) as server:
        probe = harness.load(server.http_url, [args.model], "--process", "closed:1", "--duration", 3)
        seconds = args.executions * max(probe["p50_ms"], 0.2) / 1000 * 1.03
        result = harness.load(server.http_url, [args.model], "--process", "closed:1", "--duration", seconds)
        metrics = server.metrics()
    execs = quantiles(metrics, "carillon_exec_seconds", args.model)
    errors = quantiles(metrics, "carillon_prediction_error_quantile_seconds", args.model)
    count = int(next(v for (name, labels), v in metrics.items()
                     if name == "carillon_exec_seconds_count" and dict(labels)["model"] == args.model))
    rows = [[name, count, *(f"{1e3 * v:.3f}" for v in q.values())]
            for name, q in (("execution", execs), ("prediction error", errors))]
    rows.append(["latency (client)", result["on_time"], f"{result['p50_ms']:.3f}", f"{result['p90_ms']:.3f}",
                 f"{result['p99_ms']:.3f}", f"{result['p999_ms']:.3f}", "", f"{result['max_ms']:.3f}"])
    harness.table(rows, ["ms", "n", "p50", "p90", "p99", "p99.9", "p99.99", "max"])
    print(f"\nexecution: p99 is {execs[0.99] / execs[0.5]:.3f} and p99.99 is {execs[0.9999] / execs[0.5]:.3f} times the p50 "
          "(quantiles to 3%)")
    harness.save("prediction", {"model": args.model, "executions": count, "exec_s": execs, "error_s": errors,
                                "load": result})


def quantiles(samples, name, model):
    """{quantile: seconds} of one model's summary, ascending."""
    found = {float(dict(labels)["quantile"]): value for (sample, labels), value in samples.items()
             if sample == name and dict(labels).get("model") == model}
    return dict(sorted(found.items()))


if __name__ == "__main__":
    main()
