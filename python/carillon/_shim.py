"""The preloaded library (src/carillon/share/client/shim.h), as far as it is loaded into this process."""

from __future__ import annotations

import ctypes
from pathlib import Path

GO_ON, HOLD, NOT_ATTACHED, ENDED, INTERRUPTED, NOBODY, FOLLOWS, ALONE = range(8)

NAME = "libcarillon_shim.so"


class Counters(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in (
        "signals", "boundaries", "iterations", "busy_ns", "holds", "rescued", "rescued_bytes", "lane_blocks",
        "lane_bytes", "own_live", "lane_live", "ephemeral", "asks", "forks", "attached", "certain")]


class Shim:
    """Calls that are short keep the interpreter's lock; `wait` gives it to other threads."""

    def __init__(self) -> None:
        locked, free = ctypes.PyDLL(None), ctypes.CDLL(None)
        self.prepare = locked.carillon_prepare  # AttributeError: not preloaded
        self.signal = locked.carillon_signal
        self.signal.argtypes = [ctypes.c_uint32, ctypes.c_uint64]
        self.leave_lane = locked.carillon_leave_lane
        self.leave_lane.restype = None
        self.wait = free.carillon_wait
        self.bye = locked.carillon_bye
        self.bye.restype = None
        self._attach = free.carillon_attach
        self._attach.argtypes = [ctypes.c_char_p] * 3 + [ctypes.c_uint32] + [ctypes.c_uint64] * 3 + [ctypes.c_double] * 2
        self._remaining = locked.carillon_remaining
        self._remaining.argtypes = [ctypes.c_uint64]
        self._remaining.restype = None
        self._counters = locked.carillon_counters
        self._counters.restype = None
        self.in_lane = locked.carillon_in_lane
        self._keep = locked.carillon_keep
        self._keep.argtypes, self._keep.restype = [ctypes.c_void_p], None
        self._why = locked.carillon_why
        self._why.restype = ctypes.c_char_p

    def attach(self, socket: str, run: str, name: str, threads: int, persistent: int, ephemeral: int,
               remaining_ns: int, weight: float, reattach: float) -> int:
        # 63 bytes of UTF-8, no half character.
        short = name.encode()[:63].decode(errors="ignore").encode()
        return self._attach(socket.encode(), run.encode(), short, threads, persistent, ephemeral, remaining_ns, weight,
                            reattach)

    def remaining(self, nanoseconds: int) -> None:
        self._remaining(nanoseconds)

    def keep(self, keeper: int) -> None:
        """Lanes may be a device's memory, which `keeper` (client/keeper.h) keeps."""
        self._keep(keeper)

    def counters(self) -> dict[str, int]:
        counted = Counters()
        self._counters(ctypes.byref(counted))
        return {name: getattr(counted, name) for name, _ in Counters._fields_}

    def why(self) -> str:
        return self._why().decode(errors="replace")


def load() -> Shim | None:
    try:
        return Shim()
    except AttributeError:
        return None


def library(name: str = NAME) -> Path | None:
    """Where a library lies: in the package once installed, else in a build of the checkout."""
    package = Path(__file__).resolve().parent
    checkout = package.parent.parent
    found = [package / name]
    # Installed with the program: PREFIX/lib/carillon.
    found += [checkout / name, checkout.parent / "lib" / "carillon" / name]
    found += sorted(checkout.glob(f"build/*/{name}"), key=lambda p: p.stat().st_mtime, reverse=True)
    return next((path for path in found if path.is_file()), None)
