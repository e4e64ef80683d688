#!/usr/bin/env python3
"""One study of Ray Tune, as Ray runs it (--mode plain), with carillon.tune.Fluid around its scheduler (--mode fluid), or
with Ray's own ResourceChangingScheduler around it (--mode changing).

In an environment of python/requirements/ray.txt:

    python bench/ray_tune.py --scheduler hyperband --kind class --trials 12 --steps 20 --mode plain
    python bench/ray_tune.py --scheduler hyperband --kind class --trials 12 --steps 20 --mode fluid

A trial trains a small CNN on random images, a recurrent model of words or a GAN (--task), on data made here, at a
learning rate of its own, and reports its accuracy after each epoch.
Ray is told of two processors. Told is one JSON object: the seconds of the study without Ray's own start (`wall`), to its
first trial (`start`) and to the first report (`first`), the seconds of all epochs (`computed`), starts of trials (`restarts`: those after the first of each trial), processes, the numbers of
threads that trials had, epochs, the best accuracy, and trials that failed. With --mode fluid also iterations, pauses that
ended in place (`held`) and with the process (`let_go`), turns that were taken away (`holds`), and those that were given
with more than one thread (`resizes`).

--seed sets the learning rates. Trials end in another order in each run, so ASHA may stop others with the same seed.
Exit status 1 where a trial failed, 2 where Ray or torch is missing.
"""
import argparse
import contextlib
import importlib.util
import json
import logging
import os
import pathlib
import random
import sys
import tempfile
import time

PYTHON = str(pathlib.Path(__file__).resolve().parents[1] / "python")
PROCESSORS = 2
STATE = "state.pt"


class Cnn:
    """A small AlexNet on random images of CIFAR-10's shape: what a class looks like is learnt from them."""

    def __init__(self, torch, lr):
        self.torch = torch
        net = torch.nn
        self.labels = torch.randint(10, (512,))
        self.images = torch.randn(512, 3, 32, 32) + torch.randn(10, 3, 1, 1)[self.labels] / 2
        self.models = [net.Sequential(
            net.Conv2d(3, 24, 3, padding=1), net.ReLU(), net.MaxPool2d(2),
            net.Conv2d(24, 48, 3, padding=1), net.ReLU(), net.MaxPool2d(2),
            net.Conv2d(48, 48, 3, padding=1), net.ReLU(), net.MaxPool2d(2),
            net.Flatten(), net.Linear(768, 128), net.ReLU(), net.Linear(128, 10))]
        self.optimizers = [torch.optim.SGD(self.models[0].parameters(), lr=lr, momentum=0.9)]

    def step(self, number):
        batch = self.torch.arange(number * 64, number * 64 + 64) % 512
        loss = self.torch.nn.functional.cross_entropy(self.models[0](self.images[batch]), self.labels[batch])
        self.optimizers[0].zero_grad()
        loss.backward()
        self.optimizers[0].step()

    def accuracy(self):
        return float((self.models[0](self.images[:128]).argmax(1) == self.labels[:128]).float().mean())


class Words:
    """A recurrent model of the next word, over words of a random grammar; its update is written by hand."""

    optimizers = ()

    def __init__(self, torch, lr):
        self.torch, self.lr = torch, 10 * lr
        follows = torch.randint(50, (50, 3))  # each word is followed by one of three
        word, words = 0, []
        for choice in torch.randint(3, (2048,)).tolist():
            words.append(word)
            word = int(follows[word, choice])
        self.words = torch.tensor(words).view(32, 64)
        self.models = [torch.nn.ModuleList([torch.nn.Embedding(50, 32), torch.nn.GRU(32, 64, batch_first=True),
                                            torch.nn.Linear(64, 50)])]

    def predict(self, words):
        embedding, recurrent, out = self.models[0]
        return out(recurrent(embedding(words))[0])

    def step(self, number):
        batch = self.words[number % 4 * 8:][:8]
        said = self.predict(batch[:, :-1])
        loss = self.torch.nn.functional.cross_entropy(said.flatten(0, 1), batch[:, 1:].flatten())
        self.models[0].zero_grad()
        loss.backward()
        with self.torch.no_grad():
            for weights in self.models[0].parameters():
                weights -= self.lr * weights.grad

    def accuracy(self):
        return float((self.predict(self.words[:, :-1]).argmax(2) == self.words[:, 1:]).float().mean())


