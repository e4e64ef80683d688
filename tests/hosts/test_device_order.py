"""Workers that come last in the order are idle under little load, so scaling down removes idle ones."""

from __future__ import annotations

import pytest

from cluster_processes import ready, wait_for
from loopback import write_profile

from .client import sending

WORKERS = ("w1", "w2", "w3", "w4")


@pytest.fixture
def reverse(each_box, net, tmp_path):
    """Workers of one emulated device each, the last of them first."""
    box = each_box
    profile = write_profile(tmp_path / "profile.json", ("tiny_mlp", "tiny_cnn", "tiny_encoder"), 1)
    box.worker_options = ("--device", f"emulated:{profile}", "--profile", str(profile))
    box.start_etcd({"e1": net.host("e1")})
    for id in ("s1", "s2", "f1"):
        box.start(id, net.host(id))
        if id == "s1":
            box.wait_for_words(box.roles["s1"], "leads, epoch")
    for id in reversed(WORKERS):
        box.start(id, net.host(id))
        wait_for(lambda id=id: box.alive().get(id), f"{id} is a member", box.logs)
        wait_for(lambda id=id: "carillon_device_up" in box.metrics(id), f"metrics of {id}", box.logs)
    ready(box.frontends()[0])
    box.whole()
    return box


def shares(box, client) -> list[float]:
    """Of the batches that run meanwhile, by worker."""
    before = [box.batches_run(id) for id in WORKERS]
    client.wait_for_more(180)
    ran = [box.batches_run(id) - count for id, count in zip(WORKERS, before, strict=True)]
    assert sum(ran) > 100, ran
    return [count / sum(ran) for count in ran]


def must_be_in_order(of: list[float]) -> None:
    """Which of the first two is quicker is measured, and the quicker one goes first."""
    assert of[0] + of[1] > 0.97, of


def test_workers_with_high_ordinals_are_idle_under_each_leader_and_in_whatever_order_they_came(reverse):
    box = reverse
    # A device is busy for a twentieth of the time.
    with sending(box.http("f1"), rate=20, deadline_ms=300, computes=False) as client:
        must_be_in_order(shares(box, client))
        leader = box.lead()[0]
        box.roles[leader].kill()
        spare = ({"s1", "s2"} - {leader}).pop()
        box.wait_for_leader(spare)
        client.wait_until_served()
        must_be_in_order(shares(box, client))
        # The first worker goes, and comes back as the last one.
        assert box.ask("drain", "w1").returncode == 0
        box.roles["w1"].end()
        box.roles["w1"].start()
        wait_for(lambda: box.alive().get("w1"), "w1 is back", box.logs)
        wait_for(lambda: box.batches_run("w1") > 0, "w1 runs", box.logs)
        must_be_in_order(shares(box, client))
