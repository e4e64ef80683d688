"""A broker in Python that does what a test says: speaks share/protocol.h by struct, and decides nothing.

By default it is as hard on its job as can be: it recalls it at every boundary, and before each grant fills the lane
with what another job might have left there.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import struct
import threading
import time
from dataclasses import dataclass, field

MAGIC, VERSION = 0x6C6C7263, 2
HELLO, WELCOME, REFUSED, LANE, STOPPED, ASK, EVICTED, BYE, QUERY, LISTING, ENDING = range(1, 12)
HOLD, RUN, LOOK = range(3)
HEADER = struct.Struct("<IIII")
HELLO_BODY = struct.Struct("<IIQQQdIIQQ64s")
LEASE, INSIDE, ITERATIONS, BUSY, PERSISTENT, EPHEMERAL = 64, 128, 136, 144, 152, 160
STEP = 2 << 20

_libc = ctypes.CDLL(None, use_errno=True)


def packet(kind: int, body: bytes = b"", version: int = VERSION) -> bytes:
    return HEADER.pack(MAGIC, version, kind, HEADER.size + len(body)) + body


@dataclass
class Job:
    connection: socket.socket
    page: mmap.mmap
    hello: tuple
    name: str
    stops: list[tuple] = field(default_factory=list)  # iterations, busy_ns, persistent, ephemeral, remaining_ns
    asks: list[tuple] = field(default_factory=list)
    said_bye: bool = False
    over: threading.Event = field(default_factory=threading.Event)

    # Whole numbers, through views: struct goes byte by byte, and pack_into() writes zeros first, which is a lease.
    def u32(self, at: int) -> int:
        return memoryview(self.page).cast("I")[at // 4]

    def u64(self, at: int) -> int:
        return memoryview(self.page).cast("Q")[at // 8]

    def lease(self, value: int) -> None:
        memoryview(self.page).cast("I")[LEASE // 4] = value
        word = ctypes.c_uint32.from_buffer(self.page, LEASE)
        _libc.syscall(202, ctypes.byref(word), 1, 1 << 20, None, None, 0)  # FUTEX_WAKE


class ScriptedBroker:
    """`recall`: at every boundary. `refuse`, `evict_ask`: the text with which all are turned away, or that answers
    the first ask. `most_grants`: after so many it holds its job for good. `version`: what it says that it speaks."""

    def __init__(self, path, *, lane: int = 8 << 20, recall: bool = True, garbage: bool = True, refuse: str = "",
                 evict_ask: str = "", most_grants: int | None = None, version: int = VERSION,
                 new_lane_every: int = 0):
        self.path = str(path)
        self.recall, self.garbage, self.refuse, self.evict_ask = recall, garbage, refuse, evict_ask
        self.most_grants, self.version, self.new_lane_every = most_grants, version, new_lane_every
        self.jobs: list[Job] = []
        self.grants = 0
        self.failure: BaseException | None = None
        self.changed = threading.Condition()
        self._number = 0
        self._fd = -1
        self._renew(lane)
        self._closing = False
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self.path)
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def _renew(self, size: int) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._size = os.memfd_create("lane"), size
        os.ftruncate(self._fd, size)
        self._number += 1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        """As if killed: no last packet."""
        self._closing = True
        self._listener.close()
        for job in self.jobs:
            job.connection.close() if job.over.is_set() else job.connection.shutdown(socket.SHUT_RDWR)
        if os.path.exists(self.path):
            os.unlink(self.path)

    def wait_for(self, what, longest: float = 120.0) -> None:
        """Until `what()`, which may look at more than this broker knows of."""
        until = time.monotonic() + longest
        with self.changed:
            while not what():
                if time.monotonic() > until:
                    raise AssertionError("what a test waits for did not happen")
                self.changed.wait(0.02)

    def _tell(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve_safely, args=(connection,), daemon=True).start()

    def _serve_safely(self, connection) -> None:
        try:
            self._serve(connection)
        except OSError:  # the job, or this broker, is gone
            pass
        except BaseException as error:
            self.failure = error
        self._tell()

    def _refused(self, kind: int, why: str) -> bytes:
        return packet(kind, struct.pack("<QQ256s", 64 << 20, 32 << 20, why.encode()))

    def _serve(self, connection) -> None:
        first = connection.recv(1 << 16)
        if not first:
            return  # somebody who looks whether anybody is here
        magic, version, kind, length = HEADER.unpack_from(first)
        assert (magic, version, kind, length) == (MAGIC, VERSION, HELLO, len(first)), first[:16]
        hello = HELLO_BODY.unpack_from(first, HEADER.size)
        if self.version != VERSION or self.refuse:
            connection.send(packet(REFUSED, struct.pack("<QQ256s", 0, 0, b"version"), self.version)
                            if self.version != VERSION else self._refused(REFUSED, self.refuse))
            connection.close()
            return
        fd = os.memfd_create("page")
        os.ftruncate(fd, 4096)
        page = mmap.mmap(fd, 4096)
        struct.pack_into("<II", page, 0, MAGIC, VERSION)
        job = Job(connection, page, hello, hello[-1].split(b"\0")[0].decode())
        socket.send_fds(connection, [packet(WELCOME, struct.pack("<IIQ", len(self.jobs) + 1, 0, 1 << 34))], [fd])
        os.close(fd)
        self.jobs.append(job)
        self._tell()
        try:
            self._talk(connection, job)
        finally:
            job.over.set()

    def _give_lane(self, connection) -> None:
        socket.send_fds(connection, [packet(LANE, struct.pack("<IIQ", self._number, 0, self._size))], [self._fd])

    def _fill(self, grant: int) -> None:
        os.pwrite(self._fd, bytes([0xFF, 0xC0 | grant % 64]) * (self._size // 2), 0)  # NaNs, to whoever reads floats

    def _talk(self, connection, job: Job) -> None:
        given = None
        while True:
            data = connection.recv(1 << 16)
            if not data:
                return
            kind = HEADER.unpack_from(data)[2]
            if kind == BYE:
                job.said_bye = True
                connection.close()
                return
            if kind == ASK:
                job.asks.append(struct.unpack_from("<QQ", data, HEADER.size))
                if self.evict_ask:
                    connection.send(self._refused(EVICTED, self.evict_ask))
                    job.lease(LOOK)
                    connection.close()
                    return
                if job.asks[-1][1] > self._size:
                    self._size = job.asks[-1][1]
                    os.ftruncate(self._fd, self._size)
                given = (self._number, self._size)
                self._give_lane(connection)
                continue
            assert kind == STOPPED, kind
            assert job.u32(INSIDE) == 0
            job.stops.append(struct.unpack_from("<QQQQQ", data, HEADER.size))
            self._tell()
            if self.most_grants is not None and self.grants >= self.most_grants:
                continue
            if self.new_lane_every and self.grants % self.new_lane_every == self.new_lane_every - 1:
                self._renew(self._size)
            if self.garbage:
                self._fill(self.grants)
            if given != (self._number, self._size):
                self._give_lane(connection)
                given = (self._number, self._size)
            self.grants += 1
            job.lease(RUN)
            if self.recall:
                while job.u32(INSIDE) == 0 and not self._closing:
                    time.sleep(0.0001)
                job.lease(HOLD)
