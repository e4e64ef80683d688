"""A study under `carillon run` is one job of the broker: this process's, with all trials, which descend from it."""

from __future__ import annotations

import _thread
import os
import sys
import threading
import time

_LOOK = 0.01  # seconds between two looks at whether the broker wants the device back
_joined = threading.Lock()


def join() -> None:
    """Returns once the broker has let this process in, or at once where there is no broker. Later calls do nothing.

    Trials that are made after it belong to the job: they are stopped with it, and have its priority.
    """
    if not os.environ.get("CARILLON_SOCKET") or os.environ.get("CARILLON_INSIDE") or os.environ.get("CARILLON_ALONE"):
        return
    if not _joined.acquire(blocking=False):
        return
    import torch  # noqa: F401  with it come the hooks

    inside = threading.Event()
    threading.Thread(target=_be_job, args=(inside,), name="carillon-job", daemon=True).start()
    inside.wait()


def _be_job(inside: threading.Event) -> None:
    from carillon import step

    try:
        while True:
            step()
            inside.set()
            time.sleep(_LOOK)
    except SystemExit as refused:
        print(refused, file=sys.stderr)
        inside.set()
        _thread.interrupt_main()
