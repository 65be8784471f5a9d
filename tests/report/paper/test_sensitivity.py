"""Accuracy by searched hyperparameter, from the searches in ledgers."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from pflsweep.commands.report import main
from tests.report.paper.fixtures import Sweep, heights

C25 = "cifar10/clients25"
SVG = Path("reports/pgfed/table1/sensitivity-cifar10-clients25.svg")
MADE = "{http://www.w3.org/2000/svg}"


def searched(runs: Path, tried: list[tuple[dict, float]]) -> None:
    sweep = Sweep(runs, seeds=(0,))
    for method in ("local", "pgfed"):
        sweep.add(C25, method, {0: [4] * 4})
    own = [({"train.lr": lr}, lr) for lr in (0.1, 0.2, 0.3)]
    for method, found in (("local", own), ("pgfed", tried)):
        points = [{"point": point, "value": value} for point, value in found]
        sweep.group(C25, method).update(points=len(points), tried=points)
    sweep.write()


def test_the_line_is_the_best_at_each_value_and_every_point_a_dot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    of_mu = {0.01: (0.3, 0.5), 0.1: (0.8, 0.4)}
    tried = [({"train.lr": lr, "algorithm.mu": mu}, of_mu[mu][k]) for mu in of_mu for k, lr in enumerate((0.1, 0.2))]
    searched(Path("runs"), tried)
    assert main(["pgfed/table1"]) == 0
    root = ET.parse(SVG).getroot()
    lines = {name for group in root.iter(f"{MADE}g") if (name := group.get("id", "")).startswith("sensitivity")}
    panels = ("train.lr local", "train.lr pgfed", "algorithm.mu pgfed")
    assert lines == {f"sensitivity {C25} {panel}" for panel in panels}
    local = heights(root, f"sensitivity {C25} train.lr local")  # 10, 20, 30 percent
    ten = local[0] - local[1]
    assert local[1] - local[2] == pytest.approx(ten, abs=0.01)
    mu = heights(root, f"sensitivity {C25} algorithm.mu pgfed")
    assert local[0] - mu[0] == pytest.approx(4 * ten, abs=0.01), "the best at mu = 0.01 is 50 percent"
    assert mu[0] - mu[1] == pytest.approx(3 * ten, abs=0.01)
    dots = next(group for group in root.iter(f"{MADE}g") if group.get("id") == f"points {C25} algorithm.mu pgfed")
    assert len(list(dots.iter(f"{MADE}use"))) == 4
    assert f"({SVG.stem}.png)" in (SVG.parent / "README.md").read_text()


def test_random_points_are_dots_without_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two hyperparameters that both change from point to point, a line along one would be the other's doing."""
    monkeypatch.chdir(tmp_path)
    drawn = ((0.002, 0.005, 0.7), (0.02, 0.01, 0.3), (0.01, 0.05, 0.6), (0.04, 0.03, 0.5))
    searched(Path("runs"), [({"train.lr": lr, "algorithm.mu": mu}, value) for lr, mu, value in drawn])
    main(["pgfed/table1"])
    root = ET.parse(SVG).getroot()
    names = {group.get("id", "") for group in root.iter(f"{MADE}g")}
    assert f"sensitivity {C25} train.lr local" in names, "the only one that was searched"
    for key in ("train.lr", "algorithm.mu"):
        assert f"sensitivity {C25} {key} pgfed" not in names
        dots = next(group for group in root.iter(f"{MADE}g") if group.get("id") == f"points {C25} {key} pgfed")
        assert len(list(dots.iter(f"{MADE}use"))) == 4
    text = "".join(root.itertext())
    assert "0.005" in text, "less than two decades have labels between them"
    assert "0.02" in text


def test_a_search_of_two_points_has_no_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    searched(Path("runs"), [({"train.lr": lr}, lr) for lr in (0.1, 0.2)])
    main(["pgfed/table1"])
    text = SVG.read_text()
    assert f"{C25} train.lr local" in text
    assert "pgfed" not in text


def test_values_that_are_no_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    searched(Path("runs"), [({"algorithm.kind": kind}, 0.2) for kind in ("a", "b", True, [1, 2])])
    main(["pgfed/table1"])
    text = "".join(ET.parse(SVG).getroot().itertext())
    assert "[1,2]" in text
    assert "true" in text


def test_null_beside_numbers_makes_names_of_these(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    searched(Path("runs"), [({"train.lr": lr}, 0.2) for lr in (None, 10, 9.5)])
    main(["pgfed/table1"])
    text = "".join(ET.parse(SVG).getroot().itertext())
    assert text.index("9.5") < text.index("null"), "numbers by size, then names"
    assert "10" in text[text.index("9.5") : text.index("null")]
