"""What the caller of serve() asked for: checked, and as command lines. Pure."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ADDRESS = re.compile(r"(?:etcds?|kubernetes)://[^/]+/(?P<name>[A-Za-z0-9._-]{1,64})")
SPELLED = {name.lower(): name for name in ("CPU", "GPU", "memory")}
MOST_WORKERS = 1000
FEW_ENDS = 3  # a process that ended so often, without having lasted, is not going to serve
PATIENCE = {"frontend": 15.0, "worker": 10.0, "scheduler": 5.0}  # seconds from SIGTERM to SIGKILL
ROLES = tuple(PATIENCE)  # in the order in which they are stopped


class Mistake(ValueError):
    """An argument that cannot be."""


def cluster_name(cluster: str | None) -> str:
    if not cluster:
        raise Mistake("cluster= is missing: the address of an etcd and a name, such as etcd://10.0.0.1:2379/box. "
                      "Processes find each other there and elect their leader; Ray has no part in that. "
                      "`apt-get install etcd-server` is all that an etcd takes")
    if cluster.startswith("static:"):
        raise Mistake(f"cluster={cluster!r}: a file names its members by their addresses, and Ray chooses these; "
                      "give an etcd, such as etcd://10.0.0.1:2379/box")
    found = ADDRESS.fullmatch(cluster)
    if not found:
        raise Mistake(f"cluster={cluster!r} is no address of an etcd and a name, such as etcd://10.0.0.1:2379/box")
    return found["name"]


def checked_workers(workers: object, name: str = "workers") -> int:
    if not isinstance(workers, int) or isinstance(workers, bool) or not 1 <= workers <= MOST_WORKERS:
        raise Mistake(f"{name}={workers!r} is not a whole number from 1 to {MOST_WORKERS}")
    return workers


def checked_resources(resources: Mapping[str, float] | None) -> dict[str, float]:
    found = {}
    for name, amount in ({"CPU": 1} if resources is None else resources).items():
        if not isinstance(name, str) or not name:
            raise Mistake(f"resources: a resource has a name, and {name!r} is none")
        if right := SPELLED.get(name.lower()):
            if right != name:
                raise Mistake(f"resources: Ray spells {name!r} as {right!r}")
        if isinstance(amount, bool) or not isinstance(amount, (int, float)) or not 0 < amount < math.inf:
            raise Mistake(f"resources: {name!r} is a number above 0, not {amount!r}")
        if amount > 1 and amount != int(amount):
            raise Mistake(f"resources: above 1, Ray has whole numbers only, and {name!r} is {amount!r}")
        found[name] = amount
    if not found:
        raise Mistake("resources: a worker takes something, such as {'CPU': 2}")
    return found


def model_options(models: object) -> tuple[str, ...]:
    """Of `carillon worker`. A folder is a repository; files are models by themselves; a mapping names them."""
    def absolute(path: object) -> str:
        if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
            raise Mistake(f"models: a folder, a file, a list of files, or files by name, and not {path!r}")
        return os.path.abspath(os.fspath(path))

    if isinstance(models, Mapping):
        named = [(f"{name}=", absolute(path)) for name, path in models.items()]
    elif isinstance(models, Sequence) and not isinstance(models, (str, bytes)):
        named = [("", absolute(path)) for path in models]
    else:
        path = absolute(models)
        if Path(path).suffix not in (".onnx", ".xml"):
            return ("--models", path)
        named = [("", path)]
    if not named:
        raise Mistake("models: no model is named")
    return tuple(word for name, path in named for word in ("--model", name + path))


def missing_model(options: Sequence[str]) -> str:
    """What of model_options() is not on this machine; empty: nothing."""
    for option, path in zip(options[::2], options[1::2]):
        path = path if path.startswith("/") else path.partition("=")[2]
        if option == "--models" and not os.path.isdir(path):
            return f"there is no folder {path}"
        if option == "--model" and not os.path.isfile(path):
            return f"there is no file {path}"
    return ""


def unmet(resources: Mapping[str, float], nodes: Sequence[Mapping[str, float]]) -> str:
    """Why no node could ever have a worker; empty: one could."""
    if any(all(node.get(name, 0) >= amount for name, amount in resources.items()) for node in nodes):
        return ""
    for name, amount in resources.items():
        most = max((node.get(name, 0) for node in nodes), default=0)
        if most == 0:
            known = sorted({each for node in nodes for each in node if not each.startswith(("node:", "object_store"))})
            return f"no node of this Ray cluster has the resource {name!r}; nodes have {', '.join(known) or 'nothing'}"
        if most < amount:
            return f"no node of this Ray cluster has {name!r}: {amount:g}; the most is {most:g}"
    wanted = ", ".join(f"{name!r}: {amount:g}" for name, amount in resources.items())
    return f"no node of this Ray cluster has all of {wanted}"


GROUP = re.compile(r"[^/]+/(?:workers|worker-\d+)")


def processors_of_workers(groups: Iterable[Mapping]) -> float:
    """What serving takes of Ray's processors, by the values of ray.util.placement_group_table()."""
    return sum(bundle.get("CPU", 0) for group in groups if group["state"] != "REMOVED" and GROUP.fullmatch(group["name"] or "")
               for bundle in group["bundles"].values())


