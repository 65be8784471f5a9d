"""Numbers of a table worked out by hand, and printed numbers fed back as if they were ours."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pflsweep.records.ledger import ledgers
from pflsweep.report.paper import comparison, layout, metrics, page, published
from pflsweep.report.paper.claims import Statistic
from pflsweep.report.paper.comparison import Cell, Comparison
from pflsweep.report.paper.figures import SavedFigures
from pflsweep.report.paper.links import Links
from pflsweep.report.paper.metrics import Value
from pflsweep.report.paper.published import Printed
from pflsweep.report.paper.reproduction import Stores, reproduction
from pflsweep.report.paper.rulings import others_needed, rulings
from pflsweep.report.paper.store import CellTrials, Store, TrialReader
from tests.report.paper.fixtures import Sweep, reproduced

C25 = "cifar10/clients25"


def shown(runs: Path, name: str) -> str:
    return page.text(
        reproduction(name, Stores(TrialReader(runs), ledgers(runs)), "small"), SavedFigures({}, {}, {}), Links()
    )


def made(of: Comparison, method: str, metric: str, setting: str = "clients25", dataset: str = "cifar10") -> Cell:
    key = (method, metric, setting, dataset)
    (found,) = [
        m
        for m in of.cells.values()
        if (m.printed.method, m.printed.metric, m.printed.setting, m.printed.dataset) == key
    ]
    return found


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    """Return a sweep with four clients. Mean accuracies over two seeds: local 50 and 60%, pgfed 60 and 80%, fedavg 40
    and 40%.
    """
    sweep = Sweep(tmp_path / "runs")
    sweep.add(C25, "local", {0: [2, 4, 6, 8], 1: [4, 4, 8, 8]})
    sweep.add(C25, "pgfed", {0: [4, 6, 6, 8], 1: [8, 8, 8, 8]})
    sweep.add(C25, "fedavg", {0: [4, 4, 4, 4], 1: [2, 2, 6, 6]})
    sweep.write()
    return sweep


def test_equal_differences_share_a_rank_in_wilcoxons_test() -> None:
    """Quotients of counts: 0.5 - 0.4 and 0.4 - 0.3 differ in the last bit, and tie."""
    ours, theirs = np.array([5, 3, 4, 2, 6, 7, 3, 2, 8, 9]), np.array([3, 3, 6, 4, 4, 5, 5, 4, 6, 7])
    differences = pd.Series(ours / 10 - theirs / 10)
    assert len(set(differences.abs())) > 2, "by rounding"
    assert comparison._wilcoxon(differences) == pytest.approx(comparison._wilcoxon(pd.Series(ours - theirs) / 10.0))
    assert comparison._wilcoxon(differences * 0) is math.nan


def test_accuracy_is_a_mean_over_clients_and_its_std_is_over_seeds(sweep: Sweep) -> None:
    of = reproduced(sweep.runs, "pgfed/table1")
    own = made(of, "pgfed", "acc")
    # Mean and std of 60 and 80
    assert own.value == pytest.approx((70.0, math.sqrt(200), 2))
    assert own.difference == pytest.approx(70 - 81.02)
    assert own.agrees  # 11.02 < 2 root(200 / 2 + 0.41^2 / 3) = 20.0
    base = made(of, "fedavg", "acc")
    assert base.value == pytest.approx((40.0, 0.0, 2))
    assert base.agrees is False  # 25.07 > 2 > 2 (0.25 / root(3))
    places = {method: made(of, method, "acc").rank for method in ("pgfed", "local", "fedavg", "apfl")}
    assert places == {"pgfed": 1, "local": 2, "fedavg": 0, "apfl": 0}
    assert (of.complete, len(of.cells)) == (3, 84)


def test_columns_of_different_rounds_of_one_record_have_different_numbers(tmp_path: Path) -> None:
    """The record has 20, 30 and 40% in its three rounds; the second column asks for two of them."""
    sweep = Sweep(tmp_path / "runs", seeds=(0,), peak=-1)
    (record,) = sweep.add(C25, "local", {0: [4, 4, 4, 4]})
    sweep.name_trial("cifar10/clients50", "local", 0, record)
    shorter = sweep.groups["cifar10/clients50", "local"]
    shorter["config"] = {**shorter["config"], "train.rounds": 2}
    sweep.write()
    of = reproduced(sweep.runs, "pgfed/table1")
    found = [made(of, "local", "acc", setting).value.mean for setting in ("clients25", "clients50")]
    assert found == pytest.approx([40.0, 30.0])


def test_a_method_of_ones_own_is_a_row_at_the_end(sweep: Sweep) -> None:
    """It is better than all others: our best, but no rival in a claim and none of the published cells."""
    sweep.add(C25, "mine", {0: [9, 9, 9, 9], 1: [9, 9, 9, 9]})
    sweep.write()
    of = reproduced(sweep.runs, "pgfed/table1")
    own = made(of, "mine", "acc")
    assert own.value.mean == pytest.approx(90)
    assert (own.rank, own.difference, own.agrees) == (1, None, None)
    assert (list(of.layout.rows.values())[-2:], of.own_rows) == (["PGFedMo (ours)", "mine"], {15})
    # In the only setting in which it was run
    assert (of.complete, of.fillable, len(of.cells)) == (3, 84, 85)
    assert "mine" not in {cell.method for cell in of.statistics()}
    assert [each.n for each in of.taus()] == [3]
    assert "mine" in {pair.method for pair in of.paired()}
    # One method's row, which is not published
    assert reproduced(sweep.runs, "pgfed/figure3").layout.rows == {1: "PGFed"}


def test_a_method_of_ones_own_slows_no_other_row(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "runs", "pgfed/table2", seeds=(0,))
    for method in ("apfl", "fedper", "perfedavg", "fedrod", "pgfed", "pgfedmo"):
        sweep.add(C25, method, {0: [8] * 4})
    sweep.group(C25, "mine")
    sweep.write()
    of = reproduced(sweep.runs, "pgfed/table2")
    assert made(of, "pgfed", "speedup").value.mean == 1.0
    assert [trials.method for trials in made(of, "mine", "speedup").lacking] == ["mine"]


def test_kendalls_tau_by_hand(sweep: Sweep) -> None:
    """Ours: local 55, fedavg 40, pgfed 70; print: 72.40, 65.07, 81.02, the same order. A fourth disagrees with two."""
    assert list(reproduced(sweep.runs, "pgfed/table1").taus()) == [("CIFAR10, 25 clients", 1.0, 3, 14)]
    sweep.add(C25, "apfl", {0: [4, 5, 5, 5], 1: [5, 5, 5, 5]})  # 48.75, printed 77.03
    sweep.write()
    ((_, tau, n, _),) = reproduced(sweep.runs, "pgfed/table1").taus()
    # Only local and apfl are in the other order
    assert (tau, n) == (pytest.approx((5 - 1) / 6), 4)


def test_two_rows_of_a_column_have_no_order(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "runs")
    for method, correct in {"local": 4, "fedavg": 2}.items():
        sweep.add(C25, method, {0: [correct] * 4, 1: [correct] * 4})
    sweep.write()
    of = reproduced(sweep.runs, "pgfed/table1")
    assert list(of.taus()) == []
    assert {cell.rank for cell in of.cells.values()} == {0}
    sweep.add(C25, "pgfed", {0: [3] * 4, 1: [3] * 4})
    sweep.write()
    of = reproduced(sweep.runs, "pgfed/table1")
    assert [made(of, method, "acc").rank for method in ("local", "pgfed", "fedavg")] == [1, 2, 0]


def test_gains_are_paired_by_client_and_seed(sweep: Sweep) -> None:
    """pgfed - local: 20 20 0 0 and 40 40 0 0; means 10 and 20, std over clients 10 and 20."""
    sweep.name = "pgfed/table3"
    sweep.write()
    of = reproduced(sweep.runs, "pgfed/table3")
    assert made(of, "pgfed", "gain").value == pytest.approx((15.0, 15.0, 2))
    assert made(of, "fedavg", "gain").value == pytest.approx((-15.0, np.std([20, 0, -20, -40]) / 2, 2))


def test_gains_need_the_baselines_seed(sweep: Sweep) -> None:
    del sweep.group(C25, "local")["trials"]["1"]
    sweep.write()
    # Table 3 uses table 1's trials
    of = reproduced(sweep.runs, "pgfed/table3")
    assert made(of, "pgfed", "gain").value == pytest.approx((10.0, 10.0, 1))
    assert not made(of, "pgfed", "gain").complete
    del sweep.group(C25, "local")["trials"]["0"]
    sweep.write()
    waiting = made(reproduced(sweep.runs, "pgfed/table3"), "pgfed", "gain")
    assert not waiting.has_number
    assert (waiting.unfillable, [trials.method for trials in waiting.lacking]) == (False, ["local"])


def test_rounds_to_a_goal_and_speedup_over_the_slowest(tmp_path: Path) -> None:
    """Correct answers are half of the last round's, one more than these, these; each method has its first round with
    70%.
    """
    sweep = Sweep(tmp_path / "runs", seeds=(0,), peak=1)
    for method, correct in {"apfl": 7, "fedper": 6, "perfedavg": 8, "fedrod": 9, "pgfed": 7}.items():
        sweep.add(C25, method, {0: [correct] * 4})
    sweep.write()
    of = reproduced(sweep.runs, "pgfed/table2")
    assert made(of, "apfl", "rounds_to_70").value.mean == 2
    assert made(of, "fedper", "rounds_to_70").value.mean == 2  # 60% in the last round, 70% in the second
    waiting = made(of, "apfl", "speedup")
    # pgfedmo, which is missing, may be even slower
    assert math.isnan(waiting.value.mean)
    assert (waiting.unfillable, [trials.method for trials in waiting.lacking]) == (False, ["pgfedmo"])
    sweep.add(C25, "pgfedmo", {0: [5, 5, 5, 5]})
    sweep.write()
    of = reproduced(sweep.runs, "pgfed/table2")
    assert made(of, "pgfedmo", "rounds_to_70").value == (math.inf, None, 1)
    assert made(of, "apfl", "speedup").value.mean == 1.0
    ours, print_s = "APFL, FedPer, Per-FedAvg, FedRoD, PGFed, the slowest that gets there", "APFL, Per-FedAvg"
    assert f"25 clients, speedup: ours over {ours}; the paper's over {print_s}.\n" in shown(sweep.runs, "pgfed/table2")


def test_the_only_method_that_reaches_a_goal_is_the_best(tmp_path: Path) -> None:
    """The others have an infinite number, which is a result."""
    sweep = Sweep(tmp_path / "runs", seeds=(0,))
    for method in ("apfl", "fedper", "perfedavg"):
        sweep.add(C25, method, {0: [8 if method == "apfl" else 5] * 4})
    sweep.write()
    cells = [made(reproduced(sweep.runs, "pgfed/table2"), method, "rounds_to_70") for method in ("apfl", "fedper")]
    assert [cell.rank for cell in cells] == [1, 0]
    assert cells[1].value.mean == math.inf


def test_nothing_is_relative_to_zero(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "runs", "pgfed/table7", seeds=(0,))
    for method in ("fedavg", "pgfed"):
        (record,) = sweep.add("cifar10/clients50/batch128", method, {0: [4] * 4})
        if method == "fedavg":
            record.rounds.assign(images=0).to_parquet(record.folder / "rounds.parquet")
    sweep.write()
    own = made(reproduced(sweep.runs, "pgfed/table7"), "pgfed", "relative_speed", "clients50")
    assert not own.has_number
    assert own.why_empty == "none"


def test_speed_relative_to_fedavg(sweep: Sweep) -> None:
    c50 = "cifar10/clients50/batch128"
    sweep.groups = {(c50, method): {**group, "setting": c50} for (_, method), group in sweep.groups.items()}
    sweep.write()
    of = reproduced(sweep.runs, "pgfed/table7")
    # 200 images in 0.5 s
    assert made(of, "pgfed", "images_per_s", "clients50").value.mean == pytest.approx(400)
    assert made(of, "pgfed", "relative_speed", "clients50").value == (pytest.approx(100.0), None, 2)


def test_domains_by_the_groups_of_clients(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "runs", "pgfed/table6", seeds=(0,))
    (record,) = sweep.add("officehome/domain", "pgfed", {0: [2, 4, 6, 8]})
    table = pd.read_parquet(record.folder / "partition.parquet")
    table["group"] = table["client"].map({0: "Art", 1: "Art", 2: "Real World", 3: "Product"})
    table.to_parquet(record.folder / "partition.parquet")
    sweep.write()
    of = reproduced(sweep.runs, "pgfed/table6")
    for domain, value in {"art": 30, "realworld": 60, "product": 80, "mean": (30 + 60 + 80) / 3}.items():
        assert made(of, "pgfed", "acc", f"domain={domain}", "officehome").value.mean == pytest.approx(value)
    assert not made(of, "pgfed", "acc", "domain=clipart", "officehome").has_number


def test_ala_is_measured_against_the_method_without_it_in_the_best_round(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "runs", "fedala/table4", seeds=(0,), peak=1)
    sweep.add("cifar100/dir0.1", "fedavg", {0: [2, 2, 2, 2]})
    sweep.add("cifar100/dir0.1", "fedavg_ala", {0: [6, 6, 6, 6]})
    sweep.write()
    of = reproduced(sweep.runs, "fedala/table4")
    # The best round, not the last
    assert made(of, "fedavg_ala", "acc", "dir0.1", "cifar100").value.mean == pytest.approx(70)
    assert made(of, "fedavg_ala", "gain", "dir0.1", "cifar100").value == (pytest.approx(40), None, 1)


def test_a_gain_over_a_row_of_fewer_seeds_is_that_under_those(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "runs", "fedala/table4", seeds=(0, 1))
    sweep.add("cifar100/dir0.1", "fedavg", {0: [2, 2, 2, 2]})
    sweep.add("cifar100/dir0.1", "fedavg_ala", {0: [6, 6, 6, 6], 1: [8, 8, 8, 8]})
    sweep.write()
    found = made(reproduced(sweep.runs, "fedala/table4"), "fedavg_ala", "gain", "dir0.1", "cifar100")
    assert found.value == (pytest.approx(40), None, 1)


def test_rounds_that_were_not_evaluated_have_no_part_in_a_number() -> None:
    """The mean of 20, 40 and 30% is 30%, and the changes are 20 and -10 points."""
    rounds = pd.DataFrame({"round": range(1, 6), "personal_accuracy": [0.2, np.nan, 0.4, np.nan, 0.3]})
    trial: Any = type("Trial", (), {"rounds": rounds})()
    assert metrics.mean_accuracy(trial, {"first": 5}) == pytest.approx(0.3)
    assert metrics.round_std(trial, {}) == pytest.approx(0.3 / math.sqrt(2))


def test_time_communication_and_ala_parameters(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "runs", "fedala/table3", seeds=(0,))
    for method in ("fedavg", "fedrep"):
        sweep.add("tinyimagenet/dir0.1", method, {0: [4, 4, 4, 4]})
    sweep.write()
    of = reproduced(sweep.runs, "fedala/table3")
    where = ("dir0.1", "tinyimagenet")
    assert made(of, "fedrep", "time_per_iter_min", *where).value.mean == pytest.approx(0.5 / 60)
    # Two rounds, to the best one
    assert made(of, "fedrep", "time_total_min", *where).value.mean == pytest.approx(1 / 60)
    assert made(of, "fedavg", "comm_params_per_iter", *where).value.mean == 2.0
    metric = layout.read("fedala/table1").metrics["params_millions"]
    printed = {p.setting: p.value for p in layout.read("fedala/table1").printed if p.metric == "params_millions"}
    # With 10 classes it is the printed number
    for layers in range(1, 7):
        trial: Any = type("Trial", (), {"meta": {"classes": 10}, "config": {"algorithm.layers": layers}})()
        assert round(metrics.ala_parameters(trial, metric.options), 3) == printed[f"p{layers}"]


def test_views_and_targets_of_fedpg(tmp_path: Path) -> None:
    """All accuracies other than personal on own data are halved: FedAvg's personal models are the trained ones."""
    sweep = Sweep(tmp_path / "runs", "fedpg/table1", seeds=(0,))
    views = ("personal", "global", "trained", "personal_all", "global_all")
    for method in ("fedavg", "fedpg"):
        sweep.add("fmnist/pat2", method, {0: [2, 4, 6, 8]}, views=views)
    sweep.write()
    of = reproduced(sweep.runs, "fedpg/table1")
    where = ("pat2", "fmnist")
    assert made(of, "fedpg", "l_acc", *where).value == pytest.approx((0.5, np.std([0.2, 0.4, 0.6, 0.8]), 1))
    assert made(of, "fedavg", "l_acc", *where).value.mean == pytest.approx(0.25)
    assert made(of, "fedpg", "gm_acc", *where).value == (pytest.approx(0.25), None, 1)
    assert not made(of, "fedpg", "s_acc", *where).has_number  # not scored


