"""Layouts have every printed number, and say how each metric is computed."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from pflsweep.commands.report import main
from pflsweep.report.paper import figures, layout, layout_checks, metrics, published, rulings
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


@pytest.mark.parametrize("name", NAMES)
def test_rows_and_columns_that_are_named_are_its_sweeps(name: str) -> None:
    of = layout.read(name)
    layout_checks.check_cells(of, {cell for sweep in of.sweeps for cell in read_table(sweep).cells})


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


PRINTED_FILE = (
    "paper,table,row_order,method,method_label,dataset,model,setting,metric,value,std,unit,best,std_over\n"
    "mine,1,1,fedavg,FedAvg,digits,mlp,here,acc,50.0,,percent,,\n"
)
COLUMNS_FILE = (
    "paper,table,col_order,group,header,dataset,model,setting,metric,ala\nmine,1,1,,Digits,digits,mlp,here,acc,0\n"
)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Write a user's own layout, in the working directory, of a table that the package does not know."""
    monkeypatch.chdir(tmp_path)
    for name in ("layouts/mine", "paper"):
        (tmp_path / "reports" / name).mkdir(parents=True)
    (tmp_path / "reports/paper/mine_table1.csv").write_text(PRINTED_FILE)
    (tmp_path / "reports/paper/columns.csv").write_text(COLUMNS_FILE)
    for cached in (layout.read, published._csv, published._claims, published._of_yaml, rulings._known):
        cached.cache_clear()
    yield tmp_path / "reports/layouts/mine/table1.yaml"
    for cached in (layout.read, published._csv, published._claims, published._of_yaml, rulings._known):
        cached.cache_clear()


GOOD = "title: t\nprinted: mine_table1\nsweeps: [mine/table1]\nmetrics: {acc: {quantity: accuracy}}\n"

