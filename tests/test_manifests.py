"""packaging/kubernetes and packaging/helm against Kubernetes' schemas, against each other, and against the program.

No manifest here was ever applied to a cluster. tests/hosts/test_pods.py starts the pods' own commands.
"""

from __future__ import annotations

import os
import re
import subprocess

import pytest
import yaml

from custom_resources import OURS, problems_by_hand
from loopback import ROOT
from manifests import CHART, KUBERNETES, Pod, container_of, kustomized, of_kind, templated, tool, workloads

CLUSTER = KUBERNETES / "cluster"
OVERLAYS = sorted(folder.name for folder in (CLUSTER / "overlays").iterdir())
FOLDERS = [CLUSTER / "base", *(CLUSTER / "overlays" / name for name in OVERLAYS), KUBERNETES / "base",
           KUBERNETES / "overlays/production", KUBERNETES / "kserve", KUBERNETES / "inference-gateway"]
ROLES = {"frontend": "Deployment", "scheduler": "Deployment", "worker": "StatefulSet"}
NATIVE = ("v1", "apps/v1", "autoscaling/v2", "policy/v1", "networking.k8s.io/v1", "rbac.authorization.k8s.io/v1")
# The values that make the chart what an overlay is.
VALUES = {
    "cpu": [],
    "gpu": ["--set", "gpu.enabled=true"],
    "tls": ["--set", "tls.enabled=true"],
    "keda": ["--set", "keda.enabled=true"],
    "hpa": ["--set", "hpa.enabled=true,prometheus.enabled=true"],
    "prometheus": ["--set", "prometheus.enabled=true"],
    "real-time": ["--set", "realTime.enabled=true"],
    "inference-gateway": ["--set", "inferenceGateway.enabled=true"],
    "all": ["--set", "gpu.enabled=true,tls.enabled=true,keda.enabled=true,prometheus.enabled=true",
            "--set", "inferenceGateway.enabled=true,models.claim=carillon-models",
            "--set", "image.repository=registry.example.com/carillon,image.tag=0.1.0"],
}


def named(folder) -> str:
    return str(folder.relative_to(KUBERNETES))


def documents_of(path) -> list[dict]:
    return [each for each in yaml.safe_load_all(path.read_text()) if each]


# ---- schemas


def check_native(document: dict) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("folder", FOLDERS, ids=named)
def test_manifests_are_as_kubernetes_has_them(folder):
    for document in kustomized(folder):
        if document["apiVersion"] in NATIVE:
            check_native(document)
        else:
            assert (document["apiVersion"], document["kind"]) in OURS


def test_the_chart_is_as_kubernetes_has_it():
    for document in templated(*VALUES["all"], "--set", "realTime.enabled=true", "--set", "imagePullSecrets[0].name=registry",
                              "--set", "worker.nodeSelector.pool=gpu", "--set", "image.pullPolicy=Always",
                              "--set", "worker.tolerations[0].operator=Exists", "--set", "frontend.tolerations[0].operator=Exists",
                              "--set", "scheduler.tolerations[0].operator=Exists", "--set", "worker.args[0]=--threads=4"):
        if document["kind"] == "StatefulSet":
            assert "--threads=4" in container_of(document)["args"]
        if document["apiVersion"] in NATIVE:
            check_native(document)


def custom_resources() -> list[dict]:
    found = [document for folder in FOLDERS for document in kustomized(folder)] + documents_of(CLUSTER / "certificates.yaml")
    return [document for document in found if document["apiVersion"] not in NATIVE]


def said_of(documents: list[dict]) -> subprocess.CompletedProcess:
    python = ROOT / ".kubernetes/venv/bin/python"
    if not python.exists():
        pytest.skip("no definitions of custom resources: tools/setup --with-kubernetes installs them")
    return subprocess.run([python, ROOT / "tests/custom_resources.py"], input=yaml.safe_dump_all(documents),
                          capture_output=True, text=True, timeout=300)


def test_custom_resources_are_as_their_projects_have_them():
    ran = said_of(custom_resources())
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_field_that_a_project_does_not_have_is_found():
    documents = {each["kind"]: each for each in custom_resources()}
    for each in documents.values():
        each["spec"]["wrong"] = "field"
    documents["InferenceService"]["spec"]["predictor"]["model"]["format"] = "onnx"
    ran = said_of(list(documents.values()))
    found = {line.split(" ")[0] for line in ran.stdout.splitlines() if "wrong" in line}
    assert ran.returncode == 1 and found == set(documents), ran.stdout + ran.stderr
    assert "predictor.model.format is not known" in ran.stdout


