"""bench/loadgen.py: LoadGen's verdict on a server whose device takes what a profile says, and the search by such verdicts."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from loopback import ROOT, make_samples, serving, write_profile

sys.path.append(str(ROOT / "bench"))
import harness  # noqa: E402
from loadgen import Confirmation, Search  # noqa: E402


def search(capacity: float, start: float) -> tuple[float | None, int]:
    """What is found of a server that is VALID up to that rate, and after how many runs."""
    found = Search(start, precision=0.05)
    runs = 0
    while found.rate is not None:
        found.tell(found.rate <= capacity)
        runs += 1
    return found.valid, runs


@pytest.mark.parametrize("start", [3, 40, 100, 900])
def test_the_search_ends_just_below_what_is_valid(start):
    valid, runs = search(100, start)
    assert 100 / 1.05 <= valid <= 100
    assert runs < 25


def test_a_server_that_is_never_valid_has_no_rate():
    assert search(0, 50)[0] is None


def test_a_stall_does_not_decide():
    found = Search(50, precision=0.05)
    found.tell(False, near=True)
    assert found.rate == 50
    found.tell(True)
    assert found.valid == 50 and found.invalid is None
    rate = found.rate
    found.tell(False, near=True)
    found.tell(False, near=True)
    assert found.invalid == rate


@pytest.mark.parametrize(("verdicts", "valid"), [
    ([True, False], 100), ([True, True, False], 105), ([False, True], 100 / 1.05),
    ([False, False, True], 100 / 1.05**3), ([False, False, False], None),
    ([True, True, True], 110.25)])
def test_long_runs_decide(verdicts, valid):
    found = Confirmation(100, precision=0.05, tries=3)
    for verdict in verdicts:
        assert found.rate is not None
        found.tell(verdict)
    assert found.rate is None
    assert found.valid == pytest.approx(valid)


@pytest.fixture(scope="module")
def loaded(program, tmp_path_factory):
    """Four rows take 18 ms, so 222 a second are the most."""
    pytest.importorskip("mlperf_loadgen", reason="LoadGen is not installed: tools/setup --with-loadgen")
    folder = tmp_path_factory.mktemp("loadgen")
    models = make_samples(folder / "models", "tiny_mlp")
    config = models / "tiny_mlp" / "config.pbtxt"
    config.write_text("\n".join("max_batch_size: 4" if line.startswith("max_batch_size") else line
                                for line in config.read_text().splitlines()))
    profile = write_profile(folder / "profile.json", ("tiny_mlp",), 10)
    with serving(program, models, folder / "log", "--device", f"emulated:{profile}", "--profile", str(profile)) as server:

        def run(rate: float, seconds: float, queries: int) -> dict:
            logs = folder / f"{rate:g}"
            done = subprocess.run(
                [sys.executable, str(ROOT / "bench/loadgen_client.py"), server.grpc, "tiny_mlp", "--rate", str(rate), "--seconds", str(seconds),
                 "--queries", str(queries), "--target-ms", "1000", "--timeout-ms", "950", "--warmup", "0.5", "--logs", str(logs)],
                check=True, stdout=subprocess.PIPE, text=True, timeout=120)
            return json.loads(done.stdout) | {"summary": (logs / "mlperf_log_summary.txt").read_text()}

        yield run


def test_a_low_rate_is_valid(loaded):
    told = loaded(130, 5, 700)
    assert "Result is : VALID" in told["summary"], told
    assert told["valid"] and told["queries"] >= 700
    assert told["answered"] == told["queries"] and told["over_latency"] <= 2


def test_refusals_are_late_answers(loaded):
    told = loaded(1200, 3, 700)
    assert "Result is : INVALID" in told["summary"], told
    assert not told["valid"] and not told["latency_met"]
    assert told["refused"] > told["queries"] / 4
    assert told["failed"] == 0
    assert told["over_latency"] >= told["refused"], "LoadGen took a refusal for a quick answer"


def test_models_on_another_file_system_are_copied(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(18, "Invalid cross-device link")

    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.onnx").write_text("a model")
    monkeypatch.setattr("os.link", fail)
    with harness.only(tmp_path, "m") as models:
        assert (models / "m/1/model.onnx").read_text() == "a model"
