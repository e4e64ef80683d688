"""One call with KServe's own Python client, run by the environment that tools/clients makes.

kserve_sdk.py rest|grpc ADDRESS MODEL    values as JSON on standard input; {"output": ..., "error": ...} comes out,
                                         the error being that of a call to the model "nobody"
"""

import asyncio
import json
import sys

import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig


def request(model, values):
    tensor = InferInput("input", list(values.shape), "FP32")
    tensor.set_data_from_numpy(values, binary_data=False)
    return InferRequest(infer_inputs=[tensor], model_name=model, parameters={"timeout": 60_000_000})


async def by_rest(address, model, values):
    url = f"http://{address}"
    client = InferenceRESTClient(RESTConfig(protocol="v2", timeout=100))
    assert await client.is_server_live(url) and await client.is_server_ready(url)
    assert await client.is_model_ready(url, model) and not await client.is_model_ready(url, "nobody")
    answer = await client.infer(url, request(model, values), model_name=model)
    try:
        await client.infer(url, request("nobody", values), model_name="nobody")
    except Exception as error:  # noqa: BLE001: httpx's
        return answer, error.response.text
    return answer, ""


async def by_grpc(address, model, values):
    async with InferenceGRPCClient(address, timeout=100) as client:
        assert await client.is_server_live() and await client.is_server_ready() and await client.is_model_ready(model)
        answer = await client.infer(request(model, values))
        try:
            await client.infer(request("nobody", values))
        except Exception as error:  # noqa: BLE001: gRPC's
            return answer, error.details()
        return answer, ""


def main():
    protocol, address, model = sys.argv[1:]
    values = np.array(json.load(sys.stdin), np.float32)
    answer, error = asyncio.run({"rest": by_rest, "grpc": by_grpc}[protocol](address, model, values))
    print(json.dumps({"output": answer.outputs[0].as_numpy().tolist(), "error": error}))


main()
