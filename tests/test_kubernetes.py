"""Members of a cluster at a stand-in for a Kubernetes API server: Leases, watches, compare-and-set, and what can be wrong.

carillon_coordinator_probe is one member by command. kubernetes_api.py is the stand-in, which fails by command.
"""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import threading

import pytest
import yaml

from certificates import Authority
from cluster_processes import LIMIT, Kubernetes, kubernetes, stand_still, start, wait_for  # noqa: F401 (fixtures)
from loopback import ROOT, free_addresses
from test_coordinator import Probe, member


@pytest.fixture
def probe(start, program):
    def begin(api: Kubernetes | str, *options: str, name: str = "box") -> Probe:
        return start(Probe(program, api if isinstance(api, str) else api.cluster(name), *options))

    return begin


def lead(probe: Probe, id: str, number: int, nonce: int) -> dict:
    """The probe claims the epoch over what it knows; what became of it."""
    place = probe.place()
    probe.compare_and_set(probe.copy()["record"]["revision"], number, id, nonce)
    return probe.wait("write", place, token=nonce)


def trouble(probe: Probe, *words: str, after: int = 0) -> str:
    """What the probe is troubled by, once that has all the words."""
    found: list[str] = []

    def seen() -> bool:
        found[:] = [each.get("what") or each["why"] for each in probe.told[after:] if each["news"] in ("trouble", "lost")]
        return any(all(word in text for word in words) for text in found)

    wait_for(seen, f"words: {words}", lambda: f"it says {found}")
    return next(text for text in found if all(word in text for word in words))


def test_members_see_each_other_and_who_leads(kubernetes, probe):
    a = probe(kubernetes, *member("a", 1))
    b = probe(kubernetes, *member("b", 2))
    a.wait("member", id="b")
    b.wait("member", id="a")
    other = probe(kubernetes, *member("c"), name="box2")
    other.wait_copy(members={"c": 1})
    lease = kubernetes.lease("box.a")
    assert lease["metadata"]["labels"] == {"carillon/cluster": "box", "carillon/role": "worker"}
    assert lease["spec"]["holderIdentity"] == "a/1" and lease["spec"]["leaseDurationSeconds"] == 2
    assert lead(a, "a", 1, 7)["outcome"] == "done"
    b.wait_copy(record={**a.copy()["record"], "epoch": 1, "leader": "a", "nonce": 7})
    assert kubernetes.lease("box")["spec"]["leaseTransitions"] == 1 and kubernetes.lease("box")["spec"]["holderIdentity"] == "a"
    b.order("leave")
    b.wait("unregistered")
    a.wait("gone", id="b")
    a.wait_copy(members={"a": 1})
    assert kubernetes.lease("box.b") is None
    assert a.end() == b.end() == other.end() == 0


def test_a_killed_member_is_gone_when_its_lease_has_run_out(kubernetes, probe):
    a, b = probe(kubernetes, *member("a")), probe(kubernetes, *member("b", 1))
    a.wait("member", id="b")
    again = probe(kubernetes, *member("b", 2))
    assert "in use by another process, at 127.0.0.1:8100 (incarnation 1)" in again.wait("taken")["why"]
    b.kill()
    again.wait("registered")
    a.wait("member", id="b", incarnation=2)


def test_a_member_that_stood_still_comes_back(kubernetes, probe):
    a, b = probe(kubernetes, *member("a")), probe(kubernetes, *member("b"))
    a.wait("member", id="b")
    b.wait("registered")
    place, b_place = a.place(), b.place()
    stand_still(b.process)
    a.wait("gone", place, id="b")
    b.process.send_signal(signal.SIGCONT)
    a.wait("member", place, id="b", incarnation=1)
    b.wait("registered", b_place)
    b.wait_copy(members={"a": 1, "b": 1}, up=True)


def test_of_two_one_sets_the_epoch(kubernetes, probe):
    a, b = probe(kubernetes), probe(kubernetes)
    for each in (a, b):
        each.wait("back")
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
        assert kubernetes.lease("box")["spec"]["leaseTransitions"] == number


