"""Temporary folders of drivers. Those of drivers that were killed go when the next one starts.

A living driver holds a lock on a file in its folder; the kernel lets go of it however the driver ends. (A
process id in the name would not do: drivers in two containers may have the same /tmp, and each other's numbers.)
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import threading
import time
from pathlib import Path

PREFIX = "carillon-tune-"
_LOCK = "~lock"  # no trial has such a name
_HALF_MADE = 3600.0  # seconds
_MOST_PATH = 107  # bytes of a Unix socket's path
_SHORT = ("/tmp", "/var/tmp", "/dev/shm")
_looked: set[str] = set()  # places in which this process has looked for folders of others
_looking = threading.Lock()


def _place(prefix: str, socket: str) -> str:
    """Where temporary files are, or a place with a shorter name, where a socket's path would be too long there."""
    place = os.path.abspath(tempfile.gettempdir())
    longest = f"{prefix}{8 * 'x'}/{socket}"  # mkdtemp adds eight characters
    if not socket or len(os.fsencode(f"{place}/{longest}")) <= _MOST_PATH:
        return place
    for other in (os.environ.get("XDG_RUNTIME_DIR", ""), *_SHORT):
        if (os.path.isabs(other) and os.access(other, os.W_OK | os.X_OK)
                and len(os.fsencode(f"{other}/{longest}")) <= _MOST_PATH):
            return other
    raise OSError(f"a socket in {place} would have a path of more than {_MOST_PATH} bytes, and there is no other place "
                  f"for it (XDG_RUNTIME_DIR, {', '.join(_SHORT)}): set TMPDIR to a shorter path")


class Folder:
    """This user's alone, and this process's until `remove`, which may be called again. `socket`: the longest name of
    one that will be in it."""

    def __init__(self, what: str, socket: str = "") -> None:
        place = _place(f"{PREFIX}{what}-", socket)
        _remove_left(place)
        self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{what}-", dir=place))
        self._lock = _locked(self.path)
        self._process = os.getpid()

    def remove(self) -> None:
        if os.getpid() != self._process:
            return  # a child that was forked ends, and its parent has the folder
        shutil.rmtree(self.path, ignore_errors=True)
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def _locked(folder: Path) -> int | None:
    """The file has its name once it is locked: who looks for folders that are left finds none half made."""
    fresh = folder / f"{_LOCK}.new"
    lock = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # the file system has no locks: the folder is nobody's to remove
        os.close(lock)
        fresh.unlink()
        return None
    os.rename(fresh, folder / _LOCK)
    return lock


def _remove_left(place: str) -> None:
    """Removes folders of this user whose driver is gone. Once a process, and without a word: they are in nobody's way."""
    with _looking:
        if place in _looked:
            return
        _looked.add(place)
    try:
        names = [name for name in os.listdir(place) if name.startswith(PREFIX)]
    except OSError:
        return
    for name in names:
        try:
            _remove_if_left(Path(place, name))
        except OSError:
            pass  # another user's, or another driver was faster


def _remove_if_left(folder: Path) -> None:
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return
    # Half made: nobody takes so long between its name and its lock.
    half = set(os.listdir(folder)) <= {f"{_LOCK}.new"} and time.time() - found.st_mtime > _HALF_MADE
    held = folder if half else folder / _LOCK
    lock = os.open(held, (os.O_DIRECTORY if half else os.O_RDWR) | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held while it is removed, so that one does it
        if os.path.samestat(os.fstat(lock), os.lstat(held)):
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
