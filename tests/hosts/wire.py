"""A network whose packets take a time, and some of which are lost, by a seed; for kernels that have no netem.

Hosts are namespaces (network.Namespace) with a point-to-point device each (TUN). One process, a wire, reads what they send
and writes it to whom it is for, after the delay, in order. What a host sends to itself does not pass through it.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import fcntl
import gc
import json
import os
import random
import select
import signal
import struct
import subprocess
import sys
import time

from .network import CLONE_NEWNET, LIMIT, Namespace

TUNSETIFF, TUN, NO_INFORMATION = 0x400454CA, 1, 0x1000
PR_SET_TIMERSLACK = 29
MTU = 9000


class WiredHost(Namespace):
    def __init__(self, name: str, number: int):
        super().__init__(name)
        self.number, self.address = number, f"10.1.0.{number}"

    def at(self, port: int) -> str:
        return f"{self.address}:{port}"


class WiredHosts:
    """Hosts by name, and the wire between them. Use as a context. `told` has the wire's counts once it has ended.

    `route`: what `ip route` says of the way to the others, such as ("rto_min", "5ms").
    """

    def __init__(self, names, delay_ms: float, loss: float = 0, seed: int = 1, route=()):
        self.names, self.delay_ms, self.loss, self.seed, self.route = names, delay_ms, loss, seed, route
        self.hosts: dict[str, WiredHost] = {}
        self.stack = contextlib.ExitStack()
        self.told: dict = {}

    def __enter__(self) -> WiredHosts:
        with contextlib.ExitStack() as undo:
            undo.push(self.stack.__exit__)
            for number, name in enumerate(self.names, 1):
                self.hosts[name] = WiredHost(name, number)
                self.stack.callback(self.hosts[name].end)
            how = {"pids": [each.pid for each in self.hosts.values()], "delay_ms": self.delay_ms, "loss": self.loss, "seed": self.seed}
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", "nice", "-n", "-15", sys.executable, "-c",
                 "import sys, json; sys.path[:0] = sys.argv[2:]; from hosts.wire import carry; carry(**json.loads(sys.argv[1]))",
                 json.dumps(how), *filter(None, sys.path)], stdout=subprocess.PIPE, text=True)
            self.stack.callback(self._end_wire)
            if self.process.stdout.readline() != "there\n":
                raise RuntimeError(f"no wire: it ended with {self.process.wait(LIMIT)}")
            for each in self.hosts.values():
                each.run("ip", "address", "add", f"{each.address}/24", "dev", "wire")
                each.run("ip", "link", "set", "wire", "mtu", str(MTU), "txqueuelen", "10000", "up")
                if self.route:
                    each.run("ip", "route", "change", "10.1.0.0/24", "dev", "wire", "src", each.address, *self.route)
            undo.pop_all()
        return self

    def _end_wire(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        said, _ = self.process.communicate(timeout=LIMIT)
        if said:
            self.told = json.loads(said)

    def __exit__(self, *raised) -> None:
        self.stack.__exit__(*raised)


def carry(pids: list[int], delay_ms: float, loss: float, seed: int) -> None:
    """The wire's process: until SIGTERM. Then it prints how many packets came, were lost, and how late they were passed on."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    devices = {}
    for number, pid in enumerate(pids, 1):
        there = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        if libc.setns(there, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
        os.close(there)
        devices[number] = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(devices[number], TUNSETIFF, struct.pack("16sH22x", b"wire", TUN | NO_INFORMATION))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print("there", flush=True)
    gc.disable()
    draw, delay = random.Random(seed).random, delay_ms / 1000
    waiting: collections.deque = collections.deque()  # (when, device, packet)
    came = lost = 0
    late: list[float] = []
    try:
        while True:
            wait = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
            readable, _, _ = select.select(list(devices.values()), (), (), wait)
            for device in readable:
                with contextlib.suppress(BlockingIOError):
                    for _ in range(32):
                        packet = os.read(device, 65536)
                        target = devices.get(packet[19])  # of 10.1.0.x
                        if packet[0] >> 4 != 4 or target is None:
                            continue
                        came += 1
                        if loss and draw() < loss:
                            lost += 1
                        else:
                            waiting.append((time.monotonic() + delay, target, packet))
            while waiting and waiting[0][0] <= (now := time.monotonic()):
                at, target, packet = waiting.popleft()
                late.append(now - at)
                with contextlib.suppress(OSError):
                    os.write(target, packet)
    except KeyboardInterrupt:
        late.sort()
        print(json.dumps({"packets": came, "lost": lost, "late_p50_us": 1e6 * late[len(late) // 2] if late else 0,
                          "late_p99_us": 1e6 * late[int(0.99 * len(late))] if late else 0, "late_most_us": 1e6 * late[-1] if late else 0}), flush=True)
