#!/usr/bin/env python3
"""Incast: one worker pulls eight rows of 150 KB from each of eight frontends at once, as in Symphony's figure 17.

Processes on this machine: an etcd, a scheduler, a worker with one emulated device, eight frontends. In each round a client
sends eight requests to each frontend, with time to spare. Symphony waits until it must begin, and has all 64 rows in one
batch. The worker then pulls them all. A tap on the loopback device has the kernel's time of each packet's beginning. A pull
is counted from the round's first request for a row to the arrival of the row's last byte. A round that was not one batch,
or in which the machine stood still for more than 5 ms, is left out and counted. Needs root.

    python bench/cluster_incast.py [--rounds 300] [--frontends 8] [--rows 8] [--bytes 150000]
"""
import argparse
import collections
import contextlib
import json
import math
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request

import emulated
import harness
from cluster import Cluster

sys.path.append(str(harness.ROOT / "tests"))
from loopback import free_addresses  # noqa: E402

RUN_MS = 20
WAIT_MS = 1000  # of a request; Symphony begins a batch about a run's time before
SO_TIMESTAMPNS, SO_RCVBUFFORCE, SO_ATTACH_FILTER = 35, 33, 26


def tap(ports):
    """A process: [time, port of the frontend, port of the worker, bytes, 1 to the frontend or 0 from it] of each packet, until SIGINT."""
    import ctypes
    # TCP, no longer than its headers.
    code = b"".join(struct.pack("HBBI", *each) for each in [(0x30, 0, 0, 9), (0x15, 0, 1, 6), (0x06, 0, 0, 80), (0x06, 0, 0, 0)])
    buffer = ctypes.create_string_buffer(code)
    heard = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
    heard.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", len(code) // 8, ctypes.addressof(buffer)))
    heard.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 256 << 20)
    heard.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    heard.bind(("lo", 0x0800))
    print(flush=True)
    packets = []
    try:
        while True:
            packet, extra, _, sender = heard.recvmsg(80, 64)
            if sender[2] == 4:
                continue  # it comes in, too
            start = (packet[0] & 15) * 4
            source, target = struct.unpack_from("!HH", packet, start)
            size = struct.unpack_from("!H", packet, 2)[0] - start - (packet[start + 12] >> 4) * 4
            if size <= 0 or not (source in ports or target in ports):
                continue
            seconds, ns = struct.unpack("qq", extra[0][2])
            to = target in ports
            packets.append((seconds + ns / 1e9, target if to else source, source if to else target, size, int(to)))
    except KeyboardInterrupt:
        lost = struct.unpack("II", heard.getsockopt(263, 6, 8))[1]  # SOL_PACKET, PACKET_STATISTICS
        print(json.dumps({"packets": packets, "lost": lost}))


def repository(folder, args):
    import numpy
    import onnx
    from onnx import TensorProto, helper
    values = args.bytes // 4
    weights = onnx.numpy_helper.from_array(numpy.zeros((values, 1), numpy.float32), "weights")
    graph = helper.make_graph([helper.make_node("MatMul", ["input", "weights"], ["output"])], "wide",
                              [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["N", values])],
                              [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["N", 1])], [weights])
    place = pathlib.Path(folder) / "models/wide/1"
    place.mkdir(parents=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), place / "model.onnx")
    sizes = list(range(1, args.frontends * args.rows + 1))
    (place.parent / "config.pbtxt").write_text(f"""name: "wide"
platform: "onnxruntime_onnx"
max_batch_size: {sizes[-1]}
input [ {{ name: "input" data_type: TYPE_FP32 dims: [ {values} ] }} ]
output [ {{ name: "output" data_type: TYPE_FP32 dims: [ 1 ] }} ]
dynamic_batching {{ preferred_batch_size: {sizes} }}
""")
    times = [{"batch": b, "p50_ms": RUN_MS + b / 10, "p99_ms": RUN_MS + b / 10} for b in sizes]
    profile = pathlib.Path(folder) / "profile.json"
    profile.write_text(json.dumps({"device": "emulated", "models": [
        {"name": "wide", "weights_bytes": 1_000_000, "load_ms": {"p50": 1, "p99": 1}, "batches": times}]}))
    return place.parent.parent, profile


