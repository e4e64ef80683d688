"""Triton's server, as PyPI's nvidia-pytriton brings it, with an ONNX model: run by that package's environment.

    triton_server.py MODEL.onnx NAME --http PORT --grpc PORT --metrics PORT --max-batch B --queue-delay-us D --threads T --counter FILE

Requests' timeouts are heeded as far as Triton can: the queue's policy lets a request override it, and rejects what is late.
"""

import argparse
import tempfile

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.model_config.common import QueuePolicy, TimeoutAction
from pytriton.triton import Triton, TritonConfig

from counting import CountingModel


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("name")
    for option in ("http", "grpc", "metrics", "max-batch", "queue-delay-us", "threads"):
        parser.add_argument(f"--{option}", type=int, required=True)
    parser.add_argument("--counter", required=True)
    args = parser.parse_args()
    model = CountingModel(args.file, args.threads, args.counter)

    @batch
    def run(**arrays):
        return {name: np.ascontiguousarray(value) for name, value in model.run(arrays).items()}

    tensors = lambda specs: [Tensor(name=name, dtype=kind, shape=tuple(shape)) for name, kind, shape in specs]
    policy = QueuePolicy(
        timeout_action=TimeoutAction.REJECT, default_timeout_microseconds=60_000_000, allow_timeout_override=True
    )
    config = TritonConfig(
        http_address="127.0.0.1",
        grpc_address="127.0.0.1",
        metrics_address="127.0.0.1",
        http_port=args.http,
        grpc_port=args.grpc,
        metrics_port=args.metrics,
    )
    with tempfile.TemporaryDirectory() as workspace, Triton(config=config, workspace=f"{workspace}/w") as triton:
        triton.bind(
            model_name=args.name,
            infer_func=run,
            inputs=tensors(model.inputs),
            outputs=tensors(model.outputs),
            config=ModelConfig(
                max_batch_size=args.max_batch,
                batcher=DynamicBatcher(max_queue_delay_microseconds=args.queue_delay_us, default_queue_policy=policy),
            ),
        )
        triton.serve()


main()
