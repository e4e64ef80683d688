"""What the benchmarks share: a server of their own on free loopback ports, load, tables, where results go."""
import concurrent.futures
import contextlib
import datetime
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "python"))
from carillon_quickstart.ports import free_port  # noqa: E402

CARILLON = pathlib.Path(os.environ.get("CARILLON_PROGRAM", ROOT / "build/release/carillon"))
RESULTS = ROOT / "build/bench"
# Every policy, in the order of tables that have them all.
POLICIES = ["symphony", "eager-drop", "eager", "clockwork", "orloj", "timeout-drop:0.3", "timeout:0.3", "nexus", "clipper",
            "shepherd", "fcfs"]


def say(text):
    print(text, file=sys.stderr, flush=True)


def in_parallel(jobs, work, items, label):
    """[work(item) for each item], so many at a time; says how far it is."""
    items = list(items)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        waiting = [pool.submit(work, item) for item in items]
        try:
            for i, done in enumerate(concurrent.futures.as_completed(waiting), 1):
                done.result()
                print(f"\r  {label}: {i} of {len(items)} ", end="", file=sys.stderr, flush=True)
        except BaseException:
            pool.shutdown(cancel_futures=True)  # what has not begun need not
            raise
    print(file=sys.stderr)
    return [done.result() for done in waiting]


def machine():
    """What a number was measured on, for its caption."""
    model = platform.machine()
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return {"cpu": model, "cores": os.cpu_count(), "commit": commit.stdout.strip(),
            "date": datetime.date.today().isoformat()}


class Server:
    """`carillon serve` as a child, of another build if one is given; always stopped by its own process id."""

    def __init__(self, models, *options, ready_s=600, program=None):
        self.http, self.grpc, self.metrics_port = free_port(), free_port(), free_port()
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log", delete=False)
        command = [str(program or CARILLON), "serve", "--models", str(models), "--http", f"127.0.0.1:{self.http}",
                   "--grpc", f"127.0.0.1:{self.grpc}", "--metrics", f"127.0.0.1:{self.metrics_port}", *map(str, options)]
        say("$ " + " ".join(command))
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + ready_s
        while True:
            if self.process.poll() is not None:
                raise SystemExit(f"the server ended with {self.process.returncode}:\n{self.tail()}")
            with contextlib.suppress(OSError, urllib.error.URLError):
                urllib.request.urlopen(f"{self.http_url}/v2/health/ready", timeout=5).read()
                if self.has_its_plans():
                    return
            if time.monotonic() > deadline:
                self.stop()
                raise SystemExit(f"the server was not ready after {ready_s} s:\n{self.tail()}")
            time.sleep(0.2)

    def has_its_plans(self):
        """Whether all models have plans for larger batches, too, which come after they are ready."""
        samples = self.metrics()
        models = samples.get(("carillon_later_plan_models", ()), 0)
        return samples.get(("carillon_later_plan_models_complete", ()), 0) == models

    @property
    def http_url(self):
        return f"http://127.0.0.1:{self.http}"

    @property
    def grpc_url(self):
        return f"grpc://127.0.0.1:{self.grpc}"

    def get(self, path):
        return json.loads(urllib.request.urlopen(self.http_url + path, timeout=30).read())

    def metrics(self):
        """Prometheus samples as {(name, (("label", "value"), ...)): number}."""
        text = urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=30).read().decode()
        samples = {}
        for line in text.splitlines():
            if line and not line.startswith("#"):
                key, value = line.rsplit(" ", 1)
                name, _, labels = key.partition("{")
                pairs = tuple(sorted(tuple(p.split("=", 1)) for p in labels.rstrip("}").replace('"', "").split(",") if p))
                samples[(name, pairs)] = float(value)
        return samples

    def busy_s(self):
        """Seconds in which a batch was executing, since the start."""
        return self.metrics()[("carillon_exec_busy_seconds_total", ())]

    def one_at_a_time(self, model, seconds=4):
        """What one client gets: answers a second, and the median answer in ms."""
        told = load(self.http_url, [model], "--process", "closed:1", "--duration", seconds)
        total = told["total"] if "total" in told else told
        return total["on_time"] / seconds, total["p50_ms"]

    def rss_bytes(self):
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) * 1024
        raise RuntimeError("no VmRSS")

    def tail(self, lines=20):
        return "\n".join(pathlib.Path(self.log.name).read_text(errors="replace").splitlines()[-lines:])

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise SystemExit(f"the server did not stop in 30 s:\n{self.tail()}")
        os.unlink(self.log.name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def load(url, models, *options):
    """Runs `carillon load --json`; `models` is a list of --model values."""
    command = [str(CARILLON), "load", url]
    for model in models:
        command += ["--model", model]
    command += [*map(str, options), "--json"]
    say("$ " + " ".join(command))
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}")
    return json.loads(done.stdout)


