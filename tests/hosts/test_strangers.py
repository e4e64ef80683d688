"""Processes that are no members, or no good ones, change nothing for a cluster's clients."""

from __future__ import annotations

import contextlib

import pytest

from cluster_processes import wait_for

from .client import sending
from .long import only_in_all

LEADER, SPARE = "s1", "s2"


@contextlib.contextmanager
def served(box, tmp_path):
    """A cluster with a key, whose clients are all answered by 200, and whose leader stays."""
    key = tmp_path / "key"
    key.write_text("this is the key of the box")
    box.options = ("--cluster-key", str(key))
    box.apart("e1", LEADER, SPARE, "w1", "f1")
    with box.led_by(LEADER, tapped=box.host_of[SPARE]), sending(box.http("f1")) as client:
        yield client
        client.wait_for_more(30)


def test_members_of_another_cluster(box, tmp_path):
    with served(box, tmp_path) as client:
        other = box.cluster.replace("/box", "/other")
        host = box.net.host("other")
        for id, words in (("s9", "leads, epoch 1"), ("w9", "'s9' leads, epoch 1")):
            box.wait_for_words(box.start(id, host, cluster=other), words)
        client.wait_for_more(30)
        assert set(box.alive()) == {"s1", "s2", "w1", "f1"}
        # Its own leader fills its free memory.
        assert box.batches_run("w9") == 0 and box.batches_run("w1") > 0


@pytest.mark.parametrize("ids", [only_in_all(("s9",)), only_in_all(("w9",)), ("s9", "w9")])
def test_members_with_another_key(box, tmp_path, ids):
    with served(box, tmp_path) as client:
        wrong = tmp_path / "wrong"
        wrong.write_text("this is the key of another box")
        box.options = ("--cluster-key", str(wrong))
        host = box.net.host("wrong")
        for id in ids:
            box.start(id, host)
        wait_for(lambda: set(box.alive()) == set(box.roles), "all are registered", box.logs)
        client.wait_for_more(120)
        assert {id for id, alive in box.alive().items() if not alive} == set(ids)
        for id in ids:
            box.wait_for_words(box.roles[id], "another --cluster-key than 's1'")
        assert {each["id"]: each["same_key"] for each in box.status()["members"]} == {id: id not in ids for id in box.roles}
        if "w9" in ids:
            assert box.pages_taken("w9") == 0


def test_a_worker_whose_id_is_taken_waits_until_the_first_is_gone(box, tmp_path):
    with served(box, tmp_path) as client:
        assert box.pages_taken("w1") > 0
        first = box.roles["w1"]
        box.wait_for_words(box.start("w1", box.net.host("second")), "id 'w1' is in use by another process")
        client.wait_for_more(30)
        assert not client.others() and box.pages_taken("w1") == 0
        client.allowed = (503, 504)  # there is no worker for a while
        first.end()
        wait_for(lambda: box.pages_taken("w1") > 0, "the second is the member", box.logs)
        client.wait_until_served()
