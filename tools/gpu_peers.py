"""How long PyTorch takes for the sample models on the same GPU: f16, CUDA graphs; convolutions channels last and joined
with their batch normalisation. A line of JSON for each model and batch size: microseconds a call (`call_us`) and a replay of
its graph (`us`; `graph` says why there is none). DistilBERT needs transformers, and is left out without."""

import json
import time

import torch
import torchvision
from torch.fx.experimental.optimization import fuse

RUNS = 200


def network(name):
    """The model, and what makes its inputs for a batch."""
    if name == "distilbert":
        import transformers
        model = transformers.DistilBertModel(transformers.DistilBertConfig()).eval().half().cuda()
        return model, lambda batch: torch.randint(0, 30522, (batch, 128), device="cuda")
    model = fuse(getattr(torchvision.models, name)(weights=None).eval()).half().cuda().to(memory_format=torch.channels_last)
    return model, lambda batch: torch.randn(batch, 3, 224, 224, device="cuda", dtype=torch.half).to(
        memory_format=torch.channels_last)


def run_us(run):
    for _ in range(20):
        run()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(RUNS):
        run()
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / RUNS * 1e6


def measured(model, x):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(5):
            model(x)
    torch.cuda.synchronize()
    told = {"call_us": run_us(lambda: model(x))}
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            model(x)
    except RuntimeError as error:
        return {**told, "graph": str(error)}
    return {**told, "us": run_us(graph.replay)}


def main():
    torch.backends.cudnn.benchmark = True
    with torch.no_grad():
        for name in ("resnet50", "mobilenet_v2", "densenet121", "distilbert"):
            try:
                model, inputs = network(name)
            except ImportError as error:
                print(json.dumps({"model": name, "left_out": str(error)}), flush=True)
                continue
            for batch in (1, 8, 32):
                print(json.dumps({"model": name, "batch": batch, **measured(model, inputs(batch)),
                                  "torch": torch.__version__, "device": torch.cuda.get_device_name()}), flush=True)


if __name__ == "__main__":
    main()
