"""The pods of packaging/kubernetes/cluster, each on a host of its own, by the commands, probes and hooks that the manifests have.

Other than in Kubernetes: models and secrets are elsewhere, there is less memory, and kubernetes_api.py is the API server.
"""

from __future__ import annotations

import concurrent.futures
import copy
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
import yaml

from certificates import Authority
from cluster_processes import LIMIT, Etcd, wait_for
from loopback import ROOT, is_ready, write_profile
from manifests import KUBERNETES, Pod, container_of, kustomized, of_kind, workloads

from .client import sending
from .network import Host

MODEL = "tiny_mlp"
API = ROOT / "tests/kubernetes_api.py"
API_PORT = 6443
SERVICE: dict[str, str] = {}  # variables that Kubernetes gives to all pods
# /var/run is /run.
MOUNT = ('mount -t tmpfs pod /run && mkdir -p /run/secrets/kubernetes.io && cp -r "$1" /run/secrets/kubernetes.io/serviceaccount && shift'
         ' && exec "$@"')


def of_name(items: list[dict], name: str) -> dict:
    (found,) = [each for each in items if each["name"] == name]
    return found


class Started:
    """A pod on its host. Its secrets and models are in folders of the test."""

    def __init__(self, pod: Pod, host: Host, folder: Path, program: Path, models: Path, *options: str):
        self.pod, self.host, self.folder = pod, host, folder
        self.log = folder / f"{pod.name}.log"
        programs = folder / "bin"
        programs.mkdir(exist_ok=True)
        if not (programs / "carillon").exists():
            (programs / "carillon").symlink_to(program)

        secrets = {each["name"]: each["secret"]["secretName"] for each in pod.workload["spec"]["template"]["spec"]["volumes"] if "secret" in each}
        elsewhere = {f"{each['mountPath']}/": f"{folder / secrets[each['name']]}/" for each in pod.container["volumeMounts"] if each["name"] in secrets}

        def there(text: str) -> str:
            for path, ours in {"=/models": f"={models}", **elsewhere}.items():
                text = text.replace(path, ours)
            return text

        self.account = folder / "serviceaccount"  # what Kubernetes mounts into the pod, where it exists
        self.command = self.inside(str(program), *map(there, pod.args), *options)
        variables = {name: there(value) for name, value in {**pod.environment, **SERVICE}.items()}
        self.environment = {**os.environ, **variables, "PATH": f"{programs}:{os.environ['PATH']}"}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment)

    def inside(self, *command: str) -> list[str]:
        """In the container: the service account's token and CA are where the kubelet puts them."""
        mounted = ("unshare", "--mount", "sh", "-c", MOUNT, "sh", str(self.account)) if self.account.exists() else ()
        return self.host.on(*mounted, *command)

    def port(self, name: str) -> int:
        return of_name(self.pod.container["ports"], name)["containerPort"]

    def at(self, name: str) -> str:
        return self.host.at(self.port(name))

    def run(self, *path: str) -> subprocess.CompletedProcess:
        """A probe's or hook's command, in the container."""
        return subprocess.run(self.inside(*self.pod.command_of(*path)), env=self.environment, capture_output=True, text=True,
                              timeout=LIMIT + 60)

    def passes(self, probe: str) -> bool:
        """As the kubelet sees it."""
        if probe not in self.pod.container:
            return True
        asked = self.pod.container[probe].get("httpGet")
        if asked is None:
            return self.run(probe).returncode == 0
        # Kubelets look at no certificate.
        scheme = asked.get("scheme", "HTTP").lower()
        anybody = ssl._create_unverified_context() if scheme == "https" else None
        try:
            with urllib.request.urlopen(f"{scheme}://{self.at(asked['port'])}{asked['path']}", timeout=5, context=anybody) as response:
                return response.status == 200
        except OSError:
            return False

    def ready(self) -> None:
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            wait_for(lambda probe=probe: self.passes(probe), f"{probe} of {self.pod.name}", self.text)

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait(LIMIT)


def workloads_of(overlay: str) -> dict[str, dict]:
    """By role."""
    return {container_of(each)["args"][0]: each for each in workloads(kustomized(KUBERNETES / "cluster/overlays" / overlay))}


