"""
Which training trials of a tuner run on which devices, and how wide, decided without a clock, a process or a device. Times are seconds, sizes bytes. An argument that cannot be is a ValueError or a TypeError that names it.
"""

from collections.abc import Iterable, Sequence


MOST_TRIALS: int = 100000

MOST_DEVICES: int = 10000

class Trial:
    """A trial as a tuner asks for it."""

    def __init__(self, trial: int, *, budget: float | None = None, iteration: float | None = None, persistent: int = 0, ephemeral: int = 0, priority: float = 1.0) -> None:
        """
        `budget`: iterations until the tuner looks at it again, or until its end; None: not known. `iteration`: seconds of one, alone on a device of speed 1; None: measured. `persistent`, `ephemeral`: bytes on each of its devices, which stay, and which only iterations need.
        """

    @property
    def trial(self) -> int: ...

    @property
    def budget(self) -> float | None: ...

    @property
    def iteration(self) -> float | None: ...

    @property
    def persistent(self) -> int: ...

    @property
    def ephemeral(self) -> int: ...

    @property
    def priority(self) -> float: ...

    def __repr__(self) -> str: ...

class Place:
    """
    The trial runs on `devices` from now on: it starts, or goes on after it was held or paused.
    """

    def __init__(self, trial: int, devices: Sequence[int], width: float = 1.0) -> None: ...

    @property
    def trial(self) -> int: ...

    @property
    def devices(self) -> list[int]:
        """ascending"""

    @property
    def width(self) -> float:
        """
        how many devices, all to itself; or 1/k: one, which it shares with at most k - 1 others
        """

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class Resize:
    """
    At the end of its iteration the trial goes on with `width`, on `devices`: more or fewer than it had.
    """

    def __init__(self, trial: int, devices: Sequence[int], width: float = 1.0) -> None: ...

    @property
    def trial(self) -> int: ...

    @property
    def devices(self) -> list[int]:
        """ascending"""

    @property
    def width(self) -> float:
        """
        how many devices, all to itself; or 1/k: one, which it shares with at most k - 1 others
        """

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class Move:
    """As Resize, on other devices, not all of which it had."""

    def __init__(self, trial: int, devices: Sequence[int], width: float = 1.0) -> None: ...

    @property
    def trial(self) -> int: ...

    @property
    def devices(self) -> list[int]:
        """ascending"""

    @property
    def width(self) -> float:
        """
        how many devices, all to itself; or 1/k: one, which it shares with at most k - 1 others
        """

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class Hold:
    """At the end of its iteration the trial stands still; its memory stays."""

    def __init__(self, trial: int) -> None: ...

    @property
    def trial(self) -> int: ...

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class Release:
    """
    The trial lets go of its memory everywhere: it goes on from a checkpoint when it is placed.
    """

    def __init__(self, trial: int) -> None: ...

    @property
    def trial(self) -> int: ...

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class Refuse:
    """The trial, or the device, is not taken."""

    def __init__(self, trial: int | None, reason: str) -> None: ...

    @property
    def trial(self) -> int | None:
        """None where a device is refused"""

    @property
    def reason(self) -> str:
        """duplicate, too_large or too_many"""

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class WakeAt:
    """`wake` is wanted at that time, unless a later order says otherwise."""

    def __init__(self, at: float) -> None: ...

    @property
    def at(self) -> float: ...

    def __eq__(self, arg: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class Measured:
    """A number that was measured, or told."""

    @property
    def value(self) -> float: ...

    @property
    def error(self) -> float:
        """standard error; 0 where told"""

    @property
    def seen(self) -> int:
        """measurements"""

    @property
    def known(self) -> bool: ...

    def __repr__(self) -> str: ...

class Model:
    """
    How the time of a trial follows from its width, for all trials of a tuner.
    """

    @property
    def alpha(self) -> Measured:
        """packing overhead"""

    @property
    def beta(self) -> Measured:
        """scaling overhead"""

    @property
    def move(self) -> Measured:
        """seconds that a trial stands still for a change of its devices"""

    @property
    def c(self) -> int:
        """trials a device at most"""

    @property
    def d(self) -> int:
        """devices a trial at most"""

class TrialView:
    """What a trial is doing."""

    @property
    def trial(self) -> int: ...

    @property
    def group(self) -> int: ...

    @property
    def state(self) -> str:
        """waiting, running, held or paused"""

    @property
    def settling(self) -> bool:
        """an order is under way"""

    @property
    def devices(self) -> list[int]: ...

    @property
    def width(self) -> float: ...

    @property
    def iterations(self) -> float:
        """done"""

    @property
    def remaining(self) -> float | None:
        """iterations"""

    @property
    def left_alone(self) -> float | None:
        """seconds that these take alone on a device of speed 1"""

    @property
    def iteration(self) -> Measured | None:
        """seconds of one of them"""

    def __repr__(self) -> str: ...

def policies() -> list[str]:
    """The names of policies for Tuning."""

def processor_limits(root: str = '/', allowed: int = 0) -> tuple[int, float | None]:
    """
    How many processors this process may run on, and how many processors' worth of time its control groups grant it (None: no quota). For tests: `root` stands before files, and `allowed` is what the system would tell.
    """

class Tuning:
    """
    Which trials run on which devices, and how wide: events and times in, orders out.

        tuning = Tuning("best")
        tuning.device_came(0, now=0.0)
        tuning.group_came(0, [Trial(0, budget=81)], now=0.0)  # [Place(0, [0], 1)]
        tuning.settled(0, now=0.1)                            # once it runs there

    Each event returns what is to be done, in this order. `now` never goes back. Events of trials or devices that are not here are passed over. A trial has one order under way at most: until `settled` it holds what it had and what it gets.
    """

    def __init__(self, policy: str = 'best', *, alpha: float | None = None, beta: float | None = None, move: float | None = None, c: int | None = None, d: int | None = None, threshold: float = 0.0, most_packed: int = 16, effort: int = 500000, reaction: float | None = None) -> None:
        """
        `policy`: of policies(). `alpha`, `beta` (1 to 100) and `move` (seconds): told rather than measured. `c`, `d`: bounds of what is worked out from these. `threshold`: one more trial on a device pays where it brings more than this share. `most_packed`: c where nothing else bounds it. `effort`: steps that best may take to plan a new group. `reaction`: seconds within which the tuner starts a trial in the place of one that ended (default: a tenth of an iteration).
        """

    @property
    def policy(self) -> str: ...

    def group_came(self, group: int, trials: Iterable[Trial], now: float) -> list[Place | Resize | Move | Hold | Release | Refuse | WakeAt]:
        """
        Trials whose results are wanted together. One that was paused comes again with the same id.
        """

    def reported(self, trial: int, now: float, *, iterations: float = 1.0, busy: float = 0.0, remaining: float | None = None) -> list[Place | Resize | Move | Hold | Release | Refuse | WakeAt]:
        """
        Iterations have ended, since it last reported; `busy`: seconds that they took, 0: not known. `remaining`: iterations from now on, where the tuner changed its budget.
        """

    def settled(self, trial: int, now: float, *, stood: float = 0.0) -> list[Place | Resize | Move | Hold | Release | Refuse | WakeAt]:
        """
        The last order for the trial is carried out; `stood`: seconds that it stood still for that.
        """

    def ended(self, trial: int, now: float) -> list[Place | Resize | Move | Hold | Release | Refuse | WakeAt]: ...

    def paused(self, trial: int, now: float) -> list[Place | Resize | Move | Hold | Release | Refuse | WakeAt]:
        """
        The tuner wants no more of it for now. Its memory stays; an order under way is void, but for a Release.
        """

    def died(self, trial: int, now: float, *, retry: bool = False, lost: float = 0.0) -> list[Place | Resize | Move | Hold | Release | Refuse | WakeAt]:
        """
        Its processes are gone. With `retry` it waits for a place again; `lost`: iterations that it does again.
        """

    def device_came(self, device: int, now: float, *, speed: float = 1.0, supply: float = 1.0, memory: int | None = None) -> list[Place | Resize | Move | Hold | Release | Refuse | WakeAt]:
        """
        `speed`: against a device of speed 1. `supply`: the share of its time that is there for trials, 0 to 1. `memory`: bytes; None: as many as are wanted.
        """

    def device_changed(self, device: int, now: float, *, speed: float = 1.0, supply: float = 1.0, memory: int | None = None) -> list[Place | Resize | Move | Hold | Release | Refuse | WakeAt]: ...

    def device_went(self, device: int, now: float) -> list[Place | Resize | Move | Hold | Release | Refuse | WakeAt]:
        """Its trials lost what they had there."""

    def wake(self, now: float) -> list[Place | Resize | Move | Hold | Release | Refuse | WakeAt]:
        """It is the time of the last WakeAt."""

    def model(self) -> Model: ...

    def trials(self) -> list[TrialView]:
        """by id"""

    def appetite(self) -> int:
        """
        Trials that could run now with a gain: how many a tuner that may choose should have going.
        """
