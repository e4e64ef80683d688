"""Rows whose frontend is dead, or cut off from the worker that runs them."""

from __future__ import annotations

import concurrent.futures
import json
import re
import shutil
import signal
import time

import pytest

from cluster_processes import stand_still, wait_for

ROWS = 20
TAKES_MS = 400  # each, one after the other


@pytest.fixture
def slow(box, tiny_models, tmp_path):
    """Whose workers run one row after the other."""
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps({"device": "a test's", "models": [
        {"name": "tiny_mlp", "weights_bytes": 1_000_000, "load_ms": {"p50": 5, "p99": 5},
         "batches": [{"batch": 1, "p50_ms": TAKES_MS, "p99_ms": TAKES_MS}]}]}))
    box.models = tmp_path / "models"
    shutil.copytree(tiny_models / "tiny_mlp", box.models / "tiny_mlp")
    config = box.models / "tiny_mlp" / "config.pbtxt"
    config.write_text(re.sub(r"max_batch_size: \d+", "max_batch_size: 1", config.read_text()))
    box.worker_options = ("--device", f"emulated:{profile}", "--profile", str(profile))
    return box


def test_the_rows_of_a_frontend_that_died_are_gone(slow):
    slow.apart("e1", "s1", "w1", "f1", "f2")
    with concurrent.futures.ThreadPoolExecutor(ROWS) as pool:
        sent = [pool.submit(slow.roles["f2"].infer, 1.0, 2 * ROWS * TAKES_MS) for _ in range(ROWS)]
        wait_for(lambda: any(each.done() for each in sent), "the worker runs", slow.logs)
        slow.roles["f2"].kill()
        began = time.monotonic()
        status, answer = slow.roles["f1"].infer(2.0, 10 * ROWS * TAKES_MS)  # its deadline lies behind theirs
        took_ms = (time.monotonic() - began) * 1000
        assert status == 200, answer
        statuses = [each.result()[0] for each in sent]
        assert set(statuses) == {0, 200} and statuses.count(0) > ROWS / 2, statuses
        # One or two were with the device as their frontend died.
        assert took_ms < ROWS * TAKES_MS / 2, "it waited until the others' had been run for nobody"


def test_a_client_whose_outputs_hang_is_answered_a_second_after_its_deadline(slow, net):
    """The worker has pulled the row, and runs it as the way to the frontend is cut. The leader is heard by both."""
    slow.apart("e1", "s1", "w1", "f1")
    worker, frontend = slow.host_of["w1"], slow.host_of["f1"]
    assert slow.roles["f1"].infer(1.0, 10 * TAKES_MS)[0] == 200  # the model is there, and the connection
    deadline_ms = 2 * TAKES_MS
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        began = time.monotonic()
        sent = pool.submit(slow.roles["f1"].infer, 1.0, deadline_ms)
        time.sleep(TAKES_MS / 2 / 1000)
        net.cut_one_way(worker, frontend)
        status, answer = sent.result()
        took_ms = (time.monotonic() - began) * 1000
        net.mend(worker, frontend)
    assert status == 504, answer
    # The connection is given up 3 s after the run's end.
    assert deadline_ms + 500 < took_ms < deadline_ms + 1900, took_ms
    slow.whole()
    assert slow.roles["f1"].infer(1.0, 10 * TAKES_MS)[0] == 200


def test_rows_that_are_offered_again_and_outputs_that_come_twice_are_counted(slow):
    slow.has_metrics = True
    slow.apart("e1", "s1", "s2", "w1", "w2", "f1")
    assert slow.roles["f1"].infer(1.0, 10 * TAKES_MS)[0] == 200
    assert slow.of_cluster("f1")["rows_reoffered_total"] == slow.of_cluster("f1")["rows_doubled_total"] == 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        ran = {id: slow.of_cluster(id)["row_pull_seconds_count"] for id in ("w1", "w2")}
        sent = pool.submit(slow.roles["f1"].infer, 1.0, 20 * TAKES_MS)
        busy: list[str] = []
        wait_for(lambda: busy.extend(id for id in ran if slow.of_cluster(id)["row_pull_seconds_count"] > ran[id]) or busy, "a worker has the row", slow.logs)
        stand_still(slow.roles[busy[0]].process)  # the other one runs the row
        assert sent.result()[0] == 200
        slow.roles[busy[0]].signal(signal.SIGCONT)
        wait_for(lambda: slow.of_cluster("f1")["rows_doubled_total"] == 1, "the outputs of the first run", slow.logs)
        wait_for(lambda: slow.of_cluster(busy[0])["rows_unwanted_total"] == 1, "the worker hears of it", slow.logs)
        slow.whole()
        sent = [pool.submit(slow.roles["f1"].infer, 1.0, 20 * TAKES_MS) for _ in range(2)]
        time.sleep(TAKES_MS / 2 / 1000)
        slow.roles["s1"].kill()
        assert [each.result()[0] for each in sent] == [200, 200]
    assert slow.of_cluster("f1")["rows_reoffered_total"] >= 1
