"""FedFomo as three code bases compute it, compared with their descriptions written out client by client."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from pflsweep.algorithms.as_run.pfedplat_fedfomo import PfedplatFedFomo
from pflsweep.algorithms.as_run.pfllib_fedfomo import PfllibFedFomo
from pflsweep.algorithms.as_run.pgfed_fedfomo import PgfedFedFomo
from pflsweep.data.loader import ClientData
from pflsweep.util.errors import UserError
from tests.algorithms.as_run.written_out import BATCH, LR, NAMES, TASK, W0, answers, entropy, joined, moved, named
from tests.algorithms.helpers import EVERYBODY, FEDERATION, Run, close, simulate

HELD = 0.3
CHOICE = {"epsilon": 0.0, "decay": 0.0, "validation": HELD}


def data_of(client: int, round: int) -> ClientData:
    return ClientData.of(FEDERATION, [client], round, batch=BATCH, large=16)


def risk(w: Tensor, data: ClientData) -> float:
    """Return the mean cross-entropy on all training rows of a handle."""
    x, y = FEDERATION.gather(torch.from_numpy(data._chunk.rows["train"][0]))
    return float(entropy(answers(named(w), x), y))


def trained(w: Tensor, data: ClientData, lr: float = LR) -> Tensor:
    parameters = named(w)
    for batch in data.train(2):
        x, y = batch.x[0], batch.y[0]
        parameters = moved(parameters, lambda p, x=x, y=y: entropy(answers(p, x), y), NAMES, lr)
    return joined(parameters)


class Written(NamedTuple):
    models: list[Tensor]
    p: Tensor
    kept: int  # turns in which no candidate has a gain
    own: int  # candidates that were the client's own


def last_cohorts(run: Run, normalise: bool) -> Written:
    """Run FedFomo as in PFLlib, with all models of the last cohort sent; pgfed: normalised weights are added to P."""
    old, model, p = [W0] * EVERYBODY, [W0] * EVERYBODY, torch.eye(EVERYBODY, dtype=W0.dtype)
    uploaded: list[int] = []
    kept = own = 0
    for result in run.results:
        sent = {j: model[j] for j in uploaded}
        uploaded = result.ids.tolist()
        for i in uploaded:
            rest, validation = data_of(i, result.round).holdout(HELD)
            raw = {}
            for j, w in sent.items():
                raw[j] = (risk(old[i], validation) - risk(w, validation)) / (float((w - old[i]).norm()) + 1e-5)
            total = sum(max(gain, 0) for gain in raw.values())
            for j, gain in raw.items():
                if normalise:
                    gain = max(gain, 0) / total if total else 0
                p[i, j] += gain
            own += i in sent
            kept += bool(sent) and not total
            if total:
                old[i] = sum(max(gain, 0) / total * sent[j] for j, gain in raw.items())
            else:
                old[i] = model[i]
            model[i] = trained(old[i], rest)
    return Written(model, p, kept, own)


@pytest.mark.parametrize("cls", [PfllibFedFomo, PgfedFedFomo])
@pytest.mark.parametrize("chunk", [1, EVERYBODY])
def test_the_last_cohort_is_mixed_and_trained_models_are_scored(cls: type, chunk: int) -> None:
    # More models than clients: the last cohort's are all that can be sent
    run = simulate(cls, {**CHOICE, "models": EVERYBODY + 2}, rounds=8, participation=0.6, chunk=chunk)
    written = last_cohorts(run, normalise=cls is PgfedFedFomo)
    assert written.kept, "some client is without a gain"
    assert written.own, "some client's own model is among those that it was sent"
    close(run.personal, torch.stack(written.models))
    close(run.server.p, written.p)


def test_the_candidates_are_the_best_of_the_last_cohort() -> None:
    run = simulate(PfllibFedFomo, {**CHOICE, "models": 2}, rounds=6, participation=0.6)
    last = run.results[-1].ids
    ids = run.method.send(run.server, run.simulation._turn(torch.arange(EVERYBODY))).ids
    assert ids.shape == (EVERYBODY, 2)
    for i, got in enumerate(ids.tolist()):
        assert set(got) <= set(last.tolist())
        best = run.server.p[i, last].sort(descending=True).values[:2]
        assert torch.equal(run.server.p[i, got].sort(descending=True).values, best)
    assert any(i in got for i, got in enumerate(ids.tolist())), "its own model travels"


def present_cohorts(run: Run, every: int) -> tuple[list[Tensor], Tensor]:
    """Run FedFomo as in pfedplat. Return personal models and the global one."""
    model, base = [W0] * EVERYBODY, W0
    for result in run.results:
        if (result.round - 1) % every:
            continue
        ids = result.ids.tolist()
        cohort = {j: model[j] for j in ids}
        for i in ids:
            data = data_of(i, result.round)
            raw = {
                j: max((risk(base, data) - risk(w, data)) / (float((w - base).norm()) + 1e-6), 0)
                for j, w in cohort.items()
            }
            total = sum(raw.values())
            mix = sum(gain / total * cohort[j] for j, gain in raw.items()) if total else cohort[i]
            model[i] = trained(mix, data, result.lr)
        base = torch.stack(list(cohort.values())).mean(0)
    return model, base


@pytest.mark.parametrize("chunk", [1, EVERYBODY])
@pytest.mark.parametrize(("every", "rounds"), [(1, 5), (None, 8)])
def test_the_present_cohort_is_mixed_and_downloads_count_as_rounds(chunk: int, every: int | None, rounds: int) -> None:
    """Of M = 3 rounds one takes place, the 1st, 4th and 7th, at the learning rate of the rounds counted."""
    run = simulate(PfedplatFedFomo, {"every": every}, rounds=rounds, participation=0.6, lr_decay=0.9, chunk=chunk)
    models, base = present_cohorts(run, every or 3)
    close(run.personal, torch.stack(models))
    close(run.w, base)
    idle = [result.round for result in run.results if not result.images]
    assert idle == ([] if every == 1 else [2, 3, 5, 6, 8])
    traffic = {(r.traffic.floats_down, r.traffic.floats_up) for r in run.results}
    assert traffic == {(4 * TASK.size, TASK.size)} | (set() if every == 1 else {(0, 0)})


def test_momentum_is_refused() -> None:
    with pytest.raises(UserError, match=r"train.momentum is 0.9.*plain SGD"):
        simulate(PfedplatFedFomo, {"every": 1}, momentum=0.9)


@pytest.mark.parametrize(
    ("cls", "values"),
    [
        (PfllibFedFomo, {**CHOICE, "models": 3}),
        (PgfedFedFomo, {**CHOICE, "models": 3}),
        (PfedplatFedFomo, {"every": 1}),
    ],
)
def test_personal_models_are_stale_and_never_trained_ones_initial(cls: type, values: dict[str, Any]) -> None:
    before, after = (simulate(cls, values, rounds=count, participation=0.4) for count in (2, 3))
    last = set(after.results[-1].ids.tolist())
    assert len(last) < EVERYBODY
    for i in range(EVERYBODY):
        if i not in last:
            assert torch.equal(after.personal[i], before.personal[i])
        if all(i not in result.ids.tolist() for result in after.results):
            assert torch.equal(after.personal[i], W0)
