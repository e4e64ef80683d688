"""A `torch.cuda` for machines without a GPU, as far as lanes on one need it (python/carillon/_cuda.py).

Beneath it is the stand-in for CUDA's driver (build/*/fake_cuda/libcuda.so.1), whose device memory the host can read
and write: a tensor "on the device" is a CPU tensor that lies there. The caching allocator is modelled: a pool takes
segments of 2 MiB, 20 MiB or whole 2 MiB from its allocator's functions, cuts them, keeps what is free, and is active in
one thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import weakref

SMALL, LARGE, ROUND, UNIT = 2 << 20, 20 << 20, 2 << 20, 512


class Pool:
    """Segments, each cut into blocks [offset, size, used]."""

    def __init__(self, take, give):
        self.take, self.give, self.segments = take, give, {}

    def allocate(self, size: int) -> int:
        size = -(-size // UNIT) * UNIT
        large = size > 1 << 20
        fits = [(block[1], at, block) for at, (blocks, kind, _) in self.segments.items() if kind == large
                for block in blocks if not block[2] and block[1] >= size]
        if not fits:
            bytes_ = -(-size // ROUND) * ROUND if size >= 10 << 20 else LARGE if large else SMALL
            at = self.take(bytes_)
            if not at:
                self.empty()
                at = self.take(bytes_)
            if not at:
                raise MemoryError(f"the stand-in device is out of memory ({bytes_} bytes)")
            self.segments[at] = ([[0, bytes_, False]], large, bytes_)
            fits = [(bytes_, at, self.segments[at][0][0])]
        _, at, block = min(fits, key=lambda fit: fit[:2])
        blocks = self.segments[at][0]
        if block[1] > size:
            blocks.insert(blocks.index(block) + 1, [block[0] + size, block[1] - size, False])
        block[1], block[2] = size, True
        return at + block[0]

    def free(self, address: int) -> None:
        at = max(start for start in self.segments if start <= address)
        blocks = self.segments[at][0]
        next(block for block in blocks if block[0] == address - at)[2] = False
        merged = []
        for block in blocks:
            if merged and not merged[-1][2] and not block[2]:
                merged[-1][1] += block[1]
            else:
                merged.append(block)
        blocks[:] = merged

    def empty(self) -> None:
        for at in [at for at, (blocks, _, _) in self.segments.items() if len(blocks) == 1 and not blocks[0][2]]:
            self.give(at, self.segments.pop(at)[2])

    def used(self) -> int:
        return sum(block[1] for blocks, _, _ in self.segments.values() for block in blocks if block[2])

    def reserved(self) -> int:
        return sum(size for _, _, size in self.segments.values())

    def snapshot(self, include_traces=True):
        return [{"address": at, "total_size": size,
                 "blocks": [{"size": block[1], "state": "active_allocated" if block[2] else "inactive"}
                            for block in blocks]} for at, (blocks, _, size) in self.segments.items()]


class Device:
    """Installed as `torch.cuda`'s parts."""

    def __init__(self, torch):
        self.torch = torch
        self.driver = ctypes.CDLL("libcuda.so.1")  # the stand-in: LD_LIBRARY_PATH
        self.context = ctypes.c_void_p()
        assert self.driver.cuInit(0) == 0
        assert self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), 0) == 0
        assert self.driver.cuCtxPushCurrent_v2(self.context) == 0
        self.own: dict[int, ctypes.Array] = {}
        self.usual = Pool(self._malloc, lambda at, size: self.own.pop(at))
        self.pools = [self.usual]
        self.active: dict[int, Pool] = {}  # by thread
        self.peak = 0
        self.switched = []  # what set_multithreading_enabled was told
        self._install()

    @contextlib.contextmanager
    def in_context(self):
        """Another thread."""
        assert self.driver.cuCtxPushCurrent_v2(self.context) == 0
        yield

    def _malloc(self, size: int) -> int:
        memory = (ctypes.c_char * size)()
        at = ctypes.addressof(memory)
        self.own[at] = memory
        return at

    def _install(self) -> None:
        device, torch, cuda = self, self.torch, self.torch.cuda

        class CUDAPluggableAllocator:
            def __init__(self, path, alloc, free):
                library = ctypes.CDLL(path)
                take, give = getattr(library, alloc), getattr(library, free)
                take.argtypes, take.restype = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
                give.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
                give.restype = None
                self.functions = lambda size: take(size, 0, None) or 0, lambda at, size: give(at, size, 0, None)

            def allocator(self):
                return self.functions

        class MemPool(Pool):
            def __init__(self, functions):
                super().__init__(*functions)
                device.pools.append(self)

        @contextlib.contextmanager
        def use_mem_pool(pool, index=None):
            thread = threading.get_ident()
            assert thread not in device.active, "a pool within a pool"
            device.active[thread] = pool
            try:
                yield
            finally:
                del device.active[thread]

        class Stream:
            cuda_stream = 0

        class CUDAGraph:
            def capture_begin(self):
                thread = threading.get_ident()
                assert device.active.get(thread) is None, "captured into a pool that is not the graph's"
                self.stream = ctypes.c_void_p()
                assert device.driver.cuStreamCreate(ctypes.byref(self.stream), 1) == 0
                assert device.driver.cuStreamBeginCapture_v2(self.stream, 0) == 0  # global: torch's default

            def capture_end(self):
                ended = device.driver.carillon_fake_end_capture(self.stream)
                device.driver.cuStreamDestroy_v2(self.stream)
                assert ended == 0, f"somebody ended this capture: CUDA error {ended}"

        cuda.is_available = lambda: True
        cuda.is_initialized = lambda: True
        cuda.current_device = lambda: 0
        cuda.current_stream = lambda index=None: Stream
        cuda.empty_cache = lambda: [pool.empty() for pool in device.pools]
        cuda.memory_stats_as_nested_dict = lambda index=None: {
            "allocated_bytes": {"all": {"current": device.used(), "peak": device.peak}},
            "reserved_bytes": {"all": {"current": sum(pool.reserved() for pool in device.pools)}}}
        cuda.memory.CUDAPluggableAllocator = CUDAPluggableAllocator
        cuda.MemPool, cuda.use_mem_pool, cuda.CUDAGraph = MemPool, use_mem_pool, CUDAGraph
        switch = torch.autograd.set_multithreading_enabled
        torch.autograd.set_multithreading_enabled = lambda mode: device.switched.append(mode) or switch(mode)

    def used(self) -> int:
        return sum(pool.used() for pool in self.pools)

    def empty(self, *shape):
        """A float tensor on the device, with what lay there before."""
        size = 4
        for n in shape:
            size *= n
        pool = self.active.get(threading.get_ident(), self.usual)
        at = pool.allocate(size)
        self.peak = max(self.peak, self.used())
        buffer = (ctypes.c_char * size).from_address(at)
        tensor = self.torch.frombuffer(buffer, dtype=self.torch.float32).view(*shape)
        # The storage keeps the buffer; with it goes the block.
        weakref.finalize(buffer, pool.free, at)
        return tensor

    def violations(self) -> str:
        text = ctypes.create_string_buffer(4096)
        self.driver.carillon_fake_violations(text, ctypes.c_size_t(len(text)))
        return text.value.decode()
