"""The variants of PGFed's authors, compared with the description written out or with numbers by hand."""

import pytest
import torch

from pflsweep.algorithms.as_run.pgfed_fedbabu import PgfedFedBABU
from pflsweep.algorithms.as_run.pgfed_fedrod import PgfedFedRoD
from pflsweep.algorithms.as_run.pgfed_lgfedavg import PgfedLGFedAvg
from pflsweep.algorithms.as_run.pgfed_pfedme import PgfedPFedMe
from pflsweep.algorithms.fedbabu import FedBABU
from pflsweep.data.batching import Batching
from pflsweep.data.loader import ClientData
from tests.algorithms.as_run.written_out import (
    BATCH,
    BIAS,
    EVERYBODY,
    FEDERATION,
    NAMES,
    SHARE,
    TASK,
    W0,
    WEIGHT,
    answers,
    entropy,
    joined,
    moved,
    named,
    rounds,
)
from tests.algorithms.as_run.written_out import batches as of_client
from tests.algorithms.helpers import ONE_AND_TWO, STILL, by_hand, close, simulate

BODY = [name for name in NAMES if name not in (WEIGHT, BIAS)]


@pytest.mark.parametrize("chunk", [1, EVERYBODY])
def test_fedbabu_fine_tunes_from_a_head_of_zeros(chunk: int) -> None:
    values = {"finetune_epochs": 2, "finetune_lr": 0.05}
    run = simulate(PgfedFedBABU, values, rounds=2, chunk=chunk)
    # The shared extractor is FedBABU's
    close(run.w, simulate(FedBABU, values, rounds=2).w)
    zero = torch.zeros(TASK.head.stop - TASK.head.start, dtype=run.w.dtype)
    for client, own in enumerate(run.personal):
        w = named(torch.cat([run.w, zero]))
        data = ClientData.of(FEDERATION, [client], 2, batch=BATCH, large=16, purpose="evaluate")
        for batch in data.train(2, "finetune"):
            x, y = batch.x[0], batch.y[0]
            w = moved(w, lambda p, x=x, y=y: entropy(answers(p, x), y), NAMES, lr=0.05)
        close(own, joined(w))


@pytest.mark.parametrize("chunk", [1, EVERYBODY])
def test_lgfedavg_steps_the_body_and_then_the_head(chunk: int) -> None:
    def turn(client: int, round: int, received: torch.Tensor, own: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        w = {**named(own), **{name: named(received)[name] for name in (WEIGHT, BIAS)}}
        for x, y in of_client(client, round, 2):
            w = moved(w, lambda p, x=x, y=y: entropy(answers(p, x), y), BODY)
            w = moved(w, lambda p, x=x, y=y: entropy(answers(p, x), y), [WEIGHT, BIAS])
        return joined(w), joined(w)

    server, own = rounds(turn)
    run = simulate(PgfedLGFedAvg, {"layers": 1}, rounds=3, chunk=chunk)
    close(run.w, server[TASK.head])
    close(run.clients.body, own[:, TASK.extractor])


def test_pfedmes_models_of_clients_that_were_never_sampled_are_initial() -> None:
    values = {"lam": 0.5, "inner_steps": 1, "inner_lr": 0.1, "beta": 1.0, "eval": "w", "inner_decay": 0.001}
    run = simulate(PgfedPFedMe, values, rounds=2, participation=0.4)
    never = run.simulation.last < 0
    assert never.any()
    assert torch.equal(run.personal[never], W0.expand(int(never.sum()), -1))
    assert torch.equal(run.personal[~never], run.clients.w[~never])


@pytest.mark.parametrize("chunk", [1, EVERYBODY])
def test_fedrods_priors_are_of_one_pass_without_its_last_batch(chunk: int) -> None:
    """In the first turn's pass with batches of four, of 7, 12, 1, 20 and 5 rows 4, 12, 1, 20 and 4 are seen."""
    dropped = Batching(last_batch="drop")
    head = W0[TASK.head]
    server, heads, seen = W0, [head] * EVERYBODY, []
    for i in range(EVERYBODY):
        first = ClientData.of(FEDERATION, [i], 1, batch=BATCH, large=16, batching=dropped)
        labels = torch.cat([batch.y[0] for batch in first.train(1, "priors")])
        seen.append(torch.bincount(labels, minlength=TASK.classes).double())
    assert [int(counts.sum()) for counts in seen] == [4, 12, 1, 20, 4]
    for round in (1, 2):
        uploads = []
        for i in range(EVERYBODY):
            w, own = named(server), heads[i]
            log_prior = (seen[i] / seen[i].sum()).clamp(min=torch.finfo(torch.float64).tiny).log()
            for batch in ClientData.of(FEDERATION, [i], round, batch=BATCH, large=16, batching=dropped).train(2):
                x, y = batch.x[0], batch.y[0]
                both = joined(w) + torch.cat([torch.zeros(TASK.head.start), own])
                summed = moved(named(both), lambda p, x=x, y=y: entropy(answers(p, x), y), [WEIGHT, BIAS])
                own = own + (joined(summed) - both)[TASK.head]
                w = moved(w, lambda p, x=x, y=y, prior=log_prior: entropy(answers(p, x) + prior, y), NAMES)
            heads[i] = own
            uploads.append(joined(w))
        server = SHARE @ torch.stack(uploads)
    run = simulate(PgfedFedRoD, {"init_personal": "copy"}, rounds=2, chunk=chunk, batching=dropped)
    close(run.clients.counts, torch.stack(seen))
    close(run.w, server)
    close(run.clients.head, torch.stack(heads))


def test_pfedmes_inner_steps_decay() -> None:
    """f = 1/2 (w - m)^2 with m = 4 for A; lr 0.5, lambda 0.5, one inner step of 0.5 with a decay of 0.1, from 0.

    Round 1: theta = 0 - 0.5 (-4) = 2, w = 0 - 0.5 * 0.5 (0 - 2) = 0.5. With A alone the server has 0.5.
    Round 2: theta starts at 0.5: g = -3.5 + 0.5 (0.5 - 0.5) + 0.1 * 0.5 = -3.45; theta = 0.5 + 1.725 = 2.225;
             w = 0.5 - 0.25 (0.5 - 2.225) = 0.93125
    The second weight is 7 and feels the decay alone: theta = 7 - 0.5 * 0.7 = 6.65, w = 7 - 0.25 * 0.35 = 6.9125, ...
    """
    values = {"lam": 0.5, "inner_steps": 1, "inner_lr": 0.5, "beta": 1.0, "eval": "w", "inner_decay": 0.1}
    alone = by_hand(ONE_AND_TWO[:1])
    settings = {"epochs": 1, "batch": 1, "lr": 0.5, "weights": "uniform"}
    run = simulate(PgfedPFedMe, values, rounds=2, federation=alone, network=STILL, **settings)
    second = 6.9125 - 0.25 * 0.5 * 0.1 * 6.9125
    close(run.w, [0.93125, second])
    close(run.personal, [[0.93125, second]])
