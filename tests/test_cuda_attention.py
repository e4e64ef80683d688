"""Attention as torch's exporters write it, by calls and by one kernel, on the emulated device beside the CPU."""

from __future__ import annotations

import json
import subprocess
import warnings

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional


class Heads(torch.nn.Module):
    """scaled_dot_product_attention of projections of x and y, as the form says."""

    def __init__(self, form):
        super().__init__()
        torch.manual_seed(1)
        self.form = form
        self.groups = 2 if form == "grouped" else 4
        self.q, self.k, self.v = (torch.nn.Linear(64, 16 * n) for n in (4, self.groups, self.groups))

    def split(self, x, heads):
        x = x.view(x.shape[0], -1, heads, 16).transpose(1, 2)
        if heads == 4:
            return x
        return x[:, :, None].expand(-1, -1, 2, -1, -1).reshape(x.shape[0], 4, x.shape[2], 16)

    def forward(self, x, y, mask=None):
        mask = None if mask is None else (mask > 0)[:, None, None, :]
        out = F.scaled_dot_product_attention(self.split(self.q(x), 4), self.split(self.k(y), self.groups),
                                             self.split(self.v(y), self.groups), attn_mask=mask,
                                             is_causal=self.form == "causal")
        return out.transpose(1, 2).reshape(x.shape[0], -1, 64)


class SelfAttention(torch.nn.Module):
    def __init__(self, weights):
        super().__init__()
        torch.manual_seed(1)
        self.attention, self.weights = torch.nn.MultiheadAttention(64, 4, batch_first=True), weights

    def forward(self, x):
        return self.attention(x, x, x, need_weights=self.weights)[0 if not self.weights else slice(None)]


def export(module, inputs, file, exporter):
    """With a batch in front; the newer exporter fixes it at 1."""
    names = [f"x{i}" for i in range(len(inputs))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter == "script":
            torch.onnx.export(module.eval(), inputs, str(file), dynamo=False, opset_version=18, input_names=names,
                              output_names=["y"], dynamic_axes={n: {0: "batch"} for n in [*names, "y"]})
        else:
            torch.onnx.export(module.eval(), inputs, str(file), dynamo=True, opset_version=18, input_names=names, verbose=False,
                              external_data=False)


# How many attentions there are: none where the weights are an output.
FORMS = {"plain": 1, "cross": 1, "causal": 1, "masked": 1, "grouped": 1, "module": 1, "module with weights": 0}


@pytest.mark.parametrize("exporter", ["script", "dynamo"])
@pytest.mark.parametrize("form", FORMS)
def test_as_exporters_write_it(program, tmp_path, form, exporter):
    if exporter == "dynamo":
        pytest.importorskip("onnxscript")
    x, y = torch.randn(1, 24, 64), torch.randn(1, 40 if form == "cross" else 24, 64)
    if form.startswith("module"):
        module, inputs = SelfAttention("weights" in form), (x,)
    else:
        module, inputs = Heads(form), (x, y, torch.randn(1, 24)) if form == "masked" else (x, y)
    file, batch = tmp_path / "model.onnx", "2" if exporter == "script" else "1"
    export(module, inputs, file, exporter)

    def gpu(part, *arguments):
        return subprocess.run([str(program.parent / "carillon_gpu"), part, str(file), "--device", "cuda-emulated", "--batch", batch,
                               *arguments], capture_output=True, text=True, timeout=120)

    found = gpu("attention", "--number", "f16")
    if FORMS[form]:
        assert found.returncode == 0, found.stderr
        assert len(json.loads(found.stdout)["attentions"]) == FORMS[form]
    else:
        assert "no attention that one kernel could compute" in found.stderr
    for number in ("f32", "f16", "bf16"):
        segments = []
        for way in ("calls", "kernel"):
            done = gpu("agree", "--number", number, "--attention", way, "--cut", "--segment", "1")
            assert done.returncode == 0, done.stdout + done.stderr
            agreed = json.loads(done.stdout)
            assert agreed["apart"] <= (1e-4 if number == "f32" else 3e-2)
            segments.append(agreed["segments"])
        assert (segments[1] < segments[0]) == bool(FORMS[form]), segments
