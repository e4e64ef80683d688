#!/usr/bin/env python3
"""One study of Ray Tune, as Ray runs it (--mode plain) or with carillon.tune.Fluid around its scheduler (--mode fluid).

    pip install "ray[tune]" torch      # in an environment of its own: Ray is not among this project's requirements
    python bench/ray_tune.py --scheduler hyperband --kind class --trials 12 --steps 20 --mode plain
    python bench/ray_tune.py --scheduler hyperband --kind class --trials 12 --steps 20 --mode fluid

A trial trains a small CNN on random images, at a learning rate of its own, and reports its accuracy after each epoch.
Ray is told of two processors. Told is one JSON object: the seconds of the study without Ray's own start (`wall`) and to
the first report (`first`), starts of trials (`restarts`: those after the first of each trial), processes, the numbers of
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


class Training:
    """A small CNN on random images. Torch is imported in the trial's process only, as part of its start."""

    def __init__(self, config):
        import torch
        self.torch = torch
        self.steps = config["steps"]
        self.epochs = 0
        torch.manual_seed(0)
        self.images = torch.randn(512, 1, 16, 16)
        self.labels = (self.images.flatten(1) @ torch.randn(256, 10)).argmax(1)
        self.model = torch.nn.Sequential(
            torch.nn.Conv2d(1, 16, 3, padding=1), torch.nn.ReLU(),
            torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.ReLU(),
            torch.nn.MaxPool2d(4), torch.nn.Flatten(), torch.nn.Linear(512, 10))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=config["lr"], momentum=0.9)

    def epoch(self):
        """Trains for an epoch; gives what the trial reports."""
        for step in range(self.steps):
            batch = self.torch.arange(step * 64, step * 64 + 64) % 512
            loss = self.torch.nn.functional.cross_entropy(self.model(self.images[batch]), self.labels[batch])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        self.epochs += 1
        with self.torch.no_grad():
            accuracy = float((self.model(self.images).argmax(1) == self.labels).float().mean())
        return {"accuracy": accuracy, "threads": self.torch.get_num_threads(), "process": os.getpid()}

    def save(self, folder):
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "epochs": self.epochs}
        self.torch.save(state, os.path.join(folder, STATE))

    def load(self, folder):
        state = self.torch.load(os.path.join(folder, STATE))
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.epochs = state["epochs"]


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
            self.begun = set()
            self.last = None
            self.gaps = []  # from any report to the first one of a trial

        def on_trial_start(self, iteration, trials, trial, **info):
            self.starts.append(trial.trial_id)

        def on_trial_result(self, iteration, trials, trial, result, **info):
            self.first = self.first or time.monotonic()
            self.processes.add(result["process"])
            self.threads.add(result["threads"])
            self.epochs += 1
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
    fluid = None
    if arguments.mode == "fluid":
        import carillon.tune
        scheduler = fluid = carillon.tune.Fluid(scheduler, at_once=arguments.at_once, live=arguments.live,
                                               preload=None if arguments.cold else ())
    # HyperBand and PBT pause or copy trials, for which a function has to save.
    saves = arguments.scheduler in ("hyperband", "pbt")
    watch = watcher(tune)
    random.seed(arguments.seed)
    numpy.random.seed(arguments.seed)  # what Ray draws learning rates from
    ray.init(num_cpus=PROCESSORS, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False,
             object_store_memory=200 << 20)
    began = time.monotonic()
    results = tune.Tuner(
        train_function(tune, saves) if arguments.kind == "function" else train_class(tune),
        param_space={"lr": tune.loguniform(1e-3, 1e-1), "epochs": arguments.epochs, "steps": arguments.steps},
        tune_config=tune.TuneConfig(scheduler=scheduler, metric="accuracy", mode="max", num_samples=arguments.trials,
                                    reuse_actors=arguments.reuse,
                                    max_concurrent_trials=arguments.at_once if arguments.mode == "plain" else None),
        run_config=tune.RunConfig(verbose=0, callbacks=[watch], storage_path=folder)).fit()
    wall = time.monotonic() - began
    best = None
    with contextlib.suppress(RuntimeError):  # no trial reported
        best = round(results.get_best_result().metrics["accuracy"], 3)
    told = {"scheduler": arguments.scheduler, "mode": arguments.mode, "kind": arguments.kind, "reuse": arguments.reuse,
            "wall": round(wall, 1), "first": watch.first and round(watch.first - began, 1), "starts": len(watch.starts),
            "restarts": len(watch.starts) - len(set(watch.starts)), "processes": len(watch.processes),
            "threads": sorted(watch.threads), "epochs": watch.epochs, "best": best, "errors": results.num_errors}
    if arguments.at_once == 1:
        told["start"] = watch.gaps
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
    parser.add_argument("--scheduler", choices=["fifo", "asha", "hyperband", "pbt"], default="asha",
                        help="pbt waits for all trials before it copies (synch=True)")
    parser.add_argument("--mode", choices=["plain", "fluid"], default="fluid")
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
    if arguments.mode == "plain" and arguments.live:
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
        print(f"{error}. Install: pip install \"ray[tune]\" torch", file=sys.stderr)
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
