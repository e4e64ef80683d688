"""Kubernetes' manifests of packaging/, put together by kubectl and helm, and what a pod of theirs becomes."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from loopback import ROOT

KUBERNETES = ROOT / "packaging/kubernetes"
CHART = ROOT / "packaging/helm/carillon"
OLDEST = 21  # whose `kubectl kustomize` knows components


def find(name: str) -> str | None:
    """The program that $KUBECTL or $HELM names, that of tools/kubernetes, or what is installed."""
    return os.environ.get(name.upper()) or shutil.which(name, path=f"{ROOT}/.kubernetes/bin") or shutil.which(name)


def tool(name: str) -> str:
    found = find(name)
    if found is None:
        pytest.skip(f"no {name}: tools/setup --with-kubernetes installs it (or name one in {name.upper()})")
    return found


def said_by(*command) -> str:
    ran = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@functools.cache
def kubectl() -> str:
    found = tool("kubectl")
    minor = json.loads(said_by(found, "version", "--client", "-o", "json"))["clientVersion"]["minor"]
    if int(re.match(r"\d+", minor).group()) < OLDEST:
        pytest.skip(f"{found} is of Kubernetes 1.{minor}: tools/setup --with-kubernetes installs a newer one")
    return found


@functools.cache
def _kustomized(folder: Path) -> str:
    return said_by(kubectl(), "kustomize", folder)


def kustomized(folder: Path) -> list[dict]:
    return list(yaml.safe_load_all(_kustomized(folder)))


@functools.cache
def _templated(options: tuple[str, ...]) -> str:
    return said_by(tool("helm"), "template", "carillon", CHART, "--namespace", "carillon", *options)


def templated(*options: str) -> list[dict]:
    return [document for document in yaml.safe_load_all(_templated(options)) if document]


def of_kind(kind: str, documents: list[dict], name: str | None = None) -> dict:
    (found,) = [each for each in documents if each["kind"] == kind and name in (None, each["metadata"]["name"])]
    return found


def workloads(documents: list[dict]) -> list[dict]:
    return [each for each in documents if each["kind"] in ("Deployment", "StatefulSet")]


def container_of(workload: dict) -> dict:
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    return container


@dataclass
class Pod:
    """One pod as the kubelet would start it: `$(NAME)` of its variables is put into arguments."""

    workload: dict
    name: str
    ip: str
    namespace: str = "carillon"
    override: dict[str, str] = field(default_factory=dict)  # variables that have other values

    @property
    def container(self) -> dict:
        return container_of(self.workload)

    @property
    def role(self) -> str:
        return self.container["args"][0]

    @functools.cached_property
    def environment(self) -> dict[str, str]:
        fields = {"metadata.name": self.name, "metadata.namespace": self.namespace, "status.podIP": self.ip}
        known: dict[str, str] = {}
        for variable in self.container["env"]:
            name = variable["name"]
            if name in self.override:
                known[name] = self.override[name]
            elif "valueFrom" in variable:
                known[name] = fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
            else:
                known[name] = self.expanded(variable["value"], known)
        return known

    @staticmethod
    def expanded(text: str, known: dict[str, str]) -> str:
        return re.sub(r"\$\((\w+)\)", lambda found: known[found.group(1)], text)

    @property
    def args(self) -> list[str]:
        return [self.expanded(word, self.environment) for word in self.container["args"]]

    def command_of(self, *path: str) -> list[str]:
        """Of a probe or hook: ("lifecycle", "preStop"), say. Kubernetes puts no variables into these."""
        found = self.container
        for each in path:
            found = found[each]
        return found["exec"]["command"]