def test_the_runtime_of_kserve_is_a_pod():
    runtime = of_kind("ServingRuntime", kustomized(KUBERNETES / "kserve"))["spec"]
    check_native({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "of-kserve"},
                  "spec": {key: runtime[key] for key in ("containers", "volumes")}})


def test_custom_resources_without_a_package_are_as_was_read():
    for document in custom_resources():
        assert not problems_by_hand(document)


# ---- the chart and the overlays have the same content


def plain(document: dict) -> dict:
    """Without what only Helm adds, and with lists whose order means nothing in one order."""
    for label in ("helm.sh/chart", "app.kubernetes.io/managed-by"):
        document["metadata"]["labels"].pop(label, None)
    if document in workloads([document]):
        pod = document["spec"]["template"]["spec"]
        pod["volumes"].sort(key=lambda each: each["name"])
        container = container_of(document)
        container["args"][1:] = sorted(container["args"][1:])
        container["volumeMounts"].sort(key=lambda each: each["name"])
    return document


def by_name(documents: list[dict]) -> dict:
    return {(each["kind"], each["metadata"]["name"]): plain(each) for each in documents}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_chart_has_what_the_overlay_has(overlay):
    chart, overlays = by_name(templated(*VALUES[overlay])), by_name(kustomized(CLUSTER / "overlays" / overlay))
    assert set(chart) == set(overlays)
    for name in chart:
        assert chart[name] == overlays[name], name


def test_a_chart_of_another_name_is_another_cluster():
    text = yaml.safe_dump_all(templated(*VALUES["all"]))
    other = subprocess.run([tool("helm"), "template", "second", CHART, "--namespace", "carillon", *VALUES["all"]],
                           capture_output=True, text=True, timeout=120, check=True).stdout
    for document in yaml.safe_load_all(other):
        if document:
            assert document["metadata"]["name"].startswith("second")
    assert "kubernetes://$(POD_NAMESPACE)/second" in other and "kubernetes://$(POD_NAMESPACE)/carillon" in text


def test_the_chart_has_one_autoscaler():
    ran = subprocess.run([tool("helm"), "template", "carillon", CHART, "--set", "hpa.enabled=true,keda.enabled=true"],
                         capture_output=True, text=True, timeout=120)
    assert ran.returncode != 0 and "hpa.enabled and keda.enabled exclude each other" in ran.stderr


