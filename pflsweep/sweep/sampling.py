"""Choose the point of each slot of a search: known beforehand, or proposed from the results of a fixed set of slots.

The points of `random`, and the first ones of `tpe` and `hyperband`, are a scrambled Sobol sequence, which covers a
space evenly from its first points on. A proposal for slot k depends on the results of slots 0 to k - AHEAD and on
nothing else. So it is the same for any number of workers, in whatever order trials finish or are killed, and AHEAD
slots of a search can train at once.

Optuna's QMCSampler is not used: it draws its first point and all categories at random, and counts its points in the
database.
"""

import hashlib
import math
import warnings
from collections.abc import Sequence
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from pflsweep.config.options import Tune
from pflsweep.sweep import attributes
from pflsweep.sweep.search_space import Axis, Point, Space, distributions

FIRST = 8  # Sobol points before TPE proposes; a power of two, since a Sobol sequence is balanced at those
AHEAD = 4  # slots of a search that are proposed from the same results, and can train at once


def first_points(tune: Tune, space: Space, count: int, name: str) -> list[Point]:
    """Return the points of a search that are known before it begins; none for cmaes.

    count: number of points of the search. name: method and setting, so that each group gets other points.
    """
    if tune.sampler == "cmaes":
        return []
    return sobol(space, min(count, FIRST) if tune.sampler == "tpe" else count, _seed(tune, name))


def sobol(space: Space, count: int, seed: int) -> list[Point]:
    """Return the first `count` points of a scrambled Sobol sequence in a space."""
    import numpy as np
    from scipy.stats import qmc

    sequence = qmc.Sobol(len(space), scramble=True, rng=np.random.default_rng(seed))
    cube = sequence.random_base2(math.ceil(math.log2(count)))[:count]
    return [{key: _at(axis, float(u)) for (key, axis), u in zip(space.items(), row, strict=True)} for row in cube]


def _at(axis: Axis, u: float) -> Any:
    """Map u in [0, 1) to a value of an axis. Each value of a grid gets an equal share, and so does each whole number
    unless the axis is logarithmic.
    """
    kind = axis.distribution
    if isinstance(kind, CategoricalDistribution):
        return axis.grid[min(int(u * len(axis.grid)), len(axis.grid) - 1)]
    whole = isinstance(kind, IntDistribution)
    low, high = (kind.low - 0.5, kind.high + 0.5) if whole else (kind.low, kind.high)  # type: ignore[attr-defined]
    value = low * (high / low) ** u if axis.log else low + u * (high - low)
    value = round(value) if whole else axis.value(value)
    # Rounding may have left the range
    return min(max(value, kind.low), kind.high)  # type: ignore[attr-defined]


def results_needed(number: int) -> range:
    """Return the slots on whose results the proposal for a slot depends."""
    return range(number - AHEAD + 1)


def propose(tune: Tune, space: Space, name: str, trials: Sequence[FrozenTrial], number: int) -> dict[str, Any]:
    """Propose the point of a search's slot, as Optuna's params.

    trials: of the earlier slots. Those in `results_needed` are settled; the others count as running in any state.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # constant_liar is experimental in Optuna 4
        if tune.sampler == "cmaes":
            return _replayed(optuna.samplers.CmaEsSampler(seed=_seed(tune, name)), space, trials, number)
        sampler = optuna.samplers.TPESampler(
            seed=_seed(tune, name, number), n_startup_trials=1, multivariate=True, constant_liar=True
        )
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for k, trial in enumerate(trials[:number]):
            # A slot that nobody has leased yet has no params, but its proposal can be computed
            params = trial.params if trial.params.keys() == space.keys() else propose(tune, space, name, trials, k)
            state, value = _outcome(trial) if k in results_needed(number) else (TrialState.RUNNING, None)
            steps = trial.intermediate_values if state == TrialState.PRUNED else {}
            study.add_trial(
                create_trial(
                    state=state,
                    value=value,
                    params=params,
                    distributions=distributions(space),
                    intermediate_values=steps,
                )
            )
        return study.ask(distributions(space)).params


def _outcome(trial: FrozenTrial) -> tuple[TrialState, float | None]:
    """Return the state and value that samplers learn from. A point that diverged counts as accuracy 0."""
    if trial.user_attrs.get(attributes.DIVERGED):
        return TrialState.COMPLETE, 0.0
    return trial.state, trial.value if trial.state == TrialState.COMPLETE else None


def _replayed(
    sampler: optuna.samplers.BaseSampler, space: Space, trials: Sequence[FrozenTrial], number: int
) -> dict[str, Any]:
    """Return the proposal of a sampler with a state of its own, by asking it for all slots from the first on.

    Where a trial has another point than the sampler proposes now, its result is left out. That happens after a point
    was tried again with another result, when later points had been proposed already.
    """
    study = optuna.create_study(direction="maximize", sampler=sampler)
    asked: list[optuna.Trial] = []
    for k in range(number + 1):
        for done in results_needed(k)[-1:]:
            _report(study, asked[done], trials[done])
        asked.append(study.ask(distributions(space)))
    return asked[number].params


def _report(study: optuna.Study, asked: optuna.Trial, trial: FrozenTrial) -> None:
    """Tell a study the outcome of a trial, or a failure where the trial's point is not the one asked for."""
    state, value = _outcome(trial)
    if asked.params != trial.params:
        state, value = TrialState.FAIL, None
    for step, reported in trial.intermediate_values.items():
        asked.report(reported, step)
    study.tell(asked, value, state=state)


def _seed(tune: Tune, *parts: Any) -> int:
    """Return a seed of 32 bits, a hash of tune.seed and of `parts`, which tell draws apart."""
    text = "\n".join(map(str, (tune.seed, *parts)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big")


def pruner(tune: Tune) -> optuna.pruners.BasePruner:
    """Return the pruner that tune.prune names."""
    kinds: dict[str, type[optuna.pruners.BasePruner]] = {
        "median": optuna.pruners.MedianPruner,
        "halving": optuna.pruners.SuccessiveHalvingPruner,
    }
    return kinds.get(tune.prune, optuna.pruners.NopPruner)()
