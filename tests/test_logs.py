"""What earlier programs decided is decided alike today: logs of every policy, simulated and live, driven anew.

Where a policy is meant to decide otherwise, its logs are made again (make_logs.py)."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
from pathlib import Path

import pytest

from loopback import policies_of

LOGS = Path(__file__).resolve().parent / "logs"


@pytest.mark.parametrize("name", sorted(file.name.removesuffix(".log.gz") for file in LOGS.glob("*.log.gz")))
def test_an_earlier_log_is_decided_alike(program, tmp_path, name):
    log = tmp_path / "run.log"
    text = gzip.decompress((LOGS / f"{name}.log.gz").read_bytes())
    log.write_bytes(text)
    # The log holds what there is to decide by: arrivals, ends, devices that go or clients that do, and memory is short.
    kinds = set(re.findall(rb"^(?:e \d+|a) (\w+)", text, re.MULTILINE))
    assert kinds >= {b"arrived", b"done", b"device", b"infer", b"load", b"unload"}
    if name.startswith("live"):
        assert b"cancelled" in kinds
    done = subprocess.run([str(program), "replay", str(log), "--json"], capture_output=True, text=True, timeout=120)
    told = json.loads(done.stdout)
    assert told["complete"] and told["differing_events"] == 0, done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize("name", sorted(file.name.removesuffix(".log.gz") for file in LOGS.glob("*.log.gz")))
def test_a_ledger_knows_what_the_parts_of_a_scheduler_know(program, tmp_path, name):
    log = tmp_path / "run.log"
    log.write_bytes(gzip.decompress((LOGS / f"{name}.log.gz").read_bytes()))
    done = subprocess.run([str(program.parent / "carillon_audit"), str(log)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    # These keep no copy of what the ledger knows: there is nothing to compare.
    assert int(done.stdout.split()[0]) > 10_000 or name.endswith(("_edf", "_carillon"))


def test_every_policy_has_its_logs(program):
    for policy in policies_of(program):
        for kind in ("simulated", "live"):
            name = f"{kind}_{policy.replace(':', '_')}.log.gz"
            assert (LOGS / name).exists(), f"{name}: tests/make_logs.py makes it"