OWN_TABLE = GOOD.replace("printed: mine_table1", "own_table: {name: a, rows: {fedavg: x}, columns: {digits/here: d}}")


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
        (
            GOOD.replace("accuracy}", "accuracy, over: seed}"),
            "over is 'seed': it has to be one of seeds, clients",
        ),
        (
            GOOD.replace("accuracy}", "accuracy, over: clients, take: min}"),
            "metrics.acc: 'over: clients' shows mean and std of clients that count the same, so that 'take: min'",
        ),
        (
            GOOD.replace("accuracy}", "accuracy, over: clients, by: samples}"),
            "so that 'by: samples' has no place. Leave one of both out",
        ),
        (GOOD.replace("accuracy}", "accuracy, best: max}"), "best is 'max'"),
        (
            GOOD.replace("accuracy}", "rounds_to, goal: 60}"),
            "goal is 60: it has to be an accuracy above 0 and at most 1",
        ),
        (GOOD + "rounds: {fedavg: last, fedavg: best}\n", "found duplicate key fedavg"),
        (GOOD.replace("mine_table1", "mine_table2"), "There is no reports/paper/mine_table2.csv"),
        (GOOD.replace("quantity: accuracy", "quant: accuracy"), "metrics.acc has 'quant'. Did you mean 'quantity'"),
        (GOOD.replace("quantity: accuracy", "unit: percent"), "metrics.acc needs 'quantity', one of: accuracy"),
        (GOOD.replace("accuracy}", "accuracy, options: {}}"), "metrics.acc has 'options'"),
        (
            GOOD.replace("accuracy}", "accuracy, view: globl}"),
            "view is 'globl': it has to be one of personal, global",
        ),
        (
            GOOD.replace("accuracy}", "accuracy, target: everyone}"),
            "is 'everyone': it has to be one of own, subset, all",
        ),
        (
            GOOD.replace("accuracy}", "accuracy, round: bst}"),
            "is 'bst': it has to be one of last, best. Did you mean 'best'",
        ),
        (GOOD.replace("accuracy}", "accuracy, take: max}"), "take is 'max': it has to be one of mean, min"),
        (GOOD.replace("accuracy}", "accuracy, by: sample}"), "by is 'sample': it has to be one of clients, samples"),
        (GOOD.replace("accuracy}", "loss_fall, when: before}"), "when is 'before': it has to be one of first, later"),
        (GOOD.replace("accuracy}", "accuracy, decimals: two}"), "decimals is 'two': it has to be a whole number"),
        (GOOD.replace("accuracy}", "accuracy, decimals: -1}"), "decimals is -1: it has to be a whole number"),
        (GOOD.replace("accuracy}", "accuracy, times: a}"), "times is 'a': it has to be a number"),
        (GOOD.replace("accuracy}", "rounds_to, goal: 70%}"), "goal is '70%': it has to be a number"),
        (GOOD + "notes: [999]\n", "notes has 999: notes.yaml has no such number"),
        (GOOD + "views: {fedavg: traind}\n", "views.fedavg is 'traind': it has to be one of personal, global, trained"),
        (GOOD + "rounds: {fedavg: bst}\n", "rounds.fedavg is 'bst': it has to be one of last, best"),
        (GOOD + "compare: row\n", "compare is 'row': it has to be one of columns, rows"),
        (GOOD + "beside: [time]\n", "beside has 'time'"),
        (GOOD + "own_table: {name: a}\n", "has 'printed' and 'own_table'"),
        (GOOD.replace("{acc: {quantity: accuracy}}", "{}"), "'metrics' is empty"),
        (
            GOOD.replace("printed: mine_table1", "own_table: {name: a, rows: {on: x}, columns: {digits/mlp: d}}"),
            "own_table.rows has True, which YAML does not read as a text",
        ),
        (
            GOOD.replace(
                "printed: mine_table1", "own_table: {name: a, rows: {a: x}, columns: {digits/mlp: d}}"
            ).replace("accuracy}", "accuracy, unit: '%'}"),
            "metrics.acc: the unit is '%': an accuracy is in percent or fraction",
        ),
        (GOOD.replace("mine_table1", "mine"), "'printed' is 'mine': it has to be 'mine_' and the table"),
        (GOOD.replace("mine_table1", "mine_table_1"), "'printed' is 'mine_table_1': it has to be 'mine_'"),
        ("title: [", "is not a layout"),
        (GOOD.replace("[mine/table1]", "mine/table1"), "'sweeps' is 'mine/table1': it has to be a list"),
        (GOOD.replace("accuracy}", "accuracy, targte: all}"), "has 'targte'. Did you mean 'target'"),
        (GOOD.replace("accuracy}", "gain}"), "metrics.acc: gain needs 'baseline'"),
        (GOOD.replace("printed: mine_table1\n", ""), "without `printed` it needs own_table"),
        (GOOD + "page: ladder\n", "page is 'ladder': it has to be one of table, leaderboard"),
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
    with pytest.raises(UserError, match=re.escape(said)):
        layout.read("mine/table1")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (PRINTED_FILE, PRINTED_FILE.replace(",", ";"), "line 1: the values are not separated by commas"),
        (PRINTED_FILE.splitlines()[0] + "\n", "", "line 1: there is no column 'paper'."),
        ("std_over", "stdover", "'stdover' is no column. Did you mean 'std_over'"),
        ("50.0", "n/a", "mine_table1.csv, line 2: value is 'n/a': it has to be a number such as 70.25"),
        ("50.0", '"50,0"', "value is '50,0': it has to be a number"),
        ("50.0", "nan", "value is 'nan': it has to be a number"),
        ("50.0", "50,0", "line 2: it has more values than in the first line"),
        (",percent,,", ",percent", "line 2: it has no value for 'best'"),
        (",percent,,", ",%,,", "line 2: the unit is '%': an accuracy is in percent or fraction"),
        (",percent,,", ",min,,", "the unit is 'min': an accuracy"),
        (",50.0,,percent,,", ",50.0,1.0,percent,,3seeds", "std_over is '3seeds': it has to be seeds"),
        (",50.0,,percent,,", ",50.0,1.0,percent,,", "std is '1.0' and std_over is empty"),
        (",50.0,,percent,,", ",50.0,-1.0,percent,,seeds3", "std is '-1.0': it cannot be negative"),
        (",percent,,", ",percent,yes,", "best is 'yes': it has to be true, false or empty"),
        ("mine,1,1,fedavg", "mine,1,a,fedavg", "row_order is 'a'"),
        ("mine,1,1,fedavg", "mine,2,1,fedavg", "those of 'mine_table2', but the file is mine_table1.csv"),
        (",here,", ",heer,", "line 2: columns.csv has no column for it: no setting is 'heer'. Did you mean 'here'"),
        (",digits,", ",digist,", "no dataset is 'digist'. Did you mean 'digits'"),
        ("1,fedavg,", "1,fedavg_ala,", "none is of dataset 'digits', model 'mlp', setting 'here'"),
        (PRINTED_FILE, PRINTED_FILE + PRINTED_FILE.splitlines()[1], "row 1 (fedavg) has its number of digits/here"),
        (PRINTED_FILE, PRINTED_FILE + PRINTED_FILE.splitlines()[1].replace("FedAvg", "Fed"), "row 1 is 'Fed' here and"),
        (PRINTED_FILE.splitlines()[1], "", "mine_table1.csv has no numbers"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_printed_numbers_is_said(own: Path, tmp_path: Path, old: str, new: str, said: str) -> None:
    own.write_text(GOOD)
    file = tmp_path / "reports/paper/mine_table1.csv"
    assert old in PRINTED_FILE
    file.write_text(PRINTED_FILE.replace(old, new))
    with pytest.raises(UserError, match=re.escape(said)):
        layout.read("mine/table1")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (",0\n", ",no\n", "columns.csv, line 2: ala is 'no'"),
        (",0\n", "\n", "columns.csv, line 2: it has no value for 'ala'"),
        ("mine,1,1", "mine,2,1", "columns.csv has no columns for 'mine_table1'. Did you mean 'mine_table2'"),
        (",0\n", ",0\nmine,1,2,,More,digits,mlp,there,acc,0\n", "the column 'More' of mine_table1 without a number"),
        (",0\n", ",0\nmine,1,1,,Digits,digits,mlp,here,acc,0\n", "the column 'Digits' of mine_table1 twice"),
    ],
)
def test_what_is_wrong_in_columns_is_said(own: Path, tmp_path: Path, old: str, new: str, said: str) -> None:
    own.write_text(GOOD)
    (tmp_path / "reports/paper/columns.csv").write_text(COLUMNS_FILE.replace(old, new))
    with pytest.raises(UserError, match=re.escape(said)):
        layout.read("mine/table1")


