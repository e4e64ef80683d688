"""A client that goes on sending requests while things happen, and the ledger of what became of each."""

from __future__ import annotations

import collections
import contextlib
import http.client
import json
import queue
import select
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

from cluster_processes import LIMIT

VALUES = 8  # requests have one of so many inputs, each with an answer of its own
PATIENCE_S = 10  # for an answer; a request is worth nothing long before

# Writes when this machine stood still: from when to when, by CLOCK_MONOTONIC.
WATCH = """
import time
last = time.monotonic()
while True:
    time.sleep(0.002)
    now = time.monotonic()
    if now - last > 0.015:
        print(last, now, flush=True)
    last = now
"""


class Stalls:
    """Times at which the machine stood still for longer than leaders and devices can bear. A process of the hosts' niceness watches."""

    def __init__(self):
        self.times: list[tuple[float, float]] = []
        watch = ["setpriv", "--pdeathsig", "KILL", "--", "nice", "-n", "-10", sys.executable, "-c", WATCH]
        self.process = subprocess.Popen(watch, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self._thread = threading.Thread(target=self._hear)
        self._thread.start()

    def _hear(self) -> None:
        for line in self.process.stdout:
            begin, end = map(float, line.split())
            self.times.append((begin, end))

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._thread.join()

    def near(self, at: float, until: float) -> bool:
        """One within that time, or close to it."""
        return any(begin - 0.5 < until and at < end + 1.0 for begin, end in list(self.times))


@dataclass(frozen=True)
class Entry:
    number: int
    sent_s: float  # after the first
    took_s: float
    status: int  # 0: the connection broke; -1: no answer came; -2: a wrong answer, or one too many
    why: str


def left_in(connection: http.client.HTTPConnection) -> bytes | None:
    """What came on an idle connection, of which nothing should; empty if the other side has ended it; None: it can be used."""
    if connection.sock is None or not select.select([connection.sock], [], [], 0)[0]:
        return None
    with contextlib.suppress(OSError):
        return connection.sock.recv(1000)
    return b""


class Client:
    """Sends requests to frontends in turn, at a rate, on connections that are kept. Use as a context.

    Each request has an id and one of VALUES inputs. The answer must have this id, and must be what was computed for this
    input before. Nothing else may come on its connection. So an answer that comes twice, or to another request, is found.
    `computes`: false for emulated devices, whose answers are all alike.
    """

    def __init__(self, *frontends: str, rate: float = 60, deadline_ms: float = 250, model: str = "tiny_mlp", computes: bool = True):
        self.frontends, self.rate, self.deadline_ms, self.model = frontends, rate, deadline_ms, model
        self.right = [self._right(value) for value in range(VALUES)]
        assert len({tuple(each) for each in self.right}) == (VALUES if computes else 1)
        self.ledger: list[Entry] = []
        self.sent = 0
        self.allowed: tuple[int, ...] = ()  # statuses beside 200
        self._left: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        # So many requests can be open at once: those of three seconds.
        self._threads = [threading.Thread(target=self._send) for _ in range(int(3 * rate))]
        self._clock = threading.Thread(target=self._pace)

    def __enter__(self) -> Client:
        self._stalls = Stalls()
        self._begin = time.monotonic()
        for thread in (*self._threads, self._clock):
            thread.start()
        return self

    def __exit__(self, *raised) -> None:
        self._stop.set()
        self._clock.join()
        for _ in self._threads:
            self._left.put(None)
        for thread in self._threads:
            thread.join()
        self._stalls.end()
        if raised[0] is None:
            numbers = sorted(entry.number for entry in self.ledger)
            assert numbers == list(range(self.sent)), "each request has one entry"

    def _pace(self) -> None:
        while not self._stop.wait(max(0.0, self._begin + self.sent / self.rate - time.monotonic())):
            self._left.put(self.sent)
            self.sent += 1

    def _send(self) -> None:
        connections: dict[str, http.client.HTTPConnection] = {}
        while (number := self._left.get()) is not None:
            begin = time.monotonic()
            status, why = self._one(number, connections)
            self.ledger.append(Entry(number, begin - self._begin, time.monotonic() - begin, status, why))
        for connection in connections.values():
            connection.close()

    def _one(self, number: int, connections: dict[str, http.client.HTTPConnection]) -> tuple[int, str]:
        at = self.frontends[number % len(self.frontends)]
        if at in connections and (left := left_in(connections[at])) is not None:
            connections.pop(at).close()
            if left:
                return -2, f"behind the last answer: {left!r}"
        connection = connections.setdefault(at, http.client.HTTPConnection(at, timeout=PATIENCE_S))
        try:
            status, answer = self._ask(connection, number, self.deadline_ms)
        except TimeoutError:
            connections.pop(at).close()
            return -1, "no answer"
        except (OSError, http.client.HTTPException) as error:
            connections.pop(at).close()
            return 0, repr(error)
        if status != 200:
            return status, str(answer.get("error"))
        if answer.get("id") != str(number) or answer["outputs"][0]["data"] != self.right[number % VALUES]:
            return -2, f"the answer to request {answer.get('id')}, not {number}: {answer}"
        return 200, ""

    def _ask(self, connection: http.client.HTTPConnection, number: int, deadline_ms: float) -> tuple[int, dict]:
        body = {"id": str(number), "parameters": {"timeout": int(deadline_ms * 1000)},
                "inputs": [{"name": "input", "datatype": "FP32", "shape": [1, 64], "data": [float(number % VALUES)] * 64}]}
        connection.request("POST", f"/v2/models/{self.model}/infer", json.dumps(body))
        response = connection.getresponse()
        return response.status, json.loads(response.read())

    def _right(self, value: int) -> list[float]:
        connection = http.client.HTTPConnection(self.frontends[0], timeout=PATIENCE_S)
        with contextlib.closing(connection):
            status, answer = self._ask(connection, value, PATIENCE_S * 1000)
        assert status == 200, answer
        return answer["outputs"][0]["data"]

    def so_far(self) -> int:
        """How many requests were answered."""
        return len(self.ledger)

    def wait_for_more(self, count: int) -> None:
        """Until so many more requests were answered, however."""
        limit, goal = time.monotonic() + PATIENCE_S + count / self.rate, self.so_far() + count
        while self.so_far() < goal:
            assert time.monotonic() < limit, f"{self.so_far()} requests were answered, not {goal}: {self.counts()}"
            time.sleep(0.02)

    def wait_until_served(self) -> None:
        """Until requests are answered by 200 again."""
        limit = time.monotonic() + LIMIT
        while not all(entry.status == 200 for entry in self.ledger[-20:]):
            assert time.monotonic() < limit, f"never served again: {self.counts()}; {self.ledger[-3:]}"
            time.sleep(0.1)

    def counts(self) -> dict[int, int]:
        return dict(collections.Counter(entry.status for entry in list(self.ledger)))

    def others(self) -> list[Entry]:
        """Requests whose answer is neither 200 nor what is allowed. A deadline that passed while the machine stood still is nobody's fault."""
        return [entry for entry in list(self.ledger) if entry.status not in (200, *self.allowed)
                and not (entry.status in (503, 504)
                         and self._stalls.near(self._begin + entry.sent_s, self._begin + entry.sent_s + entry.took_s))]


@contextlib.contextmanager
def sending(*frontends: str, allowed: tuple[int, ...] = (), **more):
    """A client, all of whose requests must be answered by 200 or what is allowed. It sends for a while before and after."""
    with Client(*frontends, **more) as client:
        client.allowed = allowed
        client.wait_for_more(20)
        yield client
        client.wait_for_more(30)
    others = client.others()
    some = [entry for status in {entry.status for entry in others} for entry in [e for e in others if e.status == status][:10]]
    assert not others, f"{client.counts()}; {some}"
