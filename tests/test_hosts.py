"""Hosts of a cluster, at a real etcd, at a stand-in for Kubernetes, or by a static file: who leads, who is there, and what becomes of it when processes die or stand still.

carillon_hosts_probe is one process by command. No test judges how long something takes: the seeded worlds of
cluster/election do.
"""

from __future__ import annotations

import signal

import pytest

from cluster_processes import Host, Told, coordinator, etcd, kubernetes, stand_still, start, wait_for  # noqa: F401 (fixtures)
from loopback import free_addresses


@pytest.fixture
def host(start, program, coordinator):
    return lambda id, role, *key: start(Host(program, coordinator.cluster(), id, role, free_addresses(1)[0], *key))


def led_by_one(hosts: list[Host]) -> Host:
    """The one that leads, once all of them know it."""
    found = []

    def settled():
        states = {host.id: host.state() for host in hosts}
        leaders = [host for host in hosts if states[host.id]["leads"]]
        found[:] = leaders
        return len(leaders) == 1 and all(state["leader"] == leaders[0].id and state["epoch"] == states[leaders[0].id]["epoch"]
                                         and set(state["there"]) == {each.id for each in hosts if each.id != id}
                                         for id, state in states.items())

    wait_for(settled, "one leader whom all know")
    return found[0]


@pytest.fixture
def box(host) -> list[Host]:
    return [host("s1", "scheduler"), host("s2", "scheduler"), host("w1", "worker"), host("f1", "frontend")]


def test_one_scheduler_leads_and_all_know_whose_clock_differs_by_how_much(box):
    leader = led_by_one(box)
    assert leader.id in ("s1", "s2")

    def clocks():
        return [clock for host in box for clock in host.state()["clocks"].values()]

    wait_for(lambda: len(clocks()) == 12, "all clocks")
    for clock in clocks():  # one machine has one clock
        assert abs(clock["offset_ns"]) <= clock["bound_ns"]


def test_a_spare_leads_when_the_leader_is_killed(box, host):
    leader = led_by_one(box)
    epoch = leader.state()["epoch"]
    leader.kill()
    left = [each for each in box if each is not leader]
    assert led_by_one(left).state()["epoch"] > epoch
    again = host(leader.id, "scheduler")  # registered once the lease of the one before is over
    assert led_by_one([*left, again]).id != leader.id


def test_a_leader_that_stood_still_leads_no_more(box):
    leader = led_by_one(box)
    stand_still(leader.process)
    left = [each for each in box if each is not leader]
    after = led_by_one(left)
    place = leader.place()
    leader.process.send_signal(signal.SIGCONT)
    # It never says that it leads the new epoch, or a later one.
    assert led_by_one(box) is after
    assert not any(news["leads"] for news in leader.told[place:] if news.get("epoch", 0) >= after.state()["epoch"])


def test_without_the_coordinator_the_leader_leads_on_and_nobody_is_elected(box, coordinator):
    leader = led_by_one(box)
    epoch = leader.state()["epoch"]
    coordinator.kill()
    wait_for(lambda: all(coordinator.client in each.state()["trouble"] for each in box), "all miss the coordinator")
    assert led_by_one(box) is leader and leader.state()["epoch"] == epoch
    leader.kill()
    left = [each for each in box if each is not leader]
    wait_for(lambda: all(leader.id not in each.state()["there"] for each in left), "all miss the leader")
    assert not any(each.state()["leads"] for each in left)
    coordinator.start().ready()
    assert led_by_one(left).state()["epoch"] == epoch + 1


def test_a_handover_names_the_next_leader(box):
    leader = led_by_one(box)
    epoch = leader.state()["epoch"]
    leader.order("hand_over", to="w1")
    assert "no other scheduler" in leader.wait("handover")["why"]
    spare = next(each for each in box if each.id in ("s1", "s2") and each is not leader)
    place = leader.place()
    leader.order("hand_over", to=spare.id)
    assert leader.wait("handover", place)["why"] == ""
    assert led_by_one(box) is spare and spare.state()["epoch"] == epoch + 1


def test_who_has_another_key_is_heard_by_nobody(box, host):
    led_by_one(box)
    stranger = host("w2", "worker", "another key")
    wait_for(lambda: box[0].state()["refused"] > 100 and stranger.state()["refused"] > 100, "datagrams that are refused")
    assert "w2" not in box[0].state()["there"] and stranger.state()["there"] == []


def test_what_cannot_be_opened_is_named(program, etcd, start):
    for arguments, says in (((f"etcd://{etcd.client}/box", "a", "worker", "192.0.2.1:8100"), "cannot use 192.0.2.1:8100 for UDP"),
                            (("static:/no/box.toml", "a", "worker", "127.0.0.1:8100"), "/no/box.toml")):
        probe = start(Told(program.parent / "carillon_hosts_probe", *arguments))
        assert probe.end() == 2 and says in "".join(probe.errors)


MEMBERS = {"s1": "scheduler", "w1": "worker", "f1": "frontend"}


@pytest.fixture
def static(program, start, tmp_path):
    """Starts members of a static file, again after a kill."""
    places = dict(zip(MEMBERS, free_addresses(len(MEMBERS))))
    file = tmp_path / "box.toml"
    file.write_text('name = "box"\n' + "".join(
        f'[[member]]\nid = "{id}"\nrole = "{role}"\naddress = "{places[id]}"\n' for id, role in MEMBERS.items()))

    def begin(id, role="", address=""):
        return start(Host(program, f"static:{file}", id, role or MEMBERS.get(id, "worker"), address or places.get(id, "127.0.0.1:1")))

    return begin


def test_the_scheduler_of_a_static_file_leads_whenever_it_runs(static):
    hosts = {id: static(id) for id in MEMBERS}
    assert led_by_one(list(hosts.values())) is hosts["s1"] and hosts["s1"].state()["epoch"] == 1

    hosts["w1"].kill()
    wait_for(lambda: hosts["s1"].state()["there"] == ["f1"], "the worker is missed")
    hosts["w1"] = static("w1")
    assert led_by_one(list(hosts.values())) is hosts["s1"]

    hosts["s1"].kill()
    left = [hosts["w1"], hosts["f1"]]
    wait_for(lambda: all("s1" not in host.state()["there"] for host in left), "the leader is missed")
    assert not any(host.state()["leads"] for host in left)
    hosts["s1"] = static("s1")
    assert led_by_one(list(hosts.values())) is hosts["s1"] and hosts["s1"].state()["epoch"] == 1
    hosts["s1"].order("hand_over", to="w1")
    assert "no other scheduler" in hosts["s1"].wait("handover")["why"]


def test_who_is_not_as_the_static_file_says_is_told_so(static):
    for arguments, says in (({"id": "w9"}, "box.toml has no member 'w9'; it has "),
                            ({"id": "w1", "role": "scheduler"}, 'box.toml: the role of member "w1" is "worker"'),
                            ({"id": "w1", "address": "127.0.0.1:9"}, 'box.toml: the address of member "w1" is')):
        probe = static(**arguments)
        assert probe.end() == 2 and says in "".join(probe.errors)
