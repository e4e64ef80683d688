"""All that is asked of Ray: nodes, placement groups, detached actors with names, and its autoscaler."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import ray
from ray.util.placement_group import placement_group_table
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from ._keeper import Keeper, Scaler, ask

NAMESPACE = "carillon"
HEAD = "node:__internal_head__"
STEP_S = 15.0  # what an answer of Ray's own may take


class Away(RuntimeError):
    """An actor does not answer: Ray starts it, or it hangs."""


@dataclass(frozen=True)
class Node:
    id: str
    address: str
    resources: Mapping[str, float]  # all, and not what is free
    head: bool


# Ray warns of what a group's removal does to such actors; here groups go after their actors.
logging.getLogger("ray.actor").addFilter(lambda record: "restartable detached actor" not in record.getMessage())


def connect() -> None:
    if ray.is_initialized():
        return
    try:
        ray.init(address="auto", namespace=NAMESPACE, logging_level=logging.WARNING, log_to_driver=False)
    except ConnectionError as error:
        raise ConnectionError("no Ray cluster is found: `ray start --head` starts one, and RAY_ADDRESS names another "
                              f"host's. Ray says: {error}") from None


def options_of(resources: Mapping[str, float]) -> dict:
    """As @ray.remote takes them."""
    own = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
    found: dict = {"num_cpus": 0}
    found |= {own[name]: amount for name, amount in resources.items() if name in own}
    return found | {"resources": {name: amount for name, amount in resources.items() if name not in own}}


class Land:
    KINDS = {"keeper": Keeper, "scaler": Scaler}

    def nodes(self) -> list[Node]:
        return [Node(each["NodeID"], each["NodeManagerAddress"],
                     {name: amount for name, amount in each["Resources"].items() if not name.startswith("node:")},
                     HEAD in each["Resources"])
                for each in ray.nodes() if each["Alive"]]

    def names(self, prefix: str) -> list[str]:
        """Of actors that are not dead."""
        return sorted(each["name"] for each in ray.util.list_named_actors(all_namespaces=True)
                      if each["namespace"] == NAMESPACE and each["name"].startswith(prefix))

    def start(self, kind: str, name: str, *arguments, resources: Mapping[str, float] = {}, group: str | None = None,
              bundle: int = -1, node: str | None = None) -> None:
        if group is not None:
            where = PlacementGroupSchedulingStrategy(ray.util.get_placement_group(group), placement_group_bundle_index=bundle)
        else:
            where = NodeAffinitySchedulingStrategy(node, soft=True) if node else "SPREAD"
        ray.remote(self.KINDS[kind]).options(
            name=name, namespace=NAMESPACE, lifetime="detached", get_if_exists=True, max_restarts=-1, max_concurrency=4,
            scheduling_strategy=where, **options_of(resources)).remote(*arguments)

    def call_all(self, names: Sequence[str], method: str, *arguments, seconds: float = STEP_S) -> dict:
        """What each says; Away, as a value, where it says nothing."""
        asked, answers = {}, {}
        for name in names:
            try:
                asked[getattr(ray.get_actor(name, NAMESPACE), method).remote(*arguments)] = name
            except ValueError as error:  # Ray's, of a name that nobody has
                answers[name] = Away(str(error))
        done, _ = ray.wait(list(asked), num_returns=len(asked), timeout=seconds) if asked else ([], [])
        for ref, name in asked.items():
            if ref not in done:
                ray.cancel(ref)
                answers[name] = Away(f"no answer within {seconds:g} s")
                continue
            try:
                answers[name] = ray.get(ref)
            except ray.exceptions.RayActorError as error:
                answers[name] = Away(str(error).splitlines()[0])
        return answers

    def call(self, name: str, method: str, *arguments, seconds: float = STEP_S):
        answer = self.call_all([name], method, *arguments, seconds=seconds)[name]
        if isinstance(answer, Away):
            raise answer
        return answer

    def end(self, name: str) -> None:
        try:
            ray.kill(ray.get_actor(name, NAMESPACE), no_restart=True)
        except ValueError:
            pass  # it has ended

    def groups(self, prefix: str) -> dict[str, int]:
        """How many bundles each has."""
        return {each["name"]: len(each["bundles"]) for each in placement_group_table().values()
                if each["state"] != "REMOVED" and each["name"].startswith(prefix)}

    def make_group(self, name: str, bundles: Sequence[Mapping[str, float]]) -> None:
        ray.util.placement_group([dict(each) for each in bundles], strategy="SPREAD", name=name, lifetime="detached")

    def wait_group(self, name: str, seconds: float) -> bool:
        return ray.util.get_placement_group(name).wait(seconds)

    def drop_group(self, name: str) -> None:
        try:
            ray.util.remove_placement_group(ray.util.get_placement_group(name))
        except ValueError:
            pass  # it is gone

    def free(self) -> dict[str, float]:
        return {name: amount for name, amount in ray.available_resources().items() if not name.startswith("node:")}

    def ask(self, program: str | None, cluster: str, seconds: float) -> tuple[int, str, str]:
        ref = ray.remote(ask).options(num_cpus=0, scheduling_strategy="SPREAD").remote(program, cluster)
        try:
            return ray.get(ref, timeout=seconds)
        except ray.exceptions.GetTimeoutError:
            return 1, "", f"Ray has started no process within {seconds:g} s"

    def request(self, bundles: Sequence[Mapping[str, float]]) -> None:
        from ray.autoscaler.sdk import request_resources
        request_resources(bundles=[dict(each) for each in bundles])
