"""A report over 500 finished runs of 300 rounds is there within seconds."""

import json
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from pflsweep.record import _digest
from pflsweep.report.paper import layout
from pflsweep.report.paper.make import make

from .world import Sweep, create, train

ROUNDS, CLIENTS, SEEDS = 300, 25, 6


def rounds_and_clients() -> tuple[pd.DataFrame, pd.DataFrame]:
    rng = np.random.default_rng(0)
    correct = rng.integers(0, 100, (ROUNDS, CLIENTS))
    rounds = pd.DataFrame({"round": range(1, ROUNDS + 1), "personal_accuracy": correct.mean(axis=1) / 100})
    for name in ("lr", "images", "seconds", "eval_seconds", "floats_down", "floats_up", "personal_std"):
        rounds[name] = rng.random(ROUNDS)
    index = pd.MultiIndex.from_product([range(1, ROUNDS + 1), ["personal", "global"], range(CLIENTS)])
    clients = index.to_frame(index=False, name=["round", "view", "client"])
    return rounds, clients.assign(target="own", n=100, correct=np.repeat(correct, 2, axis=0).ravel(), loss=1.0, f1=0.5)


@pytest.mark.slow
def test_500_runs_of_300_rounds_within_seconds(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "runs", seeds=tuple(range(SEEDS)))
    model = train(create(tmp_path / "model", partition__clients=CLIENTS, rounds=ROUNDS), [[1] * CLIENTS])
    rounds, clients = rounds_and_clients()
    of = layout.read("pgfed/table1")
    for cell, line in enumerate(of.printed):
        for seed in range(SEEDS):
            identity = f"{cell:08x}{seed:08x}"
            folder = sweep.runs / identity
            folder.mkdir()
            config = {**model.config, "seed": seed}
            status = {**model.status, "status": "finished", "rounds": ROUNDS, "config": [_digest(config)]}
            for name, content in (("meta", {**model.meta, "identity": identity, "seed": seed}), ("status", status)):
                (folder / f"{name}.json").write_text(json.dumps(content))
            (folder / "config.yaml").write_text(yaml.safe_dump(config))
            rounds.to_parquet(folder / "rounds.parquet")
            clients.to_parquet(folder / "clients.parquet")
            model.partition.to_parquet(folder / "partition.parquet")
            sweep.group(of.setting_of(line), line.method, model)["trials"][str(seed)] = identity
    sweep.write()
    start = time.process_time()
    said = make(["pgfed/table1"], sweep.runs, tmp_path / "out", None)
    assert time.process_time() - start < 10 * 2  # twice the goal: other processes share the caches
    assert "84 of 84 cells complete" in said[0]
