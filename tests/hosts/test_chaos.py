"""Whatever fails, and however often, each request has one answer, and the cluster serves again once all is mended.

A seed draws the faults of ten hosts, and when each begins and ends. Their effects depend on the machine, too.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .client import sending
from .long import seconds

IDS = ("e1", "e2", "e3", "s1", "s2", "f1", "f2", "w1", "w2", "w3")
LASTS_S = seconds(20, 180, "CARILLON_HOSTS_CHAOS_S")
SEED = int(os.environ.get("CARILLON_HOSTS_CHAOS_SEED", "1"))
# A connection that breaks, a worker that could not reach the frontend, no worker or no leader yet, a deadline that passed.
ALLOWED = (0, 500, 503, 504)
LONGEST_S = {"kill": 3.0, "stop": 2.0, "cut": 3.0, "cut one way": 3.0, "link down": 3.0}


@dataclass(frozen=True)
class Fault:
    begins_s: float
    ends_s: float
    kind: str
    of: str
    other: str  # of cuts

    def __str__(self) -> str:
        return f"{self.begins_s:.2f} to {self.ends_s:.2f} s: {self.kind} {self.of}{f' from {self.other}' if 'cut' in self.kind else ''}"


def drawn(seed: int, lasts_s: float, ids: Sequence[str] = IDS) -> list[Fault]:
    """Faults of such a time, each of a process that has none. Two of three etcds are always well."""
    draw = random.Random(seed)
    faults: list[Fault] = []
    at = 0.0
    while (at := at + draw.uniform(0.2, 1.2)) < lasts_s:
        ill = {fault.of for fault in faults if fault.ends_s > at}
        etcd_is_ill = any(id.startswith("e") for id in ill)
        well = [id for id in ids if id not in ill and not (etcd_is_ill and id.startswith("e"))]
        of, kind = draw.choice(well), draw.choice(list(LONGEST_S))
        ends = min(at + draw.uniform(0.05, LONGEST_S[kind]), lasts_s)
        faults.append(Fault(at, ends, kind, of, draw.choice([id for id in ids if id != of])))
    return faults


def ways(box, fault: Fault) -> tuple[Callable[[], object], Callable[[], object]]:
    """What begins the fault, and what ends it."""
    process = box.etcds.get(fault.of) or box.roles[fault.of]
    host, other = box.host_of[fault.of], box.host_of[fault.other]
    return {"kill": (process.kill, process.start),
            "stop": (lambda: process.signal(signal.SIGSTOP), lambda: process.signal(signal.SIGCONT)),
            "cut": (lambda: box.net.cut(host, other), lambda: box.net.mend(host, other)),
            "cut one way": (lambda: box.net.cut_one_way(host, other), lambda: box.net.mend(host, other)),
            "link down": (lambda: box.net.link_down(host), lambda: box.net.link_up(host))}[fault.kind]


def test_each_request_has_one_answer_whatever_fails(each_box):
    box = each_box
    ids = [id for id in IDS if id not in ("e2", "e3")] if box.on_kubernetes else IDS
    box.apart(*ids)
    faults = drawn(SEED, LASTS_S, ids)
    steps = sorted(((at, number, way) for number, fault in enumerate(faults)
                    for at, way in zip((fault.begins_s, fault.ends_s), ways(box, fault), strict=True)), key=lambda step: step[:2])
    print(f"seed {SEED}: {len(faults)} faults\n" + "\n".join(map(str, faults)))
    with sending(box.http("f1"), box.http("f2"), allowed=ALLOWED, rate=80) as client:
        begin = time.monotonic()
        for at, _, way in steps:
            time.sleep(max(0.0, begin + at - time.monotonic()))
            way()
        box.whole()
        client.wait_until_served()
        during = client.counts()
        client.wait_for_more(80)
    assert client.counts().get(200, 0) >= during.get(200, 0) + 80, f"before {during}, after {client.counts()}"
    box.must_be_led_by_one()
    print(f"answers by status: {during}; epochs: {box.led()}")
