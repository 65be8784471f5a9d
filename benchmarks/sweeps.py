"""What sweeping costs: `python -m benchmarks.sweeps`. Everything is measured side by side, on digits.

overhead: what a sweep of short trials takes for each outside of its training: enqueueing, claiming, telling, the view;
without MLflow. parallel: trials a minute of two workers to those of one.
known: seconds from process start to end of a command that finds its 1,000 trials done and prints their table.
"""

import argparse
import io
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

if TYPE_CHECKING:
    from pflsweep.sweep.plan import Plan

SHORT = ["train.rounds=2", "partition.clients=4", "tracking=none", "checkpoint.models=false"]
LONG = ["train.rounds=60", "tracking=none", "checkpoint.models=false"]
MAIN = [sys.executable, "-c", "import sys; from pflsweep.commands.main import main; sys.exit(main())"]


@contextmanager
def somewhere() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        before = Path.cwd()
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)


def timed(*arguments: str) -> float:
    """Seconds of the whole command."""
    began = time.perf_counter()
    done = subprocess.run([*MAIN, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return time.perf_counter() - began


def overhead(trials: int) -> dict[str, float]:
    """Milliseconds a trial that claiming, telling and looking cost. Composing is left out on both sides."""
    from pflsweep.sweep import worker
    from pflsweep.sweep.queue import Queue
    from pflsweep.sweep.status.live import LiveStatus
    from pflsweep.trial.progress import quietly
    from pflsweep.trial.run import run_trial

    took: dict[str, list[float]] = {"whole": [], "training": []}
    with somewhere(), quietly():
        for block in range(4):  # the first is cold
            seeds = range(block * trials, (block + 1) * trials)
            plan = plan_of([*SHORT, "seed=" + ",".join(map(str, seeds))])
            inside = []

            def measured(*args: Any, inside: list[float] = inside, **options: Any) -> Any:
                began = time.perf_counter()
                try:
                    return run_trial(*args, **options)
                finally:
                    inside.append(time.perf_counter() - began)

            worker.run_trial = measured
            began = time.perf_counter()
            Queue(plan).prepare()
            with redirect_stderr(io.StringIO()), LiveStatus(plan):
                worker.work(plan)
            if block:
                took["whole"].append((time.perf_counter() - began) / trials)
                took["training"].append(sum(inside) / trials)
    whole, training = (1000 * pd.Series(took[name]).median() for name in ("whole", "training"))
    return {"ms a trial": whole, "of it in training": training, "overhead": whole - training}


def plan_of(words: list[str]) -> "Plan":
    """As the command would plan it."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from pflsweep.config.compose import compose
    from pflsweep.sweep import planner
    from pflsweep.sweep.command import check_command

    return planner.build(check_command(defaults()), words, compose, OverridesParser.create(), "bench")


def defaults() -> dict:
    """The command's own keys as conf/ has them."""
    import yaml

    from pflsweep.config.hydra_loader import SWEEP_KEYS, conf_dir, read_option

    values = {key: yaml.safe_load((conf_dir() / "config.yaml").read_text()).get(key) for key in SWEEP_KEYS}
    return {**values, "tune": read_option(conf_dir() / "tune" / "none.yaml")}


def parallel(trials: int) -> dict[str, float]:
    """Trials a minute of two workers to one's, whole commands in turn; the start of a command is taken off."""
    rates = []
    seeds = "seed=" + ",".join(map(str, range(trials)))
    for _ in range(3):
        with somewhere():
            start = timed("-m", *LONG, "seed=0,1", "train.rounds=1")
            one = timed("-m", *LONG, seeds) - start
        with somewhere():
            start = timed("-m", *LONG, "seed=0,1", "train.rounds=1", "workers.count=2")
            two = timed("-m", *LONG, seeds, "workers.count=2") - start
        rates.append({"one, trials/min": 60 * trials / one, "two, trials/min": 60 * trials / two, "ratio": one / two})
    return pd.DataFrame(rates).median().to_dict()


def known(trials: int) -> dict[str, float]:
    """Seconds of a command all of whose trials are done. They are told as done and not trained, which takes long."""
    from pflsweep.sweep.queue import Queue

    with somewhere():
        words = [*SHORT, "seed=" + ",".join(map(str, range(trials)))]
        queue = Queue(plan_of(words))
        queue.prepare()
        began = time.perf_counter()
        while (claim := queue.lease_next()) is not None:
            told = {"folder": str(Path("runs", str(claim.slot.number)).absolute()), "identity": "none", "value": 0.5}
            queue.complete(claim, 0.5, {"trials": [told]})
        told_ms = 1000 * (time.perf_counter() - began) / trials
        return {"trials": trials, "ms to claim and tell one": told_ms, "s": min(timed("-m", *words) for _ in range(3))}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="*", default=["overhead", "parallel", "known"])
    options = parser.parse_args()
    measured = {
        "overhead": lambda: overhead(40),
        "parallel": lambda: parallel(24),
        "known": lambda: known(1000),
    }
    for what in options.what:
        print(what, {name: round(value, 2) for name, value in measured[what]().items()}, flush=True)


if __name__ == "__main__":
    main()
