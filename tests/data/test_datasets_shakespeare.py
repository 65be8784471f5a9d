"""Shakespeare in LEAF's layout, and the character LSTM on it in every mode of the engine."""

import json
import logging
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import pflsweep
from pflsweep.data.dataset import Dataset
from pflsweep.data.datasets.shakespeare import CHARACTERS
from pflsweep.data.federation import Federation
from pflsweep.data.loader import ClientData
from pflsweep.data.partition import iid, natural
from pflsweep.data.partition.apart import require_apart
from pflsweep.data.partition.common import pooled
from pflsweep.trial.result import Result
from pflsweep.util.errors import UserError
from tests.data.loading import from_yaml

LINES = {
    "ROMEO_AND_JULIET_ROMEO": "But, soft! what light through yonder window breaks?\nIt is the east, and Juliet is\n",
    "HAMLET_HAMLET": "To be, or not to be: that is the question:\nWhether 'tis nobler in the mind to suffer\n",
    "MACBETH_LADY_MACBETH": "Out, damned spot! out, I say!--One: two: why, then 'tis time to do't.--Hell is murky!\n",
}


def windows(text: str, length: int = 80) -> dict[str, list[str]]:
    """Cut a line as LEAF does: each character, and the `length` characters before it."""
    padded = " " * length + text
    return {"x": [padded[i : i + length] for i in range(len(text))], "y": list(text)}


def leaf(top: Path, lines: dict[str, str] | None = None, length: int = 80) -> Path:
    """Write LEAF's folder after preprocess.sh -t sample: the last fifth of each user's samples is the test split."""
    lines = LINES if lines is None else lines
    for part in ("train", "test"):
        data = {}
        for user, text in lines.items():
            cut = len(text) * 4 // 5
            where = slice(0, cut) if part == "train" else slice(cut, None)
            data[user] = {key: values[where] for key, values in windows(text, length).items()}
        (top / part).mkdir(parents=True, exist_ok=True)
        content = {"users": list(data), "num_samples": [len(one["y"]) for one in data.values()], "user_data": data}
        (top / part / f"all_data_niid_0_keep_0_{part}_8.json").write_text(json.dumps(content))
    return top


def shakespeare(path: Path | str) -> Dataset:
    return from_yaml("shakespeare", path=str(path))