def test_a_restart_of_the_server_changes_nothing(kubernetes, probe):
    a, b = probe(kubernetes, *member("a")), probe(kubernetes, *member("b"))
    for each in (a, b):
        each.wait_copy(members={"a": 1, "b": 1}, up=True)
    assert lead(a, "a", 1, 7)["outcome"] == "done"
    places = a.place(), b.place()
    kubernetes.kill()
    assert f"Kubernetes at http://{kubernetes.client}: Connection refused" in a.wait("lost", places[0])["why"]
    b.wait("lost", places[1])
    assert a.copy()["members"] == {"a": 1, "b": 1} and a.copy()["record"]["epoch"] == 1
    a.compare_and_set(0, 2, "a", 8)
    refused = a.wait("refused", token=8)["why"]
    assert "no coordinator: Kubernetes at" in refused or "is not registered" in refused
    kubernetes.start().ready()
    for each, place in zip((a, b), places):
        each.wait("back", place)
        each.wait_copy(members={"a": 1, "b": 1}, up=True)
    assert a.copy()["record"]["epoch"] == 1


def test_a_server_that_hangs_is_lost_and_comes_back(kubernetes, probe):
    a, b = probe(kubernetes, *member("a")), probe(kubernetes, *member("b"))
    for each in (a, b):
        each.wait_copy(members={"a": 1, "b": 1}, up=True)
    place = a.place()
    kubernetes.must(hang=True)
    a.compare_and_set(0, 1, "a", 7)
    done = a.wait("write", token=7)
    assert done["outcome"] == "unknown" and "no answer came in 1000 ms" in done["why"]
    a.wait("lost", place)
    assert a.copy()["members"] == {"a": 1, "b": 1}
    stand_still(kubernetes.process)
    assert b.end() == 0  # at once
    kubernetes.signal(signal.SIGCONT)
    kubernetes.must(hang=False)
    a.wait("back", place)
    a.wait("gone", place, id="b")
    # What the server had received it may have done.
    record = a.wait_copy(members={"a": 1}, up=True)["record"]
    wait_for(lambda: lead(a, "a", record.get("epoch", 0) + 1, 8)["outcome"] in ("done", "differs"), "an answer")


def test_a_slow_server_is_waited_for(kubernetes, probe):
    kubernetes.must(slow_ms=400)
    a, b = probe(kubernetes, *member("a", ttl=5)), probe(kubernetes, *member("b", ttl=5))
    for each in (a, b):
        each.wait_copy(members={"a": 1, "b": 1}, up=True)
    assert lead(a, "a", 1, 7)["outcome"] == "done"
    assert not any(each["news"] in ("lost", "unregistered") for each in a.told)


def test_a_server_that_throttles_is_left_alone_for_so_long(kubernetes, probe):
    a = probe(kubernetes, *member("a", ttl=5))
    a.wait("registered")
    kubernetes.must(fail=[{"verbs": ["get"], "status": 429, "message": "Too many requests", "retry_after": 2, "times": 1}])
    place = a.place()
    a.order("read_epoch", token=1)
    assert "it throttles (429), and is asked again after 2000 ms" in a.wait("read", place, token=1)["why"]
    a.order("read_epoch", token=2)
    assert "throttles" in a.wait("refused", place, token=2)["why"]
    wait_for(lambda: a.order("read_epoch", token=3) or any(each.get("token") == 3 and "record" in each for each in a.told), "an answer")
    assert "unregistered" not in [each["news"] for each in a.told]
    late = probe(kubernetes, *member("late"))
    late.wait("registered")


