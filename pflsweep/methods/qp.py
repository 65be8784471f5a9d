"""Small quadratic programs on Gram matrices, in float64: minimum norm on a simplex, and projection onto a cone."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

SLICE = 1 << 20  # parameters that are converted to float64 at a time
BOUND = 1e-8  # a weight of ProxQP's that is this near to its bound is taken to lie on it
ROUNDING = 1e-14  # a slope this small relative to the sum of its terms' sizes is zero up to rounding


def gram(rows: Tensor) -> Tensor:
    """Return the inner products [n, n] of rows [n, P], in float64."""
    return sum((part @ part.T for part in _doubles(rows)), rows.new_zeros((), dtype=torch.float64))


def combined(weight: Tensor, rows: Tensor) -> Tensor:
    """Return weight [..., n] float64 @ rows [n, P], summed in float64 and converted to the type of the rows."""
    return torch.cat([(weight @ part).to(rows.dtype) for part in _doubles(rows)], -1)


def lengths(inner: Tensor) -> Tensor:
    """Return the lengths |c_i| [n] of vectors from their inner products [n, n]."""
    return inner.diagonal().clamp(min=0).sqrt()


def min_norm(gram: Tensor, low: Tensor | float = 0.0, high: Tensor | float = 1.0) -> Tensor:
    """Return the weights x [n] of the shortest sum_i x_i c_i: argmin x^T C^T C x with low <= x <= high, sum(x) = 1.

    gram: C^T C [n, n]. The result is float64 on gram's device, and NaN if gram is not finite (a model has diverged).
    Raises ValueError if no x satisfies the constraints.
    """
    h = _array(gram)
    if not np.isfinite(h).all():
        return torch.full_like(gram[0], torch.nan, dtype=torch.float64)
    lower, upper = (_array(torch.as_tensor(bound, dtype=torch.float64)) * np.ones(len(h)) for bound in (low, high))
    if (lower > upper).any() or not lower.sum() - 1e-9 <= 1 <= upper.sum() + 1e-9:
        raise ValueError(f"no weights lie within their bounds {lower} and {upper}")
    h = h / (h.diagonal().mean() or 1.0)
    # Scale the columns to about one length, so that a very short one is not lost in rounding. The factors are powers of
    # two, which are exact: columns of about the same length keep every bit.
    scale = np.exp2(-np.round(np.log2(h.diagonal(), out=np.zeros(len(h)), where=h.diagonal() > 0) / 2))
    h = scale[:, None] * h * scale
    x = scale * _solved(h, np.zeros(len(h)), lower / scale, upper / scale, scale[None], np.ones(1))
    return torch.from_numpy(x / x.sum()).to(gram.device)


def nonnegative(gram: Tensor, inner: Tensor) -> Tensor:
    """Return argmin_{x >= 0} |g + sum_i x_i c_i|^2 (non-negative least squares), float64 on gram's device.

    gram: C^T C [n, n]. inner: C^T g [n].
    """
    h, f = _array(gram), _array(inner)
    lengths = np.sqrt(h.diagonal())
    # Columns and g are scaled to length 1, since the solver's tolerances are absolute.
    unit = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    f = unit * f
    size = np.abs(f).max(initial=0.0)
    if not size:
        return torch.zeros_like(inner, dtype=torch.float64)
    x = _solved(unit[:, None] * h * unit, f / size, np.zeros(len(h)), np.full(len(h), np.inf), None, None)
    return torch.from_numpy(x * unit * size).to(gram.device)


def _solved(
    h: np.ndarray, f: np.ndarray, low: np.ndarray, high: np.ndarray, sums: np.ndarray | None, totals: np.ndarray | None
) -> np.ndarray:
    """Return argmin 1/2 x^T h x + f^T x within the bounds and with sums x = totals, exact up to rounding.

    sums: [1, n] and positive, or None. ProxQP (Bambade, El-Kazdadi, Taylor, Carpentier, RSS 2022), which accepts a
    singular h, finds which weights lie on their bounds; the active-set method finishes from there. Without ProxQP's
    start it takes 20 to 50 times as long for n = 100.
    """
    # Imported here, since few methods need it.
    from proxsuite import proxqp

    result = proxqp.dense.solve(
        h, f, sums, totals, np.eye(len(h)), low, high, eps_abs=1e-12, eps_rel=0.0, max_iter=10_000
    )
    return _finished(np.clip(result.x, low, high), h, f, low, high, sums, totals)


def _finished(
    x: np.ndarray, h: np.ndarray, f: np.ndarray, low: np.ndarray, high: np.ndarray, sums: np.ndarray | None,
    totals: np.ndarray | None,
) -> np.ndarray:  # fmt: skip
    """Return the optimum by the primal active-set method (Nocedal and Wright, Algorithm 16.3) from a start near it.

    The result does not depend on the start. This matters because the last digits of ProxQP's depend on the alignment of
    its memory, and the same seed has to give the same numbers.
    """
    inside = np.minimum(x - low, high - x)
    free = inside > BOUND * np.minimum(high - low, 1)
    y = np.where(free, x, np.where(x - low < high - x, low, high))
    best, least = y, np.inf
    while True:
        price = 0.0
        while free.any() or (free := _missing(y, low, high, sums, totals)).any():
            target, price = _stationary(y, free, h, f, sums, totals)
            step = target - y[free]
            edge = np.where(step < 0, low[free], high[free])
            beyond = (target < low[free]) | (target > high[free])
            if not beyond.any():
                y[free] = target
                break
            # Move to the first bound on the way and fix that weight there. Weights are fixed one at a time: of several
            # that are out of range, some return into it as soon as the first is fixed.
            room = np.divide(edge - y[free], step, out=np.full(len(step), np.inf), where=beyond)
            first = room.argmin()
            y[free] += room[first] * step
            y[np.flatnonzero(free)[first]] = edge[first]
            free[np.flatnonzero(free)[first]] = False
        # The objective falls from round to round. Where it does not, only rounding is left to gain.
        value = y @ h @ y / 2 + f @ y
        if not value < least:
            return best
        best, least, free = y.copy(), value, (y > low) & (y < high)
        released = _released(y, free, h, f, low, high, sums, price)
        if not len(released):
            return best
        free[released] = True


def _missing(
    y: np.ndarray, low: np.ndarray, high: np.ndarray, sums: np.ndarray | None, totals: np.ndarray | None
) -> np.ndarray:
    """Return which weights [n] may move towards the sum where all lie on bounds and do not add up to it; else none."""
    if sums is None or totals is None:
        return np.zeros(len(y), dtype=bool)
    short = float((totals - sums @ y)[0])
    if abs(short) <= ROUNDING * float((sums @ np.abs(y))[0]):
        return np.zeros(len(y), dtype=bool)
    return y < high if short > 0 else y > low


def _stationary(
    y: np.ndarray, free: np.ndarray, h: np.ndarray, f: np.ndarray, sums: np.ndarray | None, totals: np.ndarray | None
) -> tuple[np.ndarray, float]:
    """Return the optimum in the free weights alone, bounds aside, and the multiplier of the sum (0 without one)."""
    a, rest = np.zeros((0, free.sum())), -f[free] - h[free][:, ~free] @ y[~free]
    size = 1.0
    if sums is not None and totals is not None:
        size = sums[0, free].max()  # scales the row of the sum to the size of those of h
        a, rest = sums[:, free] / size, np.concatenate([rest, (totals - sums[:, ~free] @ y[~free]) / size])
    kkt = np.block([[h[free][:, free], a.T], [a, np.zeros((len(a), len(a)))]])
    solution = np.linalg.lstsq(kkt, rest, rcond=None)[0]
    return solution[: free.sum()], -float(solution[free.sum() :].sum()) / size


def _released(
    y: np.ndarray, free: np.ndarray, h: np.ndarray, f: np.ndarray, low: np.ndarray, high: np.ndarray,
    sums: np.ndarray | None, price: float,
) -> np.ndarray:  # fmt: skip
    """Return which weights to take off their bounds, because that lowers the objective most steeply; maybe none."""
    slope, terms = h @ y + f, np.abs(h) @ np.abs(y) + np.abs(f)
    if sums is not None and not free.any():
        # Without a free weight the multiplier of the sum is unknown: so one weight rises and another falls by as much.
        slope, terms = slope / sums[0], terms / sums[0]
        rise, fall = np.where(y < high, slope, np.inf).argmin(), np.where(y > low, slope, -np.inf).argmax()
        gain = slope[fall] - slope[rise] if y[rise] < high[rise] and y[fall] > low[fall] else 0.0
        return np.array([rise, fall][: 2 * bool(gain > ROUNDING * (terms[rise] + terms[fall]))], dtype=int)
    if sums is not None:
        slope = slope - price * sums[0]
    gain = np.where(y < high, -slope, 0).clip(min=0) + np.where(y > low, slope, 0).clip(min=0)
    gain[free | (gain <= ROUNDING * terms)] = 0
    return np.array([gain.argmax()][: bool(gain.any())], dtype=int)


def _doubles(rows: Tensor) -> Iterator[Tensor]:
    """Return the columns of rows [n, P] in float64, SLICE at a time: a copy of all would take too much memory."""
    return (part.double() for part in rows.split(SLICE, 1))


def _array(value: Tensor) -> np.ndarray:
    return value.detach().double().cpu().numpy()