class Gan:
    """A generator of points on a circle, and who tells them from others; the metric is how near they are."""

    def __init__(self, torch, lr):
        self.torch = torch
        net = torch.nn
        self.models = [net.Sequential(net.Linear(8, 128), net.ReLU(), net.Linear(128, 128), net.ReLU(), net.Linear(128, 2)),
                       net.Sequential(net.Linear(2, 128), net.ReLU(), net.Linear(128, 128), net.ReLU(), net.Linear(128, 1))]
        self.optimizers = [torch.optim.Adam(model.parameters(), lr=lr / 10) for model in self.models]

    def step(self, number):
        torch, (make, tell) = self.torch, self.models
        loss = torch.nn.functional.binary_cross_entropy_with_logits
        angle = 6.2832 * torch.rand(256, 1)
        real, fake = torch.cat([angle.cos(), angle.sin()], 1), make(torch.randn(256, 8))
        for optimizer, value in ((self.optimizers[1], lambda: loss(tell(real), torch.ones(256, 1))
                                  + loss(tell(fake.detach()), torch.zeros(256, 1))),
                                 (self.optimizers[0], lambda: loss(tell(fake), torch.ones(256, 1)))):
            optimizer.zero_grad()
            value().backward()
            optimizer.step()

    def accuracy(self):
        off = (self.models[0](self.torch.randn(512, 8)).norm(dim=1) - 1).abs().mean()
        return float(1 - off.clamp(max=1))


TASKS = {"cnn": Cnn, "words": Words, "gan": Gan}


class Training:
    """One of the tasks, in epochs. Torch is imported in the trial's process only, as part of its start."""

    def __init__(self, config):
        import torch
        self.torch, self.steps, self.epochs = torch, config["steps"], 0
        torch.manual_seed(0)
        self.task = TASKS[config["task"]](torch, config["lr"])

    def epoch(self):
        """Trains for an epoch; gives what the trial reports."""
        for number in range(self.steps):
            self.task.step(number)
        self.epochs += 1
        with self.torch.no_grad():
            accuracy = self.task.accuracy()
        return {"accuracy": accuracy, "threads": self.torch.get_num_threads(), "process": os.getpid()}

    def parts(self):
        return [*self.task.models, *self.task.optimizers]

    def save(self, folder):
        self.torch.save([self.epochs, *(part.state_dict() for part in self.parts())], os.path.join(folder, STATE))

    def load(self, folder):
        self.epochs, *states = self.torch.load(os.path.join(folder, STATE))
        for part, state in zip(self.parts(), states):
            part.load_state_dict(state)


def train_function(tune, saves):
    """Trains as a function, which saves with each report or never."""
    def train(config):
        training = Training(config)
        checkpoint = tune.get_checkpoint()
        if checkpoint:
            with checkpoint.as_directory() as folder:
                training.load(folder)
        while training.epochs < config["epochs"]:
            result = training.epoch()
            if not saves:
                tune.report(result)
                continue
            with tempfile.TemporaryDirectory() as folder:
                training.save(folder)
                tune.report(result, checkpoint=tune.Checkpoint.from_directory(folder))
    return train


def train_class(tune):
    """Trains as a class, which saves when Ray asks, and can be reset."""
    class Train(tune.Trainable):
        def setup(self, config):
            self.training = Training(config)

        def step(self):
            result = self.training.epoch()
            return result | {"done": self.training.epochs >= self.config["epochs"]}

        def save_checkpoint(self, checkpoint_dir):
            self.training.save(checkpoint_dir)

        def load_checkpoint(self, checkpoint):
            self.training.load(checkpoint)

        def reset_config(self, new_config):
            self.config = new_config
            self.training = Training(new_config)
            return True
    return Train


def scheduler_for(tune, arguments):
    schedulers = tune.schedulers
    if arguments.scheduler == "asha":
        return schedulers.ASHAScheduler(max_t=arguments.epochs, grace_period=1, reduction_factor=3)
    if arguments.scheduler == "hyperband":
        return schedulers.HyperBandScheduler(max_t=arguments.epochs, reduction_factor=3)
    if arguments.scheduler == "pbt":
        return schedulers.PopulationBasedTraining(time_attr="training_iteration", perturbation_interval=3, synch=True,
                                                  hyperparam_mutations={"lr": tune.loguniform(1e-3, 1e-1)})
    if arguments.scheduler == "bohb":
        return schedulers.HyperBandForBOHB(max_t=arguments.epochs, reduction_factor=3)
    return schedulers.FIFOScheduler()


def watcher(tune):
    """Counts starts and reports."""
    class Watch(tune.Callback):
        def __init__(self):
            self.starts = []
            self.first = None
            self.processes = set()
            self.threads = set()
            self.epochs = 0
            self.began = None
            self.computed = 0.0
            self.begun = set()
            self.last = None
            self.gaps = []  # from any report to the first one of a trial

        def on_trial_start(self, iteration, trials, trial, **info):
            self.began = self.began or time.monotonic()
            self.starts.append(trial.trial_id)

        def on_trial_result(self, iteration, trials, trial, result, **info):
            self.first = self.first or time.monotonic()
            self.processes.add(result["process"])
            self.threads.add(result["threads"])
            self.epochs += 1
            self.computed += result["time_this_iter_s"]
            now = time.monotonic()
            if trial.trial_id not in self.begun and self.last:
                self.gaps.append(round(now - self.last, 2))
            self.begun.add(trial.trial_id)
            self.last = now
    return Watch()