class Pods:
    """The pods of an overlay."""

    def __init__(self, net, begin, program: Path, models: Path, folder: Path, coordinator: str, overlay: str = "cpu"):
        self.net, self.begin, self.program, self.models, self.folder = net, begin, program, models, folder
        self.secret("carillon-cluster-key", key=b"a secret of the cluster")
        self.override: dict[str, str] = {}
        if coordinator == "kubernetes":
            self._start_api(net.host("api"))
        else:
            self._start_etcd(net.host("etcd"))
        self.workloads = workloads_of(overlay)
        self.started: dict[str, Started] = {}

    def secret(self, name: str, **entries: bytes) -> None:
        (self.folder / name).mkdir(exist_ok=True)
        for entry, content in entries.items():
            file = self.folder / name / entry.replace("_", ".")
            file.write_bytes(content)
            file.chmod(0o440)

    def start(self, role: str, ordinal: int, *options: str) -> Started:
        workload = self.workloads[role]
        name = f"{workload['metadata']['name']}-{ordinal}"
        host = self.net.host(name)
        pod = Pod(workload, name, host.address, override=self.override)
        memory = () if role == "scheduler" else ("--memory=1GiB",)
        self.started[name] = self.begin(Started(pod, host, self.folder, self.program, self.models, *memory, *options))
        return self.started[name]

    def start_all(self) -> None:
        for role, workload in self.workloads.items():
            for ordinal in range(workload["spec"]["replicas"]):
                self.start(role, ordinal)
        for each in self.started.values():
            each.ready()

    def leader(self) -> str:
        """As anybody in a pod may ask."""
        any_pod = next(each for each in self.started.values() if each.process.poll() is None)
        done = subprocess.run(any_pod.inside("sh", "-c", 'carillon cluster status --json --cluster "$CARILLON_CLUSTER"'), env=any_pod.environment,
                              capture_output=True, text=True, timeout=LIMIT)
        return json.loads(done.stdout).get("leader") or "" if done.returncode == 0 else ""

    def _start_etcd(self, host: Host) -> None:
        etcd = Etcd(self.folder, "etcd", {"etcd": host.at(2380)}, client=host.at(2379))
        etcd.command = host.on(*etcd.command)
        self.begin(etcd).ready()
        self.override["CARILLON_CLUSTER"] = f"etcd://{etcd.client}/carillon"

    def _start_api(self, host: Host) -> None:
        (self.folder / "api").mkdir()
        authority = Authority(self.folder / "api")
        made = authority.issue("server", names=f"IP:{host.address}")
        self.secret("serviceaccount", token=b"a-token-of-the-account", ca_crt=authority.certificate.read_bytes(), namespace=b"carillon")
        self.api = self.begin(Api(host, self.folder, "--cert", str(made.certificate), "--key", str(made.key)))
        wait_for(lambda: self.api.obey(tokens=["a-token-of-the-account"]) is not None, "the API server")
        SERVICE.update(KUBERNETES_SERVICE_HOST=host.address, KUBERNETES_SERVICE_PORT=str(API_PORT))


class Api:
    """The stand-in for an API server."""

    def __init__(self, host: Host, folder: Path, *options: str):
        self.address = host.at(API_PORT)
        with (folder / "api.log").open("wb") as log:
            self.process = subprocess.Popen(host.on(sys.executable, str(API), self.address, *options), stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log)

    def obey(self, **orders) -> dict | None:
        request = urllib.request.Request(f"https://{self.address}/stub", json.dumps(orders).encode())
        try:
            with urllib.request.urlopen(request, timeout=5, context=ssl._create_unverified_context()) as response:
                return json.load(response)
        except OSError:
            return None


@pytest.fixture
def coordinator(request) -> str:
    """What the manifests say, if the test names nothing else."""
    SERVICE.clear()
    return getattr(request, "param", "kubernetes")


@pytest.fixture
def pods(net, start, program, tiny_models, tmp_path, coordinator) -> Pods:
    return Pods(net, start, program, tiny_models, tmp_path, coordinator)


def values() -> np.ndarray:
    return np.random.default_rng(3).standard_normal([1, 64]).astype(np.float32)


