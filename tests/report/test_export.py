"""runs.csv and runs.tex: the numbers of a comparison, unrounded, and as a table for a paper."""

import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pflsweep.commands.report import main
from pflsweep.records.record import Record
from pflsweep.report import export, tables
from pflsweep.report.compare import Row, settings
from pflsweep.report.latex import escaped, tabular
from tests.report.records import finished


@pytest.fixture
def runs(tmp_path: Path) -> list[Record]:
    """Return two seeds of each of three methods: 45 and 50%, 60 and 62.5%, 61.25 and 70%."""
    correct = {
        "local": ([4, 4, 5, 5], [5, 5, 5, 5]),
        "fedavg": ([6, 6, 6, 6], [6, 6, 6, 7]),
        "pgfed": ([6, 6, 6, 7], [7, 7, 7, 7]),
    }
    return [finished(tmp_path, method, by_seed[seed], seed) for method, by_seed in correct.items() for seed in (0, 1)]


def test_the_csv_has_a_line_for_each_setting_and_method_with_unrounded_numbers(
    tmp_path: Path, runs: list[Record]
) -> None:
    other = finished(tmp_path, "fedavg", [1, 2, 3, 4], train__lr=0.5)
    table = pd.read_csv(io.StringIO(export.as_csv(settings([*runs, other]), None, 0.65)))
    assert table["method"].tolist() == ["local", "fedavg", "pgfed", "fedavg"]
    assert table["setting"].nunique() == 2
    pgfed = table.iloc[2]
    assert pgfed["accuracy"] == pytest.approx((0.625 + 0.7) / 2)
    assert pgfed["std_over_seeds"] == pytest.approx(0.075 / 2**0.5)
    assert (pgfed["low"], pgfed["high"]) == (pytest.approx(0.625), pytest.approx(0.7))
    assert (pgfed["seeds"], pgfed["interval"], pgfed["baseline"]) == (2, "range of 2 seeds", "local")
    assert (pgfed["gain"], pgfed["gain_low"], pgfed["gain_high"]) == tuple(map(pytest.approx, (0.1875, 0.175, 0.2)))
    # By client 20 20 10 20 points under one seed, and 20 under the other
    assert pgfed["gain_std_over_clients"] == pytest.approx(np.std([0.2, 0.2, 0.1, 0.2]) / 2)
    assert pgfed["global_accuracy"] == pytest.approx((0.3125 + 0.35) / 2)
    assert table["gain"].isna().tolist() == [True, False, False, True], "a baseline gains nothing over itself"
    assert table["rounds_to_65%"].fillna(0).tolist() == [0, 2, 2, 0], "local and lr=0.5 never reach it"
    assert table["seeds_reaching_65%"].tolist() == [0, 2, 2, 0]


def test_latex_says_what_its_numbers_are_and_makes_no_close_best_bold(runs: list[Record]) -> None:
    """PGFed is 5 points above FedAvg; the standard error of the difference is 3.95 points."""
    text = export.as_latex(settings(runs), None)
    comments = "\n".join(line for line in text.splitlines() if line.startswith("%"))
    for said in (
        "; 2 seeds; ",
        "standard deviation over seeds (n - 1",
        "difference to local",
        r"\usepackage{booktabs}",
    ):
        assert said in comments
    assert r"pgfed & $\mathbf{66.25 \pm 5.30}$ & $+18.75$ \\" in text
    assert r"fedavg & $61.25 \pm 1.77$ & $+13.75$ \\" in text
    assert r"local & $47.50 \pm 3.54$ & -- \\" in text
    # FedAvg and Local are close in the first seed alone, which has no standard error
    assert "mathbf" not in export.as_latex(settings(runs[::2]), None)
    assert "; one seed; a single seed has no" in export.as_latex(settings(runs[::2]), None)


def test_latex_makes_nothing_bold_within_the_standard_error(tmp_path: Path) -> None:
    numbers = {"fedavg": ([4] * 4, [8] * 4), "pgfed": ([5] * 4, [8] * 4)}
    runs = [finished(tmp_path, method, by[seed], seed) for method, by in numbers.items() for seed in (0, 1)]
    assert "mathbf" not in export.as_latex(settings(runs), None)


def test_latex_leaves_rows_without_an_accuracy_out_of_the_best(
    monkeypatch: pytest.MonkeyPatch, runs: list[Record]
) -> None:
    of = settings(runs)
    by_label = {row.label: row.summaries for row in of[0].rows}
    unscored = [each._replace(last=np.nan) for each in by_label["fedavg"]]
    by_label |= {"local": unscored, "fedavg": unscored}
    monkeypatch.setattr(Row, "summaries", property(lambda row: by_label[row.label]))
    text = export.as_latex(of, "pgfed")
    assert "mathbf" not in text, "one row has a number"
    assert text.count(f"& {export.EMPTY} &") == 2


def test_latex_has_two_columns_for_each_setting(tmp_path: Path, runs: list[Record]) -> None:
    other = finished(tmp_path, "fedavg", [1, 2, 3, 4], train__lr=0.5)
    text = export.as_latex(settings([*runs, other]), "fedavg")
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert rows[0].count(r"\multicolumn{2}{c}") == 2
    assert {line.count("&") for line in rows[1:]} == {4}
    assert rows[-1].endswith(r"-- & -- \\"), "pgfed is not in the other setting"
    assert "Seeds of each row: digits, dirichlet, mlp, lr=0.05: 0, 1. digits, dirichlet, mlp, lr=0.5: 0." in text
    apart = settings([*runs[:2], finished(tmp_path, "fedavg", [6, 6, 6, 6], seed=2)])
    assert "Seeds of each row: local 0, 1; fedavg 2." in export.as_latex(apart, None)
    assert "Seeds of each row" not in export.as_latex(settings(runs), None)
    (setting,) = apart
    assert tables.accuracy(setting, None)["seeds"].tolist() == ["2 (0, 1)", "1 (2)"]


def test_of_no_run_there_is_a_table_without_rows() -> None:
    assert "; 0 seeds; " in export.as_latex([], None)
    assert export.as_csv([], None).strip() in ("", '""')


def test_the_command_writes_both(tmp_path: Path, runs: list[Record], capsys: pytest.CaptureFixture) -> None:
    assert main(["runs", "--runs", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    assert "runs.csv and runs.tex" in capsys.readouterr().out
    assert len(pd.read_csv(tmp_path / "out/runs.csv")) == 3
    assert (tmp_path / "out/runs.tex").read_text().startswith("% Caption: ")


def test_a_label_is_no_argument_of_the_row_above() -> None:
    text = tabular([], [""], ["[a]", "b"], [("[1] mine", ["1"]), ("* yours", ["2"]), ("ours [2]", ["3"])])
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert [row.partition(" & ")[0] for row in rows] == ["{}[a]", "{}[1] mine", "{}* yours", "ours [2]"]


def test_text_is_escaped_as_latex() -> None:
    assert escaped("50% of A_1 & {b}") == r"50\% of A\_1 \& \{b\}"
    assert escaped(r"\a^2 <") == r"\textbackslash{}a\textasciicircum{}2 \textless{}"
