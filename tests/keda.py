"""Asks as KEDA does, by the interface in proto/externalscaler.proto."""

from __future__ import annotations

import functools
import subprocess
import tempfile
from pathlib import Path

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from loopback import ROOT

METRIC = "carillon_devices_wanted"


@functools.cache
def messages() -> dict:
    """Their classes, by name. protoc, with which the program is built, reads the interface."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "set"
        subprocess.run(["protoc", f"-I{ROOT / 'proto'}", f"--descriptor_set_out={file}", "externalscaler.proto"], check=True, timeout=60)
        described = descriptor_pb2.FileDescriptorSet.FromString(file.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for each in described.file:
        pool.Add(each)
    return {kind: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"externalscaler.{kind}"))
            for kind in ("ScaledObjectRef", "IsActiveResponse", "GetMetricSpecResponse", "GetMetricsRequest", "GetMetricsResponse")}


def message(name: str):
    return messages()[name]


class Keda:
    """A client of one scaler."""

    def __init__(self, address: str):
        self.channel = grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0),
                                                               ("grpc.max_reconnect_backoff_ms", 100)])

    def close(self) -> None:
        self.channel.close()

    def ask(self, method: str, request, answer: str):
        call = self.channel.unary_unary(f"/externalscaler.ExternalScaler/{method}", request_serializer=lambda m: m.SerializeToString(),
                                        response_deserializer=message(answer).FromString)
        return call(request, timeout=30)

    def number(self, **metadata: str) -> int:
        ref = message("ScaledObjectRef")(name="workers", namespace="serving", scalerMetadata=metadata)
        told = self.ask("GetMetrics", message("GetMetricsRequest")(scaledObjectRef=ref, metricName=METRIC), "GetMetricsResponse")
        assert [value.metricName for value in told.metricValues] == [METRIC]
        assert told.metricValues[0].metricValueFloat == told.metricValues[0].metricValue
        return told.metricValues[0].metricValue

    def target(self, **metadata: str) -> float:
        ref = message("ScaledObjectRef")(name="workers", namespace="serving", scalerMetadata=metadata)
        told = self.ask("GetMetricSpec", ref, "GetMetricSpecResponse")
        assert [spec.metricName for spec in told.metricSpecs] == [METRIC]
        return told.metricSpecs[0].targetSizeFloat

    def active(self, **metadata: str) -> bool:
        ref = message("ScaledObjectRef")(name="workers", namespace="serving", scalerMetadata=metadata)
        return self.ask("IsActive", ref, "IsActiveResponse").result

    def error(self, **metadata: str) -> tuple[grpc.StatusCode, str] | None:
        """What is said in place of a number; none: there is one."""
        try:
            self.number(**metadata)
        except grpc.RpcError as error:
            return error.code(), error.details()
        return None
