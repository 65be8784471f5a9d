"""Trials that are given their partition, cohorts and batches train as if they had drawn them, and have identities of
their own.
"""

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import pflsweep
from pflsweep.commands.main import main
from pflsweep.config.compose import compose
from pflsweep.data.chunk import Chunk
from pflsweep.data.federation import Federation
from pflsweep.data.participation import draw_cohort
from pflsweep.methods.task import Batch
from pflsweep.trial.build import build
from pflsweep.trial.result import Result
from pflsweep.util.errors import UserError
from tests.report.records import require_same_rounds

CLIENTS, ROUNDS = 4, 2
SMALL = [
    *("tracking=none", f"partition.clients={CLIENTS}", "model.hidden=[8]", f"train.rounds={ROUNDS}"),
    *("train.epochs=1", "train.batch=16", "train.participation=0.5", "train.threads=1", "train.workers=1"),
]

pytestmark = pytest.mark.usefixtures("elsewhere")


def drawn_by(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> tuple[Result, dict[str, Any]]:
    """Run an ordinary trial, and return it with what it has drawn, in the form that `pflsweep.run` takes."""
    batches: dict[tuple[int, int], list[np.ndarray]] = {}
    usual = Chunk._as_prescribed

    def spied(chunk: Chunk, c: int, stream: str, drawn: list[np.ndarray]) -> list[np.ndarray]:
        who = chunk.members[c]
        if (chunk.purpose, stream) == ("train", "epochs"):
            batches[who.round, who.client] = drawn
        return usual(chunk, c, stream, drawn)

    with monkeypatch.context() as patched:
        patched.setattr(Chunk, "_as_prescribed", spied)
        result = pflsweep.run(words)
    parts = build(compose(words))
    federation: Federation = parts.federation
    size = parts.schedule.cohort_size(federation.clients)
    cohorts = [draw_cohort(federation, size, at, parts.schedule.sampling) for at in range(1, ROUNDS + 1)]
    return result, {"partition": dict(federation.rows), "cohorts": cohorts, "batches": batches}


def test_rows_of_the_whole_do_not_go_with_a_part_of_it() -> None:
    with pytest.raises(UserError, match=r"data\.limit is 300, which draws a part.*leave data\.limit out"):
        pflsweep.run([*SMALL, "data.limit=300"], partition={"train": [[0, 1], [2, 3]], "test": [[4], [5]]})


def require_same(one: Result, other: Result) -> None:
    """Assert that all numbers are equal to the last bit."""
    require_same_rounds(one.rounds, other.rounds)
    pd.testing.assert_frame_equal(one.clients, other.clients, check_exact=True)
    ours, theirs = one.record.models(), other.record.models()
    for client, state in ours["personal"].items():
        assert all(torch.equal(weight, theirs["personal"][client][name]) for name, weight in state.items())


@pytest.mark.parametrize(
    "words",
    [
        ["algorithm=fedavg"],
        # Trains on a part of a client's rows
        ["algorithm=fedfomo", "algorithm.models=2"],
        # Takes batches in groups
        ["algorithm=perfedavg", "train.batch=8"],
        # Goes through the batches twice
        ["algorithm=ditto", "train.steps=3"],
    ],
    ids=lambda words: words[0].partition("=")[2],
)
def test_what_an_ordinary_trial_has_drawn_gives_its_bits(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    ordinary, drawn = drawn_by(monkeypatch, [*SMALL, *words, "data.validation=0.2"])
    given = pflsweep.run([*SMALL, *words], **drawn)
    require_same(ordinary, given)
    assert ordinary.record.meta["identity"] != given.record.meta["identity"]
    assert given.record.meta["name"].endswith("-dirichlet-prescribed-0")


@pytest.mark.slow
def test_each_part_alone_gives_the_same_bits_under_an_identity_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    ordinary, drawn = drawn_by(monkeypatch, SMALL)
    rows = {split: drawn["partition"][split] for split in ("train", "test")}
    trials = [
        pflsweep.run(SMALL, partition=rows),
        # A cohort is a set, in any order
        pflsweep.run(SMALL, cohorts=[ids.flip(0).tolist() for ids in drawn["cohorts"]]),
        pflsweep.run(SMALL, batches=drawn["batches"]),
    ]
    for trial in trials:
        require_same(ordinary, trial)
    assert len({trial.record.meta["identity"] for trial in (ordinary, *trials)}) == 4
    again = pflsweep.run(SMALL, partition={split: [own[::-1] for own in parts] for split, parts in rows.items()})
    assert again.record.folder == trials[0].record.folder, "rows are a set, and a list is as good as an array"


def test_a_step_by_hand() -> None:
    """One client takes one step on given rows: w - lr * the gradient on them."""
    words = [*SMALL, "train.rounds=1", "train.steps=1", "train.participation=0.25", "train.lr=0.5"]
    parts = build(compose(words))
    rows = parts.federation.rows["train"][2][[5, 1, 3]]
    x, y = parts.federation.gather(torch.from_numpy(rows))
    w = parts.task.vector(parts.model)
    batch = Batch(x, y, None, None, None)
    expected = w - 0.5 * parts.task.grad(w, batch)
    result = pflsweep.run(words, cohorts=[[2]], batches={(1, 2): [rows]})
    state = result.record.models()["global"]
    found = torch.cat([weight.flatten() for weight in state.values()])
    torch.testing.assert_close(found, torch.cat([v.flatten() for v in parts.task.views(expected).values()]))
    assert result.rounds["images"].tolist() == [3]


ROWS = [np.arange(10 * i, 10 * i + 8) for i in range(CLIENTS)]
PARTITION = {"train": ROWS, "test": [own[:2] + 100 for own in ROWS]}
COHORTS = [[0, 1], [2, 3]]
BATCHES = {(t, i): [ROWS[i][:5]] for t, ids in enumerate(COHORTS, 1) for i in ids}
WHOLE = {"partition": PARTITION, "cohorts": COHORTS, "batches": BATCHES}


@pytest.mark.parametrize(
    ("change", "words", "said"),
    [
        ({"partition": ROWS}, [], 'partition has to be {"train": [...], "test": [...]}'),
        ({"partition": {"train": ROWS}}, [], 'partition has to be {"train": [...], "test": [...]}'),
        ({"partition": {**PARTITION, "vaildation": ROWS}}, [], "Did you mean 'validation'"),
        ({"partition": {**PARTITION, "test": ROWS[:2]}}, [], "train 4, test 2"),
        ({"partition": {**PARTITION, "test": ROWS}}, [], "client 0 has row 0 in two of train, test"),
        ({"partition": {**PARTITION, "test": [[]] * CLIENTS}}, [], "no client has a test row"),
        ({"partition": {**PARTITION, "train": [[], *ROWS[1:]]}}, [], "client 0 of 4 has no training data"),
        ({"partition": {**PARTITION, "train": [[0, 0], *ROWS[1:]]}}, [], "train of client 0 names 0 twice"),
        (
            {"partition": {**PARTITION, "train": [[1797], *ROWS[1:]]}},
            [],
            "names row 1797, and digits has rows 0 to 1796",
        ),
        ({"partition": {**PARTITION, "train": [[-1], *ROWS[1:]]}}, [], "train of client 0 names row -1"),
        ({"partition": {**PARTITION, "train": [[0.5], *ROWS[1:]]}}, [], "train of client 0 is of shape (1,) and float"),
        ({"partition": {**PARTITION, "train": [[[0]], *ROWS[1:]]}}, [], "train of client 0 is of shape (1, 1)"),
        ({}, ["partition.clients=5"], "partition has 4 clients, and partition.clients is 5: set it to 4"),
        ({"cohorts": 3}, [], "cohorts is int: it has to be a list"),
        ({"cohorts": COHORTS[:1]}, [], "cohorts has 1 rounds, and train.rounds is 2"),
        ({"cohorts": [[0, 1], [2, 4]]}, [], "round 2 names client 4, and the federation has clients 0 to 3"),
        ({"cohorts": [[0, 1], [2]]}, [], "round 2 has 1 clients, and 2 of 4 by train.participation"),
        ({"cohorts": [[0, 1], [2, 2]]}, [], "round 2 names 2 twice"),
        ({"batches": [ROWS]}, [], "batches has to be {(round, client): [rows, ...]}"),
        ({"batches": {1: ROWS}}, [], "1 is no (round, client), such as (1, 0)"),
        (
            {"batches": {(t - 1, i): b for (t, i), b in BATCHES.items()}},
            [],
            "has none for round 1 and client 0, who is in that round's cohort",
        ),
        ({"batches": BATCHES | {(1, 3): [[30]]}}, [], "has some for round 1 and client 3, who is not in that round's"),
        ({"batches": BATCHES | {(1, 0): [[]]}}, [], "round 1, client 0 has a batch without a row"),
        ({"batches": BATCHES | {(1, 0): []}}, [], "round 1, client 0 has no batch"),
        ({"batches": BATCHES | {(1, 0): [[0], [1]]}}, [], "has 2 batches, and its local training takes 1"),
        ({"batches": BATCHES | {(1, 0): [[0, 10]]}}, [], "has row 10 of the dataset, which is none that the method"),
        ({"batches": BATCHES | {(1, 0): [[1797]]}}, [], "round 1, client 0 names row 1797"),
        ({}, ["train.batch=4", "train.steps=1"], "has a batch of 5 rows, and train.batch is 4"),
        ({}, ["train.first_round=all"], "train.first_round is 'all', and cohorts are prescribed: put all clients"),
        ({}, ["privacy=dp_sgd"], "batches are prescribed, but privacy=dp_sgd draws its own"),
        ({}, ["data.new=1", "partition.clients=4"], "data.new is 1, which draws clients"),
        (
            {"partition": {**PARTITION, "validation": [own + 200 for own in ROWS]}},
            ["data.validation=0.2"],
            "data.validation is 0.2, which draws validation rows, and partition has some",
        ),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], words: list[str], said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)) as told:
        pflsweep.run([*SMALL, *words], **{**WHOLE, **change})
    assert "\n" not in str(told.value)


def test_the_hash_is_no_key_to_set(capsys: pytest.CaptureFixture) -> None:
    assert main([*SMALL, "data.prescribed=abc"]) == 2
    assert "data.prescribed is abc: it is not a key to set" in capsys.readouterr().err


def test_batches_of_a_first_round_of_all_clients_are_those_of_all() -> None:
    words = [*SMALL, "train.first_round=all"]
    every = {(1, client): [[client]] * 4 for client in range(CLIENTS)}
    federation = build(compose(words)).federation
    second = {(2, int(client)): [[0]] for client in draw_cohort(federation, 2, 2, "uniform")}
    with pytest.raises(UserError, match="batches has none for round 1 and client 3"):
        pflsweep.run(words, batches={key: own for key, own in every.items() if key != (1, 3)} | second)
    with pytest.raises(UserError, match="local training takes"):  # further than the check of clients
        pflsweep.run(words, batches=every | second)