def test_paired_tests_by_hand(sweep: Sweep) -> None:
    pairs = {pair.method: pair for pair in reproduced(sweep.runs, "pgfed/table1").paired()}
    assert set(pairs) == {"local", "fedavg"}
    # Mean of 10 and 20 points
    assert pairs["local"].gain.mean == pytest.approx(0.15)
    assert pairs["local"].gain.kind == "range of 2 seeds"
    # 20 20 0 0 and 40 40 0 0 points: under each seed two of two that differ are positive: 2 / 2^2
    assert pairs["local"].p == pytest.approx([0.5, 0.5])


def test_one_number_for_all_clients_is_not_tested_client_by_client(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "runs", "fedpg/table1", seeds=(0,))
    for method, correct in (("ditto", [2, 4, 6, 8]), ("fedpg", [4, 6, 8, 8])):
        sweep.add("fmnist/pat2", method, {0: correct}, views=("personal", "personal_all", "global_all"))
    sweep.write()
    of = reproduced(sweep.runs, "fedpg/table1")
    columns = {of.layout.columns[pair.column].metric for pair in of.paired()}
    assert columns == {"l_acc", "g_acc"}


def test_emds_of_our_partitions_stand_for_those_in_heads(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "runs", "fedfomo/table2", seeds=(0, 1))
    records = sweep.add("cifar10/latent2", "fedavg", {0: [4, 4, 4, 4], 1: [4, 4, 4, 4]})
    for record, emd in zip(records, (1.0, 1.5), strict=True):
        (record.folder / "meta.json").write_text(json.dumps({**record.meta, "statistics": {"emd_code": emd}}))
    sweep.write()
    of = reproduced(sweep.runs, "fedfomo/table2")
    assert of.cells
    ((setting, value),) = [(cell.setting, cell.value) for cell in of.heads()]
    assert (setting, value) == ("latent2", 1.25)


