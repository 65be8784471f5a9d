"""The language of claims: the recorded verdicts on print, and each form worked out by hand."""

from pathlib import Path

import pytest
import yaml

from pflsweep.report.paper import layout
from pflsweep.report.paper.claims import Statistic, by_setting, judge, needed_cells

CLAIMS = yaml.safe_load((Path(__file__).parents[3] / "reports" / "paper" / "claims.yaml").read_text())["claims"]


def test_there_are_200() -> None:
    assert len(CLAIMS) == 200
    assert sum(claim["needs_rerun"] for claim in CLAIMS) == sum(c["holds_in_print"] == "not_in_print" for c in CLAIMS)


@pytest.mark.slow
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim["id"])
def test_a_verdict_on_print_is_the_recorded_one(claim: dict) -> None:
    printed = layout.printed_statistics(claim["paper"])
    ruling = judge(claim, printed, needed_cells(claim, printed))
    if claim["needs_rerun"]:
        assert (ruling.holds, ruling.checks) == (None, [])
        return
    assert ruling.holds == claim["holds_in_print"]
    assert sum(check.holds for check in ruling.checks) == claim["numbers"]["passed"]
    assert len(ruling.checks) == claim["numbers"]["of"]
    if "clear_of_std" in claim["numbers"]:
        clear = [check.clear for check in ruling.checks if check.clear is not None]
        assert f"{sum(clear)}/{len(clear)}" == claim["numbers"]["clear_of_std"]


def cells(**values: tuple[float, ...]) -> list[Statistic]:
    """Return cells with a row per method and a column per setting s0, s1, ...; the std is 1."""
    return [
        Statistic("p", "1", "d", "m", f"s{k}", "acc", method, value, 1.0)
        for method, row in values.items()
        for k, value in enumerate(row)
    ]


def holds(expr: dict, **values: tuple[float, ...]) -> bool | str | None:
    return judge({"paper": "p", "table": [1], "expr": expr}, cells(**values)).holds


AB = {"left": {"method": "a"}, "right": {"method": "b"}}


@pytest.mark.parametrize(
    ("expr", "verdict"),
    [
        ({"top": {"method": ["a"]}}, "partly"),
        ({"top": {"method": ["a"], "among": ["b"]}}, True),
        # Both are in the first two places: 3 > 1 and 2.5 > 2
        ({"top": {"method": ["a", "c"], "places": 2}}, True),
        ({"top": {"method": ["a", "b"], "places": 2}}, False),
        ({"top": {"method": ["b"], "lowest": True}}, True),
        ({"greater": AB}, True),
        # A difference of 1 is not above a margin of 1
        ({"greater": {**AB, "margin": 1.0}}, "partly"),
        ({"greater": {**AB, "margin": 1.0, "ties": True}}, True),
        ({"greater": {"left": {"method": "b"}, "right": {"method": "a"}}}, False),
        ({"greater": {"left": {"method": "b"}, "right": {"method": "a"}, "quantifier": "some"}}, False),
        ({"diff": {**AB, "is": [1, 2]}}, True),
        ({"diff": {**AB, "reduce": "max", "is": [2, 2], "at": {"setting": "s0"}}}, True),
        ({"diff": {**AB, "reduce": "max", "is": [2, 2], "at": {"setting": "s1"}}}, False),
        ({"diff": {**AB, "reduce": "mean", "is": [1.5, 1.5]}}, True),
        # The ratios are 3 / 1 and 3 / 2
        ({"ratio": {**AB, "is": [1.5, 3]}}, True),
        ({"value": {"of": {"method": "a", "stat": "value-std"}, "is": [2, 2]}}, True),
        ({"trend": {"of": {"method": "b"}, "along": {"setting": ["s0", "s1"]}, "direction": "up"}}, True),
        ({"trend": {"of": {"method": "a"}, "along": {"setting": ["s0", "s1"]}, "direction": "up"}}, False),
        ({"trend": {"of": {"method": "a"}, "along": {"setting": ["s0", "s1"]}, "direction": "up", "ties": True}}, True),
        ({"value": {"of": {"method": "a", "minus": {"method": "b"}}, "is": [2, 2]}}, "partly"),
        ({"value": {"of": {"method": ["a", "b"], "take": "mean"}, "is": [2, 2.5]}}, True),
        ({"greater": {**AB, "quantifier": "mixed"}}, False),
        # One of two is not most
        ({"greater": {"left": {"method": "a"}, "right": {"method": "c"}, "quantifier": "most"}}, "partly"),
    ],
)
def test_forms_by_hand(expr: dict, verdict: bool | str) -> None:
    """The numbers are a 3 3, b 1 2, c 4 2.5."""
    assert holds(expr, a=(3, 3), b=(1, 2), c=(4, 2.5)) == verdict


