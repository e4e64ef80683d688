"""Models for emulated devices, and who watches the machine: shared by the measurements of clusters."""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time

import harness

# Writes when the machine stood still: from when to when, by CLOCK_MONOTONIC.
WATCH = """
import sys, time
print(flush=True)
last = time.monotonic()
while True:
    time.sleep(0.001)
    now = time.monotonic()
    if now - last > 0.006:
        print(last, now, flush=True)
    last = now
"""


class Watch:
    """Times at which the machine stood still for more than 5 ms, by a process that only sleeps."""

    def __enter__(self):
        self.times = []
        self.process = subprocess.Popen([sys.executable, "-c", WATCH], stdout=subprocess.PIPE, text=True)
        self.process.stdout.readline()  # it watches
        self.thread = threading.Thread(target=self.hear)
        self.thread.start()
        return self

    def hear(self):
        for line in self.process.stdout:
            begin, end = map(float, line.split())
            self.times.append((begin, end))

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.thread.join()

    def stalled(self, begin, end):
        return any(a < end and b > begin for a, b in list(self.times))


def repository(folder, models, batch):
    """Models, {name: (alpha_ms, beta_ms)}, with all batch sizes up to `batch`: a folder of them, and a profile for `--device emulated:`.

    A batch of b takes alpha*b + beta. Requests are those of tiny_mlp.
    """
    folder = pathlib.Path(folder)
    source = harness.samples(str(harness.ROOT / "build/samples"), "tiny_mlp") / "tiny_mlp"
    sizes = list(range(1, batch + 1))
    for name in models:
        shutil.copytree(source, folder / "models" / name)
        config = folder / "models" / name / "config.pbtxt"
        text = re.sub(r"max_batch_size: \d+", f"max_batch_size: {batch}", config.read_text()).replace('"tiny_mlp"', f'"{name}"')
        text = re.sub(r"parameters \{.*", "", text, flags=re.S)  # no SLO of its own
        config.write_text(text.replace("dynamic_batching { }", f"dynamic_batching {{ preferred_batch_size: {sizes} }}"))

    def times(ms):
        return {"p50_ms": ms, "p99_ms": ms}

    profile = folder / "profile.json"
    profile.write_text(json.dumps({"device": "emulated", "models": [
        {"name": name, "weights_bytes": 1_000_000, "load_ms": {"p50": 1, "p99": 1},
         "batches": [{"batch": b, **times(alpha * b + beta)} for b in sizes]} for name, (alpha, beta) in models.items()]}))
    return folder / "models", profile


def devices(profile, count):
    return ("--device", f"emulated:{profile}*{count}", "--profile", profile, "--no-store", "--memory", "1GiB")


def sleep_until(at):
    time.sleep(max(0.0, at - time.monotonic()))