def test_noise_is_over_seeds_whatever_the_std_is_over(tmp_path: Path) -> None:
    """Seeds' means are 50 and 60%; a client's own accuracies differ by far more."""
    sweep = Sweep(tmp_path / "runs", "fedpg/table1")
    sweep.add("fmnist/pat2", "fedpg", {0: [2, 4, 6, 8], 1: [2, 6, 8, 8]}, views=("personal", "global_all"))
    sweep.write()
    of = reproduced(sweep.runs, "fedpg/table1")
    stds = {cell.metric: cell.std_over_seeds for cell in of.statistics()}
    assert stds == {"l_acc": pytest.approx(0.1 / math.sqrt(2)), "gm_acc": pytest.approx(0.05 / math.sqrt(2))}
    agrees = {m.printed.metric: (m.difference, m.agrees) for m in of.cells.values() if m.has_number}
    # Printed are 0.897 ± 0.068 over models, and 0.89
    assert agrees == {
        "l_acc": (pytest.approx(0.55 - 0.897), False),
        "gm_acc": (pytest.approx(0.275 - 0.89), False),
    }
    own = of.cells[next(place for place, m in of.cells.items() if m.printed.metric == "l_acc" and m.has_number)]
    near = {mean: own._replace(value=own.value._replace(mean=mean)).agrees for mean in (0.877, 0.917, 0.876, 0.918)}
    # The limit is 2 points, whatever the std over models
    assert near == {0.877: True, 0.917: True, 0.876: False, 0.918: False}