def test_where_another_hand_is_first_a_write_is_done_over_what_is_there_then(kubernetes, probe):
    a, b = probe(kubernetes, *member("a")), probe(kubernetes, *member("b"))
    for each in (a, b):
        each.wait_copy(members={"a": 1, "b": 1}, up=True)
    assert lead(a, "a", 1, 7)["outcome"] == "done"
    kubernetes.must(conflicts=5)  # of renewals, too
    nonces = iter(range(100, 10_000))
    wait_for(lambda: lead(b, "b", 2, next(nonces))["outcome"] == "done", "a claim that is done")
    wait_for(lambda: kubernetes.must(look=True)["counts"]["get"] > 0 and a.copy()["record"]["leader"] == "b", "all know")
    assert a.copy()["members"] == {"a": 1, "b": 1} and "unregistered" not in [each["news"] for each in a.told]
    assert kubernetes.lease("box")["spec"]["leaseTransitions"] == 2


@pytest.mark.parametrize("seconds", [3600, -3600])
def test_the_servers_clock_does_not_matter(kubernetes, probe, seconds):
    kubernetes.must(clock_s=seconds)
    a, b = probe(kubernetes, *member("a")), probe(kubernetes, *member("b"))
    for each in (a, b):
        each.wait_copy(members={"a": 1, "b": 1}, up=True)
    before = kubernetes.must(look=True)["counts"]["update"]
    wait_for(lambda: kubernetes.must(look=True)["counts"]["update"] > before + 10, "ten renewals")
    assert lead(a, "a", 1, 7)["outcome"] == "done"
    assert not any(each["news"] in ("gone", "lost", "unregistered") for each in a.told + b.told)
    b.kill()
    a.wait("gone", id="b")


@pytest.mark.parametrize("what, words", [
    ("delete", "Lease 'box' was deleted; epoch 3 of 'a' goes on, and is written again"),
    ("back", "Lease 'box' has epoch 1, as if set back by hand; epoch 3 of 'a' goes on, and is written again"),
    ("holder", "Lease 'box' was edited by hand, and names 'b'; epoch 3 of 'a' goes on, and is written again"),
    ("number", "Lease 'box' was edited by hand, and has no epoch: its leaseTransitions is no number of an epoch"),
    ("label", "Lease 'box' was deleted; epoch 3 of 'a' goes on, and is written again"),
    ("annotation", "Lease 'box' was edited by hand, and names 'a'; epoch 3 of 'a' goes on, and is written again"),
])
def test_the_lease_of_the_epoch_deleted_or_edited_by_hand_is_written_again(kubernetes, probe, what, words):
    a, b = probe(kubernetes, *member("a", 7)), probe(kubernetes, *member("b"))
    for each in (a, b):
        each.wait_copy(members={"a": 7, "b": 1}, up=True)
    for number in (1, 2, 3):
        assert lead(a, "a", number, 7)["outcome"] == "done"
    b.wait_copy(record=a.copy()["record"])
    {"delete": lambda: kubernetes.must(delete="default/box"),
     "back": lambda: kubernetes.edit("box", spec={"leaseTransitions": 1}),
     "holder": lambda: kubernetes.edit("box", spec={"holderIdentity": "b"}),
     "number": lambda: kubernetes.edit("box", spec={"leaseTransitions": None}),
     "label": lambda: kubernetes.edit("box", metadata={"labels": None}),
     "annotation": lambda: kubernetes.edit("box", metadata={"annotations": None})}[what]()
    trouble(b, words)

    def stands() -> bool:
        lease = kubernetes.lease("box")
        return (lease is not None and lease["spec"].get("leaseTransitions") == 3 and lease["spec"]["holderIdentity"] == "a"
                and lease["metadata"].get("labels", {}).get("carillon/cluster") == "box" and "carillon/epoch" in lease["metadata"].get("annotations", {}))

    wait_for(stands, "the Lease as it was", lambda: str(kubernetes.lease("box")))
    for each in (a, b):
        assert {told["record"].get("epoch") for told in each.told if told["news"] == "epoch"} <= {1, 2, 3}
        wait_for(lambda each=each: each.copy()["record"].get("revision") == int(kubernetes.lease("box")["metadata"]["resourceVersion"]), "the copy")
    assert lead(b, "b", 4, 9)["outcome"] == "done"


