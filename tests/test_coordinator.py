"""Members of a cluster at real etcd processes: leases, watches, compare-and-set, and etcd's own faults.

carillon_coordinator_probe is one member by command. etcd's HTTP gateway is the hand that looks and meddles.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from certificates import Authority
from cluster_processes import LIMIT, Etcd, Told, etcd, stand_still, start, wait_for  # noqa: F401 (fixtures)
from loopback import free_addresses


class Probe(Told):
    """One member by command."""

    def __init__(self, program: Path, address: str, *options: str):
        super().__init__(program.parent / "carillon_coordinator_probe", address, *options)

    def copy(self) -> dict:
        place = len(self.told)
        self.order("copy")
        return self.wait("copy", place)

    def wait_copy(self, **wanted) -> dict:
        """The copy, once it has what is wanted."""
        seen = {}

        def fits():
            seen.update(self.copy())
            return all(seen[key] == value for key, value in wanted.items())

        wait_for(fits, f"the copy {wanted}, but it is {seen}")
        return seen

    def compare_and_set(self, revision: int, epoch: int, leader: str, nonce: int) -> None:
        self.order("compare_and_set", token=nonce, revision=revision, epoch=epoch, leader=leader, nonce=nonce)


@pytest.fixture
def three(start, tmp_path) -> list[Etcd]:
    """Three members of one etcd, which elect within tens of milliseconds."""
    peers = dict(zip(("e0", "e1", "e2"), free_addresses(3)))
    members = [start(Etcd(tmp_path, name, peers, ("--heartbeat-interval", "50", "--election-timeout", "500"))) for name in peers]
    for member in members:
        member.ready()
    return members


@pytest.fixture
def probe(start, program):
    def begin(etcd: Etcd | list[Etcd] | str, *options: str, name: str = "box") -> Probe:
        if not isinstance(etcd, str):
            etcd = f"etcd://{','.join(each.client for each in (etcd if isinstance(etcd, list) else [etcd]))}/{name}"
        return start(Probe(program, etcd, *options))

    return begin


# Where a write must be answered, however slow the machine is.
PATIENT = ("--timeout", str(LIMIT))


def member(id: str, incarnation: int = 1, ttl: int = 2) -> list[str]:
    return ["--id", id, "--incarnation", str(incarnation), "--ttl", str(ttl)]


def test_members_see_each_other_and_who_leaves(etcd, probe):
    a = probe(etcd, *member("a", 1))
    b = probe(etcd, *member("b", 2))
    a.wait("member", id="b")
    b.wait("member", id="a")
    other = probe(etcd, *member("c"), name="box2")
    other.wait_copy(members={"c": 1})
    b.order("leave")
    b.wait("unregistered")
    a.wait("gone", id="b")
    a.wait_copy(members={"a": 1})
    assert a.end() == b.end() == other.end() == 0


def test_a_killed_member_is_gone_with_its_lease(etcd, probe):
    a = probe(etcd, *member("a"))
    b = probe(etcd, *member("b", 1))
    a.wait("member", id="b")
    again = probe(etcd, *member("b", 2))
    assert "in use by another process, at 127.0.0.1:8100 (incarnation 1)" in again.wait("taken")["why"]
    b.kill()
    a.wait("gone", id="b")
    again.wait("registered")
    a.wait("member", id="b", incarnation=2)


def test_a_member_that_stood_still_comes_back(etcd, probe):
    a, b = probe(etcd, *member("a")), probe(etcd, *member("b"))
    a.wait("member", id="b")
    b.wait("registered")
    place = a.place()
    stand_still(b.process)
    a.wait("gone", place, id="b")
    b.process.send_signal(signal.SIGCONT)
    a.wait("member", place, id="b", incarnation=1)
    b.wait("unregistered")
    b.wait_copy(members={"a": 1, "b": 1}, up=True)


def test_a_lease_that_etcd_forgot_is_taken_anew(etcd, probe):
    a = probe(etcd, *member("a"))
    a.wait("registered")
    place = a.place()
    for lease in etcd.must("lease/leases")["leases"]:
        etcd.must("lease/revoke", ID=lease["ID"])
    a.wait("unregistered", place)
    a.wait("registered", place)
    a.wait_copy(members={"a": 1})


def test_of_two_one_sets_the_epoch(etcd, probe):
    a, b = probe(etcd, *PATIENT), probe(etcd, *PATIENT)
    a.wait("back")
    b.wait("back")
    revision = 0
    for number in range(1, 21):
        a.compare_and_set(revision, number, "a", 2 * number)
        b.compare_and_set(revision, number, "b", 2 * number + 1)
        done = [a.wait("write", token=2 * number), b.wait("write", token=2 * number + 1)]
        assert sorted(each["outcome"] for each in done) == ["differs", "done"]
        assert done[0]["record"] == done[1]["record"]
        revision = done[0]["record"]["revision"]
        for each in (a, b):
            each.wait_copy(record=done[0]["record"])


def test_values_come_change_and_go(etcd, probe):
    a, b = probe(etcd, *PATIENT), probe(etcd)
    a.wait("back")
    b.wait("back")
    for value in ("4", "five", None):
        a.order("set", token=1, key="size", value=value)
        b.wait("value", key="size", value=value)
    assert [each["value"] for each in b.told if each["news"] == "value"] == ["4", "five", None]
    etcd.put("/carillon/box/members/x", "no member")
    assert "x' of etcd is passed over" in b.wait("trouble")["what"]
    assert b.copy()["members"] == {} and b.copy()["values"] == {}


def test_a_restart_of_etcd_changes_nothing(etcd, probe):
    a, b = probe(etcd, *member("a")), probe(etcd, *member("b"))
    for each in (a, b):
        each.wait_copy(members={"a": 1, "b": 1}, up=True)
    places = a.place(), b.place()
    etcd.kill()
    assert etcd.client in a.wait("lost", places[0])["why"]
    b.wait("lost", places[1])
    assert a.copy()["members"] == {"a": 1, "b": 1}
    a.compare_and_set(0, 1, "a", 7)
    assert "no coordinator: etcd at" in a.wait("refused", token=7)["why"]
    etcd.start().ready()
    for each, place in zip((a, b), places):
        each.wait("back", place)
        each.wait_copy(members={"a": 1, "b": 1}, up=True)
    a.order("set", token=2, key="x", value="1")
    b.wait("value", key="x")


def test_a_stopped_etcd_is_lost_and_comes_back(etcd, probe):
    a, b = probe(etcd, *member("a")), probe(etcd, *member("b"))
    for each in (a, b):
        each.wait_copy(members={"a": 1, "b": 1}, up=True)
    c = probe(etcd)
    c.wait("back")
    wait_for(lambda: etcd.watches() == 3, "three watches")
    place = a.place()
    stand_still(etcd.process)
    a.compare_and_set(0, 1, "a", 7)
    assert c.end() == 0  # whose watch is open
    assert a.wait("write", token=7)["outcome"] == "unknown"
    a.wait("lost", place)
    assert a.copy()["members"] == {"a": 1, "b": 1}
    b.wait("lost")
    assert b.end() == 0
    etcd.signal(signal.SIGCONT)
    a.wait("back", place)
    a.wait("gone", place, id="b")
    # What the stopped etcd had received it may have done.
    record = a.wait_copy(members={"a": 1}, up=True)["record"]
    a.compare_and_set(record["revision"], 2, "a", 8)
    assert a.wait("write", token=8)["outcome"] in ("done", "differs")
    wait_for(lambda: etcd.watches() == 1, "one watch, and none of before")


def test_of_three_etcds_one_may_die(three, probe):
    a, b = probe(three, *member("a")), probe(three[::-1], *member("b"))
    for each in (a, b):
        each.wait_copy(members={"a": 1, "b": 1}, up=True)
    three[0].kill()

    def writes(revision: int, nonce: int) -> dict:
        # While it goes to another endpoint nothing is sent, and what was sent may be unknown.
        a.compare_and_set(revision, 1, "a", nonce)
        wait_for(lambda: any(each.get("token") == nonce for each in a.told), "an answer")
        return next(each for each in a.told if each.get("token") == nonce)

    nonces = iter(range(1, 10_000))
    wait_for(lambda: writes(a.copy()["record"]["revision"], next(nonces)).get("outcome") == "done", "a write with one killed")
    record = a.copy()["record"]
    b.wait_copy(record=record)
    place = a.place()
    three[1].kill()
    a.wait("lost", place)
    assert a.copy()["members"] == {"a": 1, "b": 1}
    three[1].start()
    a.wait("back", place)
    wait_for(lambda: writes(a.copy()["record"]["revision"], next(nonces)).get("outcome") == "done", "a write with one back")
    for each in (a, b):
        each.wait_copy(members={"a": 1, "b": 1}, up=True)


def test_a_compaction_during_a_break_is_read_over(three, probe):
    three[1].put("/carillon/box/values/kept", "1")
    three[1].put("/carillon/box/values/gone", "1")
    a = probe(three[0])
    a.wait_copy(values={"kept": "1", "gone": "1"}, up=True)
    place = a.place()
    three[0].kill()
    three[1].put("/carillon/box/values/kept", "2")
    three[1].put("/carillon/box/values/new", "1")
    three[1].must("kv/deleterange", key="/carillon/box/values/gone")
    three[1].must("kv/compaction", revision=three[1].put("elsewhere", "x"), physical=True)
    three[0].start().ready()
    a.wait_copy(values={"kept": "2", "new": "1"}, up=True)
    told = [(each["key"], each["value"]) for each in a.told[place:] if each["news"] == "value"]
    assert sorted(told, key=str) == [("gone", None), ("kept", "2"), ("new", "1")]


def test_where_etcd_has_no_space_reads_go_on(start, tmp_path, probe):
    etcd = start(Etcd(tmp_path, options=("--quota-backend-bytes", str(2 << 20)))).ready()
    a, b = probe(etcd, *member("a")), probe(etcd)
    b.wait("member", id="a")
    a.wait("registered")
    for i in range(100):
        if etcd.ask("kv/put", key=f"fill{i}", value="x" * 100_000) is None:
            break
    else:
        pytest.fail("the quota was never reached")
    a.compare_and_set(0, 1, "a", 7)
    done = a.wait("write", token=7)
    assert done["outcome"] == "unknown" and "space exceeded" in done["why"]
    assert "does not write" in a.wait("trouble")["what"]
    late = probe(etcd, *member("c"))
    assert "space exceeded" in late.wait("trouble")["what"]
    late.wait_copy(members={"a": 1}, up=True)
    # The quota is only of writes: the lease is renewed, and what is deleted is seen.
    place = a.place()
    etcd.must("kv/deleterange", key="/carillon/box/members/a")
    b.wait("gone", id="a")
    a.wait("unregistered", place)
    b.wait_copy(members={}, up=True)


@pytest.mark.parametrize("kind", ["http", "silent", "closed"])
def test_a_port_where_something_else_is_tells_so(kind, probe):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        connections = []

        def answer():
            with contextlib.suppress(OSError):
                while True:
                    connections.append(server.accept()[0])
                    if kind == "http":
                        connections[-1].sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

        if kind == "closed":
            server.close()
        thread = threading.Thread(target=answer)
        thread.start()
        a = probe(f"etcd://127.0.0.1:{port}/box", *member("a"))
        assert f"etcd at 127.0.0.1:{port}: " in a.wait("lost")["why"]
        assert not a.copy()["up"]
        assert a.end() == 0
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()
        for connection in connections:
            connection.close()


def test_a_server_of_grpc_that_is_no_etcd_tells_so(server, probe):
    a = probe(f"etcd://{server.grpc}/box")
    assert server.grpc in a.wait("lost")["why"]


def test_tls_with_certificates_of_both_sides(start, program, tmp_path, probe):
    if b"__tsan_init" in (program.parent / "carillon_coordinator_probe").read_bytes():
        pytest.skip("ThreadSanitizer does not see how gRPC's threads hand connections of OpenSSL to each other")
    ca, wrong = Authority(tmp_path), Authority(tmp_path, "wrong")
    mine, client = ca.issue("server"), ca.issue("client")
    etcd = start(Etcd(tmp_path, scheme="https", options=(
        "--cert-file", str(mine.certificate), "--key-file", str(mine.key), "--client-cert-auth", "--trusted-ca-file", str(ca.certificate))))
    address = f"etcds://{etcd.client}/box"
    pair = ("--certificate", str(client.certificate), "--key", str(client.key))
    a = probe(address, *member("a"), "--ca", str(ca.certificate), *pair)
    a.wait("registered")
    mistaken = probe(address, "--ca", str(wrong.certificate), *pair)
    without = probe(address, "--ca", str(ca.certificate))
    plain = probe(f"etcd://{etcd.client}/box")
    for each in (mistaken, without, plain):
        assert etcd.client in each.wait("lost")["why"]
        assert each.copy()["members"] == {}


@pytest.mark.parametrize("options, why", [
    (("etcd://h:1/box", "--ca", "FILE"), "must begin with etcds://"),
    (("etcds://h:1/box", "--certificate", "FILE"), "needs its key"),
    (("etcds://h:1/box", "--ca", "none.pem"), "cannot read the CA of etcd 'none.pem'"),
    (("etcds://h:1/box", "--ca", "FILE"), "is no file of PEM"),
    (("etcd://h/box",), "has no port"),
])
def test_wrong_options_are_told(program, tmp_path, options, why):
    file = tmp_path / "file"
    file.write_text("text")
    said = subprocess.run([program.parent / "carillon_coordinator_probe", *(str(file) if each == "FILE" else each for each in options)],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT)
    assert said.returncode == 2 and why in said.stderr
