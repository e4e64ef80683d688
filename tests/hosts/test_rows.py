"""What a frontend had asked for is not computed once the frontend is dead."""

from __future__ import annotations

import concurrent.futures
import json
import re
import shutil
import time

from cluster_processes import wait_for

ROWS = 20
TAKES_MS = 400  # each, one after the other


def test_the_rows_of_a_frontend_that_died_are_gone(box, tiny_models, tmp_path):
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps({"device": "a test's", "models": [
        {"name": "tiny_mlp", "weights_bytes": 1_000_000, "load_ms": {"p50": 5, "p99": 5},
         "batches": [{"batch": 1, "p50_ms": TAKES_MS, "p99_ms": TAKES_MS}]}]}))
    box.models = tmp_path / "models"
    shutil.copytree(tiny_models / "tiny_mlp", box.models / "tiny_mlp")
    config = box.models / "tiny_mlp" / "config.pbtxt"
    config.write_text(re.sub(r"max_batch_size: \d+", "max_batch_size: 1", config.read_text()))
    box.worker_options = ("--device", f"emulated:{profile}", "--profile", str(profile))
    box.apart("e1", "s1", "w1", "f1", "f2")
    with concurrent.futures.ThreadPoolExecutor(ROWS) as pool:
        sent = [pool.submit(box.roles["f2"].infer, 1.0, 2 * ROWS * TAKES_MS) for _ in range(ROWS)]
        wait_for(lambda: any(each.done() for each in sent), "the worker runs", box.logs)
        box.roles["f2"].kill()
        began = time.monotonic()
        status, answer = box.roles["f1"].infer(2.0, 10 * ROWS * TAKES_MS)  # its deadline lies behind theirs
        took_ms = (time.monotonic() - began) * 1000
        assert status == 200, answer
        statuses = [each.result()[0] for each in sent]
        assert set(statuses) == {0, 200} and statuses.count(0) > ROWS / 2, statuses
        # One or two were with the device as their frontend died.
        assert took_ms < ROWS * TAKES_MS / 2, "it waited until the others' had been run for nobody"