def test_printed_numbers_may_come_from_a_spreadsheet(own: Path, tmp_path: Path) -> None:
    own.write_text(GOOD)
    (tmp_path / "reports/paper/mine_table1.csv").write_text("\ufeff" + PRINTED_FILE.replace("\n", "\r\n"), "utf-8")
    assert [line.value for line in layout.read("mine/table1").printed] == [50.0]


SWEEP = "settings: {digits/here: dataset=digits}\nmethods: {fedavg: algorithm=fedavg, mine: algorithm=fedavg}\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD.replace("[mine/table1]", "[mine/tabel1]"), "sweeps has 'mine/tabel1'. Did you mean 'mine/table1'"),
        (
            OWN_TABLE.replace("fedavg: x", "fedavgg: x"),
            "has 'fedavgg'. Did you mean 'fedavg'? It may have: fedavg, mine",
        ),
        (OWN_TABLE.replace("digits/here", "digits/heer"), "settings of mine/table1, has 'digits/heer'. Did you mean"),
        (GOOD.replace("accuracy}", "accuracy, relative: fedavgg}"), "relative has 'fedavgg'. Did you mean 'fedavg'"),
        (GOOD.replace("accuracy}", "accuracy, setting: digits/her}"), "setting has 'digits/her'. Did you mean"),
        (GOOD.replace("accuracy}", "gain, baseline: fedavgg}"), "baseline has 'fedavgg'. Did you mean 'fedavg'"),
        (GOOD + "settings: {'digits/*': digits/her}\n", "settings has 'digits/her'. Did you mean 'digits/here'"),
        (GOOD + "own: mien\n", "reports/layouts/mine/table1.yaml: own has 'mien'. Did you mean 'mine'"),
        (GOOD + "views: {fedavgg: trained}\n", "views has 'fedavgg'. Did you mean 'fedavg'"),
        (GOOD + "rounds: {fedavgg: best}\n", "rounds has 'fedavgg'. Did you mean 'fedavg'"),
    ],
)
def test_what_the_sweeps_do_not_have_is_said(own: Path, tmp_path: Path, text: str, said: str) -> None:
    _with_sweep(own, tmp_path, text)
    with pytest.raises(UserError, match=re.escape(said)):
        main(["mine/table1"])


@pytest.mark.parametrize(
    "text", [OWN_TABLE, GOOD + "own: mine\n", GOOD.replace("[mine/table1]", "[mine/table1, benchmark]")]
)
def test_what_the_sweeps_have_may_be_named(own: Path, tmp_path: Path, text: str) -> None:
    """The row that paired tests are against may be one that the sweep adds to a printed table."""
    _with_sweep(own, tmp_path, text)
    assert main(["mine/table1"]) == 0


