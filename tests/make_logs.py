"""Records the logs that tests/test_logs.py replays: one simulated and one live run of every policy.

    python tests/make_logs.py PROGRAM FOLDER

Worth running again only where policies are meant to decide otherwise: as they stand, the logs say what programs of
before decided. In them memory is short, devices fail and hang, clients go away, requests name applications, deadlines
differ, and there is more to do than can be done.
"""

from __future__ import annotations

import gzip
import json
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from loopback import make_samples, policies_of, serving, write_profile

MODELS = ("tiny_mlp", "tiny_cnn", "tiny_encoder")

SCENARIO = """
name = "log"
seed = 5
duration_s = 4

[cluster]
devices = 2
memory = "48 MiB"
network_delay_us = 100

[load]
rate = 150
process = "gamma:0.5"

[[models]]
name = "plain"
slo_ms = [40, 120]
weights = "20 MiB"
max_batch = 16
latency = { alpha_ms = 2, beta_ms = 8 }

[[models]]
name = "varied"
slo_ms = 150
weights = "20 MiB"
batch_sizes = [1, 2, 4, 8]
latency = { c0_ms = 3, c1 = 0.5, modes = [{ app = "short", mean_ms = 5, std_ms = 1, weight = 3 }, { app = "long", mean_ms = 20, std_ms = 4, weight = 1 }] }

[[models]]
name = "rare"
slo_ms = 80
weights = "20 MiB"
rate = 5
latency = { alpha_ms = 1, beta_ms = 4 }
"""


def keep(log: Path, file: Path):
    with gzip.GzipFile(file, "wb", compresslevel=9, mtime=0) as out:
        out.write(log.read_bytes())
    print(f"{file.name}: {file.stat().st_size} bytes", file=sys.stderr)


def go_away(address: str, count: int):
    """Clients that do not wait for their answer."""
    host, port = address.split(":")
    body = json.dumps({"inputs": [{"name": "input", "datatype": "FP32", "shape": [1, 64], "data": [0.5] * 64}]}).encode()
    for _ in range(count):
        with socket.create_connection((host, int(port))) as client:
            client.sendall(b"POST /v2/models/tiny_mlp/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


def record_live(program: Path, models: Path, profile: Path, policy: str, log: Path, said: Path):
    options = ["--device", f"emulated:{profile}*2", "--profile", profile, "--scheduler", policy,
               "--record", log, "--emulated-faults", "kill=0@1s+500ms,hang=1@2s+800ms", "--hang-after", "300"]
    with serving(program, models, said, *map(str, options), page_cache="48 MiB") as server:
        loads = [subprocess.Popen([program, "load", f"http://{server.http}", "--model", model, "--rate", rate, "--deadline",
                                   deadline, "--duration", "4", "--seed", seed, "--json"], stdout=subprocess.DEVNULL)
                 for model, rate, deadline, seed in (("tiny_mlp", "80", "60", "1"), ("tiny_mlp", "30", "250", "2"),
                                                     ("tiny_cnn", "50", "100", "3"), ("tiny_encoder", "5", "150", "4"))]
        go_away(server.http, 20)
        for each in loads:
            each.wait(120)


def main():
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    program, folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        at = Path(scratch)
        (at / "log.toml").write_text(SCENARIO)
        models = make_samples(at / "models", ",".join(MODELS))
        profile = write_profile(at / "profile.json", MODELS, 6)
        for policy in policies_of(program):
            name = policy.replace(":", "_")
            subprocess.run([program, "simulate", at / "log.toml", "--scheduler", policy, "--record", at / f"{name}.sim",
                            "--json"], check=True, stdout=subprocess.DEVNULL, timeout=300)
            keep(at / f"{name}.sim", folder / f"simulated_{name}.log.gz")
            record_live(program, models, profile, policy, at / f"{name}.live", at / "said")
            keep(at / f"{name}.live", folder / f"live_{name}.log.gz")


if __name__ == "__main__":
    main()
