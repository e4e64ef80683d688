"""The thread beside Ray's driver that tells trials' processes when they compute. Decides nothing: `turns` does.

Lines of text over a Unix socket. A trial says `hello TRIAL PID`, `want`, `did WIDTH ITERATIONS SECONDS`, `rest` and `held`;
it hears `go WIDTH` and `hold`. The end of the connection is the end of the process.
"""

from __future__ import annotations

import os
import selectors
import shutil
import socket
import tempfile
import threading
import time
from dataclasses import dataclass, field

from .turns import Go, Order, Turns

_MOST_LINE = 4096


@dataclass
class _Peer:
    socket: socket.socket
    trial: str = ""
    pid: int = 0
    unread: bytes = b""


@dataclass
class Counts:
    """What trials said so far."""

    iterations: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    processes: set[int] = field(default_factory=set)
    resizes: int = 0
    holds: int = 0


class Broker:
    """Starts with its thread; `close` ends both. `lost` names trials whose process has ended, once each."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.folder = tempfile.mkdtemp(prefix="carillon-tune-")
        self.path = os.path.join(self.folder, "turns.sock")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen(128)
        self._listener.setblocking(False)
        self._wake_out, self._wake_in = os.pipe()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._selector.register(self._wake_out, selectors.EVENT_READ, None)
        self._peers: dict[str, _Peer] = {}
        self._lock = threading.Lock()
        self._lost: set[str] = set()
        self.counts = Counts()
        self._thread = threading.Thread(target=self._serve, name="carillon-tune", daemon=True)
        self._thread.start()

    def lost(self) -> set[str]:
        with self._lock:
            lost, self._lost = self._lost, set()
        return lost

    def close(self) -> None:
        if self._wake_in >= 0:
            os.write(self._wake_in, b"x")
            self._thread.join(timeout=5)
            os.close(self._wake_in)
            os.close(self._wake_out)
            self._wake_in = -1
        shutil.rmtree(self.folder, ignore_errors=True)

    def _serve(self) -> None:
        try:
            while self._turn():
                pass
        finally:
            # However it ends: trials that hear of it go on alone, and do not wait for ever.
            for key in list(self._selector.get_map().values()):
                if isinstance(key.fileobj, socket.socket):
                    key.fileobj.close()
            self._selector.close()

    def _turn(self) -> bool:
        tick = self._turns.next_tick()
        for key, _ in self._selector.select(None if tick is None else max(0.0, tick - time.monotonic())):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj == self._wake_out:
                return False
            else:
                self._read(key.data)
        self._send(self._turns.tick(time.monotonic()))
        return True

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except OSError:
            return
        accepted.setblocking(False)
        self._selector.register(accepted, selectors.EVENT_READ, _Peer(accepted))

    def _read(self, peer: _Peer) -> None:
        try:
            data = peer.socket.recv(_MOST_LINE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data or len(peer.unread) > _MOST_LINE:
            self._drop(peer)
            return
        *lines, peer.unread = (peer.unread + data).split(b"\n")
        for line in lines:
            if not self._take(peer, line.decode(errors="replace").split()):
                self._drop(peer)
                return

    def _take(self, peer: _Peer, words: list[str]) -> bool:
        """Whether that was a line of the protocol."""
        now = time.monotonic()
        try:
            if words[0] == "hello":
                if peer.trial:  # the process goes on with another trial
                    self._leave(peer)
                peer.trial, peer.pid = words[1], int(words[2])
                if peer.trial in self._peers:  # of its last process the end was not read yet
                    self._leave(self._peers[peer.trial])
                self._peers[peer.trial] = peer
                self.counts.processes.add(peer.pid)
            elif not peer.trial:
                return False
            elif words[0] == "want":
                self._send(self._turns.wants(peer.trial, now))
            elif words[0] == "held":
                self.counts.holds += 1
                self._send(self._turns.held(peer.trial, now))
            elif words[0] == "did":
                width, iterations, seconds = int(words[1]), int(words[2]), float(words[3])
                counts = self.counts
                counts.iterations[peer.trial] = counts.iterations.get(peer.trial, 0) + iterations
                counts.seconds[peer.trial] = counts.seconds.get(peer.trial, 0.0) + seconds
                self._turns.did(peer.trial, width, iterations, seconds)
            elif words[0] == "rest":
                self._send(self._turns.rests(peer.trial, now))
            else:
                return False
        except (IndexError, ValueError):
            return False
        return True

    def _send(self, orders: list[Order]) -> None:
        for order in orders:
            peer = self._peers.get(order.trial)
            if peer is None:
                continue
            if isinstance(order, Go):
                self.counts.resizes += order.width > 1
            line = f"go {order.width}\n" if isinstance(order, Go) else "hold\n"
            try:
                peer.socket.sendall(line.encode())
            except OSError:
                pass  # its end is read next

    def _leave(self, peer: _Peer) -> bool:
        """Whether the peer was the trial's."""
        if self._peers.get(peer.trial) is not peer:
            return False
        del self._peers[peer.trial]
        self._send(self._turns.gone(peer.trial, time.monotonic()))
        return True

    def _drop(self, peer: _Peer) -> None:
        self._selector.unregister(peer.socket)
        peer.socket.close()
        if self._leave(peer):
            with self._lock:
                self._lost.add(peer.trial)
