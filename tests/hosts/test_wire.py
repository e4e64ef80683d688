"""The wire delays packets, and loses the same ones by the same seed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .wire import WiredHosts

PORT, SENT, DELAY_MS = 5000, 300, 20
HEARS = f"""
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("", {PORT}))
print("listens", flush=True)
while (said := s.recv(100)) != b"end":
    print(said.decode(), flush=True)
"""
SAYS = f"""
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for i in range({SENT}):
    s.sendto(str(i).encode(), (sys.argv[1], {PORT}))
    time.sleep(0.001)
"""
ENDS = f"""
import socket, sys
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"end", ("127.0.0.1", {PORT}))
"""
ROUND_TRIP = f"""
import socket, sys, time
begin = time.monotonic()
try:
    socket.create_connection((sys.argv[1], {PORT}), timeout=20)
except ConnectionRefusedError:
    print(time.monotonic() - begin)
"""


@pytest.fixture(autouse=True)
def possible(can_have_hosts):
    if not Path("/dev/net/tun").exists():
        pytest.skip("a wire needs /dev/net/tun")


def heard(loss: float, seed: int) -> list[int]:
    with WiredHosts(("one", "two"), 1, loss, seed) as net:
        one, two = net.hosts.values()
        hears = subprocess.Popen(two.on(sys.executable, "-c", HEARS), stdout=subprocess.PIPE, text=True)
        assert hears.stdout.readline() == "listens\n"
        one.run(sys.executable, "-c", SAYS, two.address)
        one.run("sleep", "0.3")
        two.run(sys.executable, "-c", ENDS)
        said = [int(line) for line in hears.communicate(timeout=60)[0].split()]
    assert net.told["packets"] - net.told["lost"] == len(said)
    return said


def test_packets_come_in_order_and_by_a_seed_some_do_not():
    assert heard(0, 1) == list(range(SENT))
    some = heard(0.1, 1)
    assert some == sorted(some) and SENT / 2 < len(some) < SENT
    assert heard(0.1, 1) == some
    assert heard(0.1, 2) != some


def test_packets_take_the_delay_each_way():
    with WiredHosts(("one", "two"), DELAY_MS) as net:
        one, two = net.hosts.values()
        assert float(one.run(sys.executable, "-c", ROUND_TRIP, two.address)) >= 2 * DELAY_MS / 1000
