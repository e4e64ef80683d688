"""The packaging files, as far as that goes without what they are for: the unit by systemd-analyze, the
Dockerfile by reading it. packaging/try-deb tries the package itself, test_manifests.py holds the manifests."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess

import pytest
import yaml

from loopback import ROOT
from manifests import KUBERNETES, find, kustomized, of_kind

PACKAGING = ROOT / "packaging"


def run(*command, **more) -> subprocess.CompletedProcess:
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120, **more)


def options_of(program) -> set[str]:
    said = run(program, "serve", "--help").stdout
    return set(re.findall(r"^\s+(?:-\w,)?(--[a-z-]+)", said, re.M))


def check_options(program, options: list[str]) -> None:
    known = options_of(program)
    named = [word.split("=")[0] for word in options if word.startswith("--")]
    assert named and not set(named) - known, f"'carillon serve' has no {set(named) - known}"


# ---- systemd


def unit_lines(name: str) -> list[str]:
    unit = (PACKAGING / "systemd/carillon.service").read_text()
    return re.findall(rf"^{name}=(.*)$", unit, re.M)


def seconds(name: str) -> int:
    (value,) = unit_lines(name)
    return int(value)


@pytest.fixture
def unit(tmp_path):
    """With a program that is there: the analysis looks."""
    text = (PACKAGING / "systemd/carillon.service").read_text()
    path = tmp_path / "carillon.service"
    path.write_text(text.replace("ExecStart=/usr/bin/carillon", f"ExecStart={shutil.which('true')}"))
    return path


needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")


@needs_systemd
def test_the_unit_is_understood(unit, tmp_path):
    ran = run("systemd-analyze", "verify", "--man=no", unit)
    assert ran.returncode == 0 and not ran.stderr, ran.stderr
    wrong = tmp_path / "wrong.service"
    wrong.write_text(unit.read_text().replace("WatchdogSec=", "WatchdogSecs="))
    assert "WatchdogSecs" in run("systemd-analyze", "verify", "--man=no", wrong).stderr


@needs_systemd
def test_the_unit_exposes_little(unit):
    ran = run("systemd-analyze", "security", "--offline=yes", "--threshold=20", unit)
    assert ran.returncode == 0, ran.stdout  # 2.0 of 10 at most


def test_the_unit_fits_the_server(program):
    assert unit_lines("Type") == ["notify"]
    assert unit_lines("MemoryDenyWriteExecute") == []  # kernels are written as the server runs
    options = (PACKAGING / "systemd/carillon.env").read_text()
    check_options(program, shlex.split(" ".join(unit_lines("ExecStart"))) + shlex.split(options, comments=True))
    (active,) = re.findall(r"^CARILLON_OPTIONS=(.*)$", options, re.M)
    for option in ("--http", "--grpc", "--metrics"):
        assert re.search(rf"{option} 127\.0\.0\.1:\d+", active), "the server must not be open unasked"
    said = run(program, "serve", "--help").stdout
    drain = float(re.search(r"--drain-time FLOAT.*=([\d.]+)$", said, re.M).group(1))
    assert seconds("TimeoutStopSec") > drain + 30


# ---- Kubernetes


def manifests(*overlay: str) -> list[dict]:
    folder = KUBERNETES.joinpath(*overlay)
    if find("kubectl") or overlay != ("base",):
        return kustomized(folder)
    names = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    return [yaml.safe_load((folder / name).read_text()) for name in names]


LAYERS = [("base",), ("overlays", "production")]


@pytest.mark.parametrize("layer", LAYERS)
def test_selectors_select_the_servers(layer):
    documents = manifests(*layer)
    labels = of_kind("Deployment", documents)["spec"]["template"]["metadata"]["labels"].items()
    for selector in (of_kind("Deployment", documents)["spec"]["selector"]["matchLabels"],
                     of_kind("Service", documents)["spec"]["selector"],
                     of_kind("PodDisruptionBudget", documents)["spec"]["selector"]["matchLabels"],
                     of_kind("NetworkPolicy", documents)["spec"]["podSelector"]["matchLabels"]):
        assert selector and selector.items() <= labels
    for document in documents:
        if document["kind"] == "ServiceMonitor":
            wanted = document["spec"]["selector"]["matchLabels"].items()
            assert wanted <= of_kind("Service", documents)["metadata"]["labels"].items()


@pytest.mark.parametrize("layer", LAYERS)
def test_the_deployment_fits_the_server(layer, program):
    pod = of_kind("Deployment", manifests(*layer))["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"][0] == "serve"
    check_options(program, container["args"])
    (drain,) = [int(option.split("=")[1]) for option in container["args"] if option.startswith("--drain-time=")]
    waits = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] >= waits + drain + 15
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": 8000, "grpc": 8001, "metrics": 8002}
    secure = "--require-key" in container["args"]
    for probe, path in (("startupProbe", "live"), ("livenessProbe", "live"), ("readinessProbe", "ready")):
        assert container[probe]["httpGet"]["path"] == f"/v2/health/{path}"
        assert (container[probe]["httpGet"].get("scheme") == "HTTPS") == secure
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
    assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert not container["securityContext"]["allowPrivilegeEscalation"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}


# ---- Docker


def instructions() -> list[tuple[str, str]]:
    text = (PACKAGING / "Dockerfile").read_text()
    text = re.sub(r"^#.*\n", "", text, flags=re.M).replace("\\\n", " ")
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line.strip()]


def test_the_image_is_what_it_should_be():
    lines = instructions()
    known = {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
    assert {name for name, _ in lines} <= known
    froms = [i for i, (name, _) in enumerate(lines) if name == "FROM"]
    assert len(froms) == 2 and all(lines[i][1].startswith("debian:bookworm-slim") for i in froms)
    last = dict(lines[froms[-1]:])
    assert int(last["USER"].split(":")[0]) > 0
    assert last["STOPSIGNAL"] == "SIGTERM" and {"8000", "8001", "8002"} == set(last["EXPOSE"].split())
    for name, text in lines:
        # Debian's packages and PyPI's, by their clients, are all that is fetched.
        assert not re.search(r"https?://|curl |wget |git clone", text), (name, text)
        if name == "RUN":
            assert run("bash", "-n", "-c", text).returncode == 0, text
        if name == "COPY" and "--from" not in text:
            assert text == ". ."


def test_the_image_looks_after_its_health(server):
    (text,) = [text for name, text in instructions() if name == "HEALTHCHECK"]
    command = yaml.safe_load(text[text.index("CMD ") + 4:])  # a JSON array
    script = command[2].replace("127.0.0.1/8000", server.http.replace(":", "/"))
    assert run(*command[:2], script).returncode == 0
    assert run(*command[:2], script.replace("/v2/health/live", "/v2/nothing")).returncode != 0
    assert run(*command[:2], script.replace(server.http.replace(":", "/"), "127.0.0.1/1")).returncode != 0


# ---- Debian


def test_the_package_keeps_what_administrators_change():
    kept = (PACKAGING / "debian/conffiles").read_text().split()
    installed = (PACKAGING / "install.cmake").read_text()
    for path in kept:
        assert f"DESTINATION {path.rsplit('/', 1)[0]}" in installed.replace("\n", " ")
    for script in ("postinst", "prerm", "postrm"):
        text = (PACKAGING / "debian" / script).read_text()
        assert run("sh", "-n", "-c", text).returncode == 0
        commands = re.sub(r"^\s*#.*$", "", text, flags=re.M)
        assert "enable" not in commands and " start " not in commands  # nothing is started unasked
