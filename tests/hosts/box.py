"""A cluster over hosts in namespaces: who runs where, who leads, and its processes by id."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import pytest

from cluster_processes import LIMIT, Etcd, Frontend, Kubernetes, Role, ready, wait_for

from .network import Host, Hosts
from .tap import Tap, missed_by_others, shown

ETCD_PORT, PEER_PORT, HTTP_PORT, METRICS_PORT = 2379, 2380, 8000, 8002
ROLES = {"s": "scheduler", "w": "worker", "f": "frontend"}  # by the first letter of an id


class Box:
    """Etcd members (e1, ...), schedulers (s1, ...), workers (w1, ...) and frontends (f1, ...).

    `begin` starts a process, and ends it with the test (cluster_processes.processes). The first scheduler leads.
    """

    def __init__(self, net: Hosts, begin, program: Path, models: Path, folder: Path):
        self.net, self.begin, self.program, self.models, self.folder = net, begin, program, models, folder
        self.on_kubernetes = False  # then the one member of etcd is a stand-in for an API server
        self.options: tuple[str, ...] = ()  # of all roles
        self.protocols = ""  # that processes speak which start from now on; empty: what their build does
        self.worker_options: tuple[str, ...] = ()
        self.has_metrics = False  # frontends and schedulers, as workers always do: no two on one host, then
        self.etcds: dict[str, Etcd | Kubernetes] = {}
        self.roles: dict[str, Role] = {}
        self.host_of: dict[str, Host] = {}
        self.ports: dict[str, int] = {}  # of each host, the last that a process listens at

    @property
    def cluster(self) -> str:
        if self.on_kubernetes:
            return next(iter(self.etcds.values())).cluster()
        return "etcd://" + ",".join(each.client for each in self.etcds.values()) + "/box"

    def start_etcd(self, hosts: Mapping[str, Host]) -> None:
        peers = {id: host.at(PEER_PORT) for id, host in hosts.items()}
        for id, host in hosts.items():
            self.host_of[id] = host
            self.etcds[id] = (Kubernetes(self.folder, id, client=host.at(ETCD_PORT)) if self.on_kubernetes
                              else Etcd(self.folder, id, peers, client=host.at(ETCD_PORT)))
            self.etcds[id].command = host.on(*self.etcds[id].command)
        for each in self.etcds.values():
            self.begin(each)
        for each in self.etcds.values():
            each.ready()

    def start(self, id: str, host: Host, *options: str, cluster: str | None = None) -> Role:
        """A process that is new. With another cluster than this one it is none of `roles`."""
        self.host_of[id] = host
        self.ports[host.name] = self.ports.get(host.name, 6999) + 1
        return self.begin(self.make(id, host, host.at(self.ports[host.name]), *options, cluster=cluster))

    def make(self, id: str, host: Host, listen: str, *options: str, cluster: str | None = None) -> Role:
        role, of, options = ROLES[id[0]], cluster or self.cluster, (*self.options, *options)
        if self.has_metrics and role != "worker":
            options = (*options, "--metrics", host.at(METRICS_PORT))
        on = [*host.on(), "env", f"CARILLON_PROTOCOLS={self.protocols}"] if self.protocols else host.on()
        if role == "frontend":
            made = Frontend(self.program, self.folder, id, of, *options, listen=listen, http=host.at(HTTP_PORT), on=on)
        else:
            if role == "worker":
                options = ("--models", str(self.models), "--memory", "1GiB", "--no-store", "--metrics", host.at(METRICS_PORT), *self.worker_options, *options)
            made = Role(self.program, self.folder, role, id, of, *options, listen=listen, on=on)
        if cluster is None:
            self.roles[id] = made
        return made

    def start_all(self, places: Mapping[str, Host]) -> None:
        """All of a cluster that serves, with the first scheduler as its leader."""
        self.start_etcd({id: host for id, host in places.items() if id.startswith("e")})
        for id, host in places.items():
            if not id.startswith("e"):
                self.start(id, host)
                if id == "s1":
                    self.wait_for_words(self.roles["s1"], "leads, epoch")
        for each in self.frontends():
            ready(each)
        if self.whole()["leader"] != "s1":  # it stood still, as happens on a busy machine
            assert self.ask("handover", "s1").returncode == 0
            self.whole()

    def apart(self, *ids: str) -> None:
        """Likewise, with a host for each process, which is called as the process is."""
        self.start_all({id: self.net.host(id) for id in ids})

    def http(self, id: str) -> str:
        return self.host_of[id].at(HTTP_PORT)

    def frontends(self) -> list[Frontend]:
        return [each for each in self.roles.values() if isinstance(each, Frontend)]

    def ask(self, *arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run([str(self.program), "cluster", *arguments, "--cluster", self.cluster, "--json"],
                              capture_output=True, text=True, errors="replace", timeout=LIMIT)

    def status(self) -> dict:
        """What the leader, or who answers for it, says; empty: nobody does."""
        done = self.ask("status")
        return json.loads(done.stdout) if done.returncode == 0 else {}

    def metrics(self, id: str) -> str:
        """Of a worker; empty: none yet."""
        try:
            return self.scrape(id)
        except OSError:
            return ""

    def pages_taken(self, id: str) -> int:
        """By the weights of models that a leader had a worker load."""
        text = self.metrics(id)
        there, free = (re.search(rf"^carillon_page_cache_pages{which} (\d+)$", text, re.M).group(1) for which in ("", "_free"))
        return int(there) - int(free)

    def batches_run(self, id: str) -> int:
        """By a worker, of all models."""
        return sum(int(count) for count in re.findall(r"^nv_inference_exec_count\{.*\} (\d+)$", self.metrics(id), re.M))

    def scrape(self, id: str) -> str:
        with urllib.request.urlopen(f"http://{self.host_of[id].at(METRICS_PORT)}/metrics", timeout=LIMIT) as response:
            return response.read().decode()

    def of_cluster(self, id: str) -> dict[str, float]:
        """The process's metrics of the cluster: `leader_changes_total`, `clock_bound_seconds{peer="w1"}` and so on."""
        return {name: float(value) for name, value in re.findall(r"^carillon_cluster_(\S+) (\S+)$", self.scrape(id), re.M)}

    def busiest(self, during) -> str:
        """The worker that runs most while `during` goes on."""
        workers = [id for id, each in self.roles.items() if each.role == "worker"]

        def ran(id: str) -> int:
            return int(Path(f"/proc/{self.roles[id].process.pid}/schedstat").read_text(encoding="ascii").split()[0])

        before = {id: ran(id) for id in workers}
        during()
        return max(workers, key=lambda id: ran(id) - before[id])

    def lead(self) -> tuple[str, int]:
        """Who leads, and the epoch, once somebody does."""
        said: dict = {}
        wait_for(lambda: said.update(self.status()) or said.get("leader"), "a leader", self.logs)
        return said["leader"], said["epoch"]

    def alive(self) -> dict[str, bool]:
        return {each["id"]: each["alive"] for each in self.status().get("members", [])}

    def whole(self) -> dict:
        """The status, once all processes are members that are there, with clocks that are known."""
        said: dict = {}

        def are_there() -> bool:
            said.clear()
            said.update(self.status())
            there = {each["id"] for each in said.get("members", []) if each["alive"] and each["offset_us"] is not None}
            return bool(said.get("leader")) and there == set(self.roles)

        wait_for(are_there, f"all of {sorted(self.roles)}", lambda: f"the status is {said}; {self.logs()}")
        return said

    def led(self) -> list[tuple[str, int]]:
        """Who led which epoch, by the schedulers' own logs: a spare's names another."""
        own = [(id, line) for id, role in self.roles.items() if role.role == "scheduler"
               for line in role.text().splitlines() if "leads, epoch" in line and "' leads" not in line]
        return sorted(((id, int(line.rsplit(" ", 1)[1])) for id, line in own), key=lambda each: each[1])

    @contextlib.contextmanager
    def led_by(self, leader: str, tapped: Host):
        """The leader and its epoch must be the same at the end. `tapped`: the host of a spare that might claim.

        On a busy machine the leader may stand still for so long that others miss it, too. Such a change of the leader is right.
        """
        before = self.led()
        assert before[-1][0] == leader, before
        tap = Tap(tapped)
        try:
            yield
        finally:
            heard = tap.end()
        if self.led() != before:
            if missed_by_others(heard, before[-1][1]):
                pytest.skip("the machine is busy: the leader stood still, and members of other hosts missed it")
            pytest.fail(f"{self.led()}: the last one without need\n{self.logs()}\n{shown(heard[-400:])}", pytrace=False)

    def wait_for_words(self, role: Role, words: str) -> None:
        """Until the process has them in its log."""
        wait_for(lambda: words in role.text() or role.process.poll() is not None, f"{role.id}: {words}", self.logs)
        assert words in role.text(), f"{role.id} ended with {role.process.poll()}: {role.text()}"

    def wait_for_leader(self, id: str) -> None:
        wait_for(lambda: self.lead()[0] == id, f"{id} leads", self.logs)

    def must_be_led_by_one(self) -> None:
        """Each epoch is one scheduler's."""
        epochs = [epoch for _, epoch in self.led()]
        assert len(epochs) == len(set(epochs)), self.led()

    def logs(self) -> str:
        return "\n".join(f"--- {id}\n{role.text()[-1500:]}" for id, role in self.roles.items())
