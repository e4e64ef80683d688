"""The model matrix judges answers itself, and its report counts what it found. Needs neither torch nor onnxruntime."""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import threading

import numpy as np
import pytest

from loopback import ROOT

sys.path.insert(0, str(ROOT / "python"))

from carillon_models import arrays, catalogue, checking, client, drawn, judging, packages, report  # noqa: E402


def floats(*shape):
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


def test_an_equal_answer_is_right():
    verdict = judging.judge("y", floats(4, 5), floats(4, 5))
    assert verdict.right and verdict.difference == 0 and verdict.reason == ""


def test_one_wrong_number_among_many_is_found():
    want, got = floats(50, 50), floats(50, 50)
    got[17, 31] += 0.01
    verdict = judging.judge("scores", want, got)
    assert not verdict.right
    assert verdict.difference == pytest.approx(0.01 / np.abs(want).max(), rel=1e-3)
    assert "scores differs by" in verdict.reason


def test_the_output_s_scale_says_what_counts():
    want = floats(30) * 1000
    assert judging.judge("y", want, want + 0.05).right
    assert not judging.judge("y", want / 1000, want / 1000 + 0.05).right


@pytest.mark.parametrize("got, says", [
    (np.zeros((2, 4), np.float32), "has the shape [2, 4]; it is [2, 3]"),
    (np.zeros((2, 3), np.float64), "has the type float64; it is float32"),
    (np.full((2, 3), np.nan, np.float32), "not finite"),
])
def test_another_shape_type_or_a_nan_is_wrong(got, says):
    verdict = judging.judge("y", np.zeros((2, 3), np.float32), got)
    assert not verdict.right and says in verdict.reason


def test_what_is_not_finite_must_be_so_in_the_same_places():
    want = np.array([1, -np.inf, np.nan], np.float32)
    assert judging.judge("y", want, want.copy()).right
    assert not judging.judge("y", want, np.array([1, np.inf, np.nan], np.float32)).right
    assert not judging.judge("y", want, np.array([np.nan, -np.inf, 1], np.float32)).right


def test_whole_numbers_have_no_tolerance():
    want = np.arange(9, dtype=np.int64)
    off = want.copy()
    off[4] += 1
    assert judging.judge("y", want, want.copy()).right
    assert not judging.judge("y", want, off).right
    assert not judging.judge("y", want, off, judging.step_of(want)).right
    flags = np.array([True])
    assert not judging.judge("y", flags, ~flags, judging.step_of(flags)).right


def test_a_step_is_allowed_where_the_file_is_quantised():
    want = np.linspace(-1, 1, 11, dtype=np.float32)
    step = np.float32(2 / 255)
    for steps, right in [(0.9, True), (1.2, False)]:
        got = want.copy()
        got[3] += steps * step
        assert judging.judge("y", want, got, judging.step_of(want)).right == right
        assert judging.judge("y", want, got, judging.step_of(want, scale=0.02)).right
        assert not judging.judge("y", want, got).right
    bytes_ = np.array([7, 200], np.uint8)
    assert judging.judge("y", bytes_, bytes_ + np.uint8(1), judging.step_of(bytes_)).right
    assert not judging.judge("y", bytes_, bytes_ + np.uint8(2), judging.step_of(bytes_)).right


def test_where_the_reference_differs_from_itself_so_may_an_answer():
    want = np.linspace(-1, 1, 11, dtype=np.float32)
    other, got = want.copy(), want.copy()
    other[2] += 0.05
    got[7] += 0.052
    assert not judging.judge("y", want, got, judging.step_of(want)).right
    assert judging.judge("y", want, got, judging.step_of(want) + judging.spread(want, [want, other])).right
    got[7] += 0.02
    assert not judging.judge("y", want, got, judging.step_of(want) + judging.spread(want, [want, other])).right


def test_the_reference_s_own_spread_is_of_floats_and_bytes_alone():
    assert judging.spread(np.array([1, 2]), [np.array([1, 3])]) == 0
    assert judging.spread(np.array([1, 2], np.uint8), [np.array([1, 4], np.uint8)]) == 2
    assert judging.spread(np.ones(2), []) == 0 and judging.spread(np.ones(2), [np.ones(3)]) == 0
    assert judging.spread(np.array([1, np.inf]), [np.array([1.5, 0])]) == 0.5