def test_an_epoch_that_was_set_forward_by_hand_begins(kubernetes, probe):
    a = probe(kubernetes, *member("a", 7))
    a.wait_copy(members={"a": 7}, up=True)
    assert lead(a, "a", 1, 7)["outcome"] == "done"
    kubernetes.edit("box", spec={"leaseTransitions": 2**31 - 1})
    trouble(a, f"Lease 'box' was edited by hand: epoch {2**31 - 1} begins, of 'a'")
    place = a.place()
    a.compare_and_set(a.copy()["record"]["revision"], 2**31, "a", 9)
    assert "is more than the leaseTransitions of a Lease can be" in a.wait("refused", place)["why"]


def test_a_members_lease_deleted_or_edited_by_hand_is_written_again(kubernetes, probe):
    a, b = probe(kubernetes, *member("a", ttl=5)), probe(kubernetes, *member("b", ttl=5))
    for each in (a, b):
        each.wait_copy(members={"a": 1, "b": 1}, up=True)
    place = a.place()
    kubernetes.must(delete="default/box.a")
    assert "its Lease in Kubernetes is gone" in a.wait("unregistered", place)["why"]
    a.wait("registered", place)
    b.wait_copy(members={"a": 1, "b": 1})
    kubernetes.edit("box.a", metadata={"annotations": {"carillon/member": "nobody"}})
    trouble(b, "Lease 'box.a' is passed over: stored member")
    b.wait_copy(members={"a": 1, "b": 1})


def test_what_changed_too_long_ago_is_listed_anew(kubernetes, probe):
    a = probe(kubernetes, *member("a", ttl=5))
    b = probe(kubernetes, *member("b", ttl=5))
    a.wait_copy(members={"a": 1, "b": 1}, up=True)
    lists = kubernetes.must(look=True)["counts"]["list"]
    kubernetes.must(forget=True)
    wait_for(lambda: kubernetes.must(look=True)["counts"]["list"] >= lists + 2, "both list anew (410)")
    kubernetes.must(end_watches=True)
    c = probe(kubernetes, *member("c", ttl=5))
    c.wait("registered")
    for each in (a, b):
        each.wait_copy(members={"a": 1, "b": 1, "c": 1}, up=True)
        assert not any(news["news"] == "lost" for news in each.told)


def test_a_watch_that_says_nonsense_is_begun_anew(kubernetes, probe):
    a = probe(kubernetes, *member("a", ttl=5))
    a.wait_copy(members={"a": 1}, up=True)
    for text in ("nonsense\n", '{"type": "ADDED", "object": {"metadata": {"name": "box.x"}}}\n', "x" * 300_000):
        lists = kubernetes.must(look=True)["counts"]["list"]
        watches = kubernetes.must(look=True)["counts"]["watch"]
        kubernetes.must(say=text)
        wait_for(lambda: kubernetes.must(look=True)["counts"]["watch"] > watches, "a watch that is new", lambda: str(a.told[-5:]))
        if len(text) < 1000:
            assert kubernetes.must(look=True)["counts"]["list"] > lists
        a.wait_copy(members={"a": 1}, up=True)
    assert not any(each["news"] in ("lost", "unregistered") for each in a.told)


def test_a_token_is_read_again_as_it_is_renewed(kubernetes, probe, tmp_path):
    token = tmp_path / "token"
    token.write_text("first\n")
    kubernetes.must(tokens=["first"])
    a = probe(f"{kubernetes.cluster()}&token={token}", *member("a", ttl=5))
    a.wait("registered")
    place = a.place()
    kubernetes.must(tokens=["second"])
    trouble(a, f"it does not take the token of {token} (401 Unauthorized)", after=place)
    token.write_text("second\n")
    before = kubernetes.must(look=True)["counts"]["update"]
    wait_for(lambda: "Bearer second" in kubernetes.must(look=True)["tokens"] and kubernetes.must(look=True)["counts"]["update"] > before + 2, "the new one")
    a.wait_copy(members={"a": 1}, up=True)
    token.write_text("two\nlines\n")
    trouble(a, f"the token for the API server in '{token}' is empty, or has characters that no token has", after=place)
    token.write_text("second")
    place = a.place()
    wait_for(lambda: a.copy()["up"] and a.copy()["members"] == {"a": 1}, "all is well again")
    stranger = probe(kubernetes, *member("b"))
    trouble(stranger, "it does not take a request without a token (401 Unauthorized)")


