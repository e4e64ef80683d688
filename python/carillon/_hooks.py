"""What is seen of a script: hooks on torch, each of which tells the preloaded library of a signal.

Which signal ends an iteration the library decides (src/carillon/share/client/chooser.h). Only the outermost signals
of one thread, the first that trains, count.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading

from . import _cuda, _shim

NEXT, BACKWARD, STEP, MANUAL = range(4)

_library = None
_prepared = False
_trains = None         # the thread
_follows = False       # this process is no job: another of its run is, or it serves one
_backwards = 0         # how deep in backward
_steps: list[int] = []  # ids of optimizers within whose step we are
_first_forward = None
_lanes = None          # of a CUDA device


def _note(text: str) -> None:
    print(f"carillon: {text}", file=sys.stderr, flush=True)


def _number(name: str, kind, otherwise):
    text = os.environ.get(name, "")
    if not text:
        return otherwise
    try:
        return kind(text)
    except ValueError:
        raise SystemExit(f"carillon: {name} is a number, not {text!r}") from None


def _serves_another() -> str:
    """Why this process is no job of its own; empty where it is one."""
    # Its own number: it was the job, and has become another program by exec.
    if os.environ.get("CARILLON_INSIDE", "") not in ("", str(os.getpid())):
        return "a process that it descends from is the job"
    torch = sys.modules["torch"]
    if torch.utils.data.get_worker_info() is not None:
        return "it loads data"
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank, world = distributed.get_rank(), distributed.get_world_size()
    else:
        # torchrun's workers, which meet after their first signal.
        rank, world = _number("RANK", int, 0), _number("WORLD_SIZE", int, 1)
    if world > 1 and rank != 0:
        return "rank 0 is the job, and it goes with it"
    return ""


def _attach() -> None:
    global _trains, _follows, _lanes
    if _serves_another():
        _follows = True
        return
    _lanes = _cuda.open_lanes(sys.modules["torch"], _library)
    if _lanes is not None:
        _lanes.note()
    threads = sys.modules["torch"].get_num_threads()
    default = os.path.basename(sys.argv[0] if sys.argv and sys.argv[0] else "python")
    answer = _library.attach(
        os.environ.get("CARILLON_SOCKET", ""), os.environ.get("CARILLON_RUN", ""),
        os.environ.get("CARILLON_JOB_NAME") or default, threads, _number("CARILLON_JOB_PERSISTENT", int, 0),
        _number("CARILLON_JOB_EPHEMERAL", int, 0), int(_number("CARILLON_JOB_REMAINING", float, 0) * 1e9),
        _number("CARILLON_JOB_WEIGHT", float, 1.0), _number("CARILLON_REATTACH", float, 30.0))
    if answer == _shim.FOLLOWS:
        _follows = True
        return
    if answer != _shim.GO_ON:
        raise SystemExit(f"carillon: {_library.why()}")
    _trains = threading.get_ident()
    os.environ["CARILLON_INSIDE"] = str(os.getpid())
    atexit.register(_bye, os.getpid())
    _hold()


def _bye(pid: int) -> None:
    if pid != os.getpid():
        return
    if _lanes is not None and _lanes.ready:
        try:
            _lanes.end()
        except SystemExit:  # the lane is free once this process is gone
            return
    _library.bye()


def _hold() -> None:
    accelerator = getattr(sys.modules["torch"], "accelerator", None)
    if _lanes is not None and _lanes.ready:
        _lanes.leave()
    elif accelerator is not None and accelerator.is_available():
        accelerator.synchronize()
    _library.leave_lane()
    # Each turn of this loop lets Python run the signal handlers of what interrupted the wait.
    while (answer := _library.wait()) == _shim.INTERRUPTED:
        pass
    if answer == _shim.ENDED:
        raise SystemExit(f"carillon: {_library.why()}")
    if answer == _shim.ALONE:
        _note(_library.why())
    _enter()


def _enter() -> None:
    """From when on the library says that the job is in its lane; and where it has lost it, for its segments' sake."""
    if _lanes is not None and _lanes.ready and not _lanes.inside and (_library.in_lane() or _lanes.has_segments):
        _lanes.enter()


