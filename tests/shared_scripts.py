"""Kinds of training scripts, as people write them; none knows that it may share its device.

    shared_scripts.py KIND OUT

trains a little and writes the final weights to OUT. Tensors are of 64 KiB and more, so that lanes have something
to hold.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

WIDTH, BATCH = 256, 64


def network(out: int = 16) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 320), nn.ReLU(), nn.Linear(320, 256), nn.Tanh(), nn.Linear(256, out))


def data(n: int = 12 * BATCH, classes: int = 16) -> TensorDataset:
    return TensorDataset(torch.randn(n, WIDTH), torch.randint(0, classes, (n,)))


def plain(out):
    m, batches = network(), DataLoader(data(), BATCH, shuffle=True)
    o = torch.optim.Adam(m.parameters(), 1e-3)
    for _ in range(2):
        for x, y in batches:
            o.zero_grad()
            F.cross_entropy(m(x), y).backward()
            o.step()
    return m


def amp(out):
    m, o = network(), None
    o = torch.optim.SGD(m.parameters(), 0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(2):
        for x, y in DataLoader(data(), BATCH):
            o.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(m(x), y)
            scaler.scale(loss).backward()
            scaler.step(o)
            scaler.update()
    return m


def accumulation(out):
    m = network()
    o = torch.optim.AdamW(m.parameters(), 1e-3)
    for _ in range(3):
        for i, (x, y) in enumerate(DataLoader(data(), BATCH)):
            (F.cross_entropy(m(x), y) / 4).backward()
            if i % 4 == 3:
                o.step()
                o.zero_grad()
    return m


def gan(out):
    d, g = network(1), network(WIDTH)
    od, og = torch.optim.Adam(d.parameters(), 1e-3), torch.optim.Adam(g.parameters(), 1e-3)
    for _ in range(2):
        for x, _ in DataLoader(data(), BATCH):
            fake = g(torch.randn(BATCH, WIDTH))
            od.zero_grad()
            F.softplus(-d(x)).mean().backward()
            F.softplus(d(fake.detach())).mean().backward()
            od.step()
            og.zero_grad()
            F.softplus(-d(fake)).mean().backward()
            og.step()
    return nn.ModuleList([d, g])


def lbfgs(out):
    m = network()
    o = torch.optim.LBFGS(m.parameters(), max_iter=4, line_search_fn="strong_wolfe")
    x, y = data(4 * BATCH).tensors

    def closure():
        o.zero_grad()
        loss = F.cross_entropy(m(x), y)
        loss.backward()
        return loss

    for _ in range(8):
        o.step(closure)
    return m


def step_in_backward(out):
    m = network()
    each = {p: torch.optim.SGD([p], 0.05, momentum=0.9) for p in m.parameters()}

    def at_once(p):
        each[p].step()
        each[p].zero_grad()

    for p in m.parameters():
        p.register_post_accumulate_grad_hook(at_once)
    for _ in range(2):
        for x, y in DataLoader(data(), BATCH):
            F.cross_entropy(m(x), y).backward()
    return m


def no_optimizer(out):
    m = network()
    for _ in range(2):
        for x, y in DataLoader(data(), BATCH):
            m.zero_grad()
            F.cross_entropy(m(x), y).backward()
            with torch.no_grad():
                for p in m.parameters():
                    p.add_(p.grad, alpha=-0.05)
    return m


def grad_only(out):
    m = network()
    for _ in range(3):
        for x, y in DataLoader(data(), BATCH):
            grads = torch.autograd.grad(F.cross_entropy(m(x), y), list(m.parameters()))
            with torch.no_grad():
                for p, g in zip(m.parameters(), grads):
                    p -= 0.05 * g
    return m


def compiled(out):
    m = network()
    fast = torch.compile(m)
    o = torch.optim.SGD(m.parameters(), 0.05)
    for _ in range(2):
        for x, y in DataLoader(data(), BATCH):
            o.zero_grad()
            F.cross_entropy(fast(x), y).backward()
            o.step()
    return m


def forked_loaders(out):
    m, batches = network(), DataLoader(data(), BATCH, num_workers=2)
    o = torch.optim.Adam(m.parameters(), 1e-3)
    for _ in range(2):
        for x, y in batches:
            o.zero_grad()
            F.cross_entropy(m(x), y).backward()
            o.step()
    return m


def evaluation(out):
    m, all_of_it = network(), data()
    batches, held_out = DataLoader(all_of_it, BATCH), DataLoader(data(10 * BATCH + 7), BATCH)
    o = torch.optim.Adam(m.parameters(), 1e-3)
    best, kept = float("inf"), None
    for _ in range(4):
        for x, y in batches:
            o.zero_grad()
            F.cross_entropy(m(x), y).backward()
            o.step()
        with torch.no_grad():
            outputs = [m(x) for x, _ in held_out]  # live until the evaluation's end
            loss = sum(F.cross_entropy(a, y) for a, (_, y) in zip(outputs, held_out)).item()
        if loss < best:
            best, kept = loss, {name: value.clone() for name, value in m.state_dict().items()}
    m.load_state_dict(kept)
    return m


def resume(out):
    m = network()
    o = torch.optim.Adam(m.parameters(), 1e-3)
    file = str(out) + ".checkpoint"
    for epoch in range(3):
        if os.path.exists(file):
            saved = torch.load(file)
            m.load_state_dict(saved["model"])
            o.load_state_dict(saved["optimizer"])
        for x, y in DataLoader(data(8 * BATCH), BATCH):
            o.zero_grad()
            F.cross_entropy(m(x), y).backward()
            o.step()
        torch.save({"model": m.state_dict(), "optimizer": o.state_dict()}, file)
    return m


def lightning(out):
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network()

        def training_step(self, batch, _):
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch, _):
            self.log("loss", F.cross_entropy(self.net(batch[0]), batch[1]))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 1e-3)

    m = Module()
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
                                enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(m, DataLoader(data(), BATCH), DataLoader(data(4 * BATCH), BATCH))
    return m


def trainer(out):
    import transformers

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = network()

        def forward(self, x=None, labels=None):
            scores = self.net(x)
            return {"loss": F.cross_entropy(scores, labels), "logits": scores}

    rows = [{"x": x, "labels": y} for x, y in data()]
    m = Model()
    arguments = transformers.TrainingArguments(
        output_dir=str(out) + ".trainer", per_device_train_batch_size=BATCH, num_train_epochs=2, use_cpu=True,
        report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True, gradient_accumulation_steps=2, seed=3)
    transformers.Trainer(model=m, args=arguments, train_dataset=rows).train()
    return m


def by_hand(out):
    """Tells itself where iterations end."""
    try:
        import carillon
    except ModuleNotFoundError:
        carillon = None
    m = network()
    for x, y in DataLoader(data(), BATCH):
        grads = torch.autograd.grad(F.cross_entropy(m(x), y), list(m.parameters()))
        with torch.no_grad():
            for p, g in zip(m.parameters(), grads):
                p -= 0.05 * g
        if carillon:
            carillon.step()
    return m


def forks(out):
    """Forks within an iteration; child and parent both look at tensors of the iteration."""
    m = network()
    o = torch.optim.Adam(m.parameters(), 1e-3)
    for i, (x, y) in enumerate(DataLoader(data(), BATCH)):
        o.zero_grad()
        hidden = m[0](x) * 2
        want = hidden.detach().double().sum().item()
        if i % 3 == 2:
            child = os.fork()
            if child == 0:
                same = hidden.detach().double().sum().item() == want and torch.randn(64, 512).isfinite().all()
                hidden.detach().fill_(float("nan"))  # its own copy
                del hidden
                os._exit(0 if same else 1)
            if os.waitpid(child, 0)[1] != 0:
                sys.exit("the child saw another tensor")
        loss = F.cross_entropy(m[4](m[3](m[2](m[1](hidden / 2)))), y)
        loss.backward()
        o.step()
    return m


KINDS = {f.__name__: f for f in (plain, amp, accumulation, gan, lbfgs, step_in_backward, no_optimizer, grad_only,
                                 compiled, forked_loaders, evaluation, resume, lightning, trainer, by_hand, forks)}


if __name__ == "__main__":
    _, kind, out = sys.argv
    torch.set_num_threads(1)
    torch.manual_seed(11)
    trained = KINDS[kind](out)
    torch.save([p.detach() for p in trained.parameters()], out)
    if os.environ.get("SHOW_COUNTERS"):
        import json

        import carillon

        print(json.dumps(carillon.counters()))