def test_autoscalers_alone_number_the_workers(overlay):
    scaled = [each["spec"]["scaleTargetRef"] for each in overlay if each["kind"] in ("ScaledObject", "HorizontalPodAutoscaler")]
    worker = of_kind("StatefulSet", overlay)
    assert ("replicas" in worker["spec"]) == (not scaled)
    assert scaled in ([], [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": worker["metadata"]["name"]}])


def test_helm_finds_nothing_wrong_with_the_chart():
    ran = subprocess.run([tool("helm"), "lint", "--strict", CHART], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout


# ---- what the page shows


PAGE = (ROOT / "docs/kubernetes.md").read_text()


def test_the_overlay_that_the_page_shows_is_whole(tmp_path):
    (shown,) = re.findall(r"```yaml\n# my-cluster/kustomization.yaml\n(.*?)```", PAGE, re.S)
    where = os.path.relpath(KUBERNETES, tmp_path)
    (tmp_path / "kustomization.yaml").write_text(shown.replace("../packaging/kubernetes", where))
    documents = kustomized(tmp_path)
    for each in workloads(documents):
        assert container_of(each)["image"] == "registry.example.com/my-models:1" and each["metadata"]["namespace"] == "carillon"
    assert "--device=cuda" in container_of(of_kind("StatefulSet", documents))["args"]


def test_the_install_that_the_page_shows_has_the_models_image():
    (options,) = re.findall(r"^helm -n carillon install carillon packaging/helm/carillon (.*)$", PAGE, re.M)
    assert {container_of(each)["image"] for each in workloads(templated(*options.split()))} == {"registry.example.com/my-models:1"}
    assert re.findall(r"create secret generic (\S+) --from-literal=key=", PAGE) == [
        each["secret"]["secretName"] for each in workloads(templated())[0]["spec"]["template"]["spec"]["volumes"] if "secret" in each]


def test_the_page_names_components_and_values_that_there_are():
    components = re.findall(r"^\| `([\w-]+)` \| `([\w.]+)` \|", PAGE, re.M)
    assert {name for name, _ in components} == {folder.name for folder in (CLUSTER / "components").iterdir()}
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for _, value in components:
        group, name = value.split(".")
        assert name in values[group]


# ---- pods


def options_of(program, role: str) -> set[str]:
    said = subprocess.run([program, role, "--help"], capture_output=True, text=True, timeout=60, check=True).stdout
    return set(re.findall(r"^\s+(--[a-z-]+)", said, re.M))


@pytest.fixture(params=OVERLAYS)
def overlay(request) -> list[dict]:
    return kustomized(CLUSTER / "overlays" / request.param)


def test_each_role_is_a_workload_with_options_that_it_has(overlay, program):
    found = {container_of(each)["args"][0]: each["kind"] for each in workloads(overlay)}
    assert found == ROLES
    for each in workloads(overlay):
        role, *options = container_of(each)["args"]
        known = options_of(program, role)
        named = [option.split("=")[0] for option in options]
        assert len(set(named)) == len(named) and not set(named) - known


def test_workers_are_ordered_and_start_at_once(overlay):
    spec = of_kind("StatefulSet", overlay)["spec"]
    assert spec["podManagementPolicy"] == "Parallel"
    assert spec["serviceName"] == of_kind("Service", overlay, spec["serviceName"])["metadata"]["name"]


def test_a_rollout_waits_for_each_pod_and_begins_with_a_new_one(overlay):
    for each in workloads(overlay):
        if each["kind"] == "Deployment":
            assert each["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
        assert "readinessProbe" in container_of(each)


def selected(selector: dict, documents: list[dict]) -> list[str]:
    return [each["metadata"]["name"] for each in workloads(documents)
            if selector.items() <= each["spec"]["template"]["metadata"]["labels"].items()]


def test_selectors_select_whom_they_should(overlay):
    for each in workloads(overlay):
        name, spec = each["metadata"]["name"], each["spec"]
        assert selected(spec["selector"]["matchLabels"], overlay) == [name]
        for spread in spec["template"]["spec"]["topologySpreadConstraints"]:
            assert selected(spread["labelSelector"]["matchLabels"], overlay) == [name]
        assert selected(of_kind("PodDisruptionBudget", overlay, name)["spec"]["selector"]["matchLabels"], overlay) == [name]
        assert selected(of_kind("NetworkPolicy", overlay, "carillon-members")["spec"]["podSelector"]["matchLabels"], overlay)
    for service in [each for each in overlay if each["kind"] == "Service"]:
        (target,) = selected(service["spec"]["selector"], overlay)
        ports = {port["name"] for port in container_of(of_kind_any(overlay, target))["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    # Those of one host have another name: their Services must not take a cluster's pods.
    one_host = of_kind("Service", kustomized(KUBERNETES / "base"))["spec"]["selector"]
    assert not selected(one_host, overlay)


def of_kind_any(documents: list[dict], name: str) -> dict:
    (found,) = [each for each in workloads(documents) if each["metadata"]["name"] == name]
    return found


def test_what_is_mounted_is_there(overlay):
    for each in workloads(overlay):
        pod, container = each["spec"]["template"]["spec"], container_of(each)
        mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert set(mounted) == {volume["name"] for volume in pod["volumes"]}
        for file in re.findall(r"/etc/carillon/[\w./-]+", " ".join([*container["args"], *map(str, container["env"])])):
            assert any(file.startswith(f"{folder}/") for folder in mounted.values()), file


def test_no_pod_has_privileges_but_for_real_time(overlay, request):
    real_time = "real-time" in request.node.callspec.id
    for each in workloads(overlay):
        pod, container = each["spec"]["template"]["spec"], container_of(each)
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        rights = container["securityContext"]
        assert rights["readOnlyRootFilesystem"] and not rights["allowPrivilegeEscalation"]
        assert rights["capabilities"]["drop"] == ["ALL"]
        if real_time and each["kind"] == "StatefulSet":
            assert rights["capabilities"]["add"] == ["SYS_NICE"] and rights["runAsUser"] == 0
            assert "--real-time" in container["args"]
        else:
            assert "add" not in rights["capabilities"] and "runAsUser" not in rights and "--real-time" not in container["args"]


def test_members_may_do_with_leases_what_they_need_and_nothing_else(overlay):
    (rule,) = of_kind("Role", overlay)["rules"]
    assert rule == {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
                    "verbs": ["get", "list", "watch", "create", "update", "delete"]}
    assert not [each for each in overlay if each["kind"] in ("ClusterRole", "ClusterRoleBinding")]


def test_pods_have_the_time_that_their_stopping_takes(overlay, program):
    for each in workloads(overlay):
        pod = Pod(each, "carillon-x-0", "10.0.0.1")
        grace = each["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        hook = pod.command_of("lifecycle", "preStop")
        if pod.role == "frontend":
            (drain,) = [int(option.split("=")[1]) for option in pod.args if option.startswith("--drain-time=")]
            assert hook[0] == "/bin/sleep" and grace >= int(hook[1]) + drain + 5
        else:
            assert "carillon cluster drain" in hook[2]
            # run_drain() of src/carillon/cli/cluster.cpp waits so long.
            source = (ROOT / "src/carillon/cli/cluster.cpp").read_text()
            name = {"worker": "drained_within", "scheduler": "leads_within"}[pod.role]
            assert grace >= int(re.search(rf"{name} = (\d+)s;", source).group(1)) + 20


def test_probes_ask_ports_and_paths_that_there_are(overlay, request):
    secure = request.node.callspec.id.startswith(("tls", "all"))
    for each in workloads(overlay):
        container = container_of(each)
        ports = {port["name"] for port in container["ports"]}
        for probe in (container.get(f"{kind}Probe", {}).get("httpGet") for kind in ("startup", "liveness", "readiness")):
            if probe:
                assert probe["port"] in ports
                assert probe["path"] in ("/v2/health/live", "/v2/health/ready", "/metrics")
                assert (probe.get("scheme") == "HTTPS") == (secure and container["args"][0] == "frontend")


# ---- Prometheus


def test_the_rules_are_those_of_the_file():
    rules = yaml.safe_load((ROOT / "packaging/prometheus/alerts.yml").read_text())
    assert of_kind("PrometheusRule", kustomized(CLUSTER / "overlays/prometheus"))["spec"] == rules
    assert (CHART / "files/alerts.yml").resolve() == ROOT / "packaging/prometheus/alerts.yml"


# ---- KServe and the inference gateway


def test_the_runtime_of_kserve_has_options_that_serve_has(program):
    documents = kustomized(KUBERNETES / "kserve")
    runtime, service = of_kind("ServingRuntime", documents), of_kind("InferenceService", documents)
    (container,) = runtime["spec"]["containers"]
    assert container["name"] == "kserve-container" and container["args"][0] == "serve"
    assert {option.split("=")[0] for option in container["args"][1:]} <= options_of(program, "serve")
    model = service["spec"]["predictor"]["model"]
    assert model["runtime"] == runtime["metadata"]["name"]
    assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]
    assert model["modelFormat"]["name"] in [each["name"] for each in runtime["spec"]["supportedModelFormats"]]
    (drain,) = [int(option.split("=")[1]) for option in container["args"] if option.startswith("--drain-time=")]
    assert service["spec"]["predictor"]["terminationGracePeriodSeconds"] >= drain + 10 + 15


def test_the_gateway_picks_frontends():
    documents = kustomized(KUBERNETES / "inference-gateway")
    pool = of_kind("InferencePool", documents)
    # As the router's chart calls them in the release that the page shows.
    release = re.search(r"helm -n carillon install (\S+) oci://", (ROOT / "docs/kubernetes-gateways.md").read_text()).group(1)
    ((backend,),) = [rule["backendRefs"] for rule in of_kind("HTTPRoute", documents)["spec"]["rules"]]
    assert backend["name"] == pool["metadata"]["name"] == release
    assert pool["spec"]["endpointPickerRef"]["name"] == f"{release}-epp"
    values = yaml.safe_load((KUBERNETES / "inference-gateway/router-values.yaml").read_text())["router"]
    overlay = kustomized(CLUSTER / "overlays/inference-gateway")
    selector = pool["spec"]["selector"]["matchLabels"]
    assert selected(selector, overlay) == ["carillon-frontend"]
    assert values["modelServers"]["matchLabels"] == selector
    frontend = container_of(of_kind_any(overlay, "carillon-frontend"))
    ports = {port["name"]: port["containerPort"] for port in frontend["ports"]}
    assert pool["spec"]["targetPorts"] == values["modelServers"]["targetPorts"] == [{"number": ports["http"]}]
    config = yaml.safe_load(values["epp"]["pluginsCustomConfig"][values["epp"]["pluginsConfigFile"]])
    plugins = {plugin["type"]: plugin.get("parameters", {}) for plugin in config["plugins"]}
    assert plugins["metrics-data-source"]["port"] == ports["metrics"]
    engine = of_kind_any(overlay, "carillon-frontend")["spec"]["template"]["metadata"]["labels"]["llm-d.ai/engine-type"]
    assert engine == values["modelServers"]["type"] == plugins["core-metrics-extractor"]["defaultEngine"] == "triton"
