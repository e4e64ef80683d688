"""Loopback ports for servers that are started a moment later."""

from __future__ import annotations

import collections
import random
import socket
from pathlib import Path

HOST = "127.0.0.1"
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LEAST, _MOST = 10_000, 65_535
_HELD = 64  # claims: a server that is not up after so many more ports were handed out has failed

_claims: collections.deque[socket.socket] = collections.deque(maxlen=_HELD)


def _candidates(file: Path = _RANGE) -> list[int]:
    """Ports that the system gives to no outgoing connection, in random order; all, where nearly all are given out."""
    try:
        low, high = map(int, file.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        low, high = 32_768, 60_999
    ports = [port for port in range(_LEAST, _MOST + 1) if not low <= port <= high]
    if len(ports) < 100:
        ports = list(range(_LEAST, _MOST + 1))
    random.SystemRandom().shuffle(ports)
    return ports


def claim(port: int) -> socket.socket | None:
    """`port` for this process, where nothing listens there and no other process has claimed it; else None.

    A server binds its port some time after its starter chose it. The claim keeps the port from all others who choose
    here, until it is closed. It is a name in the abstract socket namespace (unix(7)): the kernel frees it when the
    process ends.
    """
    mark = socket.socket(socket.AF_UNIX)
    try:
        mark.bind(f"\0carillon-port-{port}")
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
    except OSError:
        mark.close()
        return None
    return mark


def claim_any() -> tuple[int, socket.socket]:
    """Some port and its claim. No outgoing connection takes the port before the server binds it."""
    for port in _candidates():
        if mark := claim(port):
            return port, mark
    raise OSError(f"no free port on {HOST}")


def free_port() -> int:
    """Some port, claimed until the process ends or has taken 64 more."""
    port, mark = claim_any()
    if len(_claims) == _HELD:
        _claims[0].close()
    _claims.append(mark)
    return port
