"""What /v2/openapi.json says of the HTTP interface is what the server does: held against it by schemathesis, with
requests that fit the description and requests that do not."""

from __future__ import annotations

import json
import re
from urllib.parse import quote

import hypothesis
import pytest

schemathesis = pytest.importorskip("schemathesis")
from hypothesis import HealthCheck  # noqa: E402
from schemathesis import checks  # noqa: E402

from loopback import ROOT, serving  # noqa: E402
from raw_http import ask, get  # noqa: E402

DOCUMENT = json.loads((ROOT / "src/carillon/frontend/api/openapi.json").read_text())
CONFORMANCE = [checks.status_code_conformance, checks.content_type_conformance, checks.response_schema_conformance,
               checks.response_headers_conformance]


@pytest.fixture(scope="module")
def door(program, tiny_models, tmp_path_factory):
    """Of a server of its own: its log's level is changed."""
    with serving(program, tiny_models, tmp_path_factory.mktemp("log") / "server.log", "--io-cache", "32 MiB",
                 "--workspace", "64 MiB") as server:
        yield f"http://{server.http}"


@pytest.fixture
def api():
    return schemathesis.openapi.from_dict(DOCUMENT)


schema = schemathesis.pytest.from_fixture("api")


@schema.parametrize()
@hypothesis.settings(max_examples=10, deadline=None, derandomize=True, database=None,
                     suppress_health_check=list(HealthCheck))
def test_the_server_does_what_it_says(case, door):
    # Every other request is for a model that is there.
    if case.path_parameters and "model" in case.path_parameters and len(repr(case.body)) % 2 == 0:
        case.path_parameters.update({name: value for name, value in (("model", "tiny_mlp"), ("version", "1"))
                                     if name in case.path_parameters})
    response = case.call(base_url=door, timeout=60)
    assert response.status_code != 500, response.text
    case.validate_response(response, checks=CONFORMANCE)


def test_the_document_is_served_as_it_is(server):
    assert get(server.http, "/v2/openapi.json") == (200, DOCUMENT)


def test_every_path_and_method_is_there(server):
    """What is described is known to the server; what is not described is not."""
    for path, item in DOCUMENT["paths"].items():
        filled = re.sub(r"\{(\w+)\}", lambda match: {"model": "tiny_mlp", "version": "1"}.get(match[1], "x"), path)
        methods = {method.upper() for method in item if method in ("get", "post")}
        for method in ("GET", "POST", "DELETE"):
            # A body that is no JSON: nothing is changed.
            status, headers, _ = ask(server.http, f"{method} {quote(filled)} HTTP/1.1\r\nHost: t\r\nContent-Length: 1\r\n"
                                                  "Connection: close\r\n\r\n{".encode())
            assert (status == 405) == (method not in methods), (method, path, status)
            if status == 405:
                assert set(headers["allow"].split(", ")) == methods
