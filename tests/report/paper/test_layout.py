"""Layouts have every printed number, and say how each metric is computed."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from pflsweep.report.paper import figures, layout, metrics, published
from pflsweep.report.paper.build import build
from pflsweep.sweep.spec import read_table
from pflsweep.util.errors import UserError
from pflsweep.util.resources import sweep_names
from tests.sweep.test_tables import PRINTED, column, sweep_of

NAMES = layout.names()
IN_PRINT = [name for name in NAMES if layout.read(name).in_print]
FIGURES = [name for name in NAMES if name not in IN_PRINT]


def test_every_printed_table_has_a_layout() -> None:
    assert sorted(IN_PRINT) == sorted(sweep_of(csv) for csv in PRINTED)
    assert sum(len(layout.read(name).printed) for name in IN_PRINT) == 1311
    assert set(sweep_names()) <= {*NAMES, *(sweep for name in NAMES for sweep in layout.read(name).sweeps)}


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_that_is_asked_for_is_there(name: str) -> None:
    figures.check(layout.read(name))


@pytest.mark.parametrize("name", NAMES)
def test_the_first_sweep_trains_all_of_it(name: str) -> None:
    of = layout.read(name)
    placed = [line for line in of.printed if of.column_of(line) is not None]
    assert {(of.setting_of(line), line.method) for line in placed} <= set(read_table(of.sweeps[0]).cells)


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_shows_what_its_sweep_trains(name: str) -> None:
    of = layout.read(name)
    trained = {cell for sweep in of.sweeps for cell in read_table(sweep).cells}
    assert {(of.setting_of(line), line.method) for line in of.printed} <= trained
    if name in sweep_names():
        assert {(of.setting_of(line), line.method) for line in of.printed} == set(read_table(name).cells)
    assert len({(line.row, of.column_of(line)) for line in of.printed}) == len(of.printed)


@pytest.mark.parametrize("name", IN_PRINT)
def test_each_printed_number_has_a_place_of_its_own(name: str) -> None:
    of = layout.read(name)
    places = Counter((line.row, of.column_of(line)) for line in of.printed if of.column_of(line) is not None)
    assert set(places.values()) == {1}
    beside = [line.metric for line in of.printed if of.column_of(line) is None]
    assert beside == (["time_init_min", "time_train_min"] if name == "fedala/table3" else [])


@pytest.mark.parametrize("name", IN_PRINT)
def test_a_number_is_made_of_the_sweeps_setting_for_its_column(name: str) -> None:
    of = layout.read(name)
    assert set(of.sweeps) <= set(sweep_names())
    assert of.sweeps[0] == name
    assert of.printed
    for line in of.printed:
        own = of.metrics[line.metric].setting if line.metric in of.metrics else ""
        assert of.setting_of(line) == (own or column(name, line))


@pytest.mark.parametrize("name", NAMES)
def test_what_a_layout_names_is_there(name: str) -> None:
    of = layout.read(name)
    methods = {line.method for line in of.printed}
    assert not of.own or of.own in methods
    assert set(of.views) <= methods
    assert all(number in published.notes() for number in of.notes)
    assert bool(published.stated(of.paper, of.table)) is of.in_print
    assert bool(published.claims(of.paper, of.table)) is (of.page != layout.LEADERBOARD), "a paper says something of it"


def test_rows_of_several_settings_say_which() -> None:
    assert layout.read("fedfomo/table3").rows[2] == "FedAvg (sigma1)"
    assert layout.read("pgfed/table1").rows[1] == "Local"


def test_printed_formulas_are_numbers_and_lost_cells_are_none() -> None:
    lines = {(p.method, p.metric): p for p in layout.read("fedala/table3").printed}
    assert lines["fedrep", "comm_params_per_iter"].value == 1.0  # 2 * 0.5
    assert lines["apple", "comm_params_per_iter"].value == 21.0  # 1 + 20
    (lost,) = [p for p in layout.read("fedala/table4").printed if p.value is None]
    assert (lost.method, lost.dataset, lost.shown) == ("partialfed_ala", "cifar100", "lost")


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Write a user's own layout, in the working directory, of a table that the package does not know."""
    monkeypatch.chdir(tmp_path)
    for name in ("layouts/mine", "paper"):
        (tmp_path / "reports" / name).mkdir(parents=True)
    (tmp_path / "reports/paper/mine_table1.csv").write_text(
        "paper,table,row_order,method,method_label,dataset,model,setting,metric,value,std,unit,best,std_over\n"
        "mine,1,1,fedavg,FedAvg,digits,mlp,here,acc,50.0,,percent,,\n"
    )
    (tmp_path / "reports/paper/columns.csv").write_text(
        "paper,table,col_order,group,header,dataset,model,setting,metric,ala\nmine,1,1,,Digits,digits,mlp,here,acc,0\n"
    )
    for cached in (layout.read, published._csv):
        cached.cache_clear()
    yield tmp_path / "reports/layouts/mine/table1.yaml"
    for cached in (layout.read, published._csv):
        cached.cache_clear()


