#!/usr/bin/env python3
"""Memory over a long run: the server's resident set must not grow.

Mixed load (open loop, both protocols, overloaded for a part of the time, clients that leave in the middle) for
--minutes; the resident set is read every second. The load repeats every minute (its last third is a burst), so growth
is told by the smallest resident set of each minute: the slope of a line through those of the second half.

    python bench/steady.py [--minutes 10] [--plot docs/img/steady.png]
"""
import argparse
import pathlib
import socket
import threading
import time

import harness

MODELS = ["tiny_mlp", "tiny_cnn", "tiny_encoder", "resnet18"]


def leavers(server, stop, rate=20):
    """Clients that send a request and hang up before the answer."""
    body = b'{"inputs":[]}'
    head = b"POST /v2/models/resnet18/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 4000\r\n\r\n"
    while not stop.is_set():
        with socket.socket() as s:
            s.connect(("127.0.0.1", server.http))
            s.sendall(head + body)
        stop.wait(1 / rate)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--repository", default=str(harness.ROOT / "build/samples"))
    parser.add_argument("--plot", default=str(harness.ROOT / "docs/img/steady.png"))
    args = parser.parse_args()
    import numpy as np
    repository = harness.samples(args.repository, *MODELS)
    times, sizes, results = [], [], []
    stop = threading.Event()
    with harness.only(repository, *MODELS) as models, harness.Server(models) as server:
        def watch():
            begin = time.monotonic()
            while not stop.wait(1):
                times.append(time.monotonic() - begin)
                sizes.append(server.rss_bytes() / 2**20)

        threads = [threading.Thread(target=watch), threading.Thread(target=leavers, args=(server, stop))]
        for t in threads:
            t.start()
        end = time.monotonic() + 60 * args.minutes
        round_number = 0
        while time.monotonic() < end:
            url = server.http_url if round_number % 2 else server.grpc_url
            streams = [f"{m},rate={r},deadline={d}" for m, r, d in
                       (("tiny_mlp", 300, 50), ("tiny_cnn", 200, 50), ("tiny_encoder", 100, 50),
                        ("resnet18", 300 if round_number % 3 == 2 else 20, 100))]
            left = end - time.monotonic()
            results.append(harness.load(url, streams, "--duration", max(1, min(20, left)), "--seed", round_number))
            round_number += 1
        stop.set()
        for t in threads:
            t.join()
    half = len(times) // 2
    lows = [min(size for t, size in zip(times, sizes, strict=True) if minute <= t / 60 < minute + 1)
            for minute in range(int(times[-1] / 60))]
    late_lows = lows[len(lows) // 2:]
    slope = float(np.polyfit(range(len(late_lows)), late_lows, 1)[0]) if len(late_lows) > 1 else float("nan")
    total = {k: sum(r[k] for r in results) for k in ("sent", "on_time", "late", "refused", "failed", "unanswered")}
    print(f"{args.minutes:g} minutes, {total['sent']} requests: {total}")
    print(f"resident set: {sizes[0]:.1f} MiB at 1 s, {sizes[half]:.1f} MiB half way, {sizes[-1]:.1f} MiB at the end, "
          f"{max(sizes):.1f} MiB at most; lowest of each minute: {', '.join(f'{low:.1f}' for low in lows)}; "
          f"slope of their second half {slope:+.3f} MiB a minute")
    harness.save("steady", {"minutes": args.minutes, "slope_mib_per_minute": slope, "total": total,
                            "lows_mib": lows, "rss_mib": {"first": sizes[0], "half": sizes[half], "last": sizes[-1], "max": max(sizes)}})
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(figsize=(8, 3.5))
    axes.plot([t / 60 for t in times], sizes)
    axes.set(xlabel="minutes", ylabel="resident set (MiB)", ylim=(min(sizes) - 100, max(sizes) + 100))
    figure.tight_layout()
    pathlib.Path(args.plot).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.plot, dpi=110)


if __name__ == "__main__":
    main()
