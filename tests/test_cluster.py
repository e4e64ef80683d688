"""`carillon cluster` as a user runs it, at hosts of a cluster that are there, or not (carillon_hosts_probe)."""

from __future__ import annotations

import json
import subprocess

import pytest

from cluster_processes import Host, etcd, start, wait_for  # noqa: F401 (fixtures)
from loopback import free_addresses

ROLES = {"s1": "scheduler", "s2": "scheduler", "w1": "worker"}


@pytest.fixture
def ask(program):
    def run(*arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run([str(program), "cluster", *arguments], capture_output=True, text=True, timeout=60)

    return run


@pytest.fixture
def cluster(etcd) -> str:
    return f"etcd://{etcd.client}/box"


@pytest.fixture
def hosts(program, start, cluster, ask) -> dict[str, Host]:
    """Two schedulers and a worker, once the leader has heard of all."""
    found = {id: start(Host(program, cluster, id, role, free_addresses(1)[0])) for id, role in ROLES.items()}

    def whole():
        done = ask("status", "--cluster", cluster, "--json")
        return done.returncode == 0 and all(m["alive"] and m["offset_us"] is not None for m in json.loads(done.stdout)["members"]) \
            and len(json.loads(done.stdout)["members"]) == len(ROLES) and json.loads(done.stdout)["leader"]

    wait_for(whole, "all of the cluster")
    return found


def test_the_status_is_the_leaders(hosts, cluster, ask):
    said = json.loads(ask("status", "--cluster", cluster, "--json").stdout)
    assert list(said) == ["name", "epoch", "leader", "leader_answers", "members"]
    assert said["leader_answers"] is True
    assert said["name"] == "box" and said["epoch"] >= 1 and hosts[said["leader"]].state()["leads"]
    assert [member["id"] for member in said["members"]] == sorted(ROLES)
    for member in said["members"]:
        assert list(member) == ["id", "role", "address", "alive", "devices", "offset_us", "bound_us", "same_key", "drain"]
        assert member["role"] == ROLES[member["id"]] and member["address"] == hosts[member["id"]].address
        assert member["alive"] is True and member["devices"] == (2 if member["role"] == "worker" else 0)
        assert member["same_key"] is True and member["drain"] == "no"
        assert abs(member["offset_us"]) <= member["bound_us"]  # one machine has one clock
    text = ask("status", "--cluster", cluster)
    assert text.returncode == 0
    assert text.stdout.startswith(f"cluster box: epoch {said['epoch']} is of {said['leader']}\n")
    assert [line.split()[:4] for line in text.stdout.splitlines()[2:]] == [
        [member["id"], member["role"], member["address"], "yes"] for member in said["members"]]


def test_who_died_is_not_alive_and_others_answer_for_a_leader_that_died(hosts, cluster, ask):
    hosts["w1"].kill()

    def alive():
        return {m["id"]: m["alive"] for m in json.loads(ask("status", "--cluster", cluster, "--json").stdout)["members"]}

    wait_for(lambda: alive() == {"s1": True, "s2": True, "w1": False}, "the worker is missed")
    before = json.loads(ask("status", "--cluster", cluster, "--json").stdout)
    hosts[before["leader"]].kill()
    other = "s2" if before["leader"] == "s1" else "s1"

    def taken_over():
        said = json.loads(ask("status", "--cluster", cluster, "--json").stdout)
        return said["leader"] == other and said["epoch"] > before["epoch"]

    wait_for(taken_over, "the spare leads")


def test_a_handover_ends_when_the_other_leads(hosts, cluster, ask):
    before = json.loads(ask("status", "--cluster", cluster, "--json").stdout)
    other = "s2" if before["leader"] == "s1" else "s1"
    done = ask("handover", other, "--cluster", cluster, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"name": "box", "epoch": before["epoch"] + 1, "leader": other}
    again = ask("handover", "--cluster", cluster)
    assert (again.returncode, again.stdout) == (0, f"{before['leader']} leads epoch {before['epoch'] + 2}\n"), again.stderr
    for to, says in (("w1", "cannot hand over to w1: it is no other scheduler"), ("s9", "cannot hand over to s9: no such member")):
        wrong = ask("handover", to, "--cluster", cluster)
        assert wrong.returncode == 2 and f"carillon cluster handover: the leader {before['leader']}: {says}" in wrong.stderr


def test_whether_a_leader_answers_that_is_not_registered_is_not_known(hosts, cluster, ask, tmp_path):
    leader = json.loads(ask("status", "--cluster", cluster, "--json").stdout)["leader"]
    other = ({"s1", "s2"} - {leader}).pop()
    file = tmp_path / "box.toml"
    file.write_text(f'name = "box"\n[[member]]\nid = "{other}"\nrole = "scheduler"\naddress = "{hosts[other].address}"\n')
    said = json.loads(ask("status", "--cluster", f"static:{file}", "--json").stdout)
    assert (said["leader"], said["leader_answers"]) == (leader, None)
    assert "does not answer" not in ask("status", "--cluster", f"static:{file}").stdout


def test_who_has_another_key_is_named(hosts, program, start, cluster, ask):
    start(Host(program, cluster, "w9", "worker", free_addresses(1)[0], "another secret"))
    before = json.loads(ask("status", "--cluster", cluster, "--json").stdout)
    wait_for(lambda: "w9 has another --cluster-key than " in ask("status", "--cluster", cluster).stdout, "w9 is named")
    said = json.loads(ask("status", "--cluster", cluster, "--json").stdout)
    assert {m["id"]: (m["alive"], m["same_key"]) for m in said["members"]} == {
        "s1": (True, True), "s2": (True, True), "w1": (True, True), "w9": (False, False)}
    assert said["epoch"] == before["epoch"]


def test_what_does_not_go_together_with_a_build_is_named(hosts, cluster, ask, monkeypatch):
    """The hosts here tell no build, as those of before."""
    leader = json.loads(ask("status", "--cluster", cluster, "--json").stdout)["leader"]
    spare = ({"s1", "s2"} - {leader}).pop()
    done = ask("upgrade-check", "--cluster", cluster)
    assert done.returncode == 0 and done.stdout.startswith("cluster box: this binary is carillon 0."), done.stderr
    for id in ROLES:
        assert f"{id} is too old to tell its version, and speaks protocol 1: with this binary protocol 1\n" in done.stdout
    assert done.stdout.split("The order:\n")[1].splitlines() == [
        f"1. spare schedulers, one at a time: {spare}. Stop each, and start the new binary with its --id",
        f"2. the leader: carillon cluster drain {leader}, which hands the lead over. Stop it, and start the new binary",
        "3. workers, one at a time: w1. carillon cluster drain each, stop it, start the new binary, and wait until status shows its devices"]
    said = json.loads(ask("upgrade-check", "--cluster", cluster, "--json").stdout)
    assert list(said) == ["name", "build", "oldest_protocol", "newest_protocol", "together", "members", "order"]
    assert said["together"] and [each["step"] for each in said["order"]] == ["spares", "handover", "workers"]
    assert {each["id"]: (each["build"], each["oldest_protocol"], each["newest_protocol"], each["protocol"]) for each in said["members"]} == {
        id: (None, 1, 1, 1) for id in ROLES}
    monkeypatch.setenv("CARILLON_PROTOCOLS", "2-3")
    done = ask("upgrade-check", "--cluster", cluster)
    assert done.returncode == 1 and "Not all members go together with this binary" in done.stdout
    assert ("w1 is too old to tell its version: w1 speaks protocol 1, and this binary speaks protocols 2 to 3: upgrade w1 to a build that speaks "
            "protocol 2\n") in done.stdout
    monkeypatch.setenv("CARILLON_PROTOCOLS", "3-2")
    done = ask("upgrade-check", "--cluster", cluster)
    assert done.returncode == 2 and "CARILLON_PROTOCOLS: '3-2' is no range of protocols, such as 1-2" in done.stderr


def test_a_drain_is_told_to_the_leader(hosts, cluster, ask):
    leader = hosts[json.loads(ask("status", "--cluster", cluster, "--json").stdout)["leader"]]
    assert ask("drain", "w1", "--cluster", cluster).stdout == "w1 is drained\n"
    assert leader.wait("drain")["id"] == "w1"
    assert ask("status", "--cluster", cluster).stdout.endswith("\nw1 is drained\n")
    assert json.loads(ask("drain", "w1", "--undo", "--cluster", cluster, "--json").stdout) == {"name": "box", "id": "w1", "drain": "no"}
    wrong = ask("drain", "w9", "--cluster", cluster)
    assert wrong.returncode == 2 and "'w9' is no member of the cluster" in wrong.stderr


def test_a_scheduler_that_is_drained_leads_no_more(hosts, cluster, ask):
    def leader():
        return json.loads(ask("status", "--cluster", cluster, "--json").stdout)["leader"]

    first = leader()
    other = ({"s1", "s2"} - {first}).pop()
    assert ask("drain", first, "--cluster", cluster).stdout == f"{first} is drained\n"
    assert leader() == other
    last = ask("drain", other, "--cluster", cluster)
    assert last.returncode == 1 and f"{other} is not drained" in last.stderr and "no other scheduler took over" in last.stderr
    assert leader() == other
    assert ask("drain", first, "--undo", "--cluster", cluster).stdout == f"{first} drains no more\n"
    assert ask("handover", "--cluster", cluster).returncode == 0 and leader() == first


def test_where_nobody_answers_the_members_are_shown_and_the_reasons(hosts, cluster, etcd, ask):
    before = json.loads(ask("status", "--cluster", cluster, "--json").stdout)
    for host in hosts.values():
        host.kill()  # they stay registered until their leases end
    done = ask("status", "--cluster", cluster, "--json")
    said = json.loads(done.stdout)
    assert done.returncode == 1 and said["epoch"] == before["epoch"] and said["leader"] == before["leader"]
    assert said["leader_answers"] is False
    assert [member["id"] for member in said["members"]] == sorted(ROLES)
    assert all(member["alive"] is None and member["offset_us"] is None for member in said["members"])
    assert "carillon cluster status: nobody answers\n" in done.stderr
    for id, host in hosts.items():
        assert f"  {id} at {host.address}: " in done.stderr
    for command in (("handover",), ("drain", "w1"), ("upgrade-check",)):
        none = ask(*command, "--cluster", cluster)
        assert none.returncode == 1 and f"carillon cluster {command[0]}: nobody answers\n" in none.stderr
    etcd.kill()
    gone = ask("status", "--cluster", cluster)
    assert gone.returncode == 1 and f"carillon cluster status: etcd at {etcd.client}: " in gone.stderr
    assert "last error" not in gone.stderr and "give --cluster static:FILE" in gone.stderr


def test_what_is_no_cluster_is_named(etcd, ask, tmp_path):
    file = tmp_path / "box.toml"
    file.write_text('name = "box"\n[[member]]\nid = "s1"\nrole = "king"\naddress = "127.0.0.1:1"\n')
    for cluster, status, says in ((f"etcd://{etcd.client}/other", 1, "etcd knows no cluster other: no member is registered, and nobody ever led"),
                                  ("zookeeper://x", 2, "it must be etcd://HOST:PORT"),
                                  (f"static:{file}", 2, "box.toml:4: a member needs a role"),
                                  (f"static:{file}x", 1, "box.tomlx")):
        for command in (("status",), ("handover",), ("drain", "w1")):
            done = ask(*command, "--cluster", cluster)
            assert done.returncode == status and done.stderr.startswith(f"carillon cluster {command[0]}: ") and says in done.stderr, done.stderr
            assert done.stdout == ""


def test_a_static_cluster_is_asked_by_its_file(program, start, ask, tmp_path):
    places = dict(zip(("s1", "w1"), free_addresses(2)))
    file = tmp_path / "box.toml"
    file.write_text('name = "box"\n' + "".join(
        f'[[member]]\nid = "{id}"\nrole = "{ROLES[id]}"\naddress = "{place}"\n' for id, place in places.items()))
    cluster = f"static:{file}"
    done = ask("status", "--cluster", cluster, "--json")
    said = json.loads(done.stdout)
    assert done.returncode == 1 and "nobody answers" in done.stderr
    assert (said["epoch"], said["leader"], [member["alive"] for member in said["members"]]) == (1, "s1", [None, None])
    start(Host(program, cluster, "w1", "worker", places["w1"]))
    wait_for(lambda: ask("status", "--cluster", cluster).returncode == 0, "the worker answers")
    said = json.loads(ask("status", "--cluster", cluster, "--json").stdout)
    assert [member["alive"] for member in said["members"]] == [False, True] and said["leader_answers"] is False
    assert ask("status", "--cluster", cluster).stdout.startswith("cluster box: epoch 1 is of s1, who does not answer\n")
    wrong = ask("drain", "w1", "--cluster", cluster)
    assert wrong.returncode == 1 and "the leader s1: " in wrong.stderr
    start(Host(program, cluster, "s1", "scheduler", places["s1"]))
    wait_for(lambda: [m["alive"] for m in json.loads(ask("status", "--cluster", cluster, "--json").stdout)["members"]] == [True, True], "both")
    none = ask("handover", "--cluster", cluster)
    assert none.returncode == 1 and "no other scheduler is there" in none.stderr
    checked = ask("upgrade-check", "--cluster", cluster)  # the file tells nothing of the worker, which has no stream to s1
    assert checked.returncode == 1 and "w1 does not tell its version: it is not there, or too old to tell\n" in checked.stdout
