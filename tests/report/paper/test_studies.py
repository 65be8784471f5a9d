"""Pages of figures from studies' tables: their numbers, claims and pictures."""

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pflsweep.commands.report import main
from tests.report.paper.fixtures import Sweep

SVG = "{http://www.w3.org/2000/svg}"
pytestmark = pytest.mark.usefixtures("elsewhere")


def page(name: str, tables: dict[str, pd.DataFrame], methods: tuple[str, ...], **config: Any) -> tuple[str, Path]:
    """Return a report with one trial a setting, for all methods, with this table of its study."""
    sweep = Sweep(Path("runs"), name, seeds=(0,))
    for setting, table in tables.items():
        (record,) = sweep.add(setting, methods[0], {0: [5, 5, 5, 5]}, **config)
        record.save_study(table)
        for method in methods[1:]:
            sweep.name_trial(setting, method, 0, record)
    sweep.write()
    main([name])
    return (Path("reports") / name / "README.md").read_text(), Path("reports") / name


def groups(file: Path) -> dict[str, Any]:
    return {group.get("id", ""): group for group in ET.parse(file).getroot().iter(f"{SVG}g")}


def heights(group: Any) -> list[float]:
    """Return the heights of a line's points; y grows downwards."""
    return [-float(mark.get("y")) for mark in group.iter(f"{SVG}use")]


def steps() -> pd.DataFrame:
    """Return a table that begins at 40%: explicit gains 20 and 10 points, implicit 10 and 0. One client has no rows."""
    correct = {"explicit": ([8, 10, 12], [4, 4, 5]), "implicit": ([8, 9, 10], [4, 4, 4])}
    rows = [
        (client, objective, step, (20, 10)[client], count, 1.0)
        for objective, clients in correct.items()
        for client, counts in enumerate(clients)
        for step, count in enumerate(counts)
    ]
    empty = [(2, objective, step, 0, 0, float("nan")) for objective in correct for step in range(3)]
    return pd.DataFrame([*rows, *empty], columns=["client", "objective", "step", "n", "correct", "loss"])


def test_gains_by_personal_steps() -> None:
    text, folder = page("pgfed/figure2", {"cifar10/clients100": steps()}, ("explicit", "implicit"))
    assert "| Explicit (Eq. 4) | **15.00** |" in text
    assert "| Implicit (own risk) | <u>5.00</u> |" in text
    assert "pgfed-fig2-1" in text
    assert "0 of 1 comparisons; fails: explicit vs implicit (cifar10 clients100 gain): 15, 5: 10" in text
    drawn = groups(folder / "steps-cifar10-clients100.svg")
    explicit, implicit = (heights(drawn[f"steps {name}"]) for name in ("explicit", "implicit"))
    assert explicit[0] == implicit[0]
    assert explicit[2] - explicit[0] == pytest.approx(3 * (implicit[2] - implicit[0]), abs=0.01)
    assert "density" in "".join(drawn["figure_1"].itertext())


def curves(falls: dict[int, float]) -> pd.DataFrame:
    rows = [(round, epoch, 1 - fall * epoch / 2) for round, fall in falls.items() for epoch in range(3)]
    return pd.DataFrame(rows, columns=["round", "epoch", "loss"])


@pytest.mark.parametrize(("later", "said"), [(0.05, "| holds |"), (0.3, "| does not hold |")])
def test_weight_learning_by_round(later: float, said: str) -> None:
    table = curves({2: 0.5, 6: later, 9: later + 0.02})
    tables = {"mnist/pathological": table, "cifar10/dir0.1": table}
    text, folder = page("fedala/figure3", tables, ("fedala",), study={"client": 8})
    assert f"| FedALA | 0.5000 | {later + 0.01:.4f} | 0.5000 | {later + 0.01:.4f} |" in text
    claim = next(line for line in text.splitlines() if "fedala-fig3-1" in line)
    assert said in claim
    drawn = groups(folder / "weight-learning.svg")
    assert {name for name in drawn if name.startswith("curve")} == {
        f"curve {setting} {round}" for setting in tables for round in (2, 6, 9)
    }
    first, last = (heights(drawn[f"curve mnist/pathological {round}"]) for round in (2, 6))
    assert (last[0] - last[2]) / (first[0] - first[2]) == pytest.approx(later / 0.5, abs=0.01)


def trajectory(acts_from: int) -> pd.DataFrame:
    """Return rounds 3 to 6; the trajectory with ALA begins each round 0.2 lower from where ALA acts on."""
    points = [
        {
            "what": "point", "series": series, "round": round, "at": at, "ala": round >= acts_from,
            "c1": round + (at == "end") / 2, "c2": float(series == "with" and round >= acts_from),
            "loss": 1.0 - 0.2 * (series == "with" and round >= acts_from) - 0.5 * (at == "end"),
        }
        for series in ("with", "without") for round in range(3, 7) for at in ("start", "end")
    ]  # fmt: skip
    surface = [{"what": "surface", "c1": x, "c2": y, "loss": x + y * y} for x in (2.5, 7.0) for y in (-1.0, 0.0, 2.0)]
    return pd.DataFrame([{"what": "axis", "c1": 0.8, "c2": 0.1}, *points, *surface])


def test_both_trajectories_on_one_surface() -> None:
    text, folder = page("fedala/figure4", {"mnist/pathological": trajectory(5)}, ("fedala",), study={"client": 4})
    assert "| FedALA | 1.0000 | 0.8000 | 1.0000 |" in text
    assert "| holds |" in next(line for line in text.splitlines() if "fedala-fig4-1" in line)
    assert "rounds 3 to 6, ALA on from 5" in text
    drawn = groups(folder / "trajectory-mnist-pathological.svg")
    paths = {name: drawn[f"path {name}"].find(f"{SVG}path").get("d") for name in ("with", "without")}
    assert [paths[name].count("L") for name in ("without", "with")] == [7, 4], "the one with begins where they part"
    words = "".join(drawn["figure_1"].itertext())
    assert "C1 (80% of the variance)" in words
    assert "training loss of client 4" in words


def test_where_ala_never_acts_there_is_one_way() -> None:
    text, folder = page("fedala/figure4", {"mnist/pathological": trajectory(9)}, ("fedala",), study={"client": 4})
    assert "| FedALA | 1.0000 | none | none |" in text
    assert "path with" not in groups(folder / "trajectory-mnist-pathological.svg")


def test_trials_without_a_study_have_no_numbers_and_are_drawn_nowhere() -> None:
    text, folder = page("pgfed/figure2", {"cifar10/clients100": pd.DataFrame()}, ("explicit", "implicit"))
    assert "| Explicit (Eq. 4) | none |" in text
    assert not list(folder.glob("*.png"))
