"""Quadratic programs: optimality is checked by its conditions, and on small problems by rational arithmetic."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch

from pflsweep.methods.qp import _finished, min_norm, nonnegative


def columns(seed: int, n: int, d: int) -> torch.Tensor:
    """Return conflicting, parallel and duplicate columns [d, n], on scales that networks have."""
    rng = np.random.default_rng(seed)
    c = torch.from_numpy(rng.normal(size=(d, n)) + 0.3 * rng.normal(size=(d, 1)))
    if n > 3:
        c[:, 1], c[:, 2] = c[:, 0], -c[:, 3]
    return c * 10.0 ** rng.integers(-6, 3)


@pytest.mark.parametrize("n", [1, 2, 5, 40])
@pytest.mark.parametrize("d", [3, 200])
@pytest.mark.parametrize("seed", range(4))
def test_min_norm(n: int, d: int, seed: int) -> None:
    """At the optimum c_i . v >= |v|^2 for all i, with equality where x_i > 0."""
    c = columns(seed, n, d)
    x = min_norm(c.T @ c)
    v = c @ x
    slack = (c.T @ v - v @ v) / (c * c).sum(0).mean()
    assert x.sum().item() == pytest.approx(1, abs=1e-12)
    assert bool((x >= 0).all())
    assert slack.min() >= -1e-9
    assert slack[x > 1e-6].abs().max() <= 1e-9


def test_min_norm_within_bounds() -> None:
    """Unbounded, only the shorter of two orthogonal columns' weights 0.8 and 0.2 would do."""
    gram = torch.diag(torch.tensor([1.0, 4.0]))
    torch.testing.assert_close(min_norm(gram), torch.tensor([0.8, 0.2], dtype=torch.float64), rtol=0, atol=1e-10)
    narrow = min_norm(gram, torch.tensor([0.4, 0.4]), torch.tensor([0.6, 0.6]))
    torch.testing.assert_close(narrow, torch.tensor([0.6, 0.4], dtype=torch.float64), rtol=0, atol=1e-7)
    point = torch.tensor([0.3, 0.7], dtype=torch.float64)
    torch.testing.assert_close(min_norm(gram, point, point), point, rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="no weights"):
        min_norm(gram, 0.0, 0.4)


@pytest.mark.parametrize("n", [1, 4, 30])
@pytest.mark.parametrize("d", [3, 200])
@pytest.mark.parametrize("seed", range(4))
def test_nonnegative(n: int, d: int, seed: int) -> None:
    """The residual r = g + Cx has c_i . r >= 0, with equality where x_i > 0: -r is -g without what conflicts."""
    c, g = columns(seed, n, d), torch.from_numpy(np.random.default_rng(99).normal(size=d))
    x = nonnegative(c.T @ c, c.T @ g)
    r = g + c @ x
    slack = c.T @ r / (c.norm(dim=0) * g.norm())
    assert bool((x >= 0).all())
    assert slack.min() >= -1e-10
    assert abs(float((g + c @ x) @ (c @ x))) <= 1e-10 * float(g @ g)


def test_nothing_is_solved_at_once() -> None:
    assert nonnegative(torch.zeros(0, 0), torch.zeros(0)).shape == (0,)
    assert min_norm(torch.zeros(3, 3)).sum().item() == pytest.approx(1)


@pytest.mark.parametrize("d", [3, 200])
def test_the_same_problem_has_the_same_bits(d: int) -> None:
    """Where memory lies must not matter: ProxQP alone gives two answers to these problems."""
    c, draw = columns(0, 12, d), np.random.default_rng(0)
    gram, inner = c.T @ c, c.T @ torch.from_numpy(np.random.default_rng(9).normal(size=d))
    shifted, seen = [], set()
    for _ in range(50):
        shifted.append((np.empty(draw.integers(1, 60)), bytearray(int(draw.integers(1, 500)))))
        seen.add((min_norm(gram).numpy().tobytes(), nonnegative(gram, inner).numpy().tobytes()))
    assert len(seen) == 1


def test_a_diverged_model_gives_nan_at_once() -> None:
    gram = torch.eye(4, dtype=torch.float64)
    gram[1, 2] = torch.nan
    assert min_norm(gram).isnan().all()


@pytest.mark.parametrize("seed", range(20))
def test_any_start_ends_in_the_same_weights(seed: int) -> None:
    """Starts include weights that do not sum to 1, since ProxQP may give up before they do."""
    rng, n = np.random.default_rng(seed), 12
    c = rng.normal(size=(30, n)) * 10.0 ** rng.integers(-2, 1, size=n)
    low, high = np.full(n, 0.02), np.full(n, 0.3)
    ends = [
        _finished(np.clip(start, low, high), c.T @ c, np.zeros(n), low, high, np.ones((1, n)), np.ones(1))
        for start in (low, high, np.full(n, 1 / n), rng.uniform(size=n), rng.uniform(size=n) < 0.5)
    ]
    assert ends[0].sum() == pytest.approx(1, abs=1e-14)
    assert (np.ptp(ends, axis=0) <= 1e-12).all()


