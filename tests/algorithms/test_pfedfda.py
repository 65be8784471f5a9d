from math import log

import pytest
import torch
from torch import nn
from torch.func import functional_call

from pflsweep.algorithms.pfedfda import PFedFDA, bayes
from pflsweep.data.loader import ClientData
from pflsweep.methods.task import Task
from pflsweep.util.errors import UserError
from tests.algorithms.as_run.written_out import BATCH, NAMES, SHARE, answers, batches, entropy, moved, named
from tests.algorithms.helpers import CLASSES, EVERYBODY, FEDERATION, NETWORK, close, make, same_in_chunks, simulate

TASK, W0 = NETWORK
HYPER = {"ridge": 0.3}
D, BODY = TASK.width, TASK.extractor
EXTRACTOR = nn.Sequential(*list(TASK.model)[:-1])


def features(body, x):
    views = {n.replace("fc1", "0", 1): v for n, v in TASK.views(torch.cat([body, W0[TASK.head]])).items()}
    return functional_call(EXTRACTOR, {n: v for n, v in views.items() if "head" not in n}, (x,))


def lda(means, covariance, y):
    """The authors' lda_classify, as weights and biases."""
    prior = torch.bincount(y, minlength=CLASSES).double() / len(y) + 1e-4
    covariance = (1 - 1e-4) * covariance + 1e-4 * torch.trace(covariance) / D * torch.eye(D).double()
    coefficients = (torch.linalg.inv(covariance) @ means.T).T
    return coefficients, -0.5 * torch.diag(means @ coefficients.T) + torch.log(prior / prior.sum())


def estimates(z, y, means):
    """The authors' compute_mle_statistics."""
    own = torch.stack([z[y == k].mean(0) if (y == k).sum() > 1 else means[k] for k in range(CLASSES)])
    apart = z - own[y]
    return own, apart.T @ apart / max(len(y) - 1, 1) + 0.3 * torch.eye(D).double()


def adapted(body, means, covariance, client, round, purpose="train"):
    data = ClientData.of(FEDERATION, [client], round, batch=BATCH, large=16, purpose=purpose)
    parts = list(data.sample(1.0, "adapt"))
    x, y = (torch.cat([getattr(part, name)[0] for part in parts]) for name in ("x", "y"))
    z, seen, fold = features(body, x), [0] * CLASSES, []
    for k in y.tolist():
        fold.append(seen[k] % 2)
        seen[k] += 1
    fold, kept = torch.tensor(fold), torch.tensor([seen[k] > 1 for k in y.tolist()])
    losses = []
    for step in range(21):
        total, beta = 0.0, step / 20
        for k in (0, 1):
            train, test = kept & (fold != k), kept & (fold == k)
            if test.any():
                own = estimates(z[train], y[train], means)
                w, b = lda(beta * own[0] + (1 - beta) * means, beta * own[1] + (1 - beta) * covariance, y)
                total += float(entropy(z[test] @ w.T + b, y[test]))
        losses.append(total)
    beta, own = losses.index(min(losses)) / 20, estimates(z, y, means)
    return beta * own[0] + (1 - beta) * means, beta * own[1] + (1 - beta) * covariance, y, beta


def written_out(means, covariance, count=3):
    body = W0[BODY]
    for round in range(1, count + 1):
        uploads = []
        for i in range(EVERYBODY):
            x, y = FEDERATION.gather(torch.from_numpy(FEDERATION.rows["train"][i]))
            w = named(torch.cat([body, W0[TASK.head]]))
            w[NAMES[-2]], w[NAMES[-1]] = lda(means, covariance, y)
            for x, y in batches(i, round, 2):
                w = moved(w, lambda p, x=x, y=y: entropy(answers(p, x), y), NAMES[:-2])
            trained = torch.cat([w[n].flatten() for n in NAMES[:-2]])
            uploads.append((trained, *adapted(trained, means, covariance, i, round)[:2]))
        body, means, covariance = (
            sum(p * each for p, each in zip(SHARE, part, strict=True)) for part in zip(*uploads, strict=True)
        )
    models, betas = [], []
    for i in range(EVERYBODY):
        *of, y, beta = adapted(body, means, covariance, i, count, "evaluate")
        models.append(torch.cat([body, *(part.flatten() for part in lda(*of, y=y))]))
        betas.append(beta)
    return (body, means, covariance), torch.stack(models), betas


def test_trajectory_is_that_of_the_paper_written_out():
    first = simulate(PFedFDA, HYPER, rounds=0).server
    server, models, betas = written_out(first.means, first.covariance)
    run = simulate(PFedFDA, HYPER, rounds=3)
    close(run.server, server, 1e-9)
    close(run.personal, models, 1e-9)
    assert len(set(betas)) > 1, "clients adapt by their own data"


def test_statistics_begin_from_the_runs_seed():
    one, other = (simulate(PFedFDA, HYPER, rounds=0).server for _ in range(2))
    assert torch.equal(one.means, other.means)
    assert ((one.means >= 0) & (one.means < 1)).all()
    close(one.covariance, torch.eye(D).double())


def test_never_sampled_client_adapts_too():
    run = simulate(PFedFDA, HYPER, participation=0.4)
    never = run.simulation.last < 0
    assert never.any()
    assert len({tuple(w[TASK.head].tolist()) for w in run.personal[never]}) == int(never.sum())


def test_what_travels():
    size = BODY.stop + CLASSES * D + D * D
    assert simulate(PFedFDA, HYPER).traffic == (size, size)


def test_any_chunking_is_the_same_round():
    same_in_chunks(PFedFDA, HYPER, momentum=0.9)


def test_a_head_without_bias_is_refused():
    task = Task(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3, bias=False)))
    with pytest.raises(UserError, match="has no bias"):
        make(PFedFDA, HYPER, task=task)


def test_by_hand():
    """D = 1. Class 0 has the features 0 and 2, class 1 one of 4, and the global means are 9 and 5.

    Means: 1, and 5, as one sample is too few. Apart by -1, 1, -1: 3 / 2, with the ridge 1/2 it is 2.
    Weights 1/2 and 5/2; biases log pi_k - 1/4 and - 25/4, pi = (2/3, 1/3) but for 1e-4 each.
    """
    task = Task(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 2)))
    method = make(PFedFDA, {"ridge": 0.5}, task=task)
    z, of_class = torch.tensor([[0.0], [2], [4]]).double(), torch.tensor([[1, 0], [1, 0], [0, 1]]).bool()
    means, covariance = method.estimated(torch.tensor([[9.0], [5]]).double(), z, of_class)
    close((means, covariance), (torch.tensor([[1.0], [5]]).double(), torch.tensor([[2.0]]).double()))
    prior = [(share + 1e-4) / (1 + 2e-4) for share in (2 / 3, 1 / 3)]
    counts = torch.tensor([2.0, 1.0]).double()
    close(bayes(means, covariance, counts), [0.5, 2.5, log(prior[0]) - 0.25, log(prior[1]) - 6.25])
