"""How much memory of a process is there, by kinds of its mappings, in well under a millisecond.

/proc/PID/smaps says so in 10 ms for a process that has torch, and stops the process's own page faults meanwhile; this
asks the same page tables by PAGEMAP_SCAN (Linux 6.7 and newer). A page of a lane's memory file is counted with the
file, once, and not with the processes that map it: their shares of it (PSS) add up to no more than that.
"""
import array
import dataclasses
import fcntl
import os
import pathlib
import struct

PAGEMAP_SCAN = 0xC0606610  # _IOWR('f', 16, struct pm_scan_arg)
PRESENT = 1 << 3
ARGUMENT = struct.Struct("<12Q")
REGIONS = 4096


@dataclasses.dataclass
class Mapping:
    start: int
    end: int
    private: bool
    writable: bool
    name: str


def mappings(pid):
    found = []
    for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
        where, flags, _, _, _, *name = line.split(maxsplit=5)
        start, end = (int(a, 16) for a in where.split("-"))
        found.append(Mapping(start, end, flags[3] == "p", flags[1] == "w", name[0] if name else ""))
    return found


def heap_range(pid):
    """Where the client's two heaps lie (src/carillon/share/client/README.md): the private one, and the lane's after it,
    each as large as the other, far larger than anything else that can be written to."""
    own = max((m for m in mappings(pid) if m.private and m.writable and not m.name), key=lambda m: m.end - m.start)
    size = 1 << (own.end - own.start).bit_length() - 1  # the kernel may have joined it with what lies before it
    if size < 1 << 30:
        raise RuntimeError(f"process {pid} has no heaps of the client: its largest mapping is {own.end - own.start} bytes")
    return own.end - size, own.end + size


class Pages:
    """Pages of a process that are there. Raises OSError once the process is gone."""

    def __init__(self, pid):
        self._pid = pid
        self._fd = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY)
        self._found = array.array("Q", bytes(24 * REGIONS))

    def close(self):
        os.close(self._fd)

    def anonymous(self, within=None):
        """Bytes of memory that no file stands behind: in a range of addresses, or everywhere."""
        return sum(self._there(max(m.start, within[0]) if within else m.start, min(m.end, within[1]) if within else m.end)
                   for m in mappings(self._pid)
                   if m.private and m.writable and (not m.name or m.name == "[heap]")
                   and (not within or (m.start < within[1] and m.end > within[0])))

    def _there(self, start, end):
        total = 0
        while start < end:
            argument = bytearray(ARGUMENT.pack(ARGUMENT.size, 0, start, end, 0, self._found.buffer_info()[0], REGIONS, 0, 0,
                                               PRESENT, 0, PRESENT))
            many = fcntl.ioctl(self._fd, PAGEMAP_SCAN, argument)
            total += sum(self._found[i + 1] - self._found[i] for i in range(0, 3 * many, 3))
            start = ARGUMENT.unpack(argument)[4]
        return total


def files_of(pid, name):
    """Descriptors of a process's memory files whose names begin so."""
    found = []
    for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            if os.readlink(entry).startswith(f"/memfd:{name}"):
                found.append(entry)
        except FileNotFoundError:  # closed meanwhile
            pass
    return found


def file_bytes(entries):
    """Pages of these files that are there, each file once."""
    sizes = {}
    for entry in entries:
        try:
            told = os.stat(entry)
            sizes[told.st_ino] = told.st_blocks * 512
        except FileNotFoundError:
            pass
    return sum(sizes.values())


def proportional(pid, within):
    """What /proc/PID/smaps says: PSS of the mappings that lie in a range, or reach into it."""
    total, inside = 0, False
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        head, _, rest = line.partition(" ")
        if head == "Pss:":
            total += int(rest.split()[0]) * 1024 if inside else 0
        elif not head.endswith(":"):
            start, end = (int(a, 16) for a in head.split("-"))
            inside = start < within[1] and end > within[0]
    return total