def test_leafs_layout(tmp_path):
    assert len(CHARACTERS) == len(set(CHARACTERS)) == 80
    data = shakespeare(leaf(tmp_path))
    sizes = {user: len(text) for user, text in LINES.items()}
    assert data.x.shape == (sum(sizes.values()), 80)
    assert data.x.dtype == torch.int32
    assert (data.classes, data.vocabulary) == (80, 80)
    assert data.train == sum(size * 4 // 5 for size in sizes.values())
    assert data.owners == tuple(sorted(LINES))
    assert data.owner is not None
    for number, user in enumerate(data.owners):
        rows = np.flatnonzero(data.owner == number)
        assert "".join(CHARACTERS[k] for k in data.y[rows]) == LINES[user]
    row = data.x[data.owner == data.owners.index("HAMLET_HAMLET")][5]
    assert "".join(CHARACTERS[k] for k in row) == " " * 75 + "To be"


def test_one_file_and_a_folder_without_split(tmp_path):
    leaf(tmp_path / "leaf")
    file = next((tmp_path / "leaf/train").glob("*.json"))
    for place in (file, file.parent):
        data = shakespeare(place)
        assert data.train == len(data.y) == sum(len(text) * 4 // 5 for text in LINES.values())


def test_characters_that_leaf_does_not_know_are_spaces(tmp_path, caplog):
    known, odd = shakespeare(leaf(tmp_path / "a", {"A": "a b c d", "B": "e f"})), {"A": "a$b€c\U0001f600d", "B": "e*f"}
    with caplog.at_level(logging.WARNING):
        data = shakespeare(leaf(tmp_path / "b", odd))
    assert torch.equal(data.x, known.x)
    assert torch.equal(data.y, known.y)
    assert "characters that are none of LEAF's 80 count as spaces" in caplog.text


def test_what_is_wrong_is_said(tmp_path):
    with pytest.raises(UserError, match=r"dataset=shakespeare reads what LEAF's .*preprocess.sh makes: say where"):
        from_yaml("shakespeare")
    with pytest.raises(UserError, match=r"dataset.path is nowhere: there is no such file or folder"):
        shakespeare("nowhere")
    with pytest.raises(UserError, match=r"should have train/\*.json and test/\*.json"):
        shakespeare(tmp_path)
    file = tmp_path / "x.json"
    for content in (
        "{",
        "[]",
        '{"user_data": {"A": {"x": ["a"]}}}',
        '{"user_data": {"A": {"x": ["ab", "a"], "y": ["c", "d"]}}}',
    ):
        file.write_text(content)
        with pytest.raises(UserError, match=r"x.json is not as it should be \(.*JSON of") as told:
            shakespeare(file)
        assert "\n" not in str(told.value)
    file.write_text('{"user_data": {"A": {"x": ["ab"], "y": ["c"]}, "B": {"x": ["abc"], "y": ["c"]}}}')
    with pytest.raises(UserError, match=r"texts of 2, 3 characters; all need one length"):
        shakespeare(file)
    file.write_text('{"user_data": {}}')
    with pytest.raises(UserError, match=r"x.json has no texts"):
        shakespeare(file)


# Rows are windows that overlap


@pytest.fixture
def two_roles(tmp_path: Path) -> Dataset:
    rng = np.random.default_rng(0)
    lines = {name: "".join(rng.choice(list("abcdefghij"), 600)) for name in ("LEAR", "KENT")}
    return shakespeare(leaf(tmp_path / "leaf", lines, length=20))


def copied(data: Dataset, train: list[np.ndarray], held: list[np.ndarray]) -> int:
    """Return how many held rows have their last nine characters and the answer in the text of a training row."""
    texts = torch.cat([data.x, data.y[:, None].to(data.x.dtype)], 1).tolist()
    known = {tuple(texts[row][at : at + 10]) for row in np.concatenate(train) for at in range(12)}
    return sum(tuple(texts[row][-10:]) in known for row in np.concatenate(held))


@pytest.mark.parametrize("fraction", [0.25, None])
def test_no_answer_stands_in_a_training_text(two_roles, fraction):
    rows = natural.split(two_roles, 0, None, 10, fraction)
    require_apart(two_roles, rows)
    federation = Federation(two_roles, rows, validation=0.2, seed=0, device="cpu")
    train, validation, test = (federation.rows[split] for split in ("train", "validation", "test"))
    assert [len(own) for own in test] == [600 * 0.25 if fraction else 120] * 2
    assert all(len(own) > 80 for own in validation)
    assert copied(two_roles, train, validation) == copied(two_roles, train, test) == 0
    # The check of this test sees what a random cut does
    drawn = pooled([np.flatnonzero(two_roles.owner == owner) for owner in range(2)], 0.25, 0)
    assert copied(two_roles, drawn.train, drawn.test) > 200


def test_a_random_cut_of_overlapping_rows_is_refused(two_roles):
    with pytest.raises(UserError, match=r"test rows, such as row \d+, are windows of text .* Use partition=natural"):
        require_apart(two_roles, iid.split(two_roles, 0, 4, 0.25))
    with pytest.raises(UserError, match="is left without training data"):
        natural.split(two_roles._replace(overlap=590), 0, None, 10, 0.25)


def test_of_some_windows_only_those_that_overlap_are_left_out(two_roles):
    """A quarter of the windows is left, so that a held one overlaps with some five before it, and not with 19."""
    part = two_roles.part(300, seed=0)
    rows = natural.split(part, 0, None, 10, 0.25)
    require_apart(part, rows)
    federation = Federation(part, rows, validation=0.2, seed=0, device="cpu")
    rest, held = (
        piece._chunk.rows["train"] for piece in ClientData.of(federation, [0, 1], 1, batch=4, large=8).holdout(0.2)
    )
    train, validation, test = (federation.rows[split] for split in ("train", "validation", "test"))
    assert copied(part, train, validation) == copied(part, train, test) == copied(part, rest, held) == 0
    dealt = sum(len(own) for own in (*train, *validation, *test))
    assert len(part.y) - 40 < dealt < len(part.y)
    assert all(len(own) > 50 for own in rest)


def test_a_short_text_has_no_validation_rows(two_roles):
    rows = natural.split(two_roles, 0, None, 10, 0.25)
    federation = Federation(two_roles._replace(overlap=400), rows, validation=0.2, seed=0, device="cpu")
    assert [len(own) for own in federation.rows["validation"]] == [0, 0]
    assert [len(own) for own in federation.rows["train"]] == [len(own) for own in rows.train]


@pytest.mark.parametrize("fraction", [0.2, 0.5])
def test_a_methods_own_holdout_stands_in_no_training_text(two_roles, fraction):
    rows = natural.split(two_roles, 0, None, 10, 0.25)
    federation = Federation(two_roles, rows, validation=0.0, seed=0, device="cpu")
    parts = ClientData.of(federation, [0, 1], 1, batch=4, large=8).holdout(fraction)
    rest, held = (part._chunk.rows["train"] for part in parts)
    assert [len(own) for own in held] == [math.ceil(fraction * len(own) - 1e-9) for own in rows.train]
    assert [len(own) for own in rest] == [
        len(own) - len(last) - 20 + 1 for own, last in zip(rows.train, held, strict=True)
    ]
    assert copied(two_roles, rest, held) == 0


def test_a_short_text_has_a_holdout_beside_its_training_rows(two_roles):
    rows = natural.split(two_roles, 0, None, 10, 0.25)
    federation = Federation(two_roles._replace(overlap=400), rows, validation=0.0, seed=0, device="cpu")
    for rest, held, own in zip(
        *(part._chunk.rows["train"] for part in ClientData.of(federation, [0, 1], 1, batch=4, large=8).holdout(0.2)),
        rows.train,
        strict=True,
    ):
        assert len(rest)
        assert [*rest, *held] == own.tolist()


# The character LSTM


@pytest.fixture
def trial(tmp_path, monkeypatch):
    """Run a small trial on the data with further overrides. Return its record's rounds and models."""
    monkeypatch.chdir(tmp_path)
    leaf(tmp_path / "leaf", length=8)
    small = [
        "dataset=shakespeare",
        "dataset.path=leaf",
        "partition=natural",
        "device=cpu",
        "model.hidden=6",
        "model.dim=4",
    ]
    small += ["train.rounds=2", "train.epochs=1", "train.batch=8", "train.participation=1", "train.workers=1"]

    def run(*words: str) -> Result:
        return pflsweep.run([*small, *words, f"paths.runs=runs{len(list(tmp_path.iterdir()))}"])

    return run


def weights(result) -> torch.Tensor:
    models = result.record.models()["personal"]
    return torch.cat([w.flatten() for client in sorted(models) for w in models[client].values()])


@pytest.mark.parametrize(
    "words",
    [
        ["train.chunk=2"],
        ["train.chunk=3"],
        ["train.workers=2", "train.threads=1"],
        ["algorithm=ditto", "train.chunk=3"],
        ["algorithm=perfedavg", "train.chunk=3"],
        ["algorithm=fedala", "train.chunk=3"],
        ["algorithm=pgfed", "train.chunk=3"],
        ["privacy=dp_sgd", "train.chunk=3"],
    ],
    ids=" ".join,
)
@pytest.mark.slow
def test_the_lstm_trains_alike_in_every_mode(trial, words):
    method = [word for word in words if not word.startswith("train.")]
    alone, other = weights(trial("train.chunk=1", *method)), weights(trial(*words))
    torch.testing.assert_close(alone, other, rtol=1e-4, atol=1e-5)
    start = weights(trial("train.chunk=1", *method, "train.lr=1e-9"))
    assert not torch.allclose(alone, start, atol=1e-3), "something was learnt"


@pytest.mark.slow
def test_the_lstm_learns_its_text(trial):
    """On training rows accuracy is far above the share of the most frequent character. Three lines teach no English."""
    result = trial("train.rounds=12", "train.epochs=5", "train.lr=0.5", "train.momentum=0.9", "model.hidden=32")
    every = "".join(LINES.values())
    most = max(map(every.count, set(every))) / len(every)
    right = [result.load_personal(i)(x).argmax(1) == y for i in range(3) for x, y in [result.data(i, "train")]]
    assert torch.cat(right).double().mean() > 1.2 * most
