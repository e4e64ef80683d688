"""Members of two versions of the protocol in one cluster: an upgrade role by role and back, and an old build that joins in the middle.

CARILLON_PROTOCOLS has one program act as builds of several versions. bench/cluster_upgrade.py does the same with a build of before.
"""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from cluster_processes import LIMIT, ready, wait_for

from .client import Client, sending

OWN = ""  # what the build itself speaks: protocol 1


def check(box, protocols: str) -> tuple[int, dict]:
    """What `carillon cluster upgrade-check` of another build says, and its exit status."""
    done = subprocess.run([str(box.program), "cluster", "upgrade-check", "--cluster", box.cluster, "--json"], capture_output=True, text=True,
                          timeout=LIMIT, env={**os.environ, "CARILLON_PROTOCOLS": protocols})
    return done.returncode, json.loads(done.stdout)


def of_role(box, role: str) -> list[str]:
    return sorted(id for id, each in box.roles.items() if each.role == role)


def replace(box, id: str) -> None:
    """Ends the process, and starts one of the other build in its place."""
    assert box.roles[id].end() == 0, box.roles[id].text()
    box.start(id, box.host_of[id])
    box.whole()


def upgrade(box, client: Client, protocols: str) -> None:
    """Role by role, as docs/cluster-upgrade.md says."""
    box.protocols = protocols
    status, said = check(box, protocols)
    assert status == 0 and said["together"], said
    assert [each["step"] for each in said["order"]] == ["spares", "handover", "workers", "frontends"]
    (spares, handover, workers, frontends) = [each["members"] for each in said["order"]]
    assert handover == [box.lead()[0]]
    for id in spares:
        replace(box, id)
    for id in (*handover, *workers):
        drained = box.ask("drain", id)
        assert drained.returncode == 0, drained.stderr
        replace(box, id)
        if id in workers:
            wait_for(lambda id=id: any(each["id"] == id and each["devices"] for each in box.status().get("members", [])), f"a device of {id}", box.logs)
        client.wait_for_more(10)
    for id in frontends:
        assert box.ask("drain", id).returncode == 0
        all_doors = client.frontends
        # A load balancer leaves it, and it answers whatever still comes.
        client.frontends = tuple(door for door in all_doors if door != box.http(id)) * len(all_doors)
        client.wait_for_more(20)
        replace(box, id)
        ready(box.roles[id])
        client.frontends = all_doors
        client.wait_for_more(10)


@pytest.mark.parametrize(("older", "newer"), [(OWN, "1-2"), ("1-2", "2-3")])
def test_an_upgrade_role_by_role_and_back_loses_no_request(box, older, newer):
    box.protocols = older
    box.apart("e1", "s1", "s2", "w1", "w2", "f1", "f2")
    with sending(box.http("f1"), box.http("f2")) as client:
        for protocols in (newer, older):
            upgrade(box, client, protocols)
    box.must_be_led_by_one()
    for each in box.roles.values():
        assert "upgrade" not in each.text()  # no word on members that do not go together


def test_an_old_build_that_joins_in_mid_upgrade_changes_nothing(box):
    box.protocols = "2-3"
    box.apart("e1", "s1", "w1", "f1")
    box.protocols = "3-4"
    box.start("s2", box.net.host("s2"))
    box.whole()
    with box.led_by("s1", tapped=box.host_of["s2"]), sending(box.http("f1")) as client:
        box.protocols = OWN
        host = box.net.host("old")
        for id in ("s9", "w9", "f9"):
            box.start(id, host)
        for id in ("s9", "w9", "f9"):
            box.wait_for_words(box.roles[id], f"and '{id}' speaks protocol 1: upgrade '{id}' to a build that speaks protocol 2. "
                                              "Until then neither hears the other")
        for id in ("w9", "f9"):
            box.wait_for_words(box.roles[id], f"no stream to the scheduler at {box.roles['s1'].listen}: '{id}' speaks protocol 1, and 's1' speaks "
                                              f"protocols 2 to 3: upgrade '{id}' to a build that speaks protocol 2")
        box.wait_for_words(box.roles["s9"], "and 's9' does not lead")
        box.wait_for_words(box.roles["s1"], "9' speaks protocol 1, and 's1' speaks protocols 2 to 3: upgrade ")
        assert box.roles["f9"].get("/v2/health/ready") == 503
        client.wait_for_more(120)
        assert {id for id, alive in box.alive().items() if not alive} == {"s9", "w9", "f9"}

        status, said = check(box, "2-3")
        assert status == 1 and not said["together"]
        says = {each["id"]: each for each in said["members"]}
        assert {id for id, each in says.items() if each["protocol"] is None} == {"s9", "w9", "f9"}
        assert says["w9"]["says"] == ("w9 speaks protocol 1, and this binary speaks protocols 2 to 3: upgrade w9 to a build that speaks protocol 2")
        assert says["s2"]["protocol"] == says["w1"]["protocol"] == 3
        assert (says["s2"]["oldest_protocol"], says["s2"]["newest_protocol"]) == (3, 4)

        # Upgraded, they are members.
        box.protocols = "2-3"
        for id in ("s9", "w9", "f9"):
            assert box.roles[id].end() == 0
            box.start(id, host)
        box.whole()
        ready(box.roles["f9"])
        client.wait_for_more(30)
