"""A runtime of MLServer for an ONNX model, run by MLServer's environment (bench/side_by_side.py writes its settings)."""

import asyncio

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse, MetadataTensor

from counting import CountingModel

NAMES = {"float32": "FP32", "int64": "INT64"}


class OnnxModel(MLModel):
    async def load(self):
        extra = self.settings.parameters.extra
        self.model = CountingModel(extra["file"], extra["threads"], extra["counter"])
        tensors = lambda specs: [
            MetadataTensor(name=name, datatype=NAMES[kind.__name__], shape=[-1, *shape]) for name, kind, shape in specs
        ]
        self.inputs, self.outputs = tensors(self.model.inputs), tensors(self.model.outputs)
        return True

    async def predict(self, payload):
        arrays = {tensor.name: NumpyCodec.decode_input(tensor) for tensor in payload.inputs}
        # One run at a time, as its threads are all there are; beside the loop, so that requests are read meanwhile.
        async with self.lock:
            outputs = await asyncio.get_running_loop().run_in_executor(None, self.model.run, arrays)
        return InferenceResponse(
            model_name=self.name,
            model_version=self.version,
            outputs=[NumpyCodec.encode_output(name, value) for name, value in outputs.items()],
        )

    @property
    def lock(self):
        if not hasattr(self, "_lock"):
            self._lock = asyncio.Lock()
        return self._lock