class PrintAsOurs(Comparison):
    """Printed numbers as if we had measured them."""

    def value(self, line: Printed) -> Value:
        return Value(math.nan if line.value is None else line.value, line.std, 3)

    def std_over_seeds(self, line: Printed) -> float | None:
        return line.std_over_seeds

    def cell_trials(self, setting: str, method: str) -> CellTrials:
        trials: Any = {0: None, 1: None, 2: None}
        return CellTrials(setting, method, trials, [0, 1, 2], {}, {}, [])

    def heads(self) -> list[Statistic]:
        return layout.heads(self.layout)


def print_as_ours(name: str) -> PrintAsOurs:
    return PrintAsOurs(layout.read(name), Store(TrialReader(Path()), "paper", []))


@pytest.mark.parametrize("name", [name for name in layout.names() if layout.read(name).in_print])
def test_print_fed_back_agrees_with_itself(name: str) -> None:
    of = print_as_ours(name)
    taus = list(of.taus())
    lines = {m.printed.row for m in of.cells.values()} if of.layout.compare == "rows" else of.layout.columns
    assert len(taus) == len(lines)
    assert all(each.n == each.of and (each.tau == 1.0 or math.isnan(each.tau)) for each in taus)
    assert any(each.tau == 1.0 for each in taus)
    assert {m.agrees for m in of.cells.values()} <= {True, None}
    assert {m.difference for m in of.cells.values()} <= {0.0, None}
    assert of.complete == sum(m.printed.value is not None for m in of.cells.values())


