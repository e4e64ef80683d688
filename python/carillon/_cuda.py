"""Lanes on a CUDA device (src/carillon/share/client/cuda): what an iteration takes of the device comes from a lane.

Only where torch has a CUDA device and the broker's lanes are its memory; else nothing here does anything. Torch's
caching allocator cuts what this library gives it, a segment at a time, into tensors: a `torch.cuda.MemPool` whose
allocator the library is, active in the thread that trains from its third iteration on.

Backward runs in that thread, too (`set_multithreading_enabled(False)`): a pool is active in one thread, and torch's
own threads of backward would allocate outside of it. With one device they bring no speed: there is one of them, and
the thread that trains waits for it.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading
import time
import weakref

from . import _shim

NAME = "libcarillon_cuda.so"
AT_ONCE = 16  # gates that may be outstanding: CARILLON_CUDA_GATES

LONGEST_CAPTURE = 60.0  # seconds, of a CUDA graph's by another thread; a recall waits for it

CAPTURES = 2  # the answer where a graph is being captured, while which the device cannot be waited for
ENTERED, NO_LANE, NO_MEMORY = range(3)


class Counters(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in (
        "lane_segments", "own_segments", "lane_bytes", "own_bytes", "segment_bytes", "replaced", "replaced_bytes",
        "returned", "asks", "gates", "waits", "frees", "held_back")]


class Range(ctypes.Structure):
    _fields_ = [("at", ctypes.c_uint64), ("bytes", ctypes.c_uint64)]


def live_ranges(segments) -> list[tuple[int, int]]:
    """Of a pool's snapshot: where tensors are, or memory that a stream may still use. Blocks tile their segment."""
    ranges = []
    for segment in segments:
        at = segment["address"]
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                if ranges and sum(ranges[-1]) == at:
                    ranges[-1] = (ranges[-1][0], ranges[-1][1] + block["size"])
                else:
                    ranges.append((at, block["size"]))
            at += block["size"]
    return ranges


class Lanes:
    def __init__(self, torch, path: str, at_once: int = AT_ONCE) -> None:
        self._torch, self._path = torch, path
        self.device = torch.cuda.current_device() if torch.cuda.is_initialized() else 0
        locked, free = ctypes.PyDLL(path), ctypes.CDLL(path)
        self._start = free.carillon_cuda_start
        self._start.argtypes = [ctypes.c_int, ctypes.c_uint32]
        self._ready = locked.carillon_cuda_ready
        self._why = locked.carillon_cuda_why
        self._why.restype = ctypes.c_char_p
        self._keeper = locked.carillon_cuda_keeper
        self._keeper.restype = ctypes.c_void_p
        # What waits for the device leaves the interpreter to others meanwhile.
        self._enter = free.carillon_cuda_enter
        self._wait = free.carillon_cuda_wait
        self._wait.argtypes = [ctypes.c_void_p]
        self._leave = locked.carillon_cuda_leave
        self._leave.argtypes = [ctypes.c_void_p, ctypes.POINTER(Range), ctypes.c_uint64]
        self._gate = free.carillon_cuda_gate
        self._gate.argtypes, self._gate.restype = [ctypes.c_void_p], None
        self._captures = free.carillon_cuda_captures
        self._captures.argtypes, self._captures.restype = [ctypes.c_int], None
        self._note = locked.carillon_cuda_note
        self._note.argtypes, self._note.restype = [ctypes.c_uint64] * 3, None
        self._counters = locked.carillon_cuda_counters
        self._counters.restype = None
        self._pool = self._allocator = self._scope = self._threads = None
        self._thread = None
        self._capturing: dict[int, int] = {}  # the thread in which each graph's capture began
        self._no_capture = threading.Condition()
        self._pool_is_over = False
        self.inside = False  # the job is in its lane
        self._failed = self._start(self.device, at_once) != 0
        if not self._failed:
            _know_of_captures(torch, self)

    def offer(self, shim) -> bool:
        """The job's lane may be this device's memory, from when it says hello on."""
        if self._failed:
            return False
        shim.keep(self._keeper())
        return True

    @property
    def ready(self) -> bool:
        """Whether the broker's lanes are this device's memory."""
        return bool(self._ready())

    @property
    def has_segments(self) -> bool:
        return self._pool is not None

    def why(self) -> str:
        return self._why().decode(errors="replace")

    def counters(self) -> dict[str, int]:
        counted = Counters()
        self._counters(ctypes.byref(counted))
        return {name: getattr(counted, name) for name, _ in Counters._fields_}

    def note(self) -> None:
        """What torch counts, for the boundary's choice and for the broker."""
        stats = self._torch.cuda.memory_stats_as_nested_dict(self.device)
        if stats:
            allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
            self._note(allocated["current"], reserved["current"], allocated["peak"])

    def enter(self) -> None:
        """The job is in its lane."""
        answer = self._enter()
        if answer == NO_MEMORY:  # for segments beyond a lane that became smaller: those that are free need none
            self._torch.cuda.empty_cache()
            answer = self._enter()
        if answer == NO_MEMORY:
            raise SystemExit(f"carillon: the device has no memory beside this job's lane: {self.why()}")
        self.inside = answer == ENTERED
        if self.inside:
            self._begin()

    def leave(self) -> None:
        """Before it leaves its lane: waits for the device, and keeps what lives on."""
        until = time.monotonic() + LONGEST_CAPTURE
        while True:
            answer = self._wait(self._stream())
            if answer == 0:  # from here on no other thread of the script gives the device work
                ranges = live_ranges(self._snapshot())
                array = (Range * max(len(ranges), 1))(*ranges)
                answer = self._leave(self._stream(), array, len(ranges))
            if answer != CAPTURES or time.monotonic() > until:
                break
            with self._no_capture:
                self._no_capture.wait(0.01)
        if answer != 0:  # its lane is still its own, until this process is gone
            raise SystemExit(f"carillon: what outlives this job's iteration cannot be kept: {self.why()}")
        self.inside = False

    def end(self) -> None:
        """As leave(); nothing of this process is taken from a lane any more."""
        try:
            self.leave()
        finally:
            self.suspend()
            self._pool_is_over = True
        self._torch.cuda.empty_cache()

    def capture_begins(self, graph: int) -> bool:
        """A CUDA graph's, in this thread. The memory of one that the training thread captures is not the pool's. False
        where the graph is being captured already: torch refuses that."""
        with self._no_capture:
            if graph in self._capturing:
                return False
            self._capturing[graph] = threading.get_ident()
            self._captures(1)
        if threading.get_ident() == self._thread:
            self.suspend()
        return True

    def capture_ended(self, graph: int) -> None:
        """Nothing where nobody saw it begin."""
        with self._no_capture:
            thread = self._capturing.pop(graph, None)
            if thread is None:
                return
            self._captures(0)
            self._no_capture.notify_all()
        if thread == self._thread and self.inside:
            self.resume()

    @property
    def is_capturing(self) -> bool:
        """Whether this thread is."""
        return threading.get_ident() in self._capturing.values()

    def gate(self) -> None:
        """At most so many of these are outstanding on the device, and with them the work between: a recall has not
        to wait for more than that, and the rest of an iteration."""
        if self.inside and self._scope is not None and threading.get_ident() == self._thread:
            self._gate(self._stream())

    def _stream(self) -> int:
        return self._torch.cuda.current_stream(self.device).cuda_stream or 0

    def _snapshot(self):
        if self._pool is None:
            return []
        try:
            return self._pool.snapshot(include_traces=False)
        except TypeError:  # torch before 2.10
            return self._pool.snapshot()

    def _begin(self) -> None:
        if self._pool is None:
            cuda = self._torch.cuda
            self._thread = threading.get_ident()
            cuda.empty_cache()  # what the iterations before this one left in torch's own memory
            self._allocator = cuda.memory.CUDAPluggableAllocator(self._path, "carillon_cuda_alloc",
                                                                 "carillon_cuda_free")
            self._pool = cuda.MemPool(self._allocator.allocator())
            # Never destroyed: at the interpreter's end, and in the child of a fork, it would call a driver that is gone.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._pool))
            self._threads = self._torch.autograd.set_multithreading_enabled(False)
            _gates_between_modules(self)
        self.resume()

    def resume(self) -> None:
        if self._scope is None and self._pool is not None and not self._pool_is_over:
            self._scope = self._torch.cuda.use_mem_pool(self._pool, self.device)
            self._scope.__enter__()

    def suspend(self) -> None:
        scope, self._scope = self._scope, None
        if scope is not None:
            scope.__exit__(None, None, None)


