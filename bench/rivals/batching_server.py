"""A server as people write for one model: KServe v2 over gRPC, onnxruntime, and batches of a fixed size and delay.

    batching_server.py MODEL.onnx NAME --grpc PORT --batch B --delay-ms D [--threads N]

A batch starts when B rows wait, or when the first of them has waited for D. One batch runs at a time, on N threads (as many
as the process may use, unless given). Deadlines are not looked at. SIGINT ends it.
"""

import argparse
import asyncio
import collections
import concurrent.futures
import os

import grpc
import numpy as np
import onnxruntime
from tritonclient.grpc import service_pb2

TYPES = {"tensor(float)": ("FP32", np.float32), "tensor(int64)": ("INT64", np.int64)}


class Batches:
    """Rows that wait, and the task that runs them."""

    def __init__(self, session, batch, delay):
        self.session, self.batch, self.delay = session, batch, delay
        self.names = [output.name for output in session.get_outputs()]
        self.waiting, self.came = collections.deque(), asyncio.Event()
        self.pool = concurrent.futures.ThreadPoolExecutor(1)

    async def answer(self, feeds):
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        self.waiting.append((loop.time(), feeds, done))
        self.came.set()
        return await done

    async def run(self):
        loop = asyncio.get_running_loop()
        while True:
            while not self.waiting:
                self.came.clear()
                await self.came.wait()
            starts = self.waiting[0][0] + self.delay
            while len(self.waiting) < self.batch and (left := starts - loop.time()) > 0:
                self.came.clear()
                try:
                    await asyncio.wait_for(self.came.wait(), left)
                except TimeoutError:
                    break
            taken = [self.waiting.popleft() for _ in range(min(self.batch, len(self.waiting)))]
            try:
                outputs = await loop.run_in_executor(self.pool, self.run_batch, [feeds for _, feeds, _ in taken])
            except Exception as error:  # whatever is wrong with the inputs: their clients are told
                for _, _, done in taken:
                    if not done.done():
                        done.set_exception(error)
                continue
            at = 0
            for _, feeds, done in taken:
                rows = len(next(iter(feeds.values())))
                if not done.done():  # else its client has hung up
                    done.set_result([output[at : at + rows] for output in outputs])
                at += rows

    def run_batch(self, all_feeds):
        if len(all_feeds) == 1:
            return self.session.run(None, all_feeds[0])
        return self.session.run(None, {name: np.concatenate([feeds[name] for feeds in all_feeds]) for name in all_feeds[0]})


async def serve(args):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = args.threads
    session = onnxruntime.InferenceSession(args.file, options, providers=["CPUExecutionProvider"])
    batches = Batches(session, args.batch, args.delay_ms / 1000)
    runner = asyncio.ensure_future(batches.run())
    kinds = {spec.name: TYPES[spec.type][1] for spec in session.get_inputs()}
    sizes = [1]
    while sizes[-1] < args.batch:
        sizes.append(min(2 * sizes[-1], args.batch))
    for size in sizes:  # so that nobody waits for memory to be found
        session.run(None, {spec.name: np.zeros([size, *spec.shape[1:]], kinds[spec.name]) for spec in session.get_inputs()})

    async def metadata(request, context):
        def told(specs):
            return [
                service_pb2.ModelMetadataResponse.TensorMetadata(
                    name=spec.name,
                    datatype=TYPES[spec.type][0],
                    shape=[-1, *(d if isinstance(d, int) else -1 for d in spec.shape[1:])],
                )
                for spec in specs
            ]

        return service_pb2.ModelMetadataResponse(
            name=args.name, versions=["1"], platform="onnxruntime_onnx",
            inputs=told(session.get_inputs()), outputs=told(session.get_outputs()),
        )  # fmt: skip

    async def infer(request, context):
        if request.model_name != args.name:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no model '{request.model_name}', only '{args.name}'")
        feeds = {}
        for tensor, raw in zip(request.inputs, request.raw_input_contents):
            if tensor.name not in kinds:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"there is no input '{tensor.name}'")
            feeds[tensor.name] = np.frombuffer(raw, kinds[tensor.name]).reshape(tensor.shape)
        outputs = await batches.answer(feeds)
        answer = service_pb2.ModelInferResponse(model_name=args.name, model_version="1", id=request.id)
        for name, array in zip(batches.names, outputs):
            answer.outputs.add(name=name, datatype="FP32" if array.dtype == np.float32 else "INT64", shape=array.shape)
            answer.raw_output_contents.append(np.ascontiguousarray(array).tobytes())
        return answer

    server = grpc.aio.server(options=[("grpc.max_receive_message_length", 64 << 20), ("grpc.so_reuseport", 0)])
    methods = {
        "ModelInfer": (infer, service_pb2.ModelInferRequest, service_pb2.ModelInferResponse),
        "ModelMetadata": (metadata, service_pb2.ModelMetadataRequest, service_pb2.ModelMetadataResponse),
    }
    server.add_generic_rpc_handlers(
        [
            grpc.method_handlers_generic_handler(
                "inference.GRPCInferenceService",
                {
                    name: grpc.unary_unary_rpc_method_handler(
                        call, request_deserializer=asked.FromString, response_serializer=answered.SerializeToString
                    )
                    for name, (call, asked, answered) in methods.items()
                },
            )
        ]
    )
    server.add_insecure_port(f"127.0.0.1:{args.grpc}")
    await server.start()
    try:
        await runner
    finally:
        await server.stop(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("name")
    parser.add_argument("--grpc", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True, help="most rows of a batch")
    parser.add_argument("--delay-ms", type=float, required=True, help="how long the first row of a batch waits for others")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    try:
        asyncio.run(serve(parser.parse_args()))
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
