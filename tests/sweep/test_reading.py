"""Readings: what a paper's authors' code does differently, laid over the paper's tables."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pflsweep.commands.check import method_and_defaults
from pflsweep.commands.main import main
from pflsweep.config import reading as readings
from pflsweep.config.compose import compose
from pflsweep.config.schema import check
from pflsweep.sweep import reading, spec
from pflsweep.trial.build import build
from pflsweep.util.errors import UserError
from pflsweep.util.once import warn_once
from pflsweep.util.resources import sweep_names
from tests.sweep.test_planner import planned

PAPERS = readings.names()
TABLES = [name for name in sweep_names() if name.partition("/")[0] in PAPERS]
READINGS = [
    (name, each)
    for name in TABLES
    for each in ("code", *(c.name for c in readings.table_reading(name, readings.CODE).changes))
]


def test_the_paper_is_read_as_its_sweep_says() -> None:
    assert reading.read_table_as("fedpg/table1", "paper", "paper") == spec.read_table("fedpg/table1")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "each"), READINGS)
def test_every_row_that_a_reading_changes_can_be_trained(name: str, each: str) -> None:
    """Each change has an effect on some cell, and every config that it gives passes all checks."""
    before, after = spec.read_table(name), reading.read_table_as(name, "paper", each)
    asked = readings.table_reading(name, each)
    assert set(after.methods) <= set(before.methods)
    changed = before.search != after.search or bool(asked.views or asked.rounds)
    seen: set[tuple[str, ...]] = set()
    for column, row in after.cells:
        old = [*before.settings[column], *before.words(column, row)]
        new = [*after.settings[column], *after.words(column, row)]
        added = tuple(word for word in new if word not in old)
        # Composing takes half a second
        if old != new and added not in seen:
            seen.add(added)
            config = compose([*new, "tracking=none"])
            check(config)
            # Words may repeat what holds already
            known = compose([*old, "tracking=none"])
            changed = changed or (config.values, config.choices) != (known.values, known.choices)
    assert changed, "a change changes something"


@pytest.mark.slow
@pytest.mark.parametrize("each", ["paper", "code"])
@pytest.mark.parametrize("name", [name for name in TABLES if "attack=" in str(spec.read_table(name).settings)])
def test_every_method_goes_with_the_attacks_of_its_table(name: str, each: str, real_data: Callable) -> None:
    table = reading.read_table_as(name, "paper", each)
    attacked = [column for column, words in table.settings.items() if "attack=" in str(words) and "fmnist" in column]
    real_data("FashionMNIST")
    for column, row in table.cells:
        if column in attacked:
            build(compose([*table.settings[column], *table.words(column, row), "tracking=none"]))
    assert len(attacked) == 2


@pytest.mark.parametrize(
    ("name", "each"),
    [(name, each) for name, each in READINGS if "last_turn" in str(readings.table_reading(name, each))],
)
def test_rows_whose_clients_have_rates_of_their_own_have_methods_that_take_these(name: str, each: str) -> None:
    table = reading.read_table_as(name, "paper", each)
    for column, row in table.cells:
        words = dict(word.split("=", 1) for word in [*table.settings[column], *table.words(column, row)])
        if words.get("train.lr_of") == "last_turn":
            assert method_and_defaults(words["algorithm"], None)[0].supports_per_client_lr, f"{row} in {column}"


@pytest.mark.parametrize("paper", PAPERS)
def test_rows_without_public_code_are_no_part_of_the_reading_code(paper: str) -> None:
    of = readings.read(paper)
    assert of is not None
    for name in TABLES:
        if name.partition("/")[0] == paper:
            left = reading.read_table_as(name, "paper", "code").methods
            assert not [row for row in left if readings.matches(row, of.unknown)]
            assert set(left) == {row for row in spec.read_table(name).methods if not readings.matches(row, of.unknown)}


def test_later_overrides_replace_those_of_their_key() -> None:
    words = ["algorithm=pfedme", "algorithm.lam=1", "train.lr=0.1"]
    assert reading.lay_over(words, ["train.lr=0.2"]) == ["algorithm=pfedme", "algorithm.lam=1", "train.lr=0.2"]
    assert reading.lay_over(words, ["algorithm=fedavg"]) == ["train.lr=0.1", "algorithm=fedavg"]
    assert reading.lay_over(words, []) == words


def test_fedpgs_platform_gives_two_methods_one_step() -> None:
    table = reading.read_table_as("fedpg/table1", "paper", "code")
    config = compose([*table.settings["fmnist/pat2"], *table.methods["pfedme"], "tracking=none"])
    train = config.values["train"]
    assert config.choices["algorithm"] == "fedavg"
    found = {key: train[key] for key in ("steps", "shuffle", "weight_decay", "lr", "epochs")}
    assert found == {"steps": 1, "shuffle": "once", "weight_decay": 0.001, "lr": 0.1, "epochs": 1}
    assert not table.search, "one rate for all"
    alone = reading.read_table_as("fedpg/table1", "paper", "one_step")
    assert alone.settings == spec.read_table("fedpg/table1").settings
    assert "fedpg" in alone.methods, "a single change runs every row"


def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    """Write a user's table with two rows and two columns, and a reading of it with one change."""
    monkeypatch.chdir(tmp_path)
    Path("sweeps/reading").mkdir(parents=True)
    Path("sweeps/mine").mkdir()
    Path("sweeps/mine/table1.yaml").write_text(
        "settings: {a/small: dataset=digits, a/large: dataset=digits train.batch=64}\n"
        "methods: {local: algorithm=local, prox: algorithm=fedprox algorithm.mu=0.1}\n"
    )
    Path("sweeps/reading/mine.yaml").write_text(
        f"code: x\nchanges: {{one: {{paper: a, code: b, where: c, {change}}}}}\n"
    )


