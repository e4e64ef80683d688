"""Clients of a cluster go on whatever becomes of etcd, or of the API server."""

from __future__ import annotations

import time

from .client import sending
from .long import seconds

LEADER, SPARE = "s1", "s2"
GONE_S = seconds(20, 600, "CARILLON_HOSTS_WITHOUT_ETCD_S")


def test_of_three_etcds_one_may_go_and_without_two_nobody_is_elected(box):
    box.apart("e1", "e2", "e3", LEADER, SPARE, "w1", "f1")
    spare = box.host_of[SPARE]
    with sending(box.http("f1")) as client:
        with box.led_by(LEADER, tapped=spare):
            box.etcds["e1"].kill()
            client.wait_for_more(90)
            box.whole()
        with box.led_by(LEADER, tapped=spare):
            box.etcds["e2"].kill()
            client.wait_for_more(90)
    before = box.led()
    with sending(box.http("f1"), allowed=(504,)) as client:
        box.roles[LEADER].kill()
        client.wait_for_more(90)
        assert box.led() == before, "a majority of etcd is needed for an election"
        for id in ("e1", "e2"):
            box.begin(box.etcds[id])
        box.wait_for_leader(SPARE)
        client.wait_until_served()
        box.roles[LEADER].start()
        box.whole()


def test_nothing_changes_while_the_coordinator_is_gone(each_box):
    box = each_box
    box.apart("e1", LEADER, SPARE, "w1", "w2", "f1")
    with box.led_by(LEADER, tapped=box.host_of[SPARE]), sending(box.http("f1")) as client:
        box.etcds["e1"].kill()
        end = time.monotonic() + GONE_S
        while time.monotonic() < end:
            client.wait_for_more(60)
            assert not client.others(), client.counts()
        box.begin(box.etcds["e1"]).ready()
        box.whole()
        client.wait_for_more(30)


def test_without_a_majority_of_etcd_the_status_says_why_in_words(box):
    box.start_etcd({id: box.net.host(id) for id in ("e1", "e2", "e3")})
    for id in ("e1", "e2"):
        box.etcds.pop(id).kill()  # and the third is asked
    for _ in range(3):
        said = box.ask("status").stderr
        assert said.isascii() and said.replace("\n", "").isprintable(), said
