"""Matrices of clients by clients: their numbers, and their figures over the rounds."""

import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.container import ErrorbarContainer

from pflsweep.commands.report import main
from pflsweep.records import ledger
from pflsweep.records.record import Record
from pflsweep.report.paper import claims, comparison, figures, layout, rulings, store, weights
from tests.report.paper.fixtures import Sweep, heights, reproduced

MADE = "{http://www.w3.org/2000/svg}"
# Clients 0 and 1 have one distribution, 2 and 3 another; P in round k is k times this

P = np.array([[1, 4, 1, 2], [6, 1, 1, 0], [0, 0, 1, 8], [2, 2, 2, 1]], dtype=np.float32)


def grouped(record: Record, tested: list[int], rounds: int = 3) -> None:
    """Return a partition of two distributions, the first of class 0 and the second of class 1, and P by round."""
    own = np.array([0, 0, 1, 1])
    rows = [(i, k, "ab"[own[i]], 20 * (own[i] == k), 0, 5 * (tested[i] == k)) for i in range(4) for k in range(2)]
    columns = ["client", "class", "group", "train", "validation", "test"]
    pd.DataFrame(rows, columns=columns).to_parquet(record.folder / "partition.parquet")
    stack = np.arange(1, rounds + 1, dtype=np.float32)[:, None, None] * P
    kept = {"P@": stack, "P@round": np.arange(1, rounds + 1, dtype=np.int32)} if rounds else {}
    np.savez(record.folder / "matrices.npz", P=3 * P, **kept)


def fomo(sweep: str, setting: str, tested: list[int], rounds: int = 3, method: str = "fedfomo_n5") -> None:
    world = Sweep(Path("runs"), sweep, seeds=(0,))
    permuted = {"data__targets": "permuted"} if "out_of_local" in setting else {}
    (record,) = world.add(setting, method, {0: [5, 5, 5, 5]}, **permuted)
    grouped(record, tested, rounds)
    world.write()


def page(name: str) -> str:
    assert main([name]) == 0
    return (Path("reports") / name / "README.md").read_text()


def test_weights_within_and_across_distributions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In round 3 P is three times: within (4 + 6 + 8 + 2) * 3 / 4 = 15; across (1 + 2 + 1 + 0 + 0 + 0 + 2 + 2) * 3 / 8
    = 3.
    """
    monkeypatch.chdir(tmp_path)
    fomo("fedfomo/table2", "cifar10/latent5", tested=[0, 0, 1, 1])
    text = page("fedfomo/figure8")
    assert "| Ours (n=5) | 15.0000 | 3.0000 |" in text
    assert "| not published | holds | 1 of 1 comparisons |" in text
    root = ET.parse("reports/fedfomo/figure8/weights-by-round-cifar10-latent5.svg").getroot()
    names = {name for group in root.iter(f"{MADE}g") if (name := group.get("id", "")).startswith("weight ")}
    assert names == {f"weight cifar10/latent5 {i} {j}" for i in range(4) for j in range(4) if i != j}
    four, one = (heights(root, f"weight cifar10/latent5 0 {j}") for j in (1, 2))
    assert len(four) == 3
    assert four[0] - four[2] == pytest.approx(4 * (one[0] - one[2]), abs=0.02)


def test_weights_to_the_distribution_that_a_client_is_tested_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients 0 and 2 have changed targets: 0 is tested on 2's and 3's distribution, 2 on 0's and 1's."""
    monkeypatch.chdir(tmp_path)
    fomo("fedfomo/figure5", "cifar10/latent5;out_of_local", tested=[1, 0, 0, 1])
    text = page("fedfomo/figure7")
    wanted, rest = (1 + 2 + 6 + 0 + 0 + 2) * 3 / 6, (4 + 1 + 0 + 8 + 2 + 2) * 3 / 6
    assert f"| Ours (n=5) | {wanted:.4f} | {rest:.4f} |" in text
    svg = Path("reports/fedfomo/figure7/weights-by-round-cifar10-latent5-out_of_local.svg").read_text()
    assert "client 0: 0, tested on 1" in svg
    assert "client 1: 0<" in svg


def test_heat_maps_by_round_or_of_the_last_where_none_were_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fomo("fedfomo/table2", "cifar10/latent5", tested=[0, 0, 1, 1])
    assert " so far | 1 of 1 comparisons in cifar10 latent5 |" in page("fedfomo/figure2"), (
        "five more settings are missing"
    )
    said = "".join(ET.parse("reports/fedfomo/figure2/weight-maps.svg").getroot().itertext())
    assert [f"round {k}" in said for k in (1, 2, 3)] == [True] * 3
    fomo("fedfomo/table2", "cifar10/latent2", tested=[0, 0, 1, 1], rounds=0)
    page("fedfomo/figure2")
    said = "".join(ET.parse("reports/fedfomo/figure2/weight-maps.svg").getroot().itertext())
    assert "round 3" in said
    assert "round 2" not in said


