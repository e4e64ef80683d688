"""What members say of the election to each other, as heard at hosts' devices: who asked, and who answered. For messages of tests that fail.

A datagram is read as src/carillon/transport/datagram.cpp writes it. Beats, and datagrams without a message, are left out.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import socket
import struct
import subprocess
import sys
import time

from .network import Host

KINDS = ("beat", "told", "question", "hears", "silent", "handover")
SO_ATTACH_FILTER, ALL_PROTOCOLS, OUTGOING = 26, 3, 4
LOAD_WORD, LOAD_BYTE, LOAD_AT_X, A_TO_X, EQUAL, HAS_BIT, RETURN = 0x20, 0x30, 0x50, 0x07, 0x15, 0x45, 0x06
# Of an IP packet without options: UDP, "CRLN", with a message, whose kind stands behind the sender's id and two numbers.
FILTER = [(LOAD_BYTE, 0, 0, 9), (EQUAL, 0, 8, 17), (LOAD_WORD, 0, 0, 28), (EQUAL, 0, 6, 0x43524C4E), (LOAD_BYTE, 0, 0, 33), (HAS_BIT, 0, 4, 1),
          (LOAD_BYTE, 0, 0, 34), (A_TO_X, 0, 0, 0), (LOAD_AT_X, 0, 0, 51), (EQUAL, 0, 1, 0), (RETURN, 0, 0, 0), (RETURN, 0, 0, 65535)]


def listen() -> None:
    """Writes what this host hears, and what it sends over its link, as lines of JSON."""
    code = b"".join(struct.pack("HBBI", *each) for each in FILTER)
    buffer = ctypes.create_string_buffer(code)
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ALL_PROTOCOLS))
    tap.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", len(FILTER), ctypes.addressof(buffer)))
    with contextlib.suppress(BlockingIOError):  # what came before the filter was there
        while True:
            tap.recv(1, socket.MSG_DONTWAIT)
    print("{}", flush=True)
    while True:
        packet, (device, _, kind_of, *_) = tap.recvfrom(2048)
        if device == "lo" and kind_of == OUTGOING:
            continue  # it comes in, too
        said = packet[28:]
        size = said[6]
        sender, (kind, epoch, number) = said[7:7 + size].decode(), struct.unpack_from("<BQQ", said, 7 + size + 16)
        print(json.dumps({"at": time.time(), "way": "out" if kind_of == OUTGOING else "in", "device": device, "from": sender,
                          "to": f"{socket.inet_ntoa(packet[16:20])}:{struct.unpack('!H', packet[22:24])[0]}",
                          "kind": KINDS[kind], "epoch": epoch, "number": number}), flush=True)


class Tap:
    """Listens at a host, from when this is made until `end`."""

    def __init__(self, host: Host):
        self.host = host
        self.process = subprocess.Popen(host.on(sys.executable, "-c", "import sys; sys.path[:0] = sys.argv[1:]; from hosts.tap import listen; listen()",
                                                *filter(None, sys.path)), stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "{}\n"

    def end(self) -> list[dict]:
        self.process.kill()
        heard = [json.loads(line) for line in self.process.stdout if line.endswith("\n")]
        self.process.wait()
        return heard


def missed_by_others(heard: list[dict], leader_epoch: int) -> bool:
    """Whether members of other hosts, too, missed the leader of that epoch: it did stand still, as happens where a machine is busy."""
    votes: dict[int, int] = {}
    for each in heard:
        if each["way"] == "in" and each["device"] != "lo" and each["epoch"] == leader_epoch and each["kind"] in ("silent", "hears"):
            votes[each["number"]] = votes.get(each["number"], 0) + (1 if each["kind"] == "silent" else -1)
    return any(votes_for_silence > 0 for votes_for_silence in votes.values())


def shown(heard: list[dict]) -> str:
    """One line each, but questions that repeat as one."""
    lines, last = [], None
    for each in heard:
        key = (each["way"], each["from"], each["to"], each["kind"], each["epoch"])
        if key == last:
            continue
        last = key
        at = time.strftime("%H:%M:%S", time.localtime(each["at"])) + f".{int(each['at'] * 1000) % 1000:03d}"
        lines.append(f"{at} {each['way']:3} {each['from']} to {each['to']}: {each['kind']} of epoch {each['epoch']}, number {each['number'] % 100000}")
    return "\n".join(lines)