def _with_sweep(own: Path, folder: Path, text: str) -> None:
    own.write_text(text)
    for name in ("sweeps/mine", "runs"):
        (folder / name).mkdir(parents=True)
    (folder / "sweeps/mine/table1.yaml").write_text(SWEEP)


def test_a_published_row_that_no_sweep_trains_is_named(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _with_sweep(own, tmp_path, GOOD)
    printed = tmp_path / "reports/paper/mine_table1.csv"
    printed.write_text(printed.read_text().replace(",fedavg,", ",fedavgg,"))
    assert main(["mine/table1"]) == 0
    assert (
        "the published row 'fedavgg' is no row of mine/table1, so that its cells stay empty. Did you mean 'fedavg'?"
        in (capsys.readouterr().err)
    )


def test_brackets_of_a_setting_are_no_pattern(own: Path) -> None:
    own.write_text(OWN_TABLE.replace("digits/here", "'digits/here[1,2]?'"))
    of = layout.read("mine/table1")
    (column,) = of.columns
    assert {of.column_of(line) for line in of.printed} == {column}


CLAIMS = """\
claims:
- id: mine-1
  paper: mine
  table: [1]
  quote: ours is better
  basis: stated
  needs_rerun: false
  holds_in_print: false
  expr: {greater: {left: {method: fedavg}, right: {metric: acc, stat: value}}}
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("", "", ""),
        ("claims:\n", "", "It needs `claims:`, and below it a list"),
        ("claims:\n", "claim:\n", "'claims' is not there. It needs `claims:`, and below it a list"),
        ("claims:\n", "claims: [\n", "claims.yaml cannot be read: "),
        ("  quote: ours is better\n", "", "claim 'mine-1' has no 'quote'. It needs id, paper"),
        ("  holds_in_print: false\n", "", "has no 'holds_in_print'"),
        ("quote", "qoute", "unknown key 'qoute'. Did you mean 'quote'"),
        ("table: [1]", "table: 1", "table is 1: it has to be a list of tables"),
        ("basis: stated", "basis: said", "basis is 'said': it has to be one of stated, reading"),
        ("{greater:", "{greatr:", "expr has 'greatr': it has one of top, greater"),
        ("right:", "rigt:", "greater: unknown key 'rigt'. Did you mean 'right'"),
        ("greater: {left: {method: fedavg}, right", "trend: {of", "trend has no 'along'"),
        ("greater: {left: {method: fedavg}, right", "value: {is: 3, of", "value.is is 3: it has to be [low, high]"),
        ("stat: value", "stat: mean", "stat is 'mean': it has to be one of value, std"),
        ("method: fedavg", "method: fedavgg", "no table of 'mine' has the method 'fedavgg'. Did you mean 'fedavg'"),
        ("metric: acc", "metric: ac", "no table of 'mine' has the metric 'ac'. Did you mean 'acc'"),
        ("print: false", "print: true", "has holds_in_print: true; the published numbers say false"),
        ("value}", "value}, margin: -1", "has holds_in_print: false; the published numbers say true"),
        ("greater: {left: {method: fedavg}, right", "value: {is: [40, 20], of", "value.is is [40, 20]: it has to be"),
        ("claims:\n", "claims:\n" + CLAIMS.partition("\n")[2], "2 claims have the id 'mine-1'"),
        ("  quote", "  paper: mine\n  quote", "found duplicate key paper"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_claim_is_said(own: Path, tmp_path: Path, old: str, new: str, said: str) -> None:
    _with_sweep(own, tmp_path, GOOD)
    (tmp_path / "reports/paper/claims.yaml").write_text(CLAIMS.replace(old, new) if old else CLAIMS)
    if not said:
        assert main(["mine/table1"]) == 0
    else:
        with pytest.raises(UserError, match=re.escape(said)):
            main(["mine/table1"])


def test_a_sweep_without_a_layout_is_said(own: Path, tmp_path: Path) -> None:
    _with_sweep(own, tmp_path, GOOD)
    own.unlink()
    with pytest.raises(UserError, match=r"no layout of its table: write reports/layouts/mine/table1\.yaml") as error:
        main(["mine/table1"])
    assert "`pflsweep report runs` compares its trials" in str(error.value)


def test_an_error_does_not_say_what_was_written(own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _with_sweep(own, tmp_path, GOOD + "figures: [curve]\n")
    with pytest.raises(UserError) as error:
        main(["mine/table1"])
    assert str(error.value).startswith("mine/table1: ")
    assert "how far each report is" not in str(error.value)
    assert capsys.readouterr().out == "reports/index.md: how far each report is\n"


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
