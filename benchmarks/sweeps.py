"""What sweeping costs: `python -m benchmarks.sweeps`. Everything is measured side by side, on digits.

overhead: what a sweep of short trials takes for each of them outside of its training, without MLflow: enqueueing,
leasing, storing the result, showing the status. parallel: trials a minute of two workers, and of one. known: seconds
from process start to end of a command that finds its 1,000 trials done and prints their table.
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
from typing import Any
from unittest.mock import patch

import pandas as pd
from hydra.core.override_parser.overrides_parser import OverridesParser

from benchmarks.common import machine
from pflsweep.config.compose import compose
from pflsweep.config.hydra_loader import load, search_path, sweep_values_of
from pflsweep.sweep import planner, worker
from pflsweep.sweep.command import check_command
from pflsweep.sweep.plan import Plan
from pflsweep.sweep.queue import Queue
from pflsweep.sweep.status.live import LiveStatus
from pflsweep.trial.progress import quietly
from pflsweep.trial.run import run_trial

SHORT = ["train.rounds=2", "partition.clients=4", "tracking=none", "checkpoint.models=false"]
LONG = ["train.rounds=60", "tracking=none", "checkpoint.models=false"]
MAIN = [sys.executable, "-c", "import sys; from pflsweep.commands.main import main; sys.exit(main())"]


@contextmanager
def temporary_folder() -> Iterator[None]:
    """Run in a working directory of its own, which is removed."""
    with tempfile.TemporaryDirectory() as folder:
        before = Path.cwd()
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def timed(*arguments: str) -> float:
    """Return the wall seconds of a whole command."""
    began = time.perf_counter()
    done = subprocess.run([*MAIN, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return time.perf_counter() - began


def overhead(trials: int) -> dict[str, float]:
    """Return the milliseconds a trial that leasing, storing and showing the status cost. Composing is left out."""
    took: dict[str, list[float]] = {"whole": [], "training": []}
    with temporary_folder(), quietly():
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

            began = time.perf_counter()
            Queue(plan).prepare()
            with patch.object(worker, "run_trial", measured), redirect_stderr(io.StringIO()), LiveStatus(plan):
                worker.work(plan)
            if block:
                took["whole"].append((time.perf_counter() - began) / trials)
                took["training"].append(sum(inside) / trials)
    whole, training = (1000 * pd.Series(took[name]).median() for name in ("whole", "training"))
    return {"ms a trial": whole, "of it in training": training, "overhead": whole - training}


def plan_of(words: list[str]) -> Plan:
    """Return the plan of a command with these overrides."""
    command = check_command(sweep_values_of(load([], search_path(None))))
    return planner.build(command, words, compose, OverridesParser.create(), "bench")


def parallel(trials: int) -> dict[str, float]:
    """Return the trials a minute of one and of two workers, without the start of their commands, which take turns."""
    rates = []
    seeds = "seed=" + ",".join(map(str, range(trials)))
    for _ in range(3):
        with temporary_folder():
            start = timed("-m", *LONG, "seed=0,1", "train.rounds=1")
            one = timed("-m", *LONG, seeds) - start
        with temporary_folder():
            start = timed("-m", *LONG, "seed=0,1", "train.rounds=1", "workers.count=2")
            two = timed("-m", *LONG, seeds, "workers.count=2") - start
        rates.append({"one, trials/min": 60 * trials / one, "two, trials/min": 60 * trials / two, "ratio": one / two})
    return pd.DataFrame(rates).median().to_dict()


def known(trials: int) -> dict[str, float]:
    """Return the seconds of a command that finds all its trials done. A command before it trains them."""
    words = ["-m", *SHORT, "seed=" + ",".join(map(str, range(trials)))]
    with temporary_folder():
        timed(*words)
        return {"trials": trials, "s": min(timed(*words) for _ in range(3))}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="*", default=["overhead", "parallel", "known"])
    options = parser.parse_args()
    measured = {
        "overhead": lambda: overhead(40),
        "parallel": lambda: parallel(24),
        "known": lambda: known(1000),
    }
    print(machine())
    for what in options.what:
        print(what, {name: round(value, 2) for name, value in measured[what]().items()}, flush=True)


if __name__ == "__main__":
    main()
