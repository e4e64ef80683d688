"""A study under `carillon run` is one job of the broker: this process's, with all trials, which descend from it."""

from __future__ import annotations

import _thread
import json
import os
import queue
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

_LOOK = 0.01      # seconds between two looks at whether the broker wants the device back
_ASK_EVERY = 1.0  # seconds between two questions for what the job had of the device
_STEP = 0.1       # a share that differs by less from the one that was told is no news
_LEAST = 0.02     # a job that has had nothing for a while: trials stand still with it, and need not be told to
# Of src/carillon/share/protocol.h: magic, version, kind, bytes of the whole packet.
_HEADER = struct.Struct("<4I")
_MAGIC, _VERSION, _QUERY, _LISTING = 0x6C6C7263, 2, 9, 10
_MOST_PACKET = 1 << 16

_MISSES = 3       # so many questions in a row that bring no answer: the broker is gone, and the device is the job's alone
_joining = threading.Lock()
_joined = threading.Event()
_told: set[Callable[[float], None]] = set()  # who wants to hear of the job's share
_watching = threading.Lock()


def _has_broker() -> bool:
    return bool(os.environ.get("CARILLON_SOCKET")) and not os.environ.get("CARILLON_ALONE")


def join() -> None:
    """Returns once the broker has let this process in, or at once where there is no broker. Later calls do nothing.

    Trials that are made after it belong to the job: they are stopped with it, and have its priority.
    """
    if not _has_broker() or os.environ.get("CARILLON_INSIDE"):
        return
    with _joining:  # another thread waits until this one is in
        if _joined.is_set():
            return
        import torch  # noqa: F401  with it come the hooks

        first: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        threading.Thread(target=_be_job, args=(first,), name="carillon-job", daemon=True).start()
        if (error := first.get()) is not None:
            raise RuntimeError(f"this process cannot become a job of the broker: {error!r}") from error
        _joined.set()


def _be_job(first: queue.SimpleQueue[BaseException | None]) -> None:
    """Tells `first` once whether the first step went well."""
    from carillon import step

    try:
        step()
        first.put(None)
        while True:
            time.sleep(_LOOK)
            step()
    except SystemExit as refused:
        print(refused, file=sys.stderr)
        first.put(None)
        _thread.interrupt_main()
    except BaseException as error:
        first.put(error)
        raise


# --- What the job gets of the device


class Share:
    """From what the broker has counted, the share of the last seconds, where that is news. Pure."""

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None  # attained, here
        self._smooth: float | None = None
        self._told = 1.0
        self._missed = 0

    def missed(self) -> float | None:
        """The broker does not answer, or has no such job."""
        self._missed += 1
        if self._missed < _MISSES or self._told == 1.0:
            return None
        self._last, self._smooth, self._told = None, None, 1.0
        return self._told

    def counted(self, attained: float, here: float) -> float | None:
        """Seconds of the device that the job has had, and since it came."""
        self._missed = 0
        last, self._last = self._last, (attained, here)
        if last is None or here <= last[1] or attained < last[0]:  # the first, or it came to another broker
            return None
        share = min(1.0, (attained - last[0]) / (here - last[1]))
        self._smooth = share if self._smooth is None else (share + self._smooth) / 2
        share = max(_LEAST, self._smooth if self._smooth < 0.95 else 1.0)
        if abs(share - self._told) < _STEP and (share == self._told or share not in (1.0, _LEAST)):
            return None
        self._told = share
        return share


def watch(then: Callable[[float], None]) -> None:
    """`then` is called, from another thread, when the job's share of the device is another one, until `unwatch`."""
    if not _has_broker() or os.environ.get("CARILLON_INSIDE", "") not in ("", str(os.getpid())):
        return
    _told.add(then)
    if _watching.acquire(blocking=False):
        threading.Thread(target=_watch, args=(os.environ["CARILLON_SOCKET"],), name="carillon-share", daemon=True).start()


def unwatch(then: Callable[[float], None]) -> None:
    _told.discard(then)


def _watch(path: str) -> None:
    share = Share()
    while True:
        time.sleep(_ASK_EVERY)
        try:
            mine = [job for job in ask(path) if job["pid"] == os.getpid()]
            new = share.counted(float(mine[0]["attained_s"]), float(mine[0]["here_s"])) if mine else share.missed()
        except (OSError, ValueError, KeyError, TypeError):
            new = share.missed()  # there is no broker at the moment, or another kind of broker
        if new is not None:
            for then in list(_told):
                then(new)


def ask(path: str) -> list[dict[str, Any]]:
    """The jobs of the broker at `path`, as `carillon jobs --json` lists them."""
    text = b""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as broker:
        broker.settimeout(5)
        broker.connect(path)
        broker.send(_HEADER.pack(_MAGIC, _VERSION, _QUERY, _HEADER.size))
        while packet := broker.recv(_MOST_PACKET):
            if len(packet) < _HEADER.size or _HEADER.unpack_from(packet)[2] != _LISTING:
                break
            text += packet[_HEADER.size:]
    return list(json.loads(text)["jobs"])