def _gates_between_modules(lanes: Lanes) -> None:
    """Before each module that has none within. Not in backward: hooks on all modules' backward change the graph
    (views of what they return must not be written), so the work of a backward is bounded by its end alone."""
    from torch.nn.modules.module import register_module_forward_pre_hook

    def before(module, inputs) -> None:
        if not module._modules:
            lanes.gate()

    register_module_forward_pre_hook(before)


def _know_of_captures(torch, lanes: Lanes) -> None:
    """A graph's memory is the graph's alone, as long as it may be replayed; and whoever waits for the device ends the
    capture."""
    graph = getattr(torch.cuda, "CUDAGraph", None)
    if graph is None:
        return
    begin, end = graph.capture_begin, graph.capture_end

    @functools.wraps(begin)
    def capture_begin(self, *args, **kwargs):
        began = lanes.capture_begins(id(self))
        if began:  # a graph may go without an end
            weakref.finalize(self, lanes.capture_ended, id(self))
        try:
            return begin(self, *args, **kwargs)
        except BaseException:
            if began:
                lanes.capture_ended(id(self))
            raise

    @functools.wraps(end)
    def capture_end(self, *args, **kwargs):
        try:
            return end(self, *args, **kwargs)
        finally:
            lanes.capture_ended(id(self))

    graph.capture_begin, graph.capture_end = capture_begin, capture_end


def open_lanes(torch, shim) -> Lanes | None:
    """None: this process has no CUDA device, or none that can be shared; a broker of the host's memory takes it."""
    if not torch.cuda.is_available():
        return None
    path = _shim.library(NAME)
    if path is None:
        return None
    settings = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "") + os.environ.get("PYTORCH_ALLOC_CONF", "")
    if "expandable_segments:true" in settings.lower().replace(" ", ""):
        print("carillon: lanes on CUDA are off: expandable_segments does not go together with a pool of another "
              "allocator", file=sys.stderr)
        return None
    text = os.environ.get("CARILLON_CUDA_GATES", "")
    if text and not (text.isdigit() and 1 <= int(text) <= 4096):
        raise SystemExit(f"carillon: CARILLON_CUDA_GATES is from 1 to 4096, not {text!r}")
    try:
        lanes = Lanes(torch, str(path), int(text or AT_ONCE))
    except (OSError, AttributeError) as error:
        print(f"carillon: {path} cannot be used: {error}", file=sys.stderr)
        return None
    if not lanes.offer(shim):
        print(f"carillon: lanes on CUDA are off: {lanes.why()}", file=sys.stderr)
        return None
    return lanes
