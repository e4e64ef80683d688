"""The network of hosts does what tests ask of it, and goes with them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cluster_processes import LIMIT, wait_for

from .network import Hosts

PORT = 5000
# Writes who sent a datagram, and answers with this host's time in seconds.
ANSWERS = f"""
import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("", {PORT}))
print("listens", flush=True)
while True:
    said, sender = s.recvfrom(2000)
    print(sender[0], flush=True)
    s.sendto(str(time.monotonic()).encode(), sender)
"""
ASKS = f"""
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(0.3)
s.sendto(b"?", (sys.argv[1], {PORT}))
try:
    print(s.recv(2000).decode())
except TimeoutError:
    pass
"""
FLOODS = f"""
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(100):
    s.sendto(bytes(1000), (sys.argv[1], {PORT}))
"""


class Answers:
    """A process that answers at a host."""

    def __init__(self, host, log: Path):
        self.log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(host.on(sys.executable, "-c", ANSWERS), stdout=out)

    def heard(self, sender) -> int:
        return self.log.read_text().splitlines().count(sender.address)


@pytest.fixture
def two(net, start, tmp_path):
    """Hosts whose clocks differ by a thousand seconds, and what answers there."""
    hosts = [net.host("one", ahead_s=1000), net.host("two", ahead_s=2000)]
    answers = [start(Answers(host, tmp_path / host.name)) for host in hosts]
    wait_for(lambda: all("listens" in each.log.read_text() for each in answers), "both listen")
    return *hosts, *answers


def ask(asking, asked) -> str:
    return asking.run(sys.executable, "-c", ASKS, asked.address).strip()


def test_hosts_reach_each_other_until_they_are_cut(net, two):
    one, other, *_ = two
    assert ask(one, other) and ask(other, one) and ask(net.desk, one)
    net.cut(one, other)
    assert not ask(one, other) and not ask(other, one)
    assert ask(net.desk, one) and ask(one, one)
    net.mend(one, other)
    assert ask(one, other) and ask(other, one)
    net.link_down(one)
    assert not ask(net.desk, one)
    assert ask(one, one) and ask(net.desk, other)
    net.link_up(one)
    wait_for(lambda: ask(net.desk, one) and ask(one, other), "the link")


def test_a_cut_of_one_way_leaves_the_other(net, two):
    one, other, of_one, of_other = two
    net.cut_one_way(one, other)
    assert not ask(one, other) and of_other.heard(one) == 0
    assert not ask(other, one) and of_one.heard(other) == 1  # its question came; the answer is lost


def test_a_link_that_is_limited_loses_what_is_too_much(net, two):
    one, other, _, of_other = two
    net.limit(one, "100kbit")
    one.run(sys.executable, "-c", FLOODS, other.address)
    wait_for(lambda: of_other.heard(one) > 0, "some")
    assert ask(net.desk, other) and of_other.heard(one) < 100
    net.limit(one, None)
    assert ask(one, other)


def test_each_host_has_its_clock_and_its_name(net, two):
    one, other, *_ = two
    before = time.monotonic()
    for host in (one, other):
        assert before <= float(ask(net.desk, host)) - net.clock_offset(host, seen_from=net.desk) / 1e6 <= time.monotonic()
        assert host.run("hostname").strip() == host.name


def test_nothing_is_left_of_a_network(can_have_hosts):
    home = os.readlink("/proc/thread-self/ns/net")
    with Hosts() as net:
        assert os.readlink("/proc/thread-self/ns/net") != home
        pids = [each.pid for each in (net.switch, net.desk, net.host("one"))]
    assert os.readlink("/proc/thread-self/ns/net") == home
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the namespaces' processes are gone")


BUILDS_AND_IS_KILLED = """
import os, signal, subprocess, sys, time
sys.path[:0] = sys.argv[1:]
from hosts.network import Hosts
net = Hosts().__enter__()
host = net.host("one")
sleeps = subprocess.Popen(host.on("sleep", "1000"))
while open(f"/proc/{sleeps.pid}/comm").read() != "sleep\\n":
    time.sleep(0.01)
print(net.switch.pid, net.desk.pid, host.pid, sleeps.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nothing_is_left_when_the_tests_process_is_killed(can_have_hosts):
    killed = subprocess.Popen([sys.executable, "-c", BUILDS_AND_IS_KILLED, *filter(None, sys.path)], stdout=subprocess.PIPE, text=True)
    pids = killed.stdout.readline().split()
    killed.stdout.close()
    assert len(pids) == 4 and killed.wait(LIMIT) == -signal.SIGKILL
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), f"processes {pids} are gone")