@pytest.mark.parametrize("verb", ["list", "watch", "create", "update", "get", "delete"])
def test_a_right_that_is_missing_is_named(kubernetes, probe, verb):
    kubernetes.must(fail=[{"verbs": [verb], "status": 403}])
    a = probe(kubernetes, *member("a"))
    if verb == "get":
        a.wait("registered")
        a.order("read_epoch", token=1)
    if verb == "delete":
        a.wait("registered")
        a.order("leave")
    said = trouble(a, f"it forbids the verb '{verb}' of leases (403 Forbidden): the Role of this process needs it, for resource leases of apiGroup "
                      "coordination.k8s.io in namespace 'default'")
    assert f'cannot {verb} resource "leases"' in said
    kubernetes.must(fail=[])
    if verb == "delete":
        wait_for(lambda: kubernetes.lease("box.a") is None, "it has left")
    else:
        a.wait("registered")


def test_a_namespace_that_is_missing_is_named(kubernetes, probe):
    kubernetes.must(namespaces=["other"])
    a = probe(kubernetes, *member("a"))
    trouble(a, "namespace 'default' is not there (404)")
    kubernetes.must(namespaces=["other", "default"])
    a.wait("registered")


@pytest.mark.parametrize("kind, words", [
    ("closed", "Connection refused"), ("silent", "no answer came in 1000 ms"), ("nonsense", "bad version"),
    ("not found", "it has no Leases (404); is it an API server?"), ("no json", "the list of Leases: not a JSON document"),
    ("endless", "body limit exceeded"), ("headers", "header limit exceeded"), ("hangs up", "it closed the connection")])
