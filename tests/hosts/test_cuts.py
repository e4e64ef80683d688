"""The leader's host is cut from others, both ways or one way; clients go on."""

from __future__ import annotations

import contextlib
import time

import pytest

from cluster_processes import wait_for

from .client import sending
from .long import IN_ALL

LEADER, SPARE = "s1", "s2"
MEMBERS = ("w1", "w2", "f1")


@pytest.fixture
def apart(each_box):
    box = each_box
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
            assert client.counts().get(504, 0) == before.get(504, 0), client.counts()


def test_a_frontend_that_does_not_hear_the_leader_keeps_no_client_waiting(apart, net):
    """The others hear the leader, so that nobody takes its place. What the frontend offers reaches the leader, or does not."""
    with apart.led_by(LEADER, tapped=apart.host_of[SPARE]), sending(apart.http("f1"), allowed=(503, 504)) as client:
        text = apart.roles["f1"].text
        for cut in (net.cut, lambda leader, other: net.cut_one_way(other, leader)):
            refused, gone = client.counts().get(504, 0), text().count("the leader has gone")
            with leader_cut(apart, "f1", cut=cut):
                wait_for(lambda refused=refused: client.counts().get(504, 0) > refused, "requests are refused", apart.logs)
                assert text().count("the leader has gone") == gone, "they were refused only as the stream had ended"
            client.wait_until_served()