class PrintWithoutCode(PrintAsOurs):
    """The same, without rows for which FedPG's authors have no public code."""

    def value(self, line: Printed) -> Value:
        known = super().value(line)
        return known._replace(mean=math.nan) if "fedpg" in line.method else known

    def cell_trials(self, setting: str, method: str) -> CellTrials:
        return replace(super().cell_trials(setting, method), without_code="fedpg" in method)


def test_a_claim_about_rows_without_code_waits_for_nothing() -> None:
    of = PrintWithoutCode(layout.read("fedpg/table1"), Store(TrialReader(Path()), "paper", []))
    others = [PrintWithoutCode(layout.read(name), of.store) for name in others_needed(of.layout)]
    ruled = {claim["id"]: ruling for claim, ruling in rulings(of, others)}
    held = {claim: ruling.holds for claim, ruling in ruled.items()}
    assert (held["fedpg-t1-1"], held["fedpg-t1-12"]) == ("undecidable", "undecidable"), (
        "FedPG against others, and itself"
    )
    assert held["fedpg-t1-5"] == "partly", "of the others, as in print"
    assert ruled["fedpg-t1-3"].without == {"fedpg": [], "sfedpg": []}, "all their cells: none is named"


class PrintOfOneDataset(PrintWithoutCode):
    """The same, of which only Fashion-MNIST is trained."""

    def value(self, line: Printed) -> Value:
        known = super().value(line)
        return known if line.dataset == "fmnist" else known._replace(mean=math.nan)

    def cell_trials(self, setting: str, method: str) -> CellTrials:
        known = super().cell_trials(setting, method)
        return known if setting.startswith("fmnist") else replace(known, finished={})


