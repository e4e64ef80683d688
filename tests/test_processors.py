"""Which processors the server may use: at its start, and while it serves."""
import os
import re
import time

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client

from loopback import make_samples, serving

ALLOWED = sorted(os.sched_getaffinity(0))


def affect(process, processors):
    for task in os.listdir(f"/proc/{process.pid}/task"):
        os.sched_setaffinity(int(task), processors)


def said(log, pattern):
    limit = time.monotonic() + 20
    while not re.search(pattern, log.read_text()):
        assert time.monotonic() < limit, log.read_text()[-2000:]
        time.sleep(0.05)


@pytest.mark.skipif(len(ALLOWED) < 2, reason="there is one processor")
def test_the_processors_are_told_and_followed(program, tmp_path):
    models, log = make_samples(tmp_path / "models", "tiny_mlp"), tmp_path / "log"
    os.sched_setaffinity(0, ALLOWED[:1])
    try:
        with serving(program, models, log) as server:
            said(log, r"processors: 1 processor may be used \(.*the process may run on 1\)")
            for processors, text in ((ALLOWED[:2], "2 processors"), (ALLOWED[:1], "1 processor")):
                affect(server.process, processors)
                said(log, rf"processors: {text} may be used .* from now on")
                for module, address in ((http_client, server.http), (grpc_client, server.grpc)):
                    with module.InferenceServerClient(address) as client:
                        tensor = module.InferInput("input", [1, 64], "FP32")
                        tensor.set_data_from_numpy(np.zeros((1, 64), np.float32))
                        client.infer("tiny_mlp", [tensor])
    finally:
        os.sched_setaffinity(0, ALLOWED)
