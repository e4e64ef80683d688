#!/usr/bin/env python3
"""How predictable execution is: 10,000 executions of ResNet-50 on an otherwise idle machine, and how well the scheduler
predicted them.

One client, one request at a time, without a deadline, through the whole server. The execution times are the server's
own measurements (carillon_exec_seconds), the errors |predicted - measured| of the prediction that the scheduler made when
it sent each one (carillon_prediction_error_seconds).

    python bench/prediction.py [--executions 10000] [--model resnet50] [--engine-bench build/release/carillon_engine_bench]
"""
import argparse
import json
import subprocess

import harness


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executions", type=int, default=10000)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--repository", default=str(harness.ROOT / "build/samples"))
    args = parser.parse_args()
    repository = harness.samples(args.repository, args.model)
    with harness.only(repository, args.model) as models, harness.Server(models) as server:
        warm = harness.load(server.http_url, [args.model], "--process", "closed:1", "--duration", 3)
        seconds = args.executions * max(warm["p50_ms"], 0.2) / 1000 * 1.03
        before = histogram(server.metrics(), "carillon_prediction_error_seconds", args.model)
        before_exec = histogram(server.metrics(), "carillon_exec_seconds", args.model)
        result = harness.load(server.http_url, [args.model], "--process", "closed:1", "--duration", seconds)
        errors = difference(histogram(server.metrics(), "carillon_prediction_error_seconds", args.model), before)
        execs = difference(histogram(server.metrics(), "carillon_exec_seconds", args.model), before_exec)
    rows = []
    for name, h in (("execution", execs), ("prediction error", errors)):
        rows.append([name, h[-1][1], *(f"{1e3 * quantile(h, q):.3f}" for q in (0.5, 0.9, 0.99, 0.999, 0.9999))])
    rows.append(["latency (client)", result["on_time"], f"{result['p50_ms']:.3f}", f"{result['p90_ms']:.3f}",
                 f"{result['p99_ms']:.3f}", f"{result['p999_ms']:.3f}", f"max {result['max_ms']:.3f}"])
    harness.table(rows, ["ms", "n", "p50", "p90", "p99", "p99.9", "p99.99"])
    p50, p99, p9999 = (quantile(execs, q) for q in (0.5, 0.99, 0.9999))
    print(f"\nexecution: p99 is {p99 / p50:.3f} and p99.99 is {p9999 / p50:.3f} times the p50 (bins are 3% wide)")
    harness.save("prediction", {"model": args.model, "executions": execs[-1][1], "exec_s": execs, "error_s": errors,
                                "load": result})


def histogram(samples, name, model):
    """Cumulative [(upper bound in seconds, count)], ascending."""
    found = {}
    for (sample, labels), value in samples.items():
        labels = dict(labels)
        if sample == name + "_bucket" and labels.get("model") == model:
            found[float(labels["le"].replace("+Inf", "inf"))] = value
    return sorted(found.items())


def difference(after, before):
    earlier = dict(before)
    return [(bound, int(count - earlier.get(bound, 0))) for bound, count in after]


def quantile(cumulative, q):
    """Upper bound of the bin in which the nearest-rank value lies."""
    total = cumulative[-1][1]
    return next(bound for bound, count in cumulative if count >= q * total)


if __name__ == "__main__":
    main()