def test_a_claim_that_nothing_can_tell_is_not_open_because_other_cells_are_missing() -> None:
    of = PrintOfOneDataset(layout.read("fedpg/table1"), Store(TrialReader(Path()), "paper", []))
    others = [PrintOfOneDataset(layout.read(name), of.store) for name in others_needed(of.layout)]
    held = {claim["id"]: ruling.holds for claim, ruling in rulings(of, others)}
    left = {claim for claim, holds in held.items() if holds != "undecidable"}
    assert left == {f"fedpg-t1-{k}" for k in (5, 9, 10, 11)}, "what they say of the other methods can be told"
    assert {held[claim] for claim in left} == {None}


def test_that_two_printed_tables_repeat_each_other_is_no_claim_about_ours() -> None:
    of = print_as_ours("fedpg/table3")
    judged = [claim["id"] for claim, _ in rulings(of, [])]
    assert "fedpg-t3-5" in {claim["id"] for claim in published.claims("fedpg", "3")}
    assert judged == [f"fedpg-t3-{k}" for k in range(1, 5)]
    assert others_needed(of.layout) == []


@pytest.mark.parametrize("name", [name for name in layout.names() if layout.read(name).in_print])
def test_print_fed_back_has_the_recorded_verdicts(name: str) -> None:
    of = print_as_ours(name)
    ruled = list(rulings(of, [print_as_ours(other) for other in others_needed(of.layout)]))
    about = [claim for claim in published.claims(of.layout.paper, of.layout.table) if "bold" not in claim["expr"]]
    own = [claim["id"] for claim in about if claim["basis"] != "consistency"]
    assert [claim["id"] for claim, _ in ruled] == own
    for claim, ruling in ruled:
        assert ruling.holds == (None if claim["needs_rerun"] else claim["holds_in_print"]), claim["id"]