@pytest.mark.parametrize("row", ["locl", "local"])
def test_a_reading_that_changes_nothing_says_so(
    row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its keys may be of other tables of the paper, so that a name which is none here is no error."""
    own(tmp_path, monkeypatch, f"methods: {{{row}: train.lr=1}}")
    warn_once.cache_clear()
    reading.read_table_as("mine/table1", "paper", "code")
    said = [record.getMessage() for record in caplog.records]
    nothing = (
        "reading=code changes nothing in sweeps/mine/table1.yaml: none of its changes is of a row or a column there."
    )
    assert said == ([nothing] if row == "locl" else [])


def test_a_cell_may_have_overrides_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They override its row's and its column's, and no other cell has them."""
    own(tmp_path, monkeypatch, "cells: {prox: {'*/large': algorithm=fedavg train.batch=8}}, methods: {'*': train.lr=1}")
    table = reading.read_table_as("mine/table1", "paper", "code")
    words = {cell: table.words(*cell) for cell in table.cells}
    assert words == {
        ("a/small", "local"): ["algorithm=local", "train.lr=1"],
        ("a/large", "local"): ["algorithm=local", "train.lr=1"],
        ("a/small", "prox"): ["algorithm=fedprox", "algorithm.mu=0.1", "train.lr=1"],
        ("a/large", "prox"): ["train.lr=1", "algorithm=fedavg", "train.batch=8"],
    }
    (change,) = readings.table_reading("mine/table1", "code").changes
    assert "prox in */large: algorithm=fedavg train.batch=8" in change.overrides
    groups = planned("sweep=mine/table1", "reading=code").groups
    found = {(g.setting, g.method): (g.config.choices["algorithm"], g.config.values["train"]["batch"]) for g in groups}
    assert found == {
        ("a/small", "local"): ("local", 32),
        ("a/large", "local"): ("local", 64),
        ("a/small", "prox"): ("fedprox", 32),
        ("a/large", "prox"): ("fedavg", 8),
    }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("cells: {prox: train.batch=8}", "changes.one.cells.prox is 'train.batch=8': it has to be lines of `column:"),
        ("cells: {prox: {a/small: seed=1}}", "change 'one': prox: a/small: seed=1: seeds are the whole sweep's"),
    ],
)
def test_a_wrong_cell_is_named(change: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own(tmp_path, monkeypatch, change)
    with pytest.raises(UserError) as raised:
        reading.read_table_as("mine/table1", "paper", "code")
    assert said in str(raised.value)


def test_fedfomos_clusters_and_first_round_are_of_cells() -> None:
    table = reading.read_table_as("fedfomo/table2", "paper", "code")
    words = table.words("cifar10/latent3", "fedfomo_n10")
    found = compose([*table.settings["cifar10/latent3"], *words, "tracking=none"])
    assert found.choices["algorithm"] == "as_run/fedfomo_fedfomo"
    assert (found.values["algorithm"]["clusters"], found.values["algorithm"]["models"]) == (3, 10)
    table = reading.read_table_as("fedfomo/table1", "paper", "code")
    words = table.words("mnist/clients100", "fedfomo_n5")
    found = compose([*table.settings["mnist/clients100"], *words, "tracking=none"])
    assert found.values["algorithm"]["first_epochs"] == 1
    assert (found.values["train"]["first_round"], found.values["train"]["sampling"]) == ("all", "fixed")


@pytest.mark.parametrize(
    ("name", "each", "said"),
    [
        ("fedpg/table1", "coed", "no such reading. Did you mean 'code'"),
        ("fedpg/table3", "fedfomo", "fedpg/table3 has no such reading"),
        ("mine.yaml", "code", "there is no list of code differences for sweep=mine.yaml"),
    ],
)
def test_a_reading_that_is_not_there_is_named(
    name: str, each: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("settings: {a: dataset=digits}\nmethods: {local: algorithm=local}\n")
    with pytest.raises(UserError, match="reading=") as raised:
        reading.read_table_as(name, "paper", each)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("changes: {}", "it needs `code`"),
        ("code: x\nchanges: {one: {paper: a, code: b}}", "changes.one.where is missing"),
        ("code: x\nchanges: {one: {paper: a, code: b, where: c, sets: d}}", "unknown key 'sets'. Did you mean 'set'"),
        ("code: x\nchanges: {one: {paper: a, code: b, where: c, methods: 3}}", "has to be lines of"),
        ("code: x\nchanges: {One-step: {paper: a, code: b, where: c}}", "no name that a file can have"),
        ("code: x\nunknown: fedpg\nchanges: {}", "has to be a list of texts"),
        ("code: x\nchanges: {one: {paper: a, code: b, where: c, views: {fedprox: trainned}}}", "views.fedprox is"),
        ("code: x\nchanges: {one: {paper: a, code: b, where: c, rounds: {fedprox: first}}}", "rounds.fedprox is"),
    ],
)
def test_a_broken_file_is_named(content: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sweeps/reading").mkdir(parents=True)
    Path("sweeps/reading/mine.yaml").write_text(content)
    with pytest.raises(UserError) as raised:
        readings.read("mine")
    assert said in str(raised.value)
    assert "sweeps/reading/mine.yaml" in str(raised.value)


def test_an_override_that_is_none_is_named_with_its_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sweeps/reading").mkdir(parents=True)
    Path("sweeps/mine").mkdir()
    Path("sweeps/mine/table1.yaml").write_text("settings: {a: dataset=digits}\nmethods: {local: algorithm=local}\n")
    Path("sweeps/reading/mine.yaml").write_text("code: x\nchanges: {one: {paper: a, code: b, where: c, set: seed=1}}\n")
    with pytest.raises(UserError, match="change 'one': set: seed=1: seeds are the whole sweep's"):
        reading.read_table_as("mine/table1", "paper", "code")


def test_readings_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "readings"]) == 0
    said = capsys.readouterr().out
    for paper in PAPERS:
        of = readings.read(paper)
        assert of is not None
        assert all(f"  {change.name} (" in said and change.paper in said for change in of.changes.values())


def test_a_reading_needs_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", "algorithm=local", "reading=code", "plan=true"]) == 2
    assert "reading=code needs a paper's table" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-m", "sweep=fedpg/table1", "reading=code", "only=[fedpg]", "plan=true"], "'fedpg' has no public code"),
        (
            ["algorithm=as_run/pfedplat_dito"],
            "there is no algorithm 'as_run/pfedplat_dito'. Did you mean 'as_run",
        ),
    ],
)
def test_what_a_reading_does_not_have_is_said(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert said in capsys.readouterr().err
