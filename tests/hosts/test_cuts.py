"""The leader's host is cut from others, both ways or one way; clients go on."""

from __future__ import annotations

import contextlib
import time

import pytest

from .client import sending
from .long import IN_ALL

LEADER, SPARE = "s1", "s2"
MEMBERS = ("w1", "w2", "f1")


@pytest.fixture
def apart(box):
    box.apart("e1", LEADER, SPARE, *MEMBERS)
    yield box
    box.must_be_led_by_one()


@contextlib.contextmanager
def leader_cut(box, *others: str, cut=None):
    """The leader's host is cut from those of the others, until the end of the block. Then all is as it was, but for who leads."""
    cut = cut or box.net.cut
    leader = box.host_of[LEADER]
    for other in others:
        cut(leader, box.host_of[other])
    try:
        yield
    finally:
        for other in others:
            box.net.mend(leader, box.host_of[other])
    box.whole()


def test_a_leader_that_half_of_the_members_hear_goes_on(apart):
    with apart.led_by(LEADER, tapped=apart.host_of[SPARE]), sending(apart.http("f1")) as client:
        with leader_cut(apart, SPARE, "w1"):
            time.sleep(2)
        client.wait_for_more(30)


def test_a_leader_that_most_members_miss_is_followed_by_the_spare(apart):
    with sending(apart.http("f1")) as client:
        with leader_cut(apart, SPARE, "w1", "f1"):
            apart.wait_for_leader(SPARE)
            client.wait_for_more(60)
        client.wait_for_more(30)


def test_a_leader_that_is_cut_from_all_is_followed_by_the_spare(apart):
    with sending(apart.http("f1")) as client:
        with leader_cut(apart, "e1", SPARE, *MEMBERS):
            apart.wait_for_leader(SPARE)
            client.wait_for_more(60)
        client.wait_for_more(30)


def test_a_leader_that_is_cut_from_etcd_alone_goes_on(apart):
    with apart.led_by(LEADER, tapped=apart.host_of[SPARE]), sending(apart.http("f1")) as client:
        with leader_cut(apart, "e1"):
            time.sleep(2)
        client.wait_for_more(30)


@IN_ALL
def test_a_leader_that_is_cut_from_etcd_until_its_lease_ends_is_followed_by_the_spare(apart):
    with sending(apart.http("f1")) as client, leader_cut(apart, "e1"):
        apart.wait_for_leader(SPARE)
        client.wait_for_more(30)


def test_a_leader_that_cannot_send_is_followed_by_the_spare(apart, net):
    with sending(apart.http("f1")) as client:
        with leader_cut(apart, SPARE, *MEMBERS, cut=net.cut_one_way):
            apart.wait_for_leader(SPARE)
            client.wait_for_more(60)
        client.wait_for_more(30)


def test_a_leader_that_cannot_hear_is_followed_by_the_spare(apart, net):
    with sending(apart.http("f1"), allowed=(504,)) as client:
        with leader_cut(apart, SPARE, *MEMBERS, cut=lambda leader, other: net.cut_one_way(other, leader)):
            client.wait_for_more(120)
            before = client.counts()
            client.wait_for_more(30)
            assert client.counts()[200] == before[200] + 30, client.counts()