class Asker:
    def __init__(self, address, args):
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = json.dumps({"inputs": [{"name": "input", "shape": [1, args.bytes // 4], "datatype": "FP32",
                                       "parameters": {"binary_data_size": args.bytes}}], "parameters": {"timeout": WAIT_MS * 1000}}).encode()
        self.request = (f"POST /v2/models/wide/infer HTTP/1.1\r\nHost: bench\r\nInference-Header-Content-Length: {len(head)}\r\n"
                        f"Content-Length: {len(head) + args.bytes}\r\n\r\n").encode() + head + bytes(args.bytes)

    def answer(self):
        got = b""
        while b"\r\n\r\n" not in got:
            more = self.socket.recv(65536)
            if not more:
                raise SystemExit("a frontend hung up")
            got += more
        head, _, body = got.partition(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        while len(body) < length:
            body += self.socket.recv(65536)
        return int(head.split(b" ", 2)[1])


def executions(metrics):
    text = urllib.request.urlopen(f"http://{metrics}/metrics", timeout=30).read().decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith("carillon_device_executions_total"))


def pulls(packets, args):
    """Seconds of each row's pull in one round; none where rows are missing."""
    # A header, the sizes and the length of the one input; then a header for each 64 KiB.
    whole = args.bytes + 40 + 16 * math.ceil(args.bytes / (64 << 10))
    asked = [p[0] for p in packets if p[4]]
    if not asked:
        return None
    begin, came, took = min(asked), collections.Counter(), []
    for at, front, worker, size, to in sorted(packets):
        if to:
            continue
        before = came[front, worker] // whole
        came[front, worker] += size
        took += [at - begin] * (min(args.rows, came[front, worker] // whole) - min(args.rows, before))
    return took if len(took) == args.frontends * args.rows else None


def percentile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, math.ceil(q * len(values)) - 1)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--frontends", type=int, default=8)
    parser.add_argument("--rows", type=int, default=8, help="of each frontend")
    parser.add_argument("--bytes", type=int, default=150_000, help="of a row, a multiple of 4")
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--keep-stalled", action="store_true", help="leaves out no round in which the machine stood still; for trials")
    args = parser.parse_args()
    rounds = []  # begin, end, good
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        models, profile = repository(folder, args)
        metrics = free_addresses(1)[0]
        cluster = Cluster(stack, f"{folder}/box", models, schedulers=1, frontends=args.frontends, tls=args.tls,
                          worker_options=(*emulated.devices(profile, 1), "--metrics", metrics), scheduler_options=("--scheduler", "symphony"))
        cluster.until(cluster.whole)
        ports = {int(cluster.listens[f"f{i + 1}"].rpartition(":")[2]) for i in range(args.frontends)}
        askers = [Asker(door, args) for _ in range(args.rows) for door in cluster.doors.values()]
        watch = stack.enter_context(emulated.Watch())
        listener = subprocess.Popen([sys.executable, "-c", "import sys, json; sys.path[:0] = sys.argv[2:]; import cluster_incast; "
                                     "cluster_incast.tap(set(json.loads(sys.argv[1])))", json.dumps(sorted(ports)), *filter(None, sys.path)],
                                    stdout=subprocess.PIPE, text=True)
        listener.stdout.readline()
        apart = time.time() - time.monotonic()
        answers, ran = collections.Counter(), collections.Counter()
        for _ in range(args.rounds):
            before = executions(metrics)
            begin = time.monotonic()
            for each in askers:
                each.socket.sendall(each.request)
            statuses = [each.answer() for each in askers]
            time.sleep(0.03)
            end = time.monotonic()
            answers.update(statuses)
            batches = executions(metrics) - before
            ran[batches] += 1
            rounds.append((begin, end, batches == 1 and set(statuses) == {200}))
        listener.send_signal(signal.SIGINT)
        told = json.loads(listener.communicate(timeout=60)[0])
    took, worst, left_out = [], [], collections.Counter()
    packets = sorted(told["packets"])
    for begin, end, good in rounds:
        if not good:
            left_out["not one batch"] += 1
        elif watch.stalled(begin, end) and not args.keep_stalled:
            left_out["the machine stood still"] += 1
        elif (these := pulls([p for p in packets if begin < p[0] - apart < end], args)) is None:
            left_out["packets missing"] += 1
        else:
            took += [1000 * each for each in these]
            worst.append(1000 * max(these))
    print(f"answers {dict(answers)}; batches of a round {dict(ran)}; left out {dict(left_out)} of {len(rounds)} rounds; the tap lost {told['lost']} packets")
    if not took:
        raise SystemExit("no round counts")
    harness.table([["a row", len(took), *(f"{percentile(took, q):.2f}" for q in (.5, .99, .9999)), f"{max(took):.2f}"],
                   ["all rows of a round", len(worst), *(f"{percentile(worst, q):.2f}" for q in (.5, .99, .9999)), f"{max(worst):.2f}"]],
                  ["pull", "count", "p50 ms", "p99 ms", "p99.99 ms", "most ms"])
    harness.save("cluster_incast", {"frontends": args.frontends, "rows": args.rows, "bytes": args.bytes, "pulls_ms": took, "left_out": left_out})
    print(harness.machine())


if __name__ == "__main__":
    main()