def test_print_fed_back_has_the_bold_numbers_of_print() -> None:
    for name in ("pgfed/table1", "pgfed/table6", "fedfomo/table2", "fedfomo/table4", "fedfomo/figure5"):
        of = print_as_ours(name)
        bold = {place for place, m in of.cells.items() if m.printed.best}
        assert bold <= {place for place, m in of.cells.items() if m.rank == 1}
        assert bold


def test_a_claim_waits_for_the_other_tables_it_is_about(sweep: Sweep) -> None:
    of = print_as_ours("pgfed/table1")
    alone = {claim["id"]: ruling.holds for claim, ruling in rulings(of, [])}
    assert alone["pgfed-t1-1"] is True
    # A claim about tables 1, 5 and 6
    assert alone["pgfed-t1-14"] is None
    mine = {c["id"]: r.holds for c, r in rulings(reproduced(sweep.runs, "pgfed/table1"), [])}
    assert set(mine.values()) == {None}


def test_a_reading_of_the_code_has_its_own_trials_views_and_rows_without_code(tmp_path: Path) -> None:
    """FedPG's table: its own row has no public code; pFedMe is scored by its trained models."""
    sweep = Sweep(tmp_path / "runs", "fedpg/table1", seeds=(0,))
    for method in ("pfedme", "local"):
        sweep.add("fmnist/pat2", method, {0: [4, 4, 4, 4]}, views=("personal", "trained"))
    sweep.write("a" * 16)
    of = reproduced(sweep.runs, "fedpg/table1")
    assert of.layout.views.get("pfedme") is None
    assert of.complete > 0
    sweep.write("b" * 16, reading="code")
    store = Store(TrialReader(sweep.runs), "small", ledgers(sweep.runs), "code")
    assert [ledger.id[0] for ledger in store.ledgers] == ["b"]
    of = Comparison(layout.read("fedpg/table1"), store)
    assert of.layout.views["pfedme"] == "trained"
    rows = {
        cell.printed.method: cell for cell in of.cells.values() if of.layout.setting_of(cell.printed) == "fmnist/pat2"
    }
    assert (rows["fedpg"].why_empty, rows["fedpg"].unfillable, rows["fedpg"].lacking) == ("no code", True, [])
    assert rows["fedavg"].why_empty == "missing"
    text = shown(sweep.runs, "fedpg/table1")
    assert "reading **paper**: " in text
    assert "; reading **code**: " in text
    assert "**no code**: the code of this row is not public" in text
    assert "| one_step | not measured |  |  |  | FedProx and pFedMe train for all local epochs |" in text
