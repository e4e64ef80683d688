"""Hosts of a cluster at a real etcd: who leads, who is there, and what becomes of it when processes die or stand still.

carillon_hosts_probe is one process by command. No test judges how long something takes: the seeded worlds of
cluster/election do.
"""

from __future__ import annotations

import signal

import pytest

from cluster_processes import Etcd, Told, etcd, start, wait_for  # noqa: F401 (fixtures)
from loopback import free_addresses


class Host(Told):
    def __init__(self, program, etcd: Etcd, id: str, role: str, *key: str):
        self.id = id
        super().__init__(program.parent / "carillon_hosts_probe", f"etcd://{etcd.client}/box", id, role, free_addresses(1)[0], *key)

    def state(self) -> dict:
        place = self.place()
        self.order("state")
        return self.wait("state", place)


@pytest.fixture
def host(start, program, etcd):
    return lambda id, role, *key: start(Host(program, etcd, id, role, *key))


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
    leader.process.send_signal(signal.SIGSTOP)
    left = [each for each in box if each is not leader]
    after = led_by_one(left)
    place = leader.place()
    leader.process.send_signal(signal.SIGCONT)
    # It never says that it leads the new epoch, or a later one.
    assert led_by_one(box) is after
    assert not any(news["leads"] for news in leader.told[place:] if news.get("epoch", 0) >= after.state()["epoch"])


def test_without_etcd_the_leader_leads_on_and_nobody_is_elected(box, etcd):
    leader = led_by_one(box)
    epoch = leader.state()["epoch"]
    etcd.kill()
    wait_for(lambda: all("etcd" in each.state()["trouble"] for each in box), "all miss etcd")
    assert led_by_one(box) is leader and leader.state()["epoch"] == epoch
    leader.kill()
    left = [each for each in box if each is not leader]
    wait_for(lambda: all(leader.id not in each.state()["there"] for each in left), "all miss the leader")
    assert not any(each.state()["leads"] for each in left)
    etcd.start().ready()
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
                            (("static:file", "a", "worker", "127.0.0.1:8100"), "a static cluster elects nobody")):
        probe = start(Told(program.parent / "carillon_hosts_probe", *arguments))
        assert probe.end() == 2 and says in "".join(probe.errors)
