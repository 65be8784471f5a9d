"""Random kills by hand: `python -m tests.sweep.kills 20` kills a sweep with two workers 20 times, at random moments.

The whole command with its workers, the command alone, or one worker is killed with -9; then the same command is run to
its end and compared with an undisturbed sweep. What came of it is written to tests/sweep/kills.csv.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from itertools import count
from pathlib import Path

import pandas as pd

from tests.sweep.sweeping import TWELVE, database, require_each_once, require_same, run, start, states

SWEEP = [*TWELVE, "workers.count=2", "train.rounds=20"]


def workers_of(pid: int) -> list[int]:
    """Its child processes that are workers of joblib's."""
    found = subprocess.run(["pgrep", "-P", str(pid), "-f", "loky"], capture_output=True, text=True).stdout
    tracker = subprocess.run(["pgrep", "-P", str(pid), "-f", "resource_tracker"], capture_output=True, text=True).stdout
    return sorted(set(map(int, found.split())) - set(map(int, tracker.split())))


def complete(folder: Path) -> int:
    """Slots that are done."""
    if not (folder / "runs" / "sweeps" / "optuna.db").exists():
        return 0
    try:
        found = states(database(folder))
    except Exception:  # a database that is just being made
        return 0
    return sum(count for (*_, state), count in found.items() if state == "COMPLETE")


def one(folder: Path, undisturbed: Path, seed: int) -> dict[str, object] | None:
    """A kill and what came of it; None where there was nobody left to kill."""
    draw = random.Random(seed)
    whom, slots, after = draw.choice(["all", "command", "worker"]), draw.randint(0, 6), draw.uniform(0, 3)
    process = start(folder, *SWEEP)
    while complete(folder) < slots:
        time.sleep(0.1)
    time.sleep(after if slots else 4 + after)  # the command takes some seconds to start
    workers = workers_of(process.pid)
    targets = {"all": [process.pid, *workers], "command": [process.pid], "worker": workers[:1]}[whom]
    for pid in targets:
        os.kill(pid, signal.SIGKILL)
    if whom != "worker":
        process.communicate()
    else:
        process.communicate(timeout=300)
    done = complete(folder)
    began = time.monotonic()
    if not targets:
        return None
    again = run(folder, *SWEEP)
    assert again.returncode == 0, again.stderr
    require_same(undisturbed, folder)
    require_each_once(database(folder), 8)
    row = {"seed": seed, "killed": whom, "processes": len(targets), "slots_done_of_8": done}
    return {**row, "again_s": round(time.monotonic() - began, 1), "result": "same numbers, each slot once"}


def main(times: int, first: int = 0) -> None:
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as place:
        undisturbed = Path(place) / "undisturbed"
        assert run(undisturbed, *SWEEP).returncode == 0
        for seed in count(first):
            row = one(Path(place) / str(seed), undisturbed, seed)
            if row is not None:
                rows.append(row)
                print(row, flush=True)
            if len(rows) == times:
                break
    pd.DataFrame(rows).to_csv(Path(__file__).with_name("kills.csv"), index=False)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
