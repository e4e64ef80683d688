"""How many devices a cluster wants, as its leader counts, its spare passes on, and KEDA and Prometheus hear."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import re
import socket
import subprocess
import threading
import time
import urllib.request

import grpc
import pytest

from cluster_processes import LIMIT, Role, etcd, ready, start, wait_for  # noqa: F401 (fixtures)
from keda import Keda
from loopback import free_addresses, serving, write_profile
from test_roles import cluster, devices_of, leader_of, roles  # noqa: F401 (fixtures)


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    """Ten milliseconds and two for each request: a device answers some 380 a second."""
    return write_profile(tmp_path_factory.mktemp("profile") / "profile.json", ("tiny_mlp", "tiny_cnn", "tiny_encoder"), 10)


class Box:
    """Two schedulers that are asked, workers of one emulated device each, and a frontend."""

    def __init__(self, program, roles, cluster, profile, workers: int):
        self.program, self.cluster, self.roles, self.profile = program, cluster, roles, profile
        self.metrics, self.keda, self.members = {}, {}, {}
        for id in ("s1", "s2"):
            self.metrics[id], keda = free_addresses(2)
            self.keda[id] = Keda(keda)
            self.members[id] = roles("scheduler", id, "--metrics", self.metrics[id], "--keda", keda)
        for i in range(workers):
            self.worker(f"w{i + 1}")
        self.members["f1"] = roles("frontend", "f1")
        ready(self.members["f1"])

    def worker(self, id: str) -> Role:
        self.members[id] = self.roles("worker", id, "--device", f"emulated:{self.profile}", "--profile", str(self.profile))
        return self.members[id]

    def close(self) -> None:
        for keda in self.keda.values():
            keda.close()

    def leader_and_spare(self) -> tuple[str, str]:
        leader = leader_of(self.program, self.cluster)
        return leader, ({"s1", "s2"} - {leader}).pop()

    def told(self, id: str) -> dict[str, int]:
        """Prometheus' numbers of group 0, by the metrics' names without `carillon_`."""
        with urllib.request.urlopen(f"http://{self.metrics[id]}/metrics", timeout=LIMIT) as response:
            text = response.read().decode()
        return {name: int(float(value)) for name, value in re.findall(r'^carillon_(\w+){subcluster="0"} (\S+)$', text, re.MULTILINE)}

    def load(self, rate: int, seconds: int) -> dict:
        done = subprocess.run([str(self.program), "load", f"http://{self.members['f1'].http}", "--model", "tiny_mlp", "--json", "--rate", str(rate),
                               "--deadline", "100", "--duration", str(seconds), "--warmup", "0"], capture_output=True, text=True, timeout=LIMIT)
        assert done.returncode in (0, 1) and done.stdout, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def box(program, roles, cluster, profile):  # noqa: F811 (fixtures)
    made = []

    def make(workers: int) -> Box:
        made.append(Box(program, roles, cluster, profile, workers))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_any_scheduler_tells_keda_and_the_next_leader_begins_with_the_last_number(box):
    of = box(1)
    leader, spare = of.leader_and_spare()
    # The load is counted for some seconds first.
    for id, words in ((leader, "this scheduler leads, and has no number of devices yet"), (spare, f"'{leader}' leads, and has told this one no number")):
        error = of.keda[id].error()
        assert error is None or (error[0] == grpc.StatusCode.UNAVAILABLE and words in error[1]), error
    assert of.keda[spare].target(devicesPerWorker="2") == 2  # KEDA makes its autoscaler all the same
    wait_for(lambda: of.keda[spare].error() is None, "a number at the spare")
    for id in (leader, spare):
        assert (of.keda[id].number(), of.keda[id].number(subcluster="0"), of.keda[id].active()) == (1, 1, True)
        code, words = of.keda[id].error(subcluster="3")
        assert (code, words) == (grpc.StatusCode.INVALID_ARGUMENT, "metadata: there is no subcluster '3'; there is: 0")
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        assert list(pool.map(lambda _: of.keda[spare].number(), range(100))) == [1] * 100
    # One of the two gives it to Prometheus: a sum over all counts nothing twice.
    assert of.told(leader) == {"devices_wanted": 1, "devices_present": 1, "devices_coming": 0, "devices_given_up": 0,
                               "device_start_up_seconds": 0}
    assert of.told(spare) == {}

    told = of.load(900, 6)
    assert told["on_time"] < 0.7 * told["sent"]
    wait_for(lambda: of.keda[spare].number() >= 2, "more devices to be wanted")
    wanted = of.keda[leader].number()
    assert 2 <= wanted <= 8
    wait_for(lambda: of.keda[spare].number() == wanted, "the spare to hear of it")

    lowest = [wanted]
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            try:
                lowest.append(of.keda[spare].number())
            except grpc.RpcError:
                lowest.append(-1)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        of.members[leader].kill()
        wait_for(lambda: of.told(spare), "the next leader to count")
        time.sleep(1)
    finally:
        over.set()
        watching.join()
    assert min(lowest) == wanted, "KEDA never hears of fewer, nor of none"
    told = of.told(spare)
    assert (told["devices_wanted"], told["devices_present"], told["devices_coming"]) == (wanted, 1, wanted - 1)


def test_workers_that_come_and_go_are_counted(box):
    of = box(2)
    leader, _ = of.leader_and_spare()
    wait_for(lambda: of.told(leader).get("devices_present") == 2, "two devices")
    assert of.told(leader)["devices_wanted"] == 2
    of.members["w2"].kill()
    wait_for(lambda: of.told(leader)["devices_present"] == 1, "one device")
    assert (of.told(leader)["devices_wanted"], of.told(leader)["devices_coming"]) == (2, 1)
    of.worker("w3")
    wait_for(lambda: of.told(leader)["devices_present"] == 2, "another device")
    assert (of.told(leader)["devices_wanted"], of.told(leader)["devices_coming"]) == (2, 0)
    of.worker("w4")
    wait_for(lambda: of.told(leader)["devices_wanted"] == 3, "a device that nobody asked for, in the first minutes")


def test_a_frontend_and_a_worker_advise_nothing(program, roles, cluster, profile, tmp_path):  # noqa: F811
    http, front, work = free_addresses(3)
    roles("scheduler", "s1")
    roles("worker", "w1", "--device", f"emulated:{profile}", "--profile", str(profile), "--metrics", work)
    frontend = Role(program, tmp_path, "frontend", "f1", cluster, "--http", http, "--grpc", "", "--metrics", front)
    try:
        def text(address: str) -> str:
            try:
                with urllib.request.urlopen(f"http://{address}/metrics", timeout=LIMIT) as response:
                    return response.read().decode()
            except OSError:
                return ""

        wait_for(lambda: "carillon_model_loaded" in text(front) and "carillon_device_up" in text(work), "metrics of both")
        time.sleep(1.5)  # there would be advice from the second look on
        for address in (front, work):
            for name in ("carillon_autoscale", "carillon_device_idle_ratio", "carillon_bad_request_ratio", "carillon_devices_wanted"):
                assert name not in text(address)
    finally:
        frontend.end()


def test_whoever_connects_and_says_nothing_keeps_nobody_out(program, roles, cluster, profile, tmp_path):  # noqa: F811
    """A scheduler that may have 256 descriptors: the doors for Prometheus and KEDA leave some to the cluster."""
    metrics, keda = free_addresses(2)
    scheduler = Role(program, tmp_path, "scheduler", "s1", cluster, "--metrics", metrics, "--keda", keda, on=("prlimit", "--nofile=256:256"))
    with contextlib.ExitStack() as held:
        try:
            wait_for(lambda: leader_of(program, cluster) == "s1", "s1 leads")
            for address in (keda, metrics):
                host, port = address.split(":")
                for _ in range(300):
                    with contextlib.suppress(OSError):
                        held.enter_context(socket.create_connection((host, int(port)), timeout=LIMIT))
            wait_for(lambda: f"new connections to {keda} are refused" in scheduler.text(), "the word on connections that are refused")
            roles("worker", "w1", "--device", f"emulated:{profile}", "--profile", str(profile))
            wait_for(lambda: devices_of(program, cluster).get("w1") == 1, "the device of a worker that comes")
            held.close()
            asks = Keda(keda)
            wait_for(lambda: asks.error() is None, "a number, once the others have gone")
            assert asks.number() == 1
            asks.close()
        finally:
            scheduler.end()


def test_one_server_tells_keda_what_it_tells_prometheus(program, tiny_models, profile, tmp_path):
    address = free_addresses(1)[0]
    with serving(program, tiny_models, tmp_path / "server.log", "--device", f"emulated:{profile}*3", "--profile", str(profile),
                 "--keda", address) as server:
        keda = Keda(address)
        try:
            wait_for(lambda: keda.error() is None, "a number")
            assert (keda.number(), keda.active(), keda.target(), keda.target(devicesPerWorker="4")) == (3, True, 1, 4)
            assert 'carillon_devices_wanted{subcluster="0"} 3\n' in server.scrape()
            assert 'carillon_devices_present{subcluster="0"} 3\n' in server.scrape()
            assert keda.error(devicesPerWorker="none") == (grpc.StatusCode.INVALID_ARGUMENT,
                                                           "metadata: devicesPerWorker is 'none': it must be a number from 1 to 4096")
        finally:
            keda.close()


@pytest.mark.parametrize(("options", "words"), [
    (("serve", "--models", "MODELS", "--keda", "nowhere"), "--keda"),
    (("serve", "--models", "MODELS", "--keda", "127.0.0.1:1", "--plan", "plan.json"), "it does not go with --plan"),
])
def test_an_address_that_cannot_be_is_named(program, tiny_models, options, words):
    command = [str(program), *(str(tiny_models) if each == "MODELS" else each for each in options)]
    if "--plan" not in options:
        command += ["--http", free_addresses(1)[0], "--grpc", "", "--metrics", ""]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode != 0 and words in done.stderr, done.stderr