def test_pgfeds_figure_3_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A grows with n_j, 20 or 40, so that all of it has risen; row means fall, since a row lacks its own entry."""
    monkeypatch.chdir(tmp_path)
    sweep = Sweep(Path("runs"), seeds=(0,))
    (record,) = sweep.add("cifar10/clients25", "pgfed", {0: [5, 5, 5, 5]})
    sizes = record.partition.groupby("client")["train"].sum().to_numpy()
    np.savez(record.folder / "matrices.npz", A=0.5 + 0.001 * np.tile(sizes, (4, 1)))
    sweep.write()
    text = page("pgfed/figure3")
    assert "rounds: stated 300, here" in text, "of a figure's training nothing is said but in its table"
    assert "| PGFed | 1.00 | \N{MINUS SIGN}1.00 | 1.00 |" in text
    assert text.count("| not published | holds |") == 2
    assert "share_alpha_up: 1 |" in text, "all have risen, where the paper says that some do"


def test_a_correlation_has_its_p_by_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes 20 40 20 40, column means 20 40 20 30: r = 30 / sqrt(1100), and with four clients p = 1 - r."""
    monkeypatch.chdir(tmp_path)
    sweep = Sweep(Path("runs"), seeds=(0,))
    (record,) = sweep.add("cifar10/clients25", "pgfed", {0: [5, 5, 5, 5]})
    np.savez(record.folder / "matrices.npz", A=0.5 + 0.001 * np.tile([20, 40, 20, 30], (4, 1)))
    sweep.write()
    text = page("pgfed/figure3")
    assert "<summary>Correlations by seed</summary>\n\nPearson's r over clients" in text
    assert "\n- column_r, pgfed cifar10/clients25: seed 0 r = 0.90, p 0.095\n" in text


def test_a_record_without_groups_and_p_has_no_numbers(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "runs", seeds=(0,))
    sweep.add("cifar10/latent5", "fedfomo_n5", {0: [5, 5, 5, 5]})
    sweep.write()
    kept = store.Store(store.TrialReader(tmp_path / "runs"), "small", ledger.ledgers(tmp_path / "runs"))
    found = kept.cell_trials(["pgfed/table1"], "cifar10/latent5", "fedfomo_n5")
    (trial,) = found.finished.values()
    of_p = [of for name, of in weights.NUMBERS.items() if name.startswith("weights_")]
    assert np.isnan([of(trial, {}) for of in of_p]).tolist() == [True] * 4


def test_the_nearest_distribution_is_that_of_the_least_sum_of_differences() -> None:
    """Test labels are even. Training labels of group a are 55 15 15 15%, of b 45 45 5 5%: sums 0.6 and 0.8, but the
    largest differences 0.3 and 0.2.
    """
    counts = {0: ("a", [55, 15, 15, 15]), 1: ("b", [45, 45, 5, 5])}
    rows = [(client, k, group, n, 25) for client, (group, of_class) in counts.items() for k, n in enumerate(of_class)]
    partition = pd.DataFrame(rows, columns=["client", "class", "group", "train", "test"])
    trial = type("Trial", (), {"partition": partition, "config": {"data.targets": "permuted"}})()
    assert weights.groups_of_test_data(trial).tolist() == [0, 0]


def test_every_figures_claims_can_be_told(tmp_path: Path) -> None:
    """Each claim about a figure uses cells that its layout has; otherwise no run could decide it."""
    empty = store.Store(store.TrialReader(tmp_path), "paper", [])
    for name in layout.names():
        of = layout.read(name)
        made = comparison.Comparison(of, empty)
        for claim, _ in rulings.rulings(made, []):
            seen = claims.needed_cells(claim, layout.printed_statistics(of.paper) + rulings._placeholders(made))
            assert seen, f"{claim['id']} is about nothing that {name} has"


def test_accuracy_by_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = Sweep(Path("runs"), "fedfomo/figure10", seeds=(0, 1))
    for method, n in (("validation0.01", 4), ("validation0.1", 6)):
        sweep.add("cifar10/latent5", method, {0: [n] * 4, 1: [n] * 4})
    sweep.write()
    page("fedfomo/figure10")
    root = ET.parse("reports/fedfomo/figure10/by-row.svg").getroot()
    assert "0.01" in "".join(root.itertext())
    (picture,) = figures.by_row(reproduced(sweep.runs, "fedfomo/figure10"))
    (drawn,) = picture.figure.axes[0].containers
    assert isinstance(drawn, ErrorbarContainer)
    assert np.asarray(drawn.lines[0].get_ydata()).tolist() == pytest.approx([40, 60])