def signal(kind: int, which: int) -> None:
    if _library is None or _follows:
        return
    if _trains is None:
        _attach()
        if kind == NEXT or _trains is None:  # it came before the first iteration
            return
    if threading.get_ident() != _trains:
        return
    if _lanes is not None and _lanes.is_capturing:  # what the graph's capture calls is no iteration
        return
    if _lanes is not None and _lanes.ready:
        _lanes.gate()
        _lanes.note()
    answer = _library.signal(kind, which)
    if answer == _shim.GO_ON:
        _enter()
        return
    if answer == _shim.HOLD:
        _hold()
    elif answer == _shim.ENDED:
        raise SystemExit(f"carillon: {_library.why()}")


def remaining(seconds: float) -> None:
    if _library is not None:
        _library.remaining(int(seconds * 1e9))


def counters() -> dict[str, int] | None:
    if _library is None:
        return None
    on_device = {} if _lanes is None else {f"cuda_{name}": value for name, value in _lanes.counters().items()}
    return _library.counters() | on_device


def _before_step(optimizer, args, kwargs) -> None:
    key = id(optimizer)
    if key in _steps:  # that step ended by an exception
        del _steps[_steps.index(key):]
    _steps.append(key)


def _after_step(optimizer, args, kwargs) -> None:
    key = id(optimizer)
    if key in _steps:
        del _steps[_steps.index(key):]
    if not _steps and not _backwards:
        signal(STEP, key)


def _counted(backward):
    @functools.wraps(backward)
    def outermost(*args, **kwargs):
        global _backwards
        _backwards += 1
        try:
            result = backward(*args, **kwargs)
        finally:
            _backwards -= 1
        if not _backwards and not _steps:
            signal(BACKWARD, 0)
        return result

    return outermost


def _watched(advance):
    @functools.wraps(advance)
    def __next__(self):
        if not _backwards and not _steps:
            signal(NEXT, 0)
        return advance(self)

    return __next__


def _before_forward(module, inputs) -> None:
    """A model that is to learn runs for the first time: the first iteration has begun, so the turn is waited for."""
    global _first_forward
    torch = sys.modules["torch"]
    if not module.training or not torch.is_grad_enabled():
        return
    if not any(p.requires_grad for p in module.parameters()):
        return
    if _first_forward is not None:
        _first_forward.remove()
        _first_forward = None
    if _library is not None and not _follows and _trains is None and not _backwards:
        _attach()


def _in_child() -> None:
    """A forked process is no job, unless it trains by itself; its parent's turn is not its own."""
    global _trains, _backwards, _lanes
    _trains = _lanes = None
    _backwards = 0
    _steps.clear()


def install(torch) -> None:
    """Once, when torch has been imported."""
    global _library, _prepared, _first_forward
    if _prepared:
        return
    _prepared = True
    if os.environ.get("CARILLON_ALONE"):
        return
    found = _shim.load()
    if found is None:
        _note("the library is not preloaded (a program that clears LD_PRELOAD?): this process is not shared")
        return
    if found.prepare() != 0:
        _note(f"{found.why()} This process is not shared.")
        return
    import torch.utils.data.dataloader as dataloader
    from torch.nn.modules.module import register_module_forward_pre_hook
    from torch.optim import optimizer

    _library = found
    optimizer.register_optimizer_step_pre_hook(_before_step)
    optimizer.register_optimizer_step_post_hook(_after_step)
    torch.autograd.backward = _counted(torch.autograd.backward)
    dataloader._BaseDataLoaderIter.__next__ = _watched(dataloader._BaseDataLoaderIter.__next__)
    _first_forward = register_module_forward_pre_hook(_before_forward)
    os.register_at_fork(after_in_child=_in_child)
