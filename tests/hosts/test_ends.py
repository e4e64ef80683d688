"""A process of each role is killed, or stands still for a while; clients go on."""

from __future__ import annotations

import contextlib
import signal
import time

import pytest

from cluster_processes import stand_still

from .client import sending
from .long import ALL

LEADER, SPARE, WORKER, FRONTEND = "s1", "s2", "w1", "f2"


@pytest.fixture
def apart(each_box):
    box = each_box
    box.apart("e1", LEADER, SPARE, WORKER, "w2", "f1", FRONTEND)
    yield box
    box.must_be_led_by_one()


@contextlib.contextmanager
def served(box, victim: str, of_victim: tuple[int, ...]):
    """Clients of the first frontend are answered by 200; those of a frontend that is the victim get `of_victim`, too.

    At the end the spare leads where the victim led, else the leader still does.
    """
    kept = contextlib.nullcontext() if victim == LEADER else box.led_by(LEADER, tapped=box.host_of[SPARE])
    also = sending(box.http(FRONTEND), allowed=of_victim) if victim == FRONTEND else contextlib.nullcontext()
    with kept, also, sending(box.http("f1")) as client:
        # Of the workers, the one that has most to do.
        yield client, box.roles[box.busiest(lambda: client.wait_for_more(60)) if victim == WORKER else victim]
        if victim == LEADER:
            box.wait_for_leader(SPARE)


@pytest.mark.parametrize("victim", [LEADER, SPARE, WORKER, FRONTEND])
def test_nothing_is_lost_when_one_is_killed_and_starts_again(apart, victim):
    # A killed frontend breaks its connections. While it starts it refuses connections, and then requests, until the lease of
    # the process before is over. Then a request may have waited for too long.
    with served(apart, victim, of_victim=(0, 503, 504)) as (client, process):
        process.kill()
        client.wait_for_more(30)
        if victim in (LEADER, WORKER) or ALL:  # which takes as long as a lease
            process.start()
            apart.whole()
            client.wait_for_more(30)


@pytest.mark.parametrize("victim", [LEADER, SPARE, WORKER, FRONTEND])
def test_nothing_is_lost_when_one_stands_still_and_goes_on(apart, victim):
    # A frontend's own requests may fail: a worker could not give it their outputs.
    with served(apart, victim, of_victim=(500, 504)) as (client, process):
        stand_still(process.process)
        time.sleep(2)
        process.signal(signal.SIGCONT)
        apart.whole()
        client.wait_for_more(30)
