"""The time of a report over 500 finished runs of 300 rounds, compared with reading their files once."""

import json
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from pflsweep.records.record import digest_of_config
from pflsweep.report.paper import layout
from pflsweep.report.paper.build import build
from tests.report.paper.fixtures import Sweep, create, train

ROUNDS, CLIENTS, SEEDS = 300, 25, 6
VIEWS = ("personal", "global")


def rounds_and_clients() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return tables with the columns and types that training writes."""
    rng = np.random.default_rng(0)
    correct = rng.integers(0, 100, (ROUNDS, CLIENTS))
    rounds = pd.DataFrame({"round": range(1, ROUNDS + 1)})
    for name in ("lr", "images", "seconds", "eval_seconds", "floats_down", "floats_up", "others_down", "others_up"):
        rounds[name] = rng.random(ROUNDS)
    for view in VIEWS:
        for name in ("accuracy_weighted", "std", "worst10", "f1", "loss"):
            rounds[f"{view}_{name}"] = rng.random(ROUNDS)
        rounds[f"{view}_accuracy"] = correct.mean(axis=1) / 100
    index = pd.MultiIndex.from_product([range(1, ROUNDS + 1), VIEWS, range(CLIENTS)], names=["round", "view", "client"])
    clients = index.to_frame(index=False).assign(target="own", n=100, correct=np.repeat(correct, 2, axis=0).ravel())
    clients = clients.astype(dict.fromkeys(("round", "client", "n", "correct"), np.int32))
    loss, f1 = rng.random((2, len(clients)), dtype=np.float32)
    return rounds, clients.assign(loss=loss, f1=f1)


@pytest.mark.slow
def test_500_runs_of_300_rounds_take_little_more_than_reading_them(tmp_path: Path) -> None:
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
            status = {**model.status, "status": "finished", "rounds": ROUNDS, "config": [digest_of_config(config)]}
            for name, content in (("meta", {**model.meta, "identity": identity, "seed": seed}), ("status", status)):
                (folder / f"{name}.json").write_text(json.dumps(content))
            (folder / "config.yaml").write_text(yaml.safe_dump(config))
            rounds.to_parquet(folder / "rounds.parquet", index=False)
            clients.to_parquet(folder / "clients.parquet", index=False)
            model.partition.to_parquet(folder / "partition.parquet")
            sweep.group(of.setting_of(line), line.method, model)["trials"][str(seed)] = identity
    sweep.write()
    begun = time.process_time()
    for folder in sweep.runs.glob("0*"):
        for table in ("rounds", "clients"):
            pd.read_parquet(folder / f"{table}.parquet")
        yaml.safe_load((folder / "config.yaml").read_text())
    read = time.process_time()
    said = build(["pgfed/table1"], sweep.runs, tmp_path / "out", None)
    # The factor was 2.2 when this was written, with pictures
    assert time.process_time() - read < 4 * (read - begun)
    assert "84 of 84 cells complete" in said[0]
