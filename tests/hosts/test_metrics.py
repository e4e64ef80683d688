"""Each role of a cluster over hosts gives the metrics of docs/cluster-metrics.md, and they tell of a change of the leader."""

from __future__ import annotations

import re

from cluster_processes import wait_for
from loopback import ROOT

from .client import sending

MEMBERS = ("s1", "s2", "w1", "f1")
PEERS = {"s": "scheduler", "w": "worker", "f": "frontend"}


def looks_right(box, id: str, others: tuple[str, ...], epoch: int) -> None:
    found = box.of_cluster(id)
    assert found["epoch"] == epoch, found
    assert found.get("leads") == ({"s1": 1, "s2": 0}.get(id)), found
    assert (found["beats_total"] > 100) == (id != "s1"), "a leader hears none"
    assert 0 <= found["beats_missed_total"] <= found["beats_total"] + 20
    for peer in others:
        assert 0 < found[f'clock_bound_seconds{{peer="{peer}"}}'] < 0.05, found
    for role in {PEERS[peer[0]] for peer in others}:
        count = found[f'round_trip_seconds_count{{peer_role="{role}"}}']
        assert count > 100 and 0 < found[f'round_trip_seconds_sum{{peer_role="{role}"}}'] / count < 0.05, found
    assert ("rows_reoffered_total" in found) == (id[0] in "sf")
    assert ("rows_doubled_total" in found) == (id[0] == "f")
    assert ("rows_unwanted_total" in found) == (id[0] == "w")
    for which in ("pull", "push"):
        assert (f"row_{which}_seconds_count" in found) == (id[0] == "w")
        if id[0] == "w":
            count = found[f"row_{which}_seconds_count"]
            assert count > 50 and 0 < found[f"row_{which}_seconds_sum"] / count < 0.1, found


def test_each_role_tells_of_the_cluster(box):
    box.has_metrics = True
    box.apart("e1", *MEMBERS)
    with sending(box.http("f1")) as client:
        client.wait_for_more(100)
        _, epoch = box.lead()
        for id in MEMBERS:
            looks_right(box, id, tuple(other for other in MEMBERS if other != id), epoch)
        before = {id: box.of_cluster(id) for id in MEMBERS}
        names = {name for id in MEMBERS for name in re.findall(r"^(carillon_cluster_\w+)", box.scrape(id), re.M)}
        for file in ("prometheus/alerts.yml", "grafana/carillon-cluster.json"):
            asked = set(re.findall(r"\bcarillon_cluster_\w+", (ROOT / "packaging" / file).read_text()))
            assert len(asked) > 5 and asked <= names, f"{file}: {asked - names}"
        led = len(box.led())
        box.roles["s1"].kill()
        box.wait_for_leader("s2")
        client.wait_for_more(30)
        more = len(box.led()) - led  # one, unless the machine was so busy that the next leader was missed, too
        assert more >= 1
        for id in ("s2", "w1", "f1"):
            wait_for(lambda id=id: box.of_cluster(id)["epoch"] == epoch + more, f"{id} knows of epoch {epoch + more}", box.logs)
            after = box.of_cluster(id)
            assert after["leader_changes_total"] == before[id]["leader_changes_total"] + more, (id, before[id], after)
            assert 'clock_bound_seconds{peer="s1"}' not in after, "it is not there any more"
        assert box.of_cluster("s2")["leads"] == 1