def test_what_is_around_nothing_has_no_scale():
    want = np.full(4, 1e-5, np.float32)
    assert judging.judge("y", want, want + np.float32(9e-7)).right
    assert not judging.judge("y", want, want + np.float32(2e-6)).right


def test_rows_that_are_asked_alone_are_put_together_again():
    inputs = [catalogue.Input("x", ("batch", 3)), catalogue.Input("h", (2, "batch")), catalogue.Input("w", (3,))]
    arrays_ = {"x": floats(4, 3), "h": floats(2, 4), "w": floats(3)}
    asked = []

    def run(given):
        asked.append({name: array.shape for name, array in given.items()})
        return {"y": given["x"] * given["w"], "s": given["h"] + 1}

    alone = checking.rows_alone(run, inputs, arrays_)
    assert asked == [{"x": (1, 3), "h": (2, 1), "w": (3,)}] * 4
    np.testing.assert_array_equal(alone["y"], arrays_["x"] * arrays_["w"])
    np.testing.assert_array_equal(alone["s"], arrays_["h"] + 1)


def test_the_last_digit_of_floats_is_moved_and_nothing_else():
    given = {"x": floats(50), "ids": np.arange(5)}
    moved = checking.nudged(given)
    assert (moved["x"] != given["x"]).any() and np.allclose(moved["x"], given["x"], rtol=1e-6, atol=0)
    assert (moved["ids"] == given["ids"]).all()


def test_of_several_outputs_one_wrong_or_missing_is_enough():
    want = {"a": floats(3), "b": floats(4)}
    assert judging.judge_all(want, dict(want)).right
    assert "b differs" in judging.judge_all(want, {"a": want["a"], "b": want["b"] + 1}).reason
    assert judging.judge_all(want, {"a": want["a"]}).reason == "there is no output b"