def study(ray, tune, arguments, folder):
    """Runs the study; gives what is told of it."""
    import numpy  # comes with Ray Tune
    scheduler = scheduler_for(tune, arguments)
    if arguments.mode == "changing":
        scheduler = tune.schedulers.ResourceChangingScheduler(scheduler)
    searcher = None
    if arguments.scheduler == "bohb":
        from ray.tune.search import ConcurrencyLimiter
        from ray.tune.search.bohb import TuneBOHB
        searcher = ConcurrencyLimiter(TuneBOHB(seed=arguments.seed), max_concurrent=4)
    fluid = None
    if arguments.mode == "fluid":
        import carillon.tune
        scheduler = fluid = carillon.tune.Fluid(scheduler, at_once=arguments.at_once, live=arguments.live,
                                               preload=None if arguments.cold else ())
    # HyperBand and PBT pause or copy trials, for which a function has to save.
    saves = arguments.scheduler in ("hyperband", "bohb", "pbt")
    watch = watcher(tune)
    random.seed(arguments.seed)
    numpy.random.seed(arguments.seed)  # what Ray draws learning rates from
    ray.init(num_cpus=PROCESSORS, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False,
             object_store_memory=200 << 20)
    began = time.monotonic()
    results = tune.Tuner(
        train_function(tune, saves) if arguments.kind == "function" else train_class(tune),
        param_space={"lr": tune.loguniform(1e-3, 1e-1), "epochs": arguments.epochs, "steps": arguments.steps,
                     "task": arguments.task},
        tune_config=tune.TuneConfig(scheduler=scheduler, search_alg=searcher, metric="accuracy", mode="max", num_samples=arguments.trials,
                                    reuse_actors=arguments.reuse,
                                    max_concurrent_trials=arguments.at_once if arguments.mode != "fluid" else None),
        run_config=tune.RunConfig(verbose=0, callbacks=[watch], storage_path=folder)).fit()
    wall = time.monotonic() - began
    best = None
    with contextlib.suppress(RuntimeError):  # no trial reported
        best = round(results.get_best_result().metrics["accuracy"], 3)
    told = {"scheduler": arguments.scheduler, "mode": arguments.mode, "kind": arguments.kind, "reuse": arguments.reuse,
            "wall": round(wall, 1), "start": watch.began and round(watch.began - began, 1),
            "first": watch.first and round(watch.first - began, 1), "computed": round(watch.computed, 1), "starts": len(watch.starts),
            "restarts": len(watch.starts) - len(set(watch.starts)), "processes": len(watch.processes),
            "threads": sorted(watch.threads), "epochs": watch.epochs, "best": best, "errors": results.num_errors}
    if arguments.at_once == 1:
        told["gaps"] = watch.gaps
    if fluid:
        counts = fluid._broker.counts if fluid._broker else None  # none where Fluid passes all through
        told |= {"held": len(fluid.held_seconds), "let_go": fluid.let_go}
        if counts:
            told |= {"iterations": sum(counts.iterations.values()), "holds": counts.holds, "resizes": counts.resizes,
                     "resume_ms": [round(1e3 * t, 1) for t in sorted(counts.resume_s)],
                     "resize_ms": [round(1e3 * t, 1) for t in sorted(counts.resize_s)]}
            plan = fluid._plan
            if plan:
                model = plan.tuning.model()
                told |= {"c": model.c, "d": model.d, "alpha": str(model.alpha), "beta": str(model.beta)}
    return told


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scheduler", choices=["fifo", "asha", "hyperband", "bohb", "pbt"], default="asha",
                        help="pbt waits for all trials before it copies (synch=True); bohb needs hpbandster")
    parser.add_argument("--task", choices=list(TASKS), default="cnn")
    parser.add_argument("--mode", choices=["plain", "fluid", "changing"], default="fluid")
    parser.add_argument("--reuse", action="store_true", help="reuse_actors: a process goes on with another trial")
    parser.add_argument("--trials", type=int, default=9)
    parser.add_argument("--epochs", type=int, default=9)
    parser.add_argument("--steps", type=int, default=40, help="of the optimizer, an epoch")
    parser.add_argument("--kind", choices=["class", "function"], default="function",
                        help="of trainable; a function saves with each report under hyperband and pbt, else never")
    parser.add_argument("--live", type=int, help="processes at most, with --mode fluid (else what Fluid chooses)")
    parser.add_argument("--at-once", type=int, help="trials under way (else one a processor); with 1 it is told how long each trial took to its first report")
    parser.add_argument("--cold", action="store_true", help="Fluid(preload=None): trials start as Ray starts them")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.mode != "fluid" and arguments.live:
        parser.error("--live is Fluid's: it needs --mode fluid")
    # Before Ray is imported. Trials' processes have them, too, and find carillon.tune by them.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [PYTHON, os.environ.get("PYTHONPATH")]))
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    sys.path.insert(0, PYTHON)
    try:
        import ray
        from ray import tune
        import ray.tune.schedulers  # noqa: F401
        if importlib.util.find_spec("torch") is None:
            raise ImportError("No module named 'torch'")
    except ImportError as error:
        print(f"{error}. Install python/requirements/ray.txt", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        try:
            told = study(ray, tune, arguments, folder)
        finally:
            ray.shutdown()
    print(json.dumps(told), flush=True)
    return 1 if told["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
