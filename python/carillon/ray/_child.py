"""Run as `python -I -S _child.py PARENT COMMAND...`: becomes the command, which dies with the process PARENT.

Linux sends the signal when the thread of the parent that forked has ended (prctl(2)), and forgets it where a program
with capabilities of its own is executed.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    try:
        os.getxattr(command[0], "security.capability")
    except OSError:
        pass  # it has none, as nearly all programs
    else:
        sys.exit(f"carillon.ray: {command[0]} has file capabilities, so Linux would not end it with its actor: "
                 f"setcap -r {command[0]}")
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit("carillon.ray: prctl(PR_SET_PDEATHSIG) is refused: " + os.strerror(ctypes.get_errno()))
    if os.getppid() != parent:
        sys.exit("carillon.ray: the actor has ended")  # before the signal was asked for
    # Python ignores these, and a program inherits what is ignored.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execv(command[0], command)
    except OSError as error:
        sys.exit(f"carillon.ray: {command[0]} cannot be run: {error.strerror}")


main()
