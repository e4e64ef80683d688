"""One request over hosts is one trace: spans of all roles below the request's, in the order in which things happened."""

from __future__ import annotations

import json
import urllib.request

import pytest

from cluster_processes import LIMIT, wait_for
from test_otlp import CALLER, Collector, attributes, traceparent

TRACE, UNSAMPLED = 0xC0FFEE, 0xC0FFED
AHEAD_S = {"s1": 1000, "w1": 2000}  # their clocks differ from the frontend's
PARTS = {"row": {"wait", "decide", "work", "exec"}, "schedule": {"queue", "order", "deliver"},
         "work": {"pull", "window", "input", "exec", "output", "push"}}
AT_LEAST = {"row": {"decide", "exec"}, "schedule": {"queue", "order"}, "work": {"pull", "window", "exec", "push"}}


@pytest.fixture
def collector(net):
    made = Collector(host=net.desk.address)
    yield made
    made.close()


def infer(box, trace: int, sampled: bool) -> None:
    body = {"parameters": {"timeout": 60_000_000},
            "inputs": [{"name": "input", "datatype": "FP32", "shape": [1, 64], "data": [1.0] * 64}]}
    request = urllib.request.Request(f"http://{box.http('f1')}/v2/models/tiny_mlp/infer", json.dumps(body).encode(),
                                     {"traceparent": traceparent(trace, sampled)})
    with urllib.request.urlopen(request, timeout=LIMIT) as response:
        assert response.status == 200


def told(collector) -> dict[str, tuple]:
    """By name, each span that a role begins, and its parts by name. The request's own is `infer tiny_mlp`, above the others."""
    spans = [(attributes(resource.resource), span) for post in list(collector.posts) for resource in post[2].resource_spans
             for scope in resource.scope_spans for span in scope.spans]
    requests = {span.span_id for _, span in spans if span.name.startswith("infer")}
    roots = {span.name: (who, span) for who, span in spans
             if span.span_id in requests or (span.name in PARTS and span.parent_span_id in requests)}
    ids = {root.span_id for _, root in roots.values()}
    return {name: (who, root, {span.name: span for _, span in spans if span.parent_span_id == root.span_id and span.span_id not in ids})
            for name, (who, root) in roots.items()}


def test_one_request_is_one_trace_over_hosts(box, net, collector):
    box.options = ("--otlp", collector.url)
    box.start_all({id: net.host(id, AHEAD_S.get(id, 0)) for id in ("e1", "s1", "w1", "f1")})
    infer(box, UNSAMPLED, False)  # the weights are there after it
    infer(box, TRACE, True)
    wait_for(lambda: {"infer tiny_mlp", *PARTS} <= set(told(collector)), "spans of all roles",
             lambda: f"{sorted(told(collector))} {box.logs()}")
    assert {span.trace_id.hex() for span in collector.spans} == {f"{TRACE:032x}"}
    found = told(collector)

    # Whose they are, and where in the tree.
    _, request, own = found["infer tiny_mlp"]
    assert request.parent_span_id.hex() == CALLER
    assert set(own) <= {"read", "size", "answer"} and "answer" in own
    for name, member in (("infer tiny_mlp", "f1"), ("row", "f1"), ("schedule", "s1"), ("work", "w1")):
        who, span, _ = found[name]
        assert who["carillon.member"] == member and who["carillon.cluster"] == "box"
        assert who["carillon.role"] == {"f": "frontend", "s": "scheduler", "w": "worker"}[member[0]]
        assert name.startswith("infer") or span.parent_span_id == request.span_id, name
        assert attributes(span)["carillon.model"] == "tiny_mlp"
    for name, parts in PARTS.items():
        assert AT_LEAST[name] <= set(found[name][2]) <= parts, (name, set(found[name][2]))
    _, row, at_frontend = found["row"]
    _, schedule, at_scheduler = found["schedule"]
    _, work, at_worker = found["work"]
    assert attributes(schedule)["carillon.worker"] == "w1"
    assert attributes(work)["carillon.batch"] == 1 and attributes(work)["carillon.predicted_us"] > 0

    # In the order in which things happened, as far as the clocks' bounds tell.
    bound = {name: 1000 * (attributes(found[name][1])["carillon.clock_bound_us"] + 1) for name in ("schedule", "work")}
    assert all(1000 < each < 50e6 for each in bound.values()), bound
    assert request.start_time_unix_nano <= row.start_time_unix_nano <= at_frontend["decide"].start_time_unix_nano
    for earlier, later, slack in (
            (at_frontend["decide"].start_time_unix_nano, schedule.start_time_unix_nano, bound["schedule"]),
            (schedule.start_time_unix_nano, at_scheduler["order"].start_time_unix_nano, 0),
            (at_scheduler["order"].start_time_unix_nano, work.start_time_unix_nano, bound["schedule"] + bound["work"]),
            (work.start_time_unix_nano, at_worker["exec"].start_time_unix_nano, 0),
            (at_worker["pull"].end_time_unix_nano, at_worker["exec"].start_time_unix_nano, 0),
            (at_worker["exec"].end_time_unix_nano, at_worker["push"].start_time_unix_nano, 0),
            (at_worker["exec"].end_time_unix_nano, row.end_time_unix_nano, bound["work"]),
            (row.end_time_unix_nano, request.end_time_unix_nano, 0)):
        assert earlier <= later + slack, (earlier, later, slack, found)
    # The frontend tells the same run, by the worker's report.
    for end in ("start_time_unix_nano", "end_time_unix_nano"):
        assert abs(getattr(at_frontend["exec"], end) - getattr(at_worker["exec"], end)) < 2 * bound["work"], found
