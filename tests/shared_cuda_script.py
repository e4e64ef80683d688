"""A script that trains "on the device" of standin_cuda.py, by hand, so that each tensor of it is there.

    shared_cuda_script.py OUT SEED ITERATIONS [option ...]

What it takes within an iteration are tensors of the pool. Some outlive it: a running mean that is a new tensor each time,
and every fifth loss' gradient until the next. Options: `evaluates` now and then uses more memory, once; `modules` runs
modules of torch, too; `captures` a graph in the midst, or, `beside`, all the time in another thread; `hoards` 48 MiB; `forgets` what lives on, a fault that must be seen.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import torch  # noqa: E402
from standin_cuda import Device  # noqa: E402

import carillon  # noqa: E402

out, seed, iterations, options = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
torch.set_num_threads(1)
torch.manual_seed(seed)
device = Device(torch)
if "forgets" in options:
    from carillon import _cuda

    _cuda.live_ranges = lambda segments: []
BATCH, WIDTH = 128, 512


def parameter(*shape):
    p = device.empty(*shape)
    return p.copy_(torch.randn(*shape) / 30)


w1, w2 = parameter(WIDTH, WIDTH), parameter(WIDTH, 16)
mean = parameter(BATCH, WIDTH)
kept = []
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))


def times(a, b):
    return torch.mm(a, b, out=device.empty(a.shape[0], b.shape[1]))


if meet := os.environ.get("MEET"):  # not before two are here
    Path(f"{meet}.{seed}").touch()
    while len(list(Path(meet).parent.glob(Path(meet).name + ".*"))) < 2:
        time.sleep(0.01)

def capture_all_the_time():
    with device.in_context():
        while not over.is_set():
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin()
            over.wait(0.005)
            graph.capture_end()
            captured.append(1)
            over.wait(0.002)


over, captured = threading.Event(), []
beside = threading.Thread(target=capture_all_the_time)

for i in range(iterations):
    if "beside" in options and i == 1:  # captures are seen from the job's first signal on
        beside.start()
    x = device.empty(BATCH, WIDTH).copy_(torch.randn(BATCH, WIDTH))
    h = times(x, w1)
    h.clamp_(min=0)
    y = times(h, w2)
    torch.sub(y, 1.0, out=y)
    g2 = times(h.t(), y)
    gh = times(y, w2.t())
    gh[h == 0] = 0
    g1 = times(x.t(), gh)
    next_mean = device.empty(BATCH, WIDTH)
    torch.lerp(mean, h, 0.1, out=next_mean)
    mean = next_mean  # outlives its iteration
    if i % 5 == 0:
        kept = [g1]
    if kept:
        w1.sub_(kept[0], alpha=1e-5)
    w1.sub_(g1, alpha=1e-4)
    w2.sub_(g2, alpha=1e-4)
    if "evaluates" in options and i % 17 == 16:
        big = [device.empty(6 << 20).fill_(k) for k in range(3)]
        assert all((b == k).all() for k, b in enumerate(big))
        del big
    if "hoards" in options and i == 5:
        hoard = [device.empty(6 << 20) for _ in range(2)]
    if "modules" in options:
        model(torch.randn(4, 8)).sum().backward()
    if "captures" in options and i == iterations // 2:
        big = device.empty(6 << 20)
        del big  # its segment is free, and goes back while the graph is captured
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        torch.cuda.empty_cache()
        signals = carillon.counters()["signals"] if carillon.counters() else 0
        carillon.step()  # no boundary
        assert not signals or carillon.counters()["signals"] == signals
        graph.capture_end()
    del x, h, y, g2, gh, g1, next_mean
    carillon.step()

over.set()
if "beside" in options:
    beside.join()
torch.save([w1.clone(), w2.clone(), mean.clone()], out)
counted = carillon.counters() or {}
print(json.dumps(counted | {"captured": len(captured), "violations": device.violations(), "switched": device.switched}))
