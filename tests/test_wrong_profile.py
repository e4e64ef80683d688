"""What a server was told, or measured on a busy machine, may be far from what runs take: it has to find that out."""

from __future__ import annotations

import time

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException

from loopback import make_samples, serving, write_profile


@pytest.mark.parametrize("scheduler", ["carillon", "orloj"])
def test_a_profile_that_is_too_long_starves_nobody(program, tmp_path, scheduler):
    """A row takes 5 ms, and the profile says 52: deadlines of 25 ms can be kept."""
    device = write_profile(tmp_path / "device.json", ("tiny_mlp",), 3)
    told = write_profile(tmp_path / "told.json", ("tiny_mlp",), 50)
    models = make_samples(tmp_path / "models", "tiny_mlp")
    rows = grpc_client.InferInput("input", [1, 64], "FP32")
    rows.set_data_from_numpy(np.ones((1, 64), np.float32))
    with serving(program, models, tmp_path / "log", "--device", f"emulated:{device}", "--profile", str(told),
                 "--scheduler", scheduler) as server, grpc_client.InferenceServerClient(server.grpc) as client:
        answered = refused = 0
        limit = time.monotonic() + 20
        while answered < 20 and time.monotonic() < limit:
            try:
                client.infer("tiny_mlp", [rows], timeout=25_000)
                answered += 1
            except InferenceServerException:
                refused += 1
                time.sleep(0.01)
        assert answered == 20, f"{refused} were refused"