@dataclass(frozen=True)
class Spec:
    """One process of the cluster: what its actor is told."""
    role: str
    number: int
    cluster: str
    options: tuple[str, ...]  # of the role's command
    models: tuple[str, ...] = ()
    program: str | None = None  # none: what the node has
    http: str = ""  # HOST:PORT; of a frontend alone
    grpc: str = ""
    resources: Mapping[str, float] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return f"ray-{self.role}-{self.number}"

    def command(self, program: str, listen: str, http: str = "", grpc: str = "") -> list[str]:
        words = [program, self.role, "--cluster", self.cluster, "--id", self.id, "--listen", listen, *self.models]
        if self.role == "frontend":
            words += ["--http", http, "--grpc", grpc]
        if self.role == "worker":
            if "CPU" in self.resources and "--threads" not in self.options:
                words += ["--threads", str(max(1, int(self.resources["CPU"])))]
            if "memory" in self.resources and "--memory" not in self.options:
                words += ["--memory", f"{int(self.resources['memory']) >> 20}MiB"]
        return [*words, *self.options]


@dataclass(frozen=True)
class Plan:
    """Of serve(), checked."""
    cluster: str
    name: str
    models: tuple[str, ...]
    workers: int
    resources: dict[str, float]
    frontends: int | None  # none: one, where the cluster has no frontend
    schedulers: int | None  # none: two, where it has no scheduler
    http: str
    grpc: str
    options: Mapping[str, tuple[str, ...]]  # by role
    program: str | None
    wanted_from: tuple[str, ...]
    most: int
    timeout: float

    def spec(self, role: str, number: int) -> Spec:
        options = self.options[role]
        if role == "worker":
            return Spec(role, number, self.cluster, options, self.models, self.program, resources=self.resources)
        if role == "frontend":
            return Spec(role, number, self.cluster, options, (), self.program, self.http, self.grpc)
        return Spec(role, number, self.cluster, options, (), self.program)


def checked_count(value: object, name: str) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST_WORKERS:
        raise Mistake(f"{name}={value!r} is not a whole number from 0 to {MOST_WORKERS}")
    return value


def checked_address(text: str, name: str) -> str:
    host, colon, port = text.rpartition(":")
    if text and not (colon and host and port.isdigit() and int(port) < 65536):
        raise Mistake(f"{name}={text!r} is no HOST:PORT, such as 0.0.0.0:8000; port 0: any that is free")
    return text


def checked_urls(urls: object, name: str) -> tuple[str, ...]:
    """The URLs as a tuple: of one URL, of a list, or of None (empty)."""
    several = () if urls is None else (urls,) if isinstance(urls, str) else urls
    if not isinstance(several, (list, tuple)) or not all(isinstance(url, str) for url in several) or (urls is not None and not several):
        raise Mistake(f"{name}={urls!r} is neither a URL nor a list of them")
    for url in several:
        if not url.startswith(("http://", "https://")):
            raise Mistake(f"{name}: {url!r} is no URL, such as http://10.0.0.1:8003/metrics")
    return tuple(several)


def plan(models, workers, resources, cluster, *, frontends=None, schedulers=None, http="0.0.0.0:8000",
         grpc="0.0.0.0:8001", options=(), frontend_options=(), scheduler_options=(), program=None, wanted_from=None,
         most=None, timeout=120.0) -> Plan:
    name = cluster_name(cluster)
    workers = checked_workers(workers)
    if (most is None) != (wanted_from is None):
        raise Mistake("wanted_from= and most= go together: where the wanted number is read, and how many workers it may be")
    most = workers if most is None else checked_workers(most, "most")
    if most < workers:
        raise Mistake(f"most={most} is less than workers={workers}, the least number")
    given = {"worker": options, "frontend": frontend_options, "scheduler": scheduler_options}
    for role, words in given.items():
        if isinstance(words, str) or not all(isinstance(word, str) for word in words):
            raise Mistake(f"options of a {role}: a list of words, such as ['--log-level', 'debug'], and not {words!r}")
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout < math.inf:
        raise Mistake(f"timeout={timeout!r} is not a number of seconds above 0")
    return Plan(cluster, name, model_options(models), workers, checked_resources(resources),
                checked_count(frontends, "frontends"), checked_count(schedulers, "schedulers"),
                checked_address(http, "http"), checked_address(grpc, "grpc"),
                {role: tuple(words) for role, words in given.items()}, program, checked_urls(wanted_from, "wanted_from"), most,
                float(timeout))