GOOD = "title: t\nprinted: mine_table1\nsweeps: [mine/table1]\nmetrics: {acc: {quantity: accuracy}}\n"


def test_a_new_table_needs_no_code(own: Path) -> None:
    own.write_text(GOOD)
    of = layout.read("mine/table1")
    assert [(column.header, line.value) for line in of.printed if (column := of.column_of(line))] == [("Digits", 50.0)]
    assert "mine/table1" in layout.names()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD.replace("title", "titel"), "unknown key 'titel'. Did you mean 'title'"),
        (GOOD.replace("title: t\n", ""), "'title' is missing"),
        (GOOD.replace("accuracy", "acuracy"), "'acuracy' is not a quantity. Did you mean 'accuracy'"),
        (GOOD.replace("acc:", "gain:"), "has the metric 'acc'"),
        (GOOD.replace("accuracy}", "accuracy, over: seed}"), "over is 'seed': it has to be seeds, clients, nothing"),
        (GOOD.replace("accuracy}", "accuracy, best: max}"), "best is 'max'"),
        (GOOD.replace("mine_table1", "mine_table2"), "There is no reports/paper/mine_table2.csv"),
        ("title: [", "is not a layout"),
        (GOOD.replace("[mine/table1]", "mine/table1"), "'sweeps' is 'mine/table1': it has to be a list"),
        (GOOD.replace("accuracy}", "accuracy, targte: all}"), "has 'targte'. Did you mean 'target'"),
        (GOOD.replace("accuracy}", "gain}"), "metrics.acc: gain needs 'baseline'"),
        (GOOD.replace("printed: mine_table1\n", ""), "without `printed` it needs own_table"),
        (GOOD + "page: ladder\n", "'page' is 'ladder': it has to be table or leaderboard"),
        (
            GOOD.replace("printed: mine_table1", "own_table: {name: a, rows: [fedavg], columns: [digits/mlp]}"),
            "rows are `method: label`",
        ),
        (GOOD.replace("[mine/table1]", "[]"), "'sweeps' is empty"),
        (GOOD.replace("accuracy}", "floats}") + "page: leaderboard\n", "a leaderboard ranks accuracies"),
        (GOOD.replace("accuracy}", "accuracy, best: low}") + "page: leaderboard\n", "best: low. Leave it out"),
    ],
)
def test_what_is_wrong_in_a_layout_is_said(own: Path, text: str, said: str) -> None:
    own.write_text(text)
    with pytest.raises(UserError, match=said.replace("[", r"\[")):
        layout.read("mine/table1")


def test_a_figure_that_there_is_not_is_said_before_anything_is_written(own: Path, tmp_path: Path) -> None:
    own.write_text(GOOD + "figures: [curve]\n")
    (tmp_path / "runs").mkdir()
    with pytest.raises(UserError, match=r"figures has 'curve'\. Did you mean 'curves'"):
        build(["mine/table1"], tmp_path / "runs", tmp_path / "out", None)
    assert not (tmp_path / "out/mine").exists()


def test_the_papers_tables_are_known_in_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert {"pgfed/table1", "fedala/table2"} <= set(layout.names())
    assert published.lines("pgfed_table1")


def test_an_unknown_report_names_the_nearest() -> None:
    with pytest.raises(UserError, match="Did you mean 'pgfed/table1'"):
        layout.read("pgfed/tabel1")


def test_every_quantity_is_used() -> None:
    used = {metric.quantity for name in NAMES for metric in layout.read(name).metrics.values()}
    assert used == set(metrics.QUANTITIES)