def test_a_port_where_something_else_is_tells_so(kind, words, probe):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        connections = []

        def answer():
            with contextlib.suppress(OSError):
                while True:
                    connections.append(server.accept()[0])
                    with contextlib.suppress(OSError):
                        say(connections[-1])

        def say(connection):
            if kind == "silent":
                return
            connection.recv(4096)
            if kind == "nonsense":
                connection.sendall(b"SSH-2.0-nothing of HTTP\r\n\r\n")
            elif kind == "not found":
                connection.sendall(b"HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
            elif kind == "no json":
                connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi")
            elif kind == "endless":
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 40000000000\r\n\r\n")
            elif kind == "headers":
                connection.sendall(b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: %s\r\n" % (i, b"x" * 100) for i in range(1000)))
            else:
                connection.close()

        if kind == "closed":
            server.close()
        thread = threading.Thread(target=answer)
        thread.start()
        a = probe(f"kubernetes://default/box?server=http://127.0.0.1:{port}", *member("a"))
        said = a.wait("lost")["why"]
        assert f"Kubernetes at http://127.0.0.1:{port}: " in said and words in said
        assert not a.copy()["up"]
        assert a.end() == 0
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()
        for connection in connections:
            connection.close()


def test_tls_with_a_ca_as_a_pod_has_it(start, tmp_path, probe, monkeypatch):
    ca, wrong = Authority(tmp_path), Authority(tmp_path, "wrong")
    mine, elsewhere = ca.issue("server"), ca.issue("elsewhere", names="DNS:elsewhere")
    api = start(Kubernetes(tmp_path, tls=(mine.certificate, mine.key))).ready()
    other = start(Kubernetes(tmp_path, "other", tls=(elsewhere.certificate, elsewhere.key))).ready()
    token = tmp_path / "token"
    token.write_text("mine\n")
    api.must(tokens=["mine"])
    host, _, port = api.client.rpartition(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    a = probe(f"kubernetes://default/box?token={token}&ca={ca.certificate}", *member("a"))
    a.wait("registered")
    assert lead(a, "a", 1, 7)["outcome"] == "done"
    for address, words in ((f"{api.cluster()}&token={token}&ca={wrong.certificate}", "its certificate is not trusted: "),
                           (f"{other.cluster()}&ca={ca.certificate}", "its certificate is not trusted: "),
                           (api.cluster().replace("https://", "http://"), "Kubernetes at http://")):
        each = probe(address)
        assert words in each.wait("lost")["why"]
        assert each.copy()["members"] == {}
    plain = start(Kubernetes(tmp_path, "plain")).ready()
    each = probe(plain.cluster().replace("http://", "https://"))
    assert "it does not speak TLS at this port: is it http://?" in each.wait("lost")["why"]


@pytest.mark.parametrize("address, options, why", [
    ("kubernetes://default/box", (), "this process is in no pod of Kubernetes"),
    ("kubernetes://default/box?server=http://h:1&token=/no/token", (), "cannot read the token for the API server '/no/token'"),
    ("kubernetes://default/box?server=https://h:1&ca=/no/ca", (), "cannot read the CA of the API server '/no/ca'"),
    ("kubernetes://default/box?server=http://h:1&ca=/no/ca", (), "a CA, which is of no use with http://"),
    ("kubernetes://default/box?server=h:1", (), "a server that begins with neither http:// nor https://"),
    ("kubernetes://default/Box?server=http://h:1", (), "has the name 'Box'"),
    ("kubernetes://default", (), "has no name of the cluster after the namespace"),
    ("kubernetes://default/box?server=http://h:1", ("--id", "A_b", "--incarnation", "1"), "--id 'A_b': in Kubernetes an id is"),
])
def test_wrong_options_are_told(program, monkeypatch, address, options, why):
    for name in ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)
    said = subprocess.run([program.parent / "carillon_coordinator_probe", address, *options],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT)
    assert said.returncode == 2 and why in said.stderr, said.stderr


def test_the_status_says_whom_kubernetes_knows(kubernetes, probe, program):
    def status(address: str) -> subprocess.CompletedProcess:
        return subprocess.run([str(program), "cluster", "status", "--cluster", address], capture_output=True, text=True, timeout=LIMIT)

    assert "Kubernetes knows no cluster box: no member is registered, and nobody ever led" in status(kubernetes.cluster()).stderr
    a = probe(kubernetes, *member("a"))
    a.wait("registered")
    done = status(kubernetes.cluster())
    assert done.returncode == 1 and "nobody answers" in done.stderr and "127.0.0.1:8100" in done.stdout, done.stderr
    away = free_addresses(1)[0]
    assert f"Kubernetes at http://{away}: Connection refused" in status(f"kubernetes://default/box?server=http://{away}").stderr


def test_leases_and_the_role_are_as_kubernetes_has_them(kubernetes, probe):
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    a = probe(kubernetes, *member("a"))
    a.wait("registered")
    assert lead(a, "a", 1, 1)["outcome"] == "done"
    leases = kubernetes.must(look=True)["objects"]
    assert set(leases) == {"default/box", "default/box.a"}
    page = (ROOT / "docs" / "kubernetes-leases.md").read_text()
    role = yaml.safe_load(re.search(r"```yaml\n(apiVersion: rbac.*?)```", page, re.S).group(1))
    for document in (*leases.values(), role):
        kubernetes_validate.validate(document, "1.30", strict=True)
    a.order("leave")
    a.wait("unregistered")
    used = {verb for verb, count in kubernetes.must(look=True)["counts"].items() if count}
    assert used - {"get"} == set(role["rules"][0]["verbs"]) - {"get"}  # which follows a conflict
