#!/usr/bin/env python3
"""A client that writes down what became of each request, one by one; a process of its own (see Ledger).

Requests of tiny_mlp come at a rate, by a Poisson process with a seed, to frontends in turn, whether or not earlier ones are
answered, and no more than `most` of them. Each has an id. An answer with another id, or one more than was asked for, is found.
"""
import contextlib
import gc
import json
import os
import random
import select
import socket
import subprocess
import sys
import tempfile
import time

PATIENCE_S = 5  # a request without an answer for so long is lost


class Connection:
    def __init__(self, address):
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=1)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.address, self.number, self.got = address, None, b""


class Client:
    def __init__(self, doors, model, rate, deadline_ms, seed, most):
        self.doors, self.rate, self.random, self.most = doors, rate, random.Random(seed), most
        self.head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: "
        self.body = '","parameters":{"timeout":%d},"inputs":[{"name":"input","datatype":"FP32","shape":[1,64],"data":%s}]}' % (
            int(deadline_ms * 1000), json.dumps([0.0] * 64))
        self.used = list(range(len(doors)))
        self.idle = {door: [] for door in doors}
        self.open = {}  # by descriptor
        self.poll = select.epoll()
        self.entries = []  # [door, planned, sent, answered, status]: status 0: broken, -1: none came, -2: another's
        self.doubled = 0
        self.failures = []  # [status, when, what it said] of the first

    def send(self, number, planned):
        index = self.used[number % len(self.used)]
        door = self.doors[index]
        entry = [index, planned, time.monotonic(), None, -1]
        self.entries.append(entry)
        try:
            if self.idle[door]:
                connection = self.idle[door].pop()
            else:
                connection = Connection(door)
                self.open[connection.socket.fileno()] = connection
                self.poll.register(connection.socket, select.EPOLLIN)
            connection.number = number
            body = f'{{"id":"{number}{self.body}'
            connection.socket.send(f"{self.head}{len(body)}\r\n\r\n{body}".encode())
        except OSError:
            entry[3:] = [time.monotonic(), 0]

    def hear(self, connection):
        try:
            got = connection.socket.recv(65536)
        except OSError:
            got = b""
        now = time.monotonic()
        if not got:
            self.open.pop(connection.socket.fileno(), None)
            with contextlib.suppress(ValueError):
                self.idle[connection.address].remove(connection)
            connection.socket.close()
            if connection.number is not None:
                self.entries[connection.number][3:] = [now, 0]
            return
        connection.got += got
        head, end, body = connection.got.partition(b"\r\n\r\n")
        if not end:
            return
        fields = head.lower()
        length = int(fields.split(b"content-length:")[1].split(b"\r\n")[0]) if b"content-length:" in fields else 0
        if b"transfer-encoding: chunked" in fields:  # as other servers answer; only its end matters
            if not body.endswith(b"0\r\n\r\n"):
                return
            length = len(body)
        if len(body) < length:
            return
        connection.got = b""
        if connection.number is None or len(body) > length:
            self.doubled += 1
            return
        status, number = int(head.split(b" ", 2)[1]), connection.number
        connection.number = None
        if status == 200 and f'"id":"{number}"'.encode() not in body.replace(b" ", b""):
            status = -2
        self.entries[number][3:] = [now, status]
        if status not in (200, 429, 503, 504) and len(self.failures) < 20:
            self.failures.append([status, now, body[:300].decode(errors="replace")])
        self.idle[connection.address].append(connection)

    def run(self):
        """Until "end" comes at standard input. "use 0 2" there: only these doors are sent to from now on."""
        self.poll.register(sys.stdin, select.EPOLLIN)
        at, number, sending = time.monotonic(), 0, True
        gone = at + 1e9
        while True:
            now = time.monotonic()
            while sending and at <= now and number < self.most:
                self.send(number, at)
                number += 1
                at += self.random.expovariate(self.rate)
            if now > gone or (not sending and all(each.number is None for each in self.open.values())):
                return
            wait = min(at - time.monotonic(), 0.05) if sending and number < self.most else 0.05
            for descriptor, _ in self.poll.poll(max(0.0, wait)):
                if descriptor in self.open:
                    self.hear(self.open[descriptor])
                elif descriptor == sys.stdin.fileno() and sending:
                    for line in os.read(descriptor, 65536).decode().splitlines() or ["end"]:
                        if line.startswith("use "):
                            self.used = [int(each) for each in line.split()[1:]]
                        else:
                            sending, gone = False, time.monotonic() + PATIENCE_S


def main():
    told = json.loads(sys.argv[1])
    file = told.pop("file")
    gc.disable()
    client = Client(**told)
    client.run()
    with open(file, "w", encoding="ascii") as out:
        json.dump({"entries": client.entries, "doubled": client.doubled, "failures": client.failures}, out)


class Ledger:
    """Use as a context; then `entries` has all requests, by the time at which they were due (CLOCK_MONOTONIC)."""

    def __init__(self, doors, model, rate, deadline_ms, seed=1, most=10**9):
        self.file = tempfile.NamedTemporaryFile()
        self.deadline_s = deadline_ms / 1000
        self.doors = list(doors)
        told = {"file": self.file.name, "doors": list(doors), "model": model, "rate": rate, "deadline_ms": deadline_ms, "seed": seed, "most": most}
        self.command = [sys.executable, __file__, json.dumps(told)]

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE)
        return self

    def __exit__(self, *raised):
        self.process.stdin.write(b"end\n")
        self.process.stdin.close()
        self.process.wait(60)
        if raised[0] is None:
            told = json.load(open(self.file.name, encoding="ascii"))
            self.entries, self.doubled, self.failures = told["entries"], told["doubled"], told["failures"]
        self.file.close()

    def use(self, doors):
        """From now on sends to these doors alone."""
        places = [str(self.doors.index(door)) for door in doors]
        self.process.stdin.write(f"use {' '.join(places)}\n".encode())
        self.process.stdin.flush()

    def outcome(self, entry):
        _, planned, _, answered, status = entry
        if status == 200:
            return "on time" if answered - planned <= self.deadline_s else "late"
        return {0: "broken", -1: "lost", -2: "wrong"}.get(status, "refused" if status in (429, 503, 504) else "failed")


if __name__ == "__main__":
    main()
