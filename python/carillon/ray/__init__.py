"""Carillon's workers on a Ray cluster (docs/ray.md):

    import carillon.ray
    box = carillon.ray.serve("./models", workers=2, resources={"CPU": 2}, cluster="etcd://10.0.0.1:2379/box")
    box.status()["http"]  # where clients ask
    box.scale(3)
    box.delete()

Ray places processes and starts them again. No request passes through Ray. Imports Ray when a function is called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ._plan import Mistake, plan

__all__ = ["Box", "Mistake", "delete", "scale", "serve", "status"]


def _of(cluster: str):
    from ._plan import cluster_name
    cluster_name(cluster)
    try:
        from . import _land
    except ImportError as error:
        raise ImportError(f"Ray is not installed: pip install ray ({error})") from error
    from ._serving import Serving
    _land.connect()
    return Serving(_land.Land(), cluster)


class Box:
    """A cluster that serve() has started. Holds nothing: another driver's Box of this address is as good."""

    def __init__(self, cluster: str):
        self.cluster = cluster

    def status(self) -> dict:
        return status(self.cluster)

    def scale(self, workers: int) -> None:
        scale(self.cluster, workers)

    def delete(self) -> None:
        delete(self.cluster)

    def __repr__(self) -> str:
        return f"carillon.ray.Box({self.cluster!r})"


def serve(models: Any, workers: int = 2, resources: Mapping[str, float] | None = None, cluster: str | None = None, *,
          frontends: int | None = None, schedulers: int | None = None, http: str = "0.0.0.0:8000",
          grpc: str = "0.0.0.0:8001", options: Sequence[str] = (), frontend_options: Sequence[str] = (),
          scheduler_options: Sequence[str] = (), program: str | None = None, wanted_from: str | Sequence[str] | None = None,
          most: int | None = None, timeout: float = 120.0) -> Box:
    """Places `workers` processes `carillon worker` on the Ray cluster, and returns when they serve.

    models: a repository's folder, ONNX files, or files by name; on each node that has a worker.
    resources: of each worker, as Ray knows them. Default: {"CPU": 1}.
    cluster: etcd://HOST:PORT/NAME. A cluster without schedulers gets two, one without frontends gets one, as far as
      `schedulers` and `frontends` say nothing else.
    http, grpc: where frontends listen; port 0: any that is free, as status() says.
    options, frontend_options, scheduler_options: more words for the three commands.
    program: `carillon` on the nodes; default: the wheel's, else that of the PATH.
    wanted_from, most: the addresses of metrics that say `carillon_devices_wanted`, such as those of all schedulers, of
      which the leader alone says so. The number of workers follows, from `workers` to `most`, and Ray's autoscaler is
      told.

    Mistake (a ValueError): an argument that cannot be. ConnectionError: no Ray, or no etcd. TimeoutError: not within
    `timeout` seconds. RuntimeError: a process that cannot run. After an error nothing is left running.
    """
    wanted = plan(models, workers, resources, cluster, frontends=frontends, schedulers=schedulers, http=http, grpc=grpc,
                  options=options, frontend_options=frontend_options, scheduler_options=scheduler_options,
                  program=program, wanted_from=wanted_from, most=most, timeout=timeout)
    _of(wanted.cluster).begin(wanted)
    return Box(wanted.cluster)


def status(cluster: str) -> dict:
    """Who leads, `http` of the frontends, and of each process its state, node, pid, starts and why it ended."""
    return _of(cluster).status()


def scale(cluster: str, workers: int) -> None:
    """To so many workers. Those with the highest numbers go, once they are drained."""
    _of(cluster).scale(workers)


def delete(cluster: str) -> None:
    """Ends all that serve() has started: frontends first, which answer what they have."""
    _of(cluster).delete()
