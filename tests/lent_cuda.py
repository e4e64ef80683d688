"""Memory of a CUDA device that a client lends to a server: what tritonclient.utils.cuda_shared_memory does, by the driver
alone, so that a stand-in for the driver does, too (build/*/cuda_standin)."""

from __future__ import annotations

import base64
import ctypes

import numpy as np

OK = 0


class Lender:
    """A process' part of a driver: its device 0, in this thread."""

    def __init__(self, library: str):
        self.driver = ctypes.CDLL(library)
        self._ask("cuInit", 0)
        context = ctypes.c_void_p()
        self._ask("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self._ask("cuCtxPushCurrent_v2", context)
        self.stream = ctypes.c_void_p()
        self._ask("cuStreamCreateWithPriority", ctypes.byref(self.stream), 1, 0)
        self.host, self.host_bytes = ctypes.c_void_p(), 0

    def _ask(self, name: str, *arguments) -> None:
        status = getattr(self.driver, name)(*arguments)
        assert status == OK, f"{name}: {status}"

    def pinned(self, size: int) -> ctypes.c_void_p:
        if size > self.host_bytes:
            if self.host_bytes:
                self._ask("cuMemFreeHost", self.host)
            self._ask("cuMemHostAlloc", ctypes.byref(self.host), ctypes.c_size_t(size), 2)
            self.host_bytes = size
        return self.host

    def take(self, size: int) -> "Lent":
        return Lent(self, size)


class Lent:
    def __init__(self, lender: Lender, size: int):
        self.lender, self.size, self.at = lender, size, ctypes.c_uint64()
        lender._ask("cuMemAlloc_v2", ctypes.byref(self.at), ctypes.c_size_t(size))
        handle = ctypes.create_string_buffer(64)
        lender._ask("cuIpcGetMemHandle", handle, self.at)
        self.handle = handle.raw
        self.put(np.zeros(size, np.uint8))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.lender._ask("cuMemFree_v2", self.at)

    @property
    def raw_handle(self) -> bytes:
        """As tritonclient's get_raw_handle() gives it to its register_cuda_shared_memory()."""
        return base64.b64encode(self.handle)

    def put(self, values: np.ndarray, offset: int = 0) -> None:
        data = values.tobytes()
        assert offset + len(data) <= self.size
        host = self.lender.pinned(len(data))
        ctypes.memmove(host, data, len(data))
        self.lender._ask("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(self.at.value + offset), host,
                         ctypes.c_size_t(len(data)), self.lender.stream)
        self.lender._ask("cuStreamSynchronize", self.lender.stream)

    def get(self, dtype, shape, offset: int = 0) -> np.ndarray:
        out = np.empty(shape, dtype)
        assert offset + out.nbytes <= self.size
        host = self.lender.pinned(out.nbytes)
        self.lender._ask("cuMemcpyDtoHAsync_v2", host, ctypes.c_uint64(self.at.value + offset),
                         ctypes.c_size_t(out.nbytes), self.lender.stream)
        self.lender._ask("cuStreamSynchronize", self.lender.stream)
        ctypes.memmove(out.ctypes.data, host, out.nbytes)
        return out
