"""The name of the group that trials are in whose scheduler does not say one."""

from __future__ import annotations

_current = ""


def new_group(name: str) -> None:
    """Trials that are added from now on are wanted together, and not with those before: a wave of a searcher's, say.

    Rungs, brackets and populations of Ray's schedulers are groups within it."""
    global _current
    if not isinstance(name, str):
        raise TypeError(f"a group has a name, not {name!r}")
    _current = name


def current() -> str:
    return _current