def by_http(address: str, model: str = MODEL) -> np.ndarray:
    with http_client.InferenceServerClient(address) as client:
        assert client.is_server_live() and client.is_server_ready() and client.is_model_ready(model)
        tensor = http_client.InferInput("input", [1, 64], "FP32")
        tensor.set_data_from_numpy(values())
        return client.infer(model, [tensor], timeout=20_000_000).as_numpy("output")


def by_grpc(address: str) -> np.ndarray:
    with grpc_client.InferenceServerClient(address) as client:
        assert client.is_server_live() and client.is_server_ready() and client.is_model_ready(MODEL)
        tensor = grpc_client.InferInput("input", [1, 64], "FP32")
        tensor.set_data_from_numpy(values())
        return client.infer(MODEL, [tensor], timeout=20_000_000).as_numpy("output")


KSERVE = [python for place in (".kubernetes", ".clients") if (python := ROOT / place / "venv/bin/python").exists()]  # by tools/


def by_kserve(protocol: str, address: str, model: str = MODEL) -> np.ndarray:
    done = subprocess.run([KSERVE[0], ROOT / "tests/clients/kserve_sdk.py", protocol, address, model],
                          input=json.dumps(values().tolist()), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return np.array(json.loads(done.stdout)["output"], np.float32)


@pytest.mark.parametrize("coordinator", ["etcd", "kubernetes"], indirect=True)
def test_pods_start_in_any_order_and_serve(pods):
    frontend = pods.start("frontend", 0)
    wait_for(lambda: frontend.passes("startupProbe"), "the frontend's ports", frontend.text)
    assert not frontend.passes("readinessProbe")  # nobody leads
    scheduler = pods.start("scheduler", 0)
    scheduler.ready()
    assert not frontend.passes("readinessProbe")  # no worker has a device
    worker = pods.start("worker", 0)
    worker.ready()
    wait_for(lambda: frontend.passes("readinessProbe"), "the frontend to be ready", frontend.text)
    want = by_http(frontend.at("http"))
    assert want.shape == (1, 10)
    np.testing.assert_allclose(by_grpc(frontend.at("grpc")), want, rtol=1e-3, atol=1e-4)
    if KSERVE:
        for protocol, port in (("rest", "http"), ("grpc", "grpc")):
            np.testing.assert_allclose(by_kserve(protocol, frontend.at(port)), want, rtol=1e-3, atol=1e-4)
    for each in pods.started.values():
        assert each.end() == 0, each.text()


@pytest.mark.parametrize("overlay", ["real-time", "keda", "prometheus"])
def test_pods_of_an_overlay_start_and_listen(net, start, program, tiny_models, tmp_path, coordinator, overlay):
    """GPUs are not here. TLS is below."""
    pods = Pods(net, start, program, tiny_models, tmp_path, coordinator, overlay)
    for role in ("scheduler", "worker", "frontend"):
        pods.start(role, 0)
    for each in pods.started.values():
        each.ready()
        for port in each.pod.container["ports"]:
            if port.get("protocol") != "UDP":
                try:
                    socket.create_connection((each.host.address, port["containerPort"]), timeout=10).close()
                except OSError as error:
                    pytest.fail(f"{each.pod.name}, port {port}: {error}; {each.text()}")
    assert by_http(pods.started["carillon-frontend-0"].at("http")).shape == (1, 10)


def test_members_ask_the_api_server_for_what_the_role_allows(pods):
    (rule,) = of_kind("Role", kustomized(KUBERNETES / "cluster/overlays/cpu"))["rules"]
    pods.start_all()
    pods.started["carillon-worker-1"].run("lifecycle", "preStop")
    pods.started["carillon-worker-1"].end()
    seen = pods.api.obey(look=True)
    assert {verb for verb, count in seen["counts"].items() if count} <= set(rule["verbs"])
    assert set(seen["objects"]) >= {"carillon/carillon", "carillon/carillon.carillon-worker-0"}


@pytest.mark.parametrize("role", ["worker", "scheduler"])
def test_no_request_is_lost_when_a_pod_is_stopped(pods, role):
    pods.start_all()
    victim = pods.started[pods.leader() if role == "scheduler" else "carillon-worker-1"]
    frontends = [each.at("http") for each in pods.started.values() if each.pod.role == "frontend"]
    with sending(*frontends) as client:
        drained = victim.run("lifecycle", "preStop")
        assert drained.returncode == 0, drained.stderr
        client.wait_for_more(20)
        assert victim.end() == 0, victim.text()
        client.wait_for_more(20)
    if role == "scheduler":
        assert pods.leader() not in ("", victim.pod.name)


def test_a_frontend_answers_until_its_endpoint_is_gone(pods):
    pods.start_all()
    victim = pods.started["carillon-frontend-1"]
    with sending(victim.at("http")) as client:
        hook = subprocess.Popen(victim.inside(*victim.pod.command_of("lifecycle", "preStop")), env=victim.environment)
        client.wait_for_more(60)  # of proxies that know the endpoint still
        assert hook.poll() is None and victim.passes("readinessProbe")
        hook.kill()
        hook.wait()
    assert victim.end() == 0, victim.text()


def test_a_worker_that_has_the_only_copy_is_not_drained_but_stops(pods):
    for role in ("scheduler", "worker", "frontend"):
        pods.start(role, 0)
    for each in pods.started.values():
        each.ready()
    worker = pods.started["carillon-worker-0"]
    drained = worker.run("lifecycle", "preStop")
    assert drained.returncode != 0 and "no other worker" in drained.stderr, drained.stderr
    assert worker.end() == 0


def scrape(pod: Started) -> str:
    with urllib.request.urlopen(f"http://{pod.at('metrics')}/metrics", timeout=LIMIT) as response:
        return response.read().decode()


def issued(authority: Authority, name: str, of: str) -> dict[str, bytes]:
    """The entries of a secret, as cert-manager calls them."""
    made = authority.issue(name, names=of)
    return {"tls_crt": made.certificate.read_bytes(), "tls_key": made.key.read_bytes(), "ca_crt": authority.certificate.read_bytes()}


def test_with_tls_probes_pass_and_a_worker_drains_itself(net, start, program, tiny_models, tmp_path, coordinator):
    (tmp_path / "ca").mkdir()
    authority = Authority(tmp_path / "ca")
    pods = Pods(net, start, program, tiny_models, tmp_path, coordinator, "tls")
    certificates = {each["spec"]["secretName"]: each["spec"] for each in yaml.safe_load_all((KUBERNETES / "cluster/certificates.yaml").read_text())
                    if each["kind"] == "Certificate" and "isCA" not in each["spec"]}
    for name, spec in certificates.items():
        pods.secret(name, **issued(authority, name, ",".join([*(f"URI:{uri}" for uri in spec.get("uris", [])),
                                                              *(f"DNS:{host}" for host in spec.get("dnsNames", []))])))
    pods.start_all()
    address = pods.started["carillon-frontend-0"].at("http")
    with http_client.InferenceServerClient(address, ssl=True, ssl_context_factory=lambda: authority.client_context(), insecure=True) as client:
        tensor = http_client.InferInput("input", [1, 64], "FP32")
        tensor.set_data_from_numpy(values())
        assert client.infer(MODEL, [tensor], timeout=20_000_000).as_numpy("output").shape == (1, 10)
    for name in ("carillon-worker-1", "carillon-scheduler-1"):
        drained = pods.started[name].run("lifecycle", "preStop")
        # The last spare is not drained.
        assert drained.returncode == 0 or "is the last spare" in drained.stderr, drained.stderr


def metrics_of(frontend: Started) -> dict[str, float]:
    """Of the model, by name: those that an endpoint picker reads."""
    found = re.findall(rf'^(nv_\w+)\{{model="{MODEL}",version="1"\}} (\S+)$', scrape(frontend), re.M)
    return {name: float(value) for name, value in found}


def queries_of_dashboard() -> list[str]:
    dashboard = json.loads((ROOT / "packaging/grafana/carillon-cluster.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return queries + [variable["query"] for variable in dashboard["templating"]["list"]]


def test_the_dashboard_asks_each_role_for_metrics_that_it_has(pods):
    pods.workloads = workloads_of("prometheus")  # in which schedulers have metrics, too
    for role in ("scheduler", "worker", "frontend"):
        pods.start(role, 0)
    for each in pods.started.values():
        each.ready()
    assert by_http(pods.started["carillon-frontend-0"].at("http")).shape == (1, 10)
    # A new leader that was told nothing gives the number after 15 s.
    wait_for(lambda: "carillon_devices_wanted{" in scrape(pods.started["carillon-scheduler-0"]), "the wanted number")
    there = {role: set(re.findall(r"^(\w+)[{ ]", scrape(pods.started[f"carillon-{role}-0"]), re.M)) for role in pods.workloads}
    asked = [found for query in queries_of_dashboard() for found in re.findall(r"((?:carillon|nv|process)_\w+)(\{[^}]*\})?", query)]
    assert len(asked) > 15
    for name, labels in asked:
        of = re.search(r'role="(\w+)"', labels)
        # Others have no devices to count. A model's SLO is there where it has one.
        for role in [of.group(1)] if of else ["frontend", "worker"]:
            assert name in there[role] or name == "carillon_slo_seconds", f"a {role} has no {name}"


def test_frontends_have_the_metrics_that_a_gateway_reads(pods, tmp_path):
    """nv_inference_pending_request_count: requests that no batch has begun with, as Triton's."""
    profile = write_profile(tmp_path / "profile.json", (MODEL,), 400)
    for role, options in (("scheduler", ()), ("worker", (f"--device=emulated:{profile}", f"--profile={profile}")), ("frontend", ())):
        pods.start(role, 0, *options)
    for each in pods.started.values():
        each.ready()
    frontend = pods.started["carillon-frontend-0"]
    wait_for(lambda: "nv_inference_pending_request_count" in metrics_of(frontend), "the model")
    assert metrics_of(frontend)["nv_inference_pending_request_count"] == 0
    body = {"parameters": {"timeout": 30_000_000},
            "inputs": [{"name": "input", "datatype": "FP32", "shape": [1, 64], "data": [1.0] * 64}]}

    def infer() -> int:
        request = urllib.request.Request(f"http://{frontend.at('http')}/v2/models/{MODEL}/infer", json.dumps(body).encode())
        try:
            return urllib.request.urlopen(request, timeout=LIMIT).status
        except urllib.error.HTTPError as error:
            return error.code

    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        first = pool.submit(infer)
        time.sleep(0.1)  # it runs, for 400 ms
        others = [pool.submit(infer) for _ in range(20)]
        seen = []
        wait_for(lambda: seen.append(metrics_of(frontend)) or all(each.done() for each in (first, *others)), "the answers")
        assert [each.result() for each in (first, *others)] == [200] * 21
    # Twenty wait. The request that runs does not count.
    assert 1 <= max(each["nv_inference_pending_request_count"] for each in seen) <= 20
    wait_for(lambda: metrics_of(frontend)["nv_inference_pending_request_count"] == 0, "no request to wait")
    # Triton counts batches. Workers do so here, and frontends have none.
    assert metrics_of(frontend)["nv_inference_exec_count"] == 0


def test_a_pod_that_is_killed_is_replaced_under_its_name(pods):
    """As the StatefulSet does it. The name is registered for a while."""
    pods.start_all()
    victim = pods.started["carillon-worker-1"]
    with sending(pods.started["carillon-frontend-0"].at("http")) as client:
        victim.process.send_signal(signal.SIGKILL)
        victim.process.wait()
        client.wait_for_more(30)
        again = Started(victim.pod, victim.host, pods.folder, pods.program, pods.models, "--memory=1GiB")
        pods.begin(again)
        again.ready()
        client.wait_for_more(30)


def test_a_rollout_of_schedulers_and_workers_loses_no_request(pods):
    """As the manifests' strategies have it: a scheduler more before one goes; workers one at a time, from the highest."""
    pods.start_all()
    schedulers, workers = (pods.workloads[role]["spec"] for role in ("scheduler", "worker"))
    assert schedulers["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1} and "updateStrategy" not in workers

    def stop(pod: Started) -> None:
        drained = pod.run("lifecycle", "preStop")
        assert drained.returncode == 0, drained.stderr
        assert pod.end() == 0, pod.text()

    with sending(*(each.at("http") for each in pods.started.values() if each.pod.role == "frontend")) as client:
        for ordinal in range(schedulers["replicas"]):
            pods.start("scheduler", schedulers["replicas"] + ordinal).ready()
            stop(pods.started[f"carillon-scheduler-{ordinal}"])
            client.wait_for_more(20)
        for ordinal in reversed(range(workers["replicas"])):
            old = pods.started[f"carillon-worker-{ordinal}"]
            stop(old)
            pods.begin(Started(old.pod, old.host, pods.folder, pods.program, pods.models, "--memory=1GiB")).ready()
            client.wait_for_more(20)
    assert pods.leader() in ("carillon-scheduler-2", "carillon-scheduler-3")


def test_a_rollout_to_a_build_that_does_not_go_together_stops_at_its_first_pod(pods, monkeypatch):
    pods.start_all()
    with sending(pods.started["carillon-frontend-0"].at("http")) as client:
        monkeypatch.setenv("CARILLON_PROTOCOLS", "3-4")
        new = pods.start("scheduler", 2)
        wait_for(lambda: "and 'carillon-scheduler-2' does not lead" in new.text(), "a word on the protocol", new.text)
        assert "to a build that speaks protocol 3" in new.text()
        client.wait_for_more(60)
        assert not new.passes("readinessProbe")
    assert pods.leader() in ("carillon-scheduler-0", "carillon-scheduler-1")


def test_scaling_both_ways_at_once_loses_no_request(pods):
    """Ordinal 1 goes while 2 comes and goes again, and 1 comes back."""
    pods.start_all()
    with sending(pods.started["carillon-frontend-0"].at("http")) as client:
        third = pods.start("worker", 2)
        second = pods.started["carillon-worker-1"]
        assert second.run("lifecycle", "preStop").returncode == 0
        third.ready()
        assert second.end() == 0
        again = pods.begin(Started(second.pod, second.host, pods.folder, pods.program, pods.models, "--memory=1GiB"))
        assert third.run("lifecycle", "preStop").returncode == 0
        assert third.end() == 0
        again.ready()
        client.wait_for_more(20)


def test_a_worker_that_never_becomes_ready_harms_nobody(pods):
    """It has another key than the cluster, and is started again and again."""
    pods.start_all()
    pods.secret("another-key", key=b"a secret of nobody else")
    pods.workloads["worker"] = wrong = copy.deepcopy(pods.workloads["worker"])
    of_name(wrong["spec"]["template"]["spec"]["volumes"], "cluster-key")["secret"]["secretName"] = "another-key"
    with sending(pods.started["carillon-frontend-0"].at("http")) as client:
        stranger = pods.start("worker", 2)
        for _ in range(3):
            wait_for(lambda: "another --cluster-key than 'carillon-scheduler-" in stranger.text(), "a word on the key", stranger.text)
            assert not stranger.passes("startupProbe")
            client.wait_for_more(20)
            stranger.process.kill()
            stranger.process.wait()
            stranger = pods.begin(Started(stranger.pod, stranger.host, pods.folder, pods.program, pods.models, "--memory=1GiB"))


def test_the_runtime_of_kserve_serves_a_model_by_its_service_name(net, start, program, tiny_models, tmp_path):
    """By the container's own arguments. KServe puts the model into /mnt/models, and the service's name into {{.Name}}."""
    documents = kustomized(KUBERNETES / "kserve")
    (container,) = of_kind("ServingRuntime", documents)["spec"]["containers"]
    name = of_kind("InferenceService", documents)["metadata"]["name"]
    folder = tiny_models / MODEL / "1"
    args = [word.replace("{{.Name}}", name).replace("/mnt/models/", f"{folder}/") for word in container["args"]]
    host = net.host("predictor")
    log = tmp_path / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(host.on(str(program), *args, "--memory=1GiB"), stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    try:
        port = container["readinessProbe"]["httpGet"]["port"]
        assert port == container["ports"][0]["containerPort"]
        wait_for(lambda: is_ready(host.at(port)), "the runtime", lambda: log.read_text(errors="replace"))
        want = by_http(host.at(port), name)
        assert want.shape == (1, 10)
        if KSERVE:
            np.testing.assert_allclose(by_kserve("rest", host.at(port), name), want, rtol=1e-3, atol=1e-4)
            np.testing.assert_allclose(by_kserve("grpc", host.at(9000), name), want, rtol=1e-3, atol=1e-4)
    finally:
        process.terminate()
        assert process.wait(LIMIT) == 0
