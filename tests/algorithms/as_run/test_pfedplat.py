"""The variants of FedPG's platform, compared with numbers worked out by hand or with the description written out."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from pflsweep.algorithms.as_run.pfedplat_apfl import PfedplatAPFL
from pflsweep.algorithms.as_run.pfedplat_ditto import PfedplatDitto
from pflsweep.algorithms.as_run.pfedplat_fedrep import PfedplatFedRep
from pflsweep.algorithms.as_run.pfedplat_fedrod import PfedplatFedRoD
from pflsweep.algorithms.as_run.pfedplat_splitgp import PfedplatSplitGP
from pflsweep.util.errors import UserError
from tests.algorithms.as_run.written_out import (
    BIAS,
    NAMES,
    SHARE,
    TASK,
    W0,
    WEIGHT,
    answers,
    batches,
    entropy,
    joined,
    model,
    moved,
    named,
    rounds,
)
from tests.algorithms.helpers import (
    CLASSES,
    EVERYBODY,
    FEDERATION,
    ONE_AND_TWO,
    STILL,
    Run,
    by_hand,
    close,
    simulate,
)

HAND: dict[str, Any] = {"epochs": 1, "batch": 1, "lr": 0.5, "weights": "uniform"}


@pytest.mark.parametrize("chunk", [1, 2])
def test_ditto_by_hand(chunk: int) -> None:
    """f = 1/2 (w - m)^2 with m = 4 for A, -4 for B; lr 0.5, lambda 0.5, from w = 0.

    A: g = -4; w = 2; w = 2 - 0.5 (-4 + 0.5 * 2) = 3.5
    B: g = 4; w = -2; w = -2 - 0.5 (4 - 0.5 * 2) = -3.5; g = 0.5; w = -3.75;
       w = -3.75 - 0.5 (0.5 - 0.5 * 3.75) = -3.0625
    server: 0 + 3.5 / 2 = 1.75; 1.75 + (-3.0625 - 1.75) / 2 = -0.65625
    """
    run = simulate(
        PfedplatDitto, {"lam": 0.5}, rounds=1, federation=by_hand(ONE_AND_TWO), network=STILL, chunk=chunk, **HAND
    )
    close(run.personal, [[3.5, 7], [-3.0625, 7]])
    close(run.w, [-0.65625, 7])


def test_dittos_server_goes_a_tenth_of_the_way_for_each_of_ten() -> None:
    """With N = 5 and one client online, the server goes a fifth of the way to it."""
    run = simulate(PfedplatDitto, {"lam": 0.1}, rounds=1, participation=0.2)
    (i,) = run.results[0].ids.tolist()
    close(run.w, W0 + (run.personal[i] - W0) / EVERYBODY)


@pytest.mark.parametrize("chunk", [1, 2])
def test_apfl_by_hand(chunk: int) -> None:
    """f as above, alpha = 0.25 at first. In round 1 v and w go together, so that alpha loses 0.5 * 0.02 alpha a batch.

    Round 1  A: w = v = 2, alpha = 0.2475         B: w = v = -2, then -3; alpha = 0.2475, then 0.245025
             server: -0.5
    Round 2  A: w = -0.5, v = 2: gradients -4.5 and -2; w = 1.75, v = 3; v = 0.2475 * 3 + 0.7525 * 1.75 = 2.059375;
                slope (2.059375 - 1.75) (0.2475 * -2 + 0.7525 * -4.5) + 0.02 * 0.2475 = -1.19581171875;
                alpha = 0.2475 + 0.597905859375 = 0.845405859375
    """
    run = simulate(
        PfedplatAPFL, {"alpha": 0.25}, rounds=2, federation=by_hand(ONE_AND_TWO), network=STILL, chunk=chunk, **HAND
    )
    close(run.personal[0], [2.059375, 7])
    assert float(run.clients.alpha[0]) == pytest.approx(0.845405859375, abs=1e-12)
    w, v, alpha = -0.5, -3.0, 0.245025
    for _ in range(2):
        g, g_v = w + 4, v + 4
        w, v = w - 0.5 * g, v - 0.5 * g_v
        v = alpha * v + (1 - alpha) * w
        alpha = min(max(alpha - 0.5 * ((v - w) * (alpha * g_v + (1 - alpha) * g) + 0.02 * alpha), 0), 1)
    close(run.personal[1], [v, 7])
    assert float(run.clients.alpha[1]) == pytest.approx(alpha, abs=1e-12)
    close(run.w, [(1.75 + w) / 2, 7])


@pytest.mark.parametrize("chunk", [1, 2])
def test_the_rates_of_a_clients_last_turn(chunk: int) -> None:
    """B trains in round 1, A for the first time in round 2: the round's rate is 0.25, its own still 0.5. f as above.

    Ditto  server: 0 - 3.0625 / 2 = -1.53125; A: g = -5.53125; w = -1.53125 + 0.25 * 5.53125 = -0.1484375;
           w = -0.1484375 - 0.5 (-5.53125 + 0.5 * 1.3828125) = 2.271484375
    APFL   server: -3; A: w = -3 + 0.25 * 7 = -1.25; v = 0.5 * 4 = 2, then 0.25 * 2 + 0.75 * -1.25 = -0.4375;
           slope 0.8125 (0.25 * -4 + 0.75 * -7) + 0.005 = -5.073125; alpha = 0.25 + 0.5 * 5.073125 is above 1
    """
    together = by_hand(ONE_AND_TWO)
    together.cohorts = np.array([[1], [0]])
    how = {**HAND, "participation": 0.5, "lr_decay": 0.5, "lr_of": "last_turn", "chunk": chunk}
    ditto = simulate(PfedplatDitto, {"lam": 0.5}, federation=together, network=STILL, **how)
    close(ditto.personal, [[2.271484375, 7], [-3.0625, 7]])
    apfl = simulate(PfedplatAPFL, {"alpha": 0.25}, federation=together, network=STILL, **how)
    close(apfl.personal, [[-0.4375, 7], [-3, 7]])
    close(apfl.clients.alpha[0], torch.tensor(1.0, dtype=torch.float64))


def test_both_phases_of_fedrep_have_the_rate_of_a_clients_last_turn() -> None:
    """A client whose first turn is in round 2 trains as if learning rates did not decay."""
    stale, undecayed, usual = (
        simulate(PfedplatFedRep, {"head_epochs": 1}, participation=0.4, lr_decay=decay, lr_of=of)
        for decay, of in ((0.5, "last_turn"), (1.0, "round"), (0.5, "round"))
    )
    first, second = (set(result.ids.tolist()) for result in stale.results)
    newly = sorted(second - first)
    assert newly, "somebody comes first in round 2"
    close(stale.personal[newly], undecayed.personal[newly])
    assert not torch.allclose(usual.personal[newly], undecayed.personal[newly])


def agrees(run: Run, server: Tensor, own: Tensor) -> None:
    close(run.w, server)
    close(run.personal, own)


@pytest.mark.parametrize("chunk", [1, EVERYBODY])
def test_fedrep_trains_the_last_bias_and_then_all_else(chunk: int) -> None:
    def turn(client: int, round: int, received: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        w = {**named(received), BIAS: named(own)[BIAS]}
        for x, y in batches(client, round, 2, "head"):
            w = moved(w, lambda p, x=x, y=y: entropy(answers(p, x), y), [BIAS])
        for x, y in batches(client, round, 2):
            w = moved(w, lambda p, x=x, y=y: entropy(answers(p, x), y), [name for name in NAMES if name != BIAS])
        return joined(w), joined(w)

    agrees(simulate(PfedplatFedRep, {"head_epochs": 2}, rounds=3, chunk=chunk), *rounds(turn))


@pytest.mark.parametrize("chunk", [1, EVERYBODY])
def test_fedrod_adds_a_private_bias_to_the_received_head(chunk: int) -> None:
    private_lr = 0.3

    def turn(client: int, round: int, received: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        w, sent, private = named(received), named(received), named(own)[BIAS]
        prior = FEDERATION.class_counts[client].double() / FEDERATION.class_counts[client].sum()
        log_prior = prior.clamp(min=torch.finfo(torch.float64).tiny).log()
        for x, y in batches(client, round, 2):
            w = moved(w, lambda p, x=x, y=y: entropy(answers(p, x) + log_prior, y), NAMES)
            z = functional_call(model()[:-1], {name: w[name] for name in NAMES[:-2]}, (x,)).detach()
            generic = answers(w, x).detach()
            free = private.detach().requires_grad_()
            (g,) = torch.autograd.grad(entropy(generic + z @ sent[WEIGHT].T + free, y), free)
            private = private - private_lr * g
        return joined(w), joined({**sent, BIAS: private})

    agrees(simulate(PfedplatFedRoD, {"private_lr": private_lr}, rounds=3, chunk=chunk), *rounds(turn))


@pytest.mark.parametrize("chunk", [1, EVERYBODY])
def test_splitgp_is_scored_by_the_copy_with_the_global_head(chunk: int) -> None:
    gamma, private_lr = 0.3, 0.25
    server, own = W0, W0.repeat(EVERYBODY, 1)
    for round in (1, 2, 3):
        trained = []
        for client in range(EVERYBODY):
            mine, copy = named(own[client]), {**named(own[client]), **{n: named(server)[n] for n in (WEIGHT, BIAS)}}
            for x, y in batches(client, round, 2):
                mine = moved(mine, lambda p, x=x, y=y: gamma * entropy(answers(p, x), y), NAMES, private_lr)
                copy = moved(copy, lambda p, x=x, y=y: (1 - gamma) * entropy(answers(p, x), y), NAMES)
            trained.append((joined(mine), joined(copy)))
        personal, copies = (torch.stack(column) for column in zip(*trained, strict=True))
        server, own = SHARE @ copies, gamma * personal + (1 - gamma) * (SHARE @ personal)
    run = simulate(PfedplatSplitGP, {"gamma": gamma, "private_lr": private_lr}, rounds=3, chunk=chunk)
    agrees(run, server, copies)
    close(run.server.own, own)


@pytest.mark.parametrize("cls", [PfedplatFedRep, PfedplatFedRoD])
def test_a_model_without_a_last_bias_is_refused(cls: type) -> None:
    values = {"head_epochs": 1} if cls is PfedplatFedRep else {"private_lr": 0.1}
    with pytest.raises(UserError, match="has no bias"):
        simulate(cls, values, federation=by_hand(ONE_AND_TWO), network=STILL)


@pytest.mark.parametrize(
    ("cls", "values"),
    [
        (PfedplatDitto, {"lam": 0.1}),
        (PfedplatAPFL, {"alpha": 0.1}),
        (PfedplatFedRep, {"head_epochs": 1}),
        (PfedplatFedRoD, {"private_lr": 0.1}),
        (PfedplatSplitGP, {"gamma": 0.2, "private_lr": 0.1}),
    ],
)
def test_personal_models_are_stale_and_never_trained_ones_initial(cls: type, values: dict[str, Any]) -> None:
    """The platform scores all its methods so: a round without a turn leaves a client's model as it was."""
    before, after = (simulate(cls, values, rounds=count, participation=0.4) for count in (2, 3))
    last = set(after.results[-1].ids.tolist())
    for i in range(EVERYBODY):
        if i not in last:
            assert torch.equal(after.personal[i], before.personal[i])
        if all(i not in result.ids.tolist() for result in after.results):
            assert torch.equal(after.personal[i], W0)
    assert TASK.classes == CLASSES