def test_zero_and_constant_sides_end_no_page() -> None:
    assert holds({"ratio": {**AB, "is": [1.5, 3]}}, a=(3.0, 3.0), b=(0.0, 2.0)) == "partly"
    x = {"method": "a"}
    assert (
        holds({"correlation": {"x": x, "y": {"method": "b"}, "sign": "positive"}}, a=(1.0, 2.0, 3.0), b=(5.0,) * 3)
        is False
    )


def test_a_correlation_needs_three_points() -> None:
    expr = {"correlation": {"x": {"method": "x"}, "y": {"method": "y"}, "sign": "positive"}}
    assert holds(expr, x=(1, 2), y=(1, 2)) is None
    assert holds(expr, x=(1, 2, 3), y=(1, 2, 9)) is True
    assert holds(expr, x=(1, 2, 3), y=(3, 2, 2)) is False


def test_a_claim_cannot_be_told_before_all_its_cells_are_there() -> None:
    claim = {"paper": "p", "table": [1], "expr": {"top": {"method": ["c"]}}, "where": {"setting": "s0"}}
    whole = cells(a=(3, 3), b=(1, 2), c=(4, 2.5))
    needed = needed_cells(claim, whole)
    assert {key[-1] for key in needed} == {"a", "b", "c"}
    assert judge(claim, whole, needed).holds is True
    lacking = [cell for cell in whole if (cell.method, cell.setting) != ("b", "s0")]
    ruling = judge(claim, lacking, needed)
    assert (ruling.holds, len(ruling.checks)) == (None, 1)
    elsewhere = [cell for cell in whole if (cell.method, cell.setting) != ("b", "s1")]
    assert judge(claim, elsewhere, needed).holds is True


def test_a_claim_about_several_settings_at_once_is_not_judged_in_some() -> None:
    def judged(expr: dict) -> bool:
        return by_setting({"expr": expr})

    along = {"of": {"method": "a"}, "direction": "up"}
    assert judged({"greater": AB})
    assert judged({"trend": {**along, "along": {"method": ["a", "b"]}}})
    assert not judged({"trend": {**along, "along": {"setting": ["s0", "s1"]}}})
    assert not judged({"correlation": {"x": {}, "y": {}, "sign": "positive"}})
    assert not judged({"diff": {**AB, "is": [0, 1], "reduce": "mean"}})
    assert not judged({"greater": {**AB, "quantifier": "some"}})


def test_a_comparison_is_clear_where_it_holds_by_more_than_both_stds_over_seeds() -> None:
    claim = {"paper": "p", "table": [1], "expr": {"greater": AB}}
    # Differences 1.5, 1, -1.5 and 4; the root of the sum of variances is 1.41
    apart = {"a": (10, 10, 10, 9), "b": (8.5, 9, 11.5, 5)}
    noisy = [cell._replace(std_over_seeds=1.0 if cell.setting != "s3" else None) for cell in cells(**apart)]
    assert [check.clear for check in judge(claim, noisy).checks] == [True, False, False, None]


@pytest.mark.parametrize(
    ("expr", "clear"),
    [
        # 2.5 is more than the noise of 1.41 and a margin of 1, but not than both with a margin of 1.2
        ({"greater": {**AB, "margin": 1.0}}, True),
        ({"greater": {**AB, "margin": 1.2}}, False),
        # The difference of a and b, 2.5 with a noise of 1.41, against c, 0.9 with a noise of 1: 1.6 with 1.73
        ({"greater": {"left": {"method": "a", "minus": {"method": "b"}}, "right": {"method": "c"}}}, False),
        # Whether the mean of several rows is another under other seeds is not known, even if it is as large as a row
        ({"greater": {"left": {"method": ["a", "b"], "take": "mean"}, "right": {"method": "c"}}}, None),
        ({"greater": {"left": {"method": ["a", "a"], "take": "mean"}, "right": {"method": "c"}}}, None),
    ],
)
def test_the_noise_of_a_comparison_is_that_of_all_its_numbers(expr: dict, clear: bool | None) -> None:
    noisy = [cell._replace(std_over_seeds=1.0) for cell in cells(a=(4.0,), b=(1.5,), c=(0.9,))]
    (check,) = judge({"paper": "p", "table": [1], "expr": expr}, noisy).checks
    assert check.holds
    assert check.clear is clear


def test_infinite_rounds_are_more_than_any() -> None:
    assert holds({"greater": AB}, a=(float("inf"),), b=(30,)) is True
    assert holds({"greater": AB}, a=(float("inf"),), b=(float("inf"),)) is False


def test_a_comparison_says_what_is_subtracted() -> None:
    """How far an attack moves a number reads otherwise as the number under attack."""
    moved = {"setting": ["s1"], "minus": {"setting": "s0"}, "abs": True}
    expr = {"greater": {"left": {"method": "a", **moved}, "right": {"method": "b", **moved}}}
    (check,) = judge({"paper": "p", "table": [1], "expr": expr}, cells(a=(4.0, 1.0), b=(4.0, 3.0))).checks
    assert check.said == "a - s0 vs b - s0 (d s1 acc): 3, 1"
