"""Free addresses on loopback, and whether a server answers there."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request

HOST = "127.0.0.1"


def free_addresses(count: int) -> list[str]:
    """Held open together, so that they differ."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((HOST, 0))
        return [f"{HOST}:{probe.getsockname()[1]}" for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def is_ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/v2/health/ready", timeout=5) as response:
            return response.status == 200
    except (urllib.error.URLError, OSError):
        return False
