"""Groups of workers that divide the models (docs/subclusters.md): the division changes under load, and under another leader."""

from __future__ import annotations

import json
import re
import signal

import pytest

from cluster_processes import ready, wait_for
from loopback import write_profile

from .client import sending

MODELS = ("tiny_mlp", "tiny_cnn", "tiny_encoder")
GROUPS = (("w2", "w4"), ("w1", "w3"))  # device D is in group D modulo 2, and a worker's place is its number


def write_division(file, group_of_mlp: int):
    groups = [["tiny_cnn"], ["tiny_encoder"]]
    groups[group_of_mlp].append("tiny_mlp")
    file.write_text(json.dumps({"groups": [{"models": names} for names in groups]}), encoding="utf-8")
    return file


def value(box, name: str, id: str = "s1") -> float:
    return float(re.search(rf"^{re.escape(name)} (\S+)", box.scrape(id), re.M).group(1))


@pytest.fixture
def divided(box, net, tmp_path):
    """Two groups of two workers of one emulated device each; tiny_mlp is in the first."""
    profile = write_profile(tmp_path / "profile.json", MODELS, 10)
    box.worker_options = ("--device", f"emulated:{profile}", "--profile", str(profile))
    box.has_metrics = True
    box.start_etcd({"e1": net.host("e1")})
    division = write_division(tmp_path / "division.json", 0)
    for id in ("s1", "s2"):
        box.start(id, net.host(id), "--partition", str(division), "--autoscale-period", "1")
        if id == "s1":
            box.wait_for_words(box.roles["s1"], "leads, epoch")
    for id in ("f1", "w1", "w2", "w3", "w4"):
        box.start(id, net.host(id))
    ready(box.frontends()[0])
    box.whole()
    return box


def must_run_in(box, client, group: int) -> None:
    """All that runs from now on."""
    before = {id: box.batches_run(id) for ids in GROUPS for id in ids}
    client.wait_for_more(100)
    ran = {id: box.batches_run(id) - count for id, count in before.items()}
    assert sum(ran[id] for id in GROUPS[group]) > 20, ran
    assert sum(ran[id] for id in GROUPS[1 - group]) == 0, ran


def test_a_model_moves_to_other_workers_and_no_request_is_lost(divided, tmp_path):
    box, leader = divided, divided.roles["s1"]
    # Two devices answer some 120 a second one by one.
    with sending(box.http("f1"), rate=60, deadline_ms=300, computes=False) as client:
        must_run_in(box, client, 0)
        for count, turn in enumerate((1, 0, 1), 1):
            write_division(tmp_path / "division.json", turn)
            leader.signal(signal.SIGHUP)
            moves = f"partition: models move to the groups of {tmp_path / 'division.json'}"
            wait_for(lambda moves=moves, count=count: leader.text().count(moves) == count, moves, box.logs)
            wait_for(lambda: value(box, "carillon_models_moving") == 0, "the model's move", box.logs)
            must_run_in(box, client, turn)
        for group in (0, 1):
            wait_for(lambda group=group: value(box, f'carillon_devices_present{{subcluster="{group}"}}') == 2, "devices", box.logs)
        # The next leader reads the file, too. Its predecessor's division is in force under it.
        leader.kill()
        box.wait_for_leader("s2")
        box.wait_for_words(box.roles["s2"], f"partition: the 2 groups of {tmp_path / 'division.json'} are in force")
        client.wait_until_served()
        must_run_in(box, client, 1)
        assert value(box, "carillon_models_moving", "s2") == 0
    assert "others" not in box.roles["s2"].text()


def test_schedulers_tell_whose_groups_are_in_force(box, net, tmp_path):
    files = {id: write_division(tmp_path / f"{id}.json", group) for id, group in (("s1", 0), ("s2", 1), ("s3", 0))}
    box.start_etcd({"e1": net.host("e1")})
    for id in ("s1", "s2", "s3"):
        box.start(id, net.host(id), *(("--partition", str(files[id])) if id != "s3" else ()))
        box.wait_for_words(box.roles[id], "leads, epoch" if id == "s1" else "'s1' leads, epoch")
    s1, s2, s3 = (box.roles[id] for id in ("s1", "s2", "s3"))
    box.wait_for_words(s1, f"partition: the 2 groups of {files['s1']} are in force")
    box.wait_for_words(s2, "the groups of 's1', which leads, are in force; s2 has others")
    box.wait_for_words(s3, "the groups of 's1', which leads, are in force; s3 has no --partition")
    # What is refused changes nothing, whoever leads.
    for role in (s1, s2):
        files[role.id].write_text('{"groups": [{"models": []}]}', encoding="utf-8")
        role.signal(signal.SIGHUP)
        box.wait_for_words(role, f"--partition: {files[role.id]}: has 1 groups, but 2 are in force; their number stays; nothing changes")
        write_division(files[role.id], 1)
        role.signal(signal.SIGHUP)
    box.wait_for_words(s1, f"partition: models move to the groups of {files['s1']}")
    box.wait_for_words(s2, f"partition: the groups of {files['s2']} count once this scheduler leads")
    # A file that is bad when its scheduler takes the lead.
    files["s2"].write_text("{", encoding="utf-8")
    assert box.ask("handover", "s2").returncode == 0
    box.wait_for_words(s2, "not a JSON document")
    box.wait_for_words(s2, "the groups that were read last count")
    box.wait_for_words(s2, f"partition: the 2 groups of {files['s2']} are in force")
