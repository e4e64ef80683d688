"""The processes from which scripts of torch are forked."""

from __future__ import annotations

import os
import time
from pathlib import Path

from forked_scripts import ScriptServer


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_scripts_that_still_run_end_with_their_server(tmp_path):
    script = tmp_path / "endless.py"
    script.write_text("import time\nprint('here', flush=True)\ntime.sleep(1000)\n")
    server = ScriptServer(dict(os.environ), modules=())
    job = server.start(script, environment=dict(os.environ))
    assert job.stdout.readline() == "here\n"
    server.close()
    limit = time.monotonic() + 60
    while runs(job.pid):
        assert time.monotonic() < limit, "the script still runs"
        time.sleep(0.01)
