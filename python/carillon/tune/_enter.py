"""Started by Ray in the place of Python for a trial's process: has it forked by the process that is ready (`_ready`).

    python -IS _enter.py SOCKET PYTHON default_worker.py ARGUMENTS

Where nobody answers, or the answer is no, this becomes PYTHON. Otherwise it stays, and ends as the fork does.
"""

import os
import signal
import socket
import struct
import sys


def main() -> int:
    path, *command = sys.argv[1:]
    environment = (f"{name}={value}" for name, value in os.environ.items())
    told = "\0".join([os.getcwd(), *command[1:], "", *environment]).encode(errors="surrogateescape")
    peer = socket.socket(socket.AF_UNIX)
    try:
        peer.connect(path)
        blocked = sum(1 << number - 1 for number in signal.pthread_sigmask(signal.SIG_BLOCK, []))
        socket.send_fds(peer, [struct.pack("!IQ", len(told), blocked)], [0, 1, 2])  # as `_ready._HEAD`
        peer.sendall(told)
        answer = peer.recv(1)
    except OSError:
        answer = b""
    if answer != b"y":
        os.execv(command[0], command)
    status = peer.recv(4, socket.MSG_WAITALL)
    if len(status) < 4:
        return 1  # nobody can tell how it ended
    code = os.waitstatus_to_exitcode(struct.unpack("!I", status)[0])
    if code < 0:
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main())
