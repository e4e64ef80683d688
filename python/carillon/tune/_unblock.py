"""Imported by the process that forks a TrialGroup's trials, which was started with Ctrl-C blocked: forks get it again."""

import os
import signal

os.register_at_fork(after_in_child=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT}))