def samples(folder, *models):
    """A sample repository in `folder` (made there if it is not yet), with at least these models."""
    folder = pathlib.Path(folder)
    missing = [m for m in models if not (folder / m / "config.pbtxt").is_file()]
    if missing:
        say(f"making sample models {', '.join(missing)} in {folder}")
        subprocess.run([sys.executable, "-m", "carillon_samples", "--out", str(folder), "--models", ",".join(missing)],
                       check=True, env={**os.environ, "PYTHONPATH": str(ROOT / "python")}, stdout=sys.stderr)
    return folder


def link_or_copy(source, target):
    """A second name of the file, or a copy where its file system is another."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@contextlib.contextmanager
def only(repository, *models):
    """A repository of these models of `repository` alone."""
    with tempfile.TemporaryDirectory() as folder:
        for model in models:
            shutil.copytree(pathlib.Path(repository) / model, pathlib.Path(folder) / model, copy_function=link_or_copy)
        yield pathlib.Path(folder)


def save(name, result):
    RESULTS.mkdir(parents=True, exist_ok=True)
    file = RESULTS / f"{name}.json"
    file.write_text(json.dumps({"machine": machine(), **result}, indent=2) + "\n")
    say(f"wrote {file}")
    return file


STALLS = """
import time
try:
    worst, count = 0.0, 0
    print(flush=True)
    last = time.monotonic()
    while True:
        time.sleep(0.001)
        now = time.monotonic()
        late, last = now - last - 0.001, now
        if late > 0.005:
            worst, count = max(worst, late), count + 1
except KeyboardInterrupt:
    print(count, worst)
"""


class Stalls:
    """How often the machine stood still, by a process that only sleeps."""

    def __enter__(self):
        self.process = subprocess.Popen([sys.executable, "-c", STALLS], stdout=subprocess.PIPE, text=True)
        self.process.stdout.readline()  # it watches
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGINT)
        count, worst = self.process.communicate()[0].split()
        self.count, self.worst_ms = int(count), 1e3 * float(worst)


def write_between(page, begin, end, text):
    """Puts `text` between two lines of a file, in place of what stands there; ends the program where they are missing."""
    whole = page.read_text()
    if not re.search(re.escape(begin) + ".*" + re.escape(end), whole, re.S):
        sys.exit(f"{page} has no lines '{begin}' and '{end}' after it")
    before, rest = whole.split(begin, 1)
    page.write_text(before + begin + "\n\n" + text + "\n\n" + end + rest.split(end, 1)[1])
    say(f"wrote {page}")


def markdown(rows, header):
    """A Markdown table."""
    text = [[str(c) for c in row] for row in [header, *rows]]
    widths = [max(len(row[i]) for row in text) for i in range(len(header))]

    def line(row):
        return "| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |"

    return "\n".join([line(text[0]), "|" + "|".join("-" * (w + 2) for w in widths) + "|", *map(line, text[1:])])


def table(rows, header):
    """The same on standard output."""
    print(markdown(rows, header))
