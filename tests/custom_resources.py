"""Resources of other projects than Kubernetes, against what those projects publish.

Run by the environment that tools/kubernetes makes, with manifests on standard input: says what is wrong with each. Its
packages are made of the projects' own definitions (CRDs): cloudcoil-models-* of cert-manager, KEDA and Prometheus'
operator, kserve of KServe. A field that a definition does not have is wrong, too.

InferencePool and HTTPRoute have no such package. `problems_by_hand` has what was read, once, in
kubernetes-sigs/gateway-api-inference-extension (API v1) and kubernetes-sigs/gateway-api.
"""

from __future__ import annotations

import importlib
import re
import sys

# Who has the definition: a module's class, or None: `problems_by_hand`.
OURS = {
    ("cert-manager.io/v1", "Certificate"): "cloudcoil.models.cert_manager.v1:Certificate",
    ("cert-manager.io/v1", "Issuer"): "cloudcoil.models.cert_manager.v1:Issuer",
    ("keda.sh/v1alpha1", "ScaledObject"): "cloudcoil.models.keda.v1alpha1:ScaledObject",
    ("monitoring.coreos.com/v1", "PodMonitor"): "cloudcoil.models.prometheus_operator.v1:PodMonitor",
    ("monitoring.coreos.com/v1", "PrometheusRule"): "cloudcoil.models.prometheus_operator.v1:PrometheusRule",
    ("monitoring.coreos.com/v1", "ServiceMonitor"): "cloudcoil.models.prometheus_operator.v1:ServiceMonitor",
    ("serving.kserve.io/v1alpha1", "ServingRuntime"): "kserve:V1alpha1ServingRuntime",
    ("serving.kserve.io/v1beta1", "InferenceService"): "kserve:V1beta1InferenceService",
    ("inference.networking.k8s.io/v1", "InferencePool"): None,
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): None,
}


def problems_by_hand(document: dict) -> list[str]:
    """Of the kinds without a package."""
    found: list[str] = []

    def only(where: dict, what: str, needed: set[str], allowed: set[str] = frozenset()) -> None:
        if needed - set(where) or set(where) - needed - set(allowed):
            found.append(f"{what} has {sorted(where)}, and should have {sorted(needed)}, and may have {sorted(allowed)}")

    kind, spec = document["kind"], document.get("spec", {})
    if kind == "InferencePool":
        only(spec, "spec", {"selector", "targetPorts", "endpointPickerRef"}, {"appProtocol"})
        only(spec["selector"], "selector", {"matchLabels"})
        picker = spec["endpointPickerRef"]
        # The port must be there where the kind is Service, which is the default.
        only(picker, "endpointPickerRef", {"name", "port"}, {"group", "kind", "failureMode"})
        if picker.get("failureMode", "FailClose") not in ("FailOpen", "FailClose"):
            found.append("failureMode is FailOpen or FailClose")
        for port in (*spec["targetPorts"], picker["port"]):
            only(port, "port", {"number"})
            if not 1 <= port["number"] <= 65535:
                found.append(f"port {port['number']}")
        if not 1 <= len(spec["targetPorts"]) <= 8:
            found.append("1 to 8 targetPorts")
    if kind == "HTTPRoute":
        only(spec, "spec", {"parentRefs", "rules"}, {"hostnames"})
        for rule in spec["rules"]:
            only(rule, "rule", {"backendRefs"}, {"name", "matches", "filters", "timeouts", "retry"})
            for match in rule.get("matches", []):
                only(match, "match", set(), {"path", "headers", "queryParams", "method"})
                only(match["path"], "path", {"type", "value"})
                if match["path"]["type"] not in ("Exact", "PathPrefix", "RegularExpression"):
                    found.append(f"type of path: {match['path']['type']}")
            for backend in rule["backendRefs"]:
                # Only a Service needs a port.
                only(backend, "backendRef", {"group", "kind", "name"}, {"namespace", "port", "weight", "filters"})
        for parent in spec["parentRefs"]:
            only(parent, "parentRef", {"name"}, {"group", "kind", "namespace", "sectionName", "port"})
    return found


def differences(ours, theirs, at: str) -> list[str]:
    """Where what a definition made of a resource lacks something of it, or has it otherwise."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return [each for key, value in ours.items()
                for each in (differences(value, theirs[key], f"{at}.{key}") if key in theirs else [f"{at}.{key} is not known"])]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [each for i, pair in enumerate(zip(ours, theirs)) for each in differences(*pair, f"{at}[{i}]")]
    return [] if str(ours) == str(theirs) else [f"{at}: {ours!r} became {theirs!r}"]


def differences_of_kserve(value, kind: str, at: str) -> list[str]:
    """Likewise, of a type of kserve's models, such as `list[V1Container]`. Types of Kubernetes are not looked into."""
    import kserve

    if inner := re.fullmatch(r"list\[(.+)\]", kind):
        return [each for i, part in enumerate(value) for each in differences_of_kserve(part, inner.group(1), f"{at}[{i}]")]
    if inner := re.fullmatch(r"dict\(str, (.+)\)", kind):
        return [each for key, part in value.items() for each in differences_of_kserve(part, inner.group(1), f"{at}.{key}")]
    if made := getattr(kserve, kind, None):
        names = {theirs: made.openapi_types[ours] for ours, theirs in made.attribute_map.items()}
        return [each for key, part in value.items()
                for each in (differences_of_kserve(part, names[key], f"{at}.{key}") if key in names else [f"{at}.{key} is not known"])]
    plain = {"str": str, "bool": bool, "int": int, "float": (int, float)}
    return [] if kind not in plain or isinstance(value, plain[kind]) else [f"{at}: {value!r} is no {kind}"]


def problems_of(document: dict) -> list[str]:
    where = OURS[document["apiVersion"], document["kind"]]
    if where is None:
        return problems_by_hand(document)
    module, name = where.split(":")
    if module == "kserve":
        return differences_of_kserve(document, name, document["kind"])
    made = getattr(importlib.import_module(module), name)
    return differences(document, made.model_validate(document).model_dump(by_alias=True, mode="json"), document["kind"])


def main() -> int:
    import yaml

    wrong = [f"{document['kind']} {document['metadata']['name']}: {problem}"
             for document in yaml.safe_load_all(sys.stdin) if document for problem in problems_of(document)]
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
