"""A network of several hosts on this machine: each a network namespace, with a link to one switch and a clock of its own.

Namespaces have no names here. A process that waits holds each, so they go with the test's process, however that ends. The
test itself stands on one more host, `desk`: its thread, and all threads and processes that it starts, see this network.

Root is needed, or a user namespace: `unshare --user --map-root-user --net python -m pytest tests/hosts`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess

PROGRAMS = ("unshare", "nsenter", "setpriv", "nice", "hostname", "ip", "tc")
LIMIT = 20  # seconds for a command that changes the network
NOWHERE = "02:00:00:00:00:01"  # no host has it: the switch passes such frames on to all, and all drop them
CLONE_NEWNET = 0x40000000
TRIAL = "hostname trial && ip link add port type veth peer name eth0 && ip link add switch type bridge && tc qdisc add dev port root tbf rate 1mbit burst 32kb latency 50ms"


def missing() -> str:
    """Why this machine can have no such network; empty if it can."""
    lacks = [each for each in PROGRAMS if shutil.which(each) is None]
    if lacks:
        return f"hosts in namespaces need {', '.join(lacks)} (Debian: util-linux, coreutils, hostname, iproute2)"
    tried = subprocess.run(["unshare", "--net", "--uts", "--time", "--monotonic", "1", "--fork", "sh", "-c", TRIAL],
                           capture_output=True, text=True, timeout=LIMIT)
    if tried.returncode != 0:
        return f"this process may make no hosts in namespaces (CAP_NET_ADMIN, CAP_SYS_ADMIN, CAP_SYS_TIME; veth, bridge, tbf): {tried.stderr.strip()}"
    # The test's thread goes to another network, and must be able to come back.
    tried = subprocess.run(["nsenter", "--net=/proc/self/ns/net", "true"], capture_output=True, text=True, timeout=LIMIT)
    return "" if tried.returncode == 0 else f"this process may not come back to its network (unshare --net): {tried.stderr.strip()}"


class Namespace:
    """A network namespace, with a host name, and with a clock (CLOCK_MONOTONIC) that is `ahead_s` later than the machine's."""

    def __init__(self, name: str, ahead_s: int = 0):
        self.name, self.ahead_s = name, ahead_s
        # `cat` ends with the test's process, as its input does. It writes a line once it is there.
        self.holder = subprocess.Popen(
            ["unshare", "--net", "--uts", "--time", "--monotonic", str(ahead_s), "--fork", "--kill-child",
             "sh", "-c", 'hostname "$1" && echo $$ && exec cat', "sh", name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        said = self.holder.stdout.readline()
        if not said:
            raise RuntimeError(f"no namespace: unshare ended with {self.holder.wait(LIMIT)}")
        self.pid = int(said)
        self.run("ip", "link", "set", "lo", "up")

    def on(self, *command: str) -> list[str]:
        """The command that runs `command` here. Its process is the one that is started, and ends with the thread that starts it.

        It goes before other programs of the machine, where that is allowed: hosts in a rack do not wait for each other's processors.
        """
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", f"--uts=/proc/{self.pid}/ns/uts", f"--time=/proc/{self.pid}/ns/time",
                "setpriv", "--pdeathsig", "KILL", "--", "nice", "-n", "-10", *command]

    def run(self, *command: str) -> str:
        done = subprocess.run(self.on(*command), capture_output=True, text=True, timeout=LIMIT)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def end(self) -> None:
        self.holder.stdin.close()
        try:
            self.holder.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self.holder.kill()
            self.holder.wait()
        self.holder.stdout.close()


class Host(Namespace):
    def __init__(self, hosts: Hosts, name: str, number: int, ahead_s: int):
        super().__init__(name, ahead_s)
        self.hosts, self.address = hosts, f"10.0.0.{number}"
        self.port = f"port{number}"  # of the switch
        hosts.switch.run("ip", "link", "add", self.port, "type", "veth", "peer", "name", "eth0", "netns", str(self.pid))
        hosts.switch.run("ip", "link", "set", self.port, "master", "switch", "up")
        self.run("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "up")

    def __repr__(self) -> str:
        return f"{self.name} ({self.address})"

    def at(self, port: int) -> str:
        return f"{self.address}:{port}"


class Hosts:
    """The network. Use as a context: at its end, nothing of the network is left."""

    def __init__(self):
        self.stack = contextlib.ExitStack()
        self.hosts: dict[str, Host] = {}

    def __enter__(self) -> Hosts:
        with contextlib.ExitStack() as undo:
            undo.push(self.stack.__exit__)
            self.switch = self._namespace(Namespace("switch"))
            self.switch.run("ip", "link", "add", "switch", "type", "bridge")
            self.switch.run("ip", "link", "set", "switch", "up")
            self.desk = self._namespace(Host(self, "desk", 254, 0))
            self._stand_at(self.desk)
            undo.pop_all()
        return self

    def __exit__(self, *raised) -> None:
        self.stack.__exit__(*raised)

    def _namespace(self, made):
        self.stack.callback(made.end)
        return made

    def _stand_at(self, host: Host) -> None:
        libc = ctypes.CDLL(None, use_errno=True)

        def move(descriptor: int) -> None:
            if libc.setns(descriptor, CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")

        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        self.stack.callback(os.close, home)
        there = os.open(f"/proc/{host.pid}/ns/net", os.O_RDONLY)
        try:
            move(there)
            self.stack.callback(move, home)
        finally:
            os.close(there)

    def host(self, name: str, ahead_s: int = 0) -> Host:
        """A new host. `ahead_s`: how much later its clock is than the machine's; see `clock_offset`."""
        self.hosts[name] = self._namespace(Host(self, name, len(self.hosts) + 1, ahead_s))
        return self.hosts[name]

    @staticmethod
    def clock_offset(of: Host, seen_from: Host) -> int:
        """How much later the one's clock is than the other's, in microseconds."""
        return (of.ahead_s - seen_from.ahead_s) * 1_000_000

    # Each cut loses what is sent, without a word to who sends it. What the hosts send to themselves always arrives.

    def cut_one_way(self, sender: Host, receiver: Host) -> None:
        sender.run("ip", "neighbour", "replace", receiver.address, "lladdr", NOWHERE, "nud", "permanent", "dev", "eth0")

    def cut(self, one: Host, other: Host) -> None:
        self.cut_one_way(one, other)
        self.cut_one_way(other, one)

    def mend(self, one: Host, other: Host) -> None:
        for sender, receiver in ((one, other), (other, one)):
            if NOWHERE in sender.run("ip", "neighbour", "show", "to", receiver.address, "nud", "permanent"):
                sender.run("ip", "neighbour", "delete", receiver.address, "dev", "eth0")

    def link_down(self, host: Host) -> None:
        """Pulls the cable: the host has no carrier."""
        self.switch.run("ip", "link", "set", host.port, "down")

    def link_up(self, host: Host) -> None:
        self.switch.run("ip", "link", "set", host.port, "up")

    def limit(self, host: Host, rate: str | None) -> None:
        """At most so much each way, such as "2mbit"; None: no limit."""
        for place, device in ((host, "eth0"), (self.switch, host.port)):
            words = ("replace", "dev", device, "root", "tbf", "rate", rate, "burst", "32kb", "latency", "50ms") if rate else ("delete", "dev", device, "root")
            place.run("tc", "qdisc", *words)