def whole_columns(seed: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Return columns [d, n] and a vector [d] of whole numbers below 2^24: their inner products are exact in float64."""
    rng = np.random.default_rng([seed, len(kind)])
    n, d = int(rng.integers(1, 5)), int(rng.integers(2, 8))
    c = rng.integers(-9, 10, size=(d, n)) + rng.integers(-3, 4, size=(d, 1))
    if kind == "of all lengths":
        c = c * 10 ** rng.integers(0, 7, size=n)
    elif kind == "one is short":
        c = c * np.where(np.arange(n) == rng.integers(n), 1, 10**6)
    elif kind == "doubled and opposed" and n > 2:
        c[:, 0], c[:, 2] = c[:, 1], -c[:, 1]
    return c, rng.integers(-9, 10, size=d) * 10 ** int(rng.integers(0, 7))


def exact(c: np.ndarray, g: np.ndarray, low: Fraction, high: Fraction | None, total: int | None) -> list[Fraction]:
    """Return argmin |g + C x|^2 with low <= x <= high and sum(x) = total (None: any) in rational numbers.

    Each choice of the weights that lie on a bound is tried, until one fulfils the KKT conditions.
    """
    n = c.shape[1]
    h = [[Fraction(int(v)) for v in row] for row in c.T @ c]
    f = [Fraction(int(v)) for v in c.T @ g]
    bounds = [None, low] if high is None else [None, low, high]
    for held in product(bounds, repeat=n):
        x = [Fraction(0) if bound is None else bound for bound in held]
        free = [i for i in range(n) if held[i] is None]
        rows = [[h[i][j] for j in free] for i in free]
        rest = [-f[i] - sum(h[i][j] * x[j] for j in range(n)) for i in free]
        if total is not None:
            rows = [[*row, Fraction(1)] for row in rows] + [[Fraction(1)] * len(free) + [Fraction(0)]]
            rest = [*rest, total - sum(x)]
        solution = eliminated(rows, rest)
        if solution is None:
            continue
        for i, value in zip(free, solution, strict=False):
            x[i] = value
        slope = [f[i] + sum(h[i][j] * x[j] for j in range(n)) for i in range(n)]
        may_fall = [slope[i] for i in range(n) if x[i] > low] + [Fraction(0)] * (total is None)
        may_rise = [slope[i] for i in range(n) if high is None or x[i] < high] + [Fraction(0)] * (total is None)
        allowed = all(low <= v and (high is None or v <= high) for v in x) and total in (None, sum(x))
        if allowed and (not may_fall or not may_rise or max(may_fall) <= min(may_rise)):
            return x
    raise AssertionError("no choice fulfils the KKT conditions")


def eliminated(rows: list[list[Fraction]], rest: list[Fraction]) -> list[Fraction] | None:
    """Solve a square system by elimination. Return None where it is singular."""
    system = [[*row, value] for row, value in zip(rows, rest, strict=True)]
    for k in range(len(system)):
        pivot = next((r for r in range(k, len(system)) if system[r][k]), None)
        if pivot is None:
            return None
        system[k], system[pivot] = system[pivot], system[k]
        system[k] = [value / system[k][k] for value in system[k]]
        for r, row in enumerate(system):
            if r != k and row[k]:
                system[r] = [a - row[k] * b for a, b in zip(row, system[k], strict=True)]
    return [row[-1] for row in system]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["random", "of all lengths", "one is short", "doubled and opposed"])
def test_rational_arithmetic_gives_the_same(kind: str) -> None:
    """3 problems of each of 84 seeds and 4 kinds: x to 1e-10 where it is the only one, the vector C x always.

    Both are relative: a vector to the longest x_i c_i (to g, where there is one), and so are weights without a sum.
    """
    for seed in range(84):
        c, g = whole_columns(seed, kind)
        n = c.shape[1]
        columns, vector = torch.from_numpy(c).double(), torch.from_numpy(g).double()
        gram, inner, length = columns.T @ columns, columns.T @ vector, columns.norm(dim=0)
        only = eliminated([[Fraction(int(v)) for v in row] for row in c.T @ c], [Fraction(0)] * n) is not None
        low, high = Fraction(1, 2 * n), Fraction(3, 2 * n)
        bounds = (torch.full((n,), float(bound), dtype=torch.float64) for bound in (low, high))
        for x, wanted in (
            (min_norm(gram), exact(c, 0 * g, Fraction(0), None, 1)),
            (min_norm(gram, *bounds), exact(c, 0 * g, low, high, 1)),
        ):
            apart = x - torch.tensor([float(v) for v in wanted], dtype=torch.float64)
            assert (columns @ apart).norm() <= 1e-10 * (x * length).max(), (kind, seed)
            assert not only or apart.abs().max() <= 1e-10, (kind, seed)
        x, wanted = nonnegative(gram, inner), exact(c, g, Fraction(0), None, None)
        apart = x - torch.tensor([float(v) for v in wanted], dtype=torch.float64)
        assert (columns @ apart).norm() <= 1e-10 * vector.norm(), (kind, seed)
        assert not only or (apart * length).abs().max() <= 1e-10 * vector.norm(), (kind, seed)
