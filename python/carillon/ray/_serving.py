"""The verbs: begin, see, scale and delete the processes of one cluster. Of Ray it sees a `Land` alone."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Mapping

from ._plan import FEW_ENDS, PATIENCE, ROLES, Mistake, Plan, Spec, checked_workers, cluster_name, unmet

LOOKS_S = 0.5
DRAIN_S = 80.0
SCALER_STOPS_S = 120.0


def members_of(said: tuple[int, str, str]) -> dict | None:
    """What `carillon cluster status` printed; none: it could not say who is a member."""
    with contextlib.suppress(ValueError, TypeError):
        told = json.loads(said[1])
        if "members" in told:
            return told
    return None


class Serving:
    def __init__(self, land, cluster: str, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep):
        self._land, self._cluster, self._clock, self._sleep = land, cluster, clock, sleep
        self._name = cluster_name(cluster)

    # --- Names

    def _actor(self, role: str, number: int) -> str:
        return f"{self._name}/{role}-{number}"

    @property
    def _scaler(self) -> str:
        return f"{self._name}/scaler"

    @property
    def _first_group(self) -> str:
        return f"{self._name}/workers"

    def _numbers(self, role: str) -> list[int]:
        head = f"{self._name}/{role}-"
        return sorted(int(name[len(head):]) for name in self._land.names(head))

    def _actors(self, *roles: str) -> list[str]:
        return [self._actor(role, number) for role in roles or ROLES for number in self._numbers(role)]

    # --- Begin

    def begin(self, plan: Plan) -> None:
        if self._land.names(f"{self._name}/"):
            raise Mistake(f"{self._name} is already served on this Ray cluster: scale it, or delete it first")
        nodes = self._land.nodes()
        if plan.most == plan.workers:  # else an autoscaler may bring other nodes
            if lacks := unmet(plan.resources, [node.resources for node in nodes]):
                raise Mistake(lacks)
        counts = self._counts(plan)
        until = self._clock() + plan.timeout
        # Outside of what is undone: the name may be another serve's, which began meanwhile.
        self._land.make_group(self._first_group, [plan.resources] * plan.workers)
        try:
            if not self._land.wait_group(self._first_group, plan.timeout):
                raise TimeoutError(self._no_room(plan))
            places = [node.id for node in nodes if not node.head] or [node.id for node in nodes]
            for role in ("scheduler", "frontend"):
                for number in range(counts[role]):
                    self._land.start("keeper", self._actor(role, number), plan.spec(role, number),
                                     node=places[number % len(places)])
            self.place(plan.spec("worker", 0), plan.workers)
            self._wait(plan, until)
            if plan.wanted_from:
                self._land.start("scaler", self._scaler, plan)
        except BaseException:
            self.delete()
            raise

    def _counts(self, plan: Plan) -> dict[str, int]:
        """How many frontends and schedulers are started."""
        said = self._land.ask(plan.program, plan.cluster, plan.timeout)
        told = members_of(said)
        if told is None and "knows no cluster" not in said[2]:
            raise ConnectionError(said[2] or f"`carillon cluster status --cluster {plan.cluster}` says nothing")
        there = {member["role"] for member in (told or {"members": []})["members"]}
        return {"scheduler": plan.schedulers if plan.schedulers is not None else 0 if "scheduler" in there else 2,
                "frontend": plan.frontends if plan.frontends is not None else 0 if "frontend" in there else 1}

    def _no_room(self, plan: Plan) -> str:
        free = self._land.free()
        wanted = ", ".join(f"{name!r}: {amount:g}" for name, amount in plan.resources.items())
        left = ", ".join(f"{name!r}: {free.get(name, 0):g}" for name in plan.resources)
        return (f"Ray found no room for {plan.workers} workers of {wanted} within {plan.timeout:g} s; free in all: {left}")

    def _wait(self, plan: Plan, until: float) -> None:
        """Until all processes are members, and the frontends are ready."""
        while missing := self._missing(plan):
            if self._clock() > until:
                raise TimeoutError(f"{self._name} does not serve within {plan.timeout:g} s: {missing}")
            self._sleep(LOOKS_S)

    def _missing(self, plan: Plan) -> str:
        """Of which processes the cluster waits; empty: of none. RuntimeError: one will never serve."""
        names = self._actors()
        states = self._land.call_all(names, "status")
        waits = []
        for name, state in states.items():
            if isinstance(state, Exception):
                waits.append(f"{name}: {state}")
            elif state["not_here"]:
                raise RuntimeError(f"{state['id']}: {state['why']}")
            elif state["short_runs"] >= FEW_ENDS:
                raise RuntimeError(f"{state['id']} on the node {state['node']} does not last, and {state['why']}")
            elif state["state"] != "runs":
                waits.append(f"{state['id']} {state['why']}")
        if waits:
            return "; ".join(waits)
        workers = self._actors("worker")
        told = members_of(self._land.call(workers[0], "ask"))
        if told is None:
            return "etcd does not say who is a member"
        members = {member["id"]: member for member in told["members"]}
        for state in states.values():
            member = members.get(state["id"], {})
            if not member.get("alive") or "-worker-" in state["id"] and not member["devices"]:
                return f"{state['id']} is no member yet; its log: {state['log']}"
        if not told.get("leader"):
            return "nobody leads"
        if plan.http and "--tls-cert" not in plan.options["frontend"]:
            for name, ready in self._land.call_all(self._actors("frontend"), "ready").items():
                if ready is not True:
                    return f"{name} is not ready"
        return ""

    # --- Workers

    def place(self, first: Spec, workers: int) -> None:
        """Starts and ends workers until there are `workers`, numbered from 0; does not wait for those that start."""
        numbers = self._numbers("worker")
        together = self._land.groups(self._first_group).get(self._first_group, 0)
        for number in range(workers):
            if number in numbers:
                continue
            name = group = self._actor("worker", number)
            bundle = 0
            if number < together:
                group, bundle = self._first_group, number
            elif group not in self._land.groups(group):
                self._land.make_group(group, [first.resources])
            self._land.start("keeper", name, dataclasses.replace(first, number=number), resources=first.resources,
                             group=group, bundle=bundle)
        for number in reversed(numbers):
            if number >= workers:
                self._remove(number)

    def _remove(self, number: int) -> None:
        """Drained first, so that nothing is lost."""
        name = self._actor("worker", number)
        state = self._land.call_all([name], "status")[name]
        if not isinstance(state, Exception) and state["state"] == "runs":
            if why := self._land.call(self._actor("worker", 0), "drain", state["id"], seconds=DRAIN_S):
                raise RuntimeError(f"{state['id']} cannot be drained, and stays: {why}")
        self._end([name], PATIENCE["worker"])
        if name in self._land.groups(name):
            self._land.drop_group(name)

    def scale(self, workers: int, timeout: float = 120.0) -> None:
        workers = checked_workers(workers)
        if self._land.names(self._scaler):
            raise Mistake(f"{self._name} follows its wanted number; serve() it with other workers= and most=")
        numbers = self._numbers("worker")
        if not numbers:
            raise Mistake(f"{self._name} is not served on this Ray cluster")
        self.place(self._land.call(self._actor("worker", numbers[0]), "spec"), workers)
        until = self._clock() + timeout
        while waits := [f"{name}: {state if isinstance(state, Exception) else state['why'] or state['state']}"
                        for name, state in self._land.call_all(self._actors("worker"), "status").items()
                        if isinstance(state, Exception) or state["state"] != "runs"]:
            if self._clock() > until:
                raise TimeoutError(f"{self._name} has not {workers} workers within {timeout:g} s: {'; '.join(waits)}")
            self._sleep(LOOKS_S)

    def devices_of_a_worker(self) -> int:
        """RuntimeError: nobody tells, as while etcd does not answer, or before a new leader has heard of the devices."""
        said = self._land.call(self._actor("worker", 0), "ask")
        devices = max((member["devices"] for member in (members_of(said) or {"members": []})["members"]
                       if member["id"].startswith("ray-worker-")), default=0)
        if devices < 1:
            raise RuntimeError("nobody tells how many devices a worker has: " + (said[2] or "the leader knows of none"))
        return devices

    # --- See

    def status(self) -> dict:
        names = self._actors()
        if not names:
            raise Mistake(f"{self._name} is not served on this Ray cluster")
        states = self._land.call_all(names, "status")
        members: Mapping[str, dict] = {}
        told = None
        for name in names:
            if not isinstance(states[name], Exception):
                with contextlib.suppress(Exception):
                    told = members_of(self._land.call(name, "ask"))
                break
        if told:
            members = {member["id"]: member for member in told["members"]}
        out: dict = {"cluster": self._cluster, "leader": (told or {}).get("leader"), "epoch": (told or {}).get("epoch")}
        for role in ROLES:
            out[role + "s"] = []
            for name in (each for each in names if each.startswith(f"{self._name}/{role}-")):
                state = states[name]
                if isinstance(state, Exception):
                    state = {"id": "ray-" + name.partition("/")[2], "state": "away", "why": f"its actor: {state}"}
                out[role + "s"].append(state | {"alive": members.get(state["id"], {}).get("alive", False)})
        out["http"] = [each["http"] for each in out["frontends"] if each.get("http")]
        if self._land.names(self._scaler):
            said = self._land.call_all([self._scaler], "status")[self._scaler]
            out["scaler"] = {"why": str(said)} if isinstance(said, Exception) else said
        return out

    # --- End

    def _end(self, names: list[str], patience: float) -> None:
        self._land.call_all(names, "stop", seconds=patience + 5)
        for name in names:
            self._land.end(name)

    def delete(self) -> None:
        if self._land.names(self._scaler):
            self._end([self._scaler], SCALER_STOPS_S)
        for role in ROLES:
            if names := self._actors(role):
                self._end(names, PATIENCE[role])
        for group in self._land.groups(f"{self._name}/"):
            self._land.drop_group(group)
