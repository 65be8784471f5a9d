"""Which point a slot of a search tries: known from the plan, or proposed from the results of a fixed set of slots.

`random`, and the first points of `tpe` and `hyperband`, are a scrambled Sobol sequence, which covers a space evenly
from its first points on. A proposal for slot k is made of the results of slots 0 to k - AHEAD and of nothing else. So
it is the same for any number of workers, whoever finishes first and whatever was killed, and AHEAD slots of a search
train at once.

Optuna's own QMCSampler does not serve: it draws its first point and all categories at random, and counts its points in
the database.
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
from pflsweep.sweep.search_space import Axis, Point, Space, distributions

FIRST = 8  # Sobol points of tpe; a power of two, as these balance the sequence
AHEAD = 4  # slots of a search that are proposed from the same results, and can train at once


def first_points(tune: Tune, space: Space, count: int, name: str) -> list[Point]:
    """Return the points of a search that are known before it begins; none for cmaes, which starts at the centre.

    count: how many points the search tries. name: of its method and setting, so that these get other points.
    """
    if tune.sampler == "cmaes":
        return []
    return sobol(space, min(count, FIRST) if tune.sampler == "tpe" else count, _seed(tune, name))


def sobol(space: Space, count: int, seed: int) -> list[Point]:
    """Return a scrambled Sobol sequence in a space. More points continue fewer."""
    import numpy as np
    from scipy.stats import qmc

    sequence = qmc.Sobol(len(space), scramble=True, rng=np.random.default_rng(seed))
    cube = sequence.random_base2(math.ceil(math.log2(count)))[:count]
    return [{key: _at(axis, float(u)) for (key, axis), u in zip(space.items(), row, strict=True)} for row in cube]


def _at(axis: Axis, u: float) -> Any:
    """Return an axis' value at a share of its range, each value of a grid and each whole number having the same."""
    kind = axis.distribution
    if isinstance(kind, CategoricalDistribution):
        return axis.grid[min(int(u * len(axis.grid)), len(axis.grid) - 1)]
    whole = isinstance(kind, IntDistribution)
    low, high = (kind.low - 0.5, kind.high + 0.5) if whole else (kind.low, kind.high)  # type: ignore[attr-defined]
    value = low * (high / low) ** u if axis.log else low + u * (high - low)
    value = round(value) if whole else axis.value(value)
    return min(max(value, kind.low), kind.high)  # type: ignore[attr-defined]  # rounding may have left the range


def results_needed(number: int) -> range:
    """Return the slots whose results a proposal for a slot is made of."""
    return range(number - AHEAD + 1)


def propose(tune: Tune, space: Space, name: str, trials: Sequence[FrozenTrial], number: int) -> dict[str, Any]:
    """Return the point of a search's slot, as Optuna keeps it.

    trials: those of the slots before it. The needed ones are settled; the others count as running, whatever they are.
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
            # a slot that nobody has claimed yet has no point: what it will be is known all the same
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
    """Return the state and value that samplers learn from. A point that diverged was as bad as one can be."""
    if trial.user_attrs.get("diverged"):
        return TrialState.COMPLETE, 0.0
    return trial.state, trial.value if trial.state == TrialState.COMPLETE else None


def _replayed(
    sampler: optuna.samplers.BaseSampler, space: Space, trials: Sequence[FrozenTrial], number: int
) -> dict[str, Any]:
    """Return the proposal of a sampler that has a state of its own, by asking it for all slots from the first on.

    A point that was tried again after others had been proposed may have changed what follows: where a trial has another
    point than the sampler proposes now, its result is left out.
    """
    study = optuna.create_study(direction="maximize", sampler=sampler)
    asked: list[optuna.Trial] = []
    for k in range(number + 1):
        for done in results_needed(k)[-1:]:
            _tell(study, asked[done], trials[done])
        asked.append(study.ask(distributions(space)))
    return asked[number].params


def _tell(study: optuna.Study, asked: optuna.Trial, trial: FrozenTrial) -> None:
    state, value = _outcome(trial)
    if asked.params != trial.params:
        state, value = TrialState.FAIL, None
    for step, reported in trial.intermediate_values.items():
        asked.report(reported, step)
    study.tell(asked, value, state=state)


def _seed(tune: Tune, *parts: Any) -> int:
    """Return 32 bits of the sweep's tune.seed and of what else tells draws apart."""
    text = "\n".join(map(str, (tune.seed, *parts)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big")


def pruner(tune: Tune) -> optuna.pruners.BasePruner:
    kinds: dict[str, type[optuna.pruners.BasePruner]] = {
        "median": optuna.pruners.MedianPruner,
        "halving": optuna.pruners.SuccessiveHalvingPruner,
    }
    return kinds.get(tune.prune, optuna.pruners.NopPruner)()