class Halver(http.server.BaseHTTPRequestHandler):
    """A server that answers with half of what it was sent, and to zeros with an error."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        length = int(self.headers["Inference-Header-Content-Length"])
        x = np.frombuffer(body[length:], np.float32)
        if not x.any():
            return self.reply(400, b'{"error":"nothing but zeros"}', {})
        data = (x / 2).astype(np.float32).tobytes()
        head = json.dumps({"outputs": [{"name": "y", "datatype": "FP32", "shape": json.loads(body[:length])["inputs"][0]["shape"],
                                        "parameters": {"binary_data_size": len(data)}}]}).encode()
        return self.reply(200, head + data, {"Inference-Header-Content-Length": str(len(head))})

    def reply(self, status, body, headers):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_a_wrong_answer_that_a_server_gives_is_found():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Halver) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        asked = client.Client(f"127.0.0.1:{server.server_port}", 30)
        x = floats(2, 3)
        got = asked.infer("model", {"x": x})
        assert judging.judge_all({"y": x / 2}, got).right
        assert not judging.judge_all({"y": x}, got).right
        with pytest.raises(client.Refused, match="400: nothing but zeros"):
            asked.infer("model", {"x": np.zeros((2, 3), np.float32)})
        asked.connection.close()
        server.shutdown()
        thread.join()


def record(cause="", reason="", way="dynamo", **more):
    loads = cause != "load"
    return {"architecture": "a", "family": "vision", "way": way, "loads": loads, "right": not cause if loads else None,
            "cause": cause, "reason": reason, "difference": 1e-6 if loads else None, "engine": "carillon", "operators": [],
            "ratio": 0.5, "ours_ms": 1.0, "onnxruntime_ms": 2.0, **more}


RESULTS = {
    "good": record(), "slow": record(ratio=3.0, ours_ms=6.0),
    "one": record("load", "node 'x/1' (Einsum): the operator is not supported (opset 17)"),
    "two": record("load", "node 'y|2' (Einsum): the operator is not supported (opset 18)", way="torchscript"),
    "bad": record("wrong", "at {'batch': 2}: y differs by 0.3 of its largest value; 0.0001 is allowed"),
    "late": record("refused", "at {'batch': 2}: 400: no"),
    "odd": record("onnxruntime", "onnxruntime: no"),
    "stuck": record("load", "Reshape: no", sizes_that_onnxruntime_refuses=[[{"batch": 2}, "Reshape: no"]]),
}


def test_each_record_has_one_state():
    assert [report.state(r) for r in RESULTS.values()] == [
        "right", "right", "does not load", "does not load", "wrong", "refused", "no reference", "fixed by its exporter"]


def test_reasons_are_told_without_names_and_numbers():
    kinds = [report.kind_of(RESULTS[name]["reason"]) for name in ("one", "two")]
    assert kinds == ["Einsum: the operator is not supported"] * 2
    assert report.kind_of("at {'batch': 2}: 400: node 'a' (Conv): [2,3] and 4") == report.kind_of(
        "at {'batch': 9}: 400: node 'b' (Conv): [7,3,1] and 5")


def test_the_page_counts_and_names():
    page = report.page([report.Sample("Picked", "Some.", RESULTS, {"none.dynamo": "TypeError: no | way"}, ["later"])], "report DIR")
    assert "| Picked | 6 | 2 (33%) | 1 (17%) | 1 | 1 |" in page
    assert "**2 of 6 files are served and right (33%)**" in page
    assert "1 more could not be exported, 1 are not checked yet" in page
    assert "| 2 | does not load | Einsum: the operator is not supported | one, two |" in page
    assert "| dynamo | 7 | 2 | 1 | 1 | 1 | 1 | 1 |" in page
    assert "median 1.75, from 0.50 (good) to 3.00 (slow). 1 of 2 take no longer" in page
    assert "TypeError: no \\| way" in page
    assert "| good | right | carillon | 1.0e-06 | 1.00 | 2.00 | 0.50 |  |" in page


def test_the_command_reports_a_folder(tmp_path):
    (tmp_path / "results.json").write_text(json.dumps(RESULTS))
    (tmp_path / "x.failed").write_text("RuntimeError: no\n\ntrace")
    (tmp_path / "later.onnx").touch()
    page = tmp_path / "models.md"
    subprocess.run([sys.executable, str(ROOT / "bench/models.py"), "report", str(tmp_path), "--write", str(page)], check=True,
                   timeout=60)
    assert "2 of 6" in page.read_text() and "RuntimeError: no" in page.read_text() and "1 are not checked" in page.read_text()
    assert "trace" not in page.read_text()


def test_what_was_drawn_and_not_built_is_told(tmp_path):
    types = {"a": {"exported": ["dynamo"], "reason": "", "rung": 0}, "b": {"exported": [], "reason": "TypeError: not so", "rung": None},
             "c": {"exported": [], "reason": "", "rung": 1}}
    (tmp_path / "draw.json").write_text(json.dumps({"seed": 1, "transformers": "5", "pool": 9, "asked": 1, "types": types}))
    page = report.write([tmp_path], "report DIR")
    assert "3 were drawn, 1 exported, 1 taken by neither exporter, and 1 could not" in page
    assert "| b | TypeError: not so |" in page


def test_packages_are_told_with_their_licences(tmp_path):
    (tmp_path / "packages.json").write_text(json.dumps([
        {"name": "one", "version": "1.0", "does": "faces", "licence": "MIT", "files": ["good", "bad"], "note": ""},
        {"name": "two", "version": "2", "does": "ears", "licence": "", "files": [], "note": "no .onnx file in it"}]))
    (tmp_path / "results.json").write_text(json.dumps(RESULTS))
    (tmp_path / "note.txt").write_text("Two were asked on a Monday.\n")
    page = report.write([tmp_path], "report DIR")
    assert "asked one by one. Two were asked on a Monday." in page
    assert "2 files that 1 packages of PyPI ship" in page
    assert "| one 1.0 | faces | MIT | 2 | 1 |  |" in page and "| two 2 | ears |  | 0 | 0 | no .onnx file in it |" in page


def test_the_draw_is_the_seed_s():
    pool = [f"type{i}" for i in range(100)]
    drawn_ = drawn.order(pool)
    assert sorted(drawn_) == sorted(pool) and drawn_ != sorted(pool)
    assert drawn.order(pool[::-1]) == drawn_ and drawn.order(pool, seed=1) != drawn_
    # What the catalogue has is known by its configuration's name.
    named = {a.build.config for a in catalogue.architectures() if hasattr(a.build, "config")}
    assert {"BertConfig", "LlamaConfig", "DetrConfig", "ViTConfig"} <= named


def test_fields_are_made_small_by_their_names():
    def small(name, value, widths=True):
        return drawn.small_value(name, value, drawn.RUNGS[0 if widths else 1], 32 / 768, 12, [drawn.VOCABULARY - 1])

    rows = [("hidden_size", 768, 32), ("intermediate_size", 3072, 128), ("num_hidden_layers", 12, 2), ("num_attention_heads", 12, 4),
            ("num_key_value_heads", 1, 1), ("num_key_value_heads", 8, 2), ("head_dim", 128, 8), ("vocab_size", 30522, 128),
            ("max_position_embeddings", 4096, 128), ("image_size", 224, 128), ("patch_size", 16, 16), ("num_local_experts", 64, 4),
            ("num_experts_per_tok", 8, 2), ("depths", [3, 3, 9, 3], [1, 1, 1, 1]), ("num_heads", [3, 6, 12, 24], [1, 2, 4, 8]),
            ("eos_token_id", 2, 2), ("eos_token_id", 50256, 127), ("layer_types", ["a"] * 12, ["a"] * 2), ("num_channels", 3, 3),
            ("hidden_act", "gelu", "gelu"), ("layer_norm_eps", 1e-5, 1e-5), ("use_cache", True, True), ("sliding_window", 4096, 16)]
    for name, value, want in rows:
        assert small(name, value) == want, name
    assert small("hidden_size", 768, widths=False) == 768 and small("num_hidden_layers", 12, widths=False) == 2


def test_a_package_s_file_has_a_name_of_its_own():
    package = packages.PACKAGES[0]
    assert packages.label_of(package, "models/det.onnx", []) == f"{package.name}.det"
    assert packages.label_of(package, "other/det.onnx", [f"{package.name}.det"]) == f"{package.name}.other.det"
    names = {p.name for p in packages.PACKAGES}
    assert len(names) == len(packages.PACKAGES)
    for file, need in packages.NEEDS.items():
        assert file.split(".")[0] in names and need.why, file


def test_the_command_explains_itself():
    for command in ("export", "draw", "packages", "check", "report"):
        said = subprocess.run([sys.executable, str(ROOT / "bench/models.py"), command, "--help"], check=True, timeout=60,
                              capture_output=True, text=True).stdout
        assert "examples:" in said


def test_the_catalogue_can_be_read_without_torch():
    found = catalogue.architectures()
    assert len(found) >= 40
    assert len({f.name for f in catalogue.files()}) == len(catalogue.files())
    for a in found:
        assert len(a.sizes) == 3, a.name
        for size in a.sizes:
            made = arrays.make_inputs(a.inputs, size, seed=1)
            assert all(x.size for x in made.values()), a.name
            again = arrays.make_inputs(a.inputs, size, seed=1)
            assert all(np.array_equal(x, again[name]) for name, x in made.items())


def test_inputs_of_unknown_files_are_guessed():
    inputs, sizes = arrays.guess([("input_ids", "int64", ["batch", "s77"]), ("attention_mask", "int32", ["batch", "s77"]),
                                  ("pixels", "float", ["batch", 3, "height", "width"]), ("x", "double", [None, 4, None]),
                                  ("flag", "bool", [])])
    assert [i.kind for i in inputs] == ["tokens", "mask", "float", "float", "tokens"]
    assert len(sizes) == 3
    for size in sizes:
        made = arrays.make_inputs(inputs, size, seed=0)
        assert made["input_ids"].shape == made["attention_mask"].shape
        assert made["input_ids"].max() < 50 and (made["attention_mask"] == 1).all()
        assert made["pixels"].shape[1] == 3
        assert [made[i.name].dtype.name for i in inputs] == ["int64", "int32", "float32", "float64", "bool"]
