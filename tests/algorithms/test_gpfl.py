from math import sqrt

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import linear, log_softmax, normalize

from pflsweep.algorithms.gpfl import GPFL
from pflsweep.methods.task import Task
from tests.algorithms.as_run.written_out import SHARE, batches, entropy
from tests.algorithms.helpers import CLASSES, EVERYBODY, FEDERATION, NETWORK, close, make, same_in_chunks, simulate

TASK, W0 = NETWORK
HYPER = {"lam": 0.3, "mu": 0.2}
D, SIZE, HEAD = TASK.width, TASK.size, TASK.head
GUIDE = CLASSES * D + 2 * (D * D + 3 * D)


class Valve(nn.Module):
    """The authors' CoV."""

    def __init__(self):
        super().__init__()
        self.gamma = nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.LayerNorm(D))
        self.beta = nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.LayerNorm(D))
        self.double()

    def forward(self, x, context):
        return torch.relu(x * (self.gamma(context) + 1) + self.beta(context))


VALVE, SHAPES = Valve(), {name: p.shape for name, p in Valve().named_parameters()}
EXTRACTOR = nn.Sequential(*list(TASK.model)[:-1])


def features(body, x):
    views = {n.replace("fc1", "0", 1): v for n, v in TASK.views(torch.cat([body, W0[HEAD]])).items() if "head" not in n}
    return functional_call(EXTRACTOR, views, (x,))


def valve(guide, z, context):
    parts = guide[CLASSES * D :].split([shape.numel() for shape in SHAPES.values()])
    named = {name: part.view(shape) for (name, shape), part in zip(SHAPES.items(), parts, strict=True)}
    return functional_call(VALVE, named, (z, context))


def table(guide):
    return guide[: CLASSES * D].view(CLASSES, D)


def loss_of(w, received, share, x, y):
    z, guide = features(w[: HEAD.start], x), w[SIZE:]
    frozen = table(received)
    of_all = sum(frozen) / CLASSES
    own = sum(p * c for p, c in zip(share, frozen, strict=True))
    f_g = valve(guide, z, of_all)
    cosine = linear(normalize(f_g), normalize(table(guide)))
    angle = -log_softmax(cosine, 1)[range(len(y)), y].mean()
    magnitude = sum((f - frozen[k]).norm() for f, k in zip(f_g, y, strict=True)) / len(y)
    return entropy(TASK.classify(w[HEAD], valve(guide, z, own)), y) + angle + 0.3 * magnitude


def written_out(body, guide, count=3):
    heads = [W0[HEAD]] * EVERYBODY
    shares = FEDERATION.class_counts.double() / FEDERATION.class_counts.sum(1, keepdim=True)
    for round in range(1, count + 1):
        uploads = []
        for i in range(EVERYBODY):
            w = torch.cat([body, heads[i], guide])
            for x, y in batches(i, round, 2):
                free = w.clone().requires_grad_()
                (g,) = torch.autograd.grad(loss_of(free, guide, shares[i], x, y), free)
                g[SIZE:] += 0.2 * w[SIZE:]  # weight decay
                w = w - 0.1 * g
            heads[i] = w[HEAD]
            uploads.append(w)
        mean = SHARE @ torch.stack(uploads)
        body, guide = mean[: HEAD.start], mean[SIZE:]
    return body, guide, torch.stack(heads), shares


def test_trajectory_is_that_of_the_paper_written_out():
    run, first = simulate(GPFL, HYPER, rounds=3), simulate(GPFL, HYPER, rounds=0).server
    body, guide, heads, shares = written_out(first.w, first.guide)
    close(run.server, (body, guide))
    close(run.clients.head, heads)
    x = torch.randn(7, 4, dtype=torch.float64)
    f_p = valve(guide, features(body, x), shares[3] @ table(guide))
    close(run.method.logits(run.personal[3], x), TASK.classify(heads[3], f_p))


def test_layers_and_embeddings_begin_as_those_of_pytorch():
    one, other = (simulate(GPFL, HYPER, rounds=0).server.guide for _ in range(2))
    assert torch.equal(one, other), "from the run's seed"
    assert len(one) == GUIDE
    assert 0.5 < table(one).std() < 1.5
    gamma, beta = one[CLASSES * D :].view(2, -1)
    assert gamma[: D * D + D].abs().max() <= 1 / sqrt(D)
    assert not torch.equal(gamma, beta)
    for layer in (gamma, beta):
        close(layer[D * D + D :], [1.0] * D + [0.0] * D)


def test_never_sampled_client_has_the_global_condition():
    run = simulate(GPFL, HYPER, participation=0.4)
    never = int((run.simulation.last < 0).nonzero()[0])
    close(run.personal[never, -D:], table(run.server.guide).mean(0))


def test_the_shared_parts_travel():
    assert simulate(GPFL, HYPER).traffic == (HEAD.start + GUIDE, HEAD.start + GUIDE)


def test_any_chunking_is_the_same_round():
    same_in_chunks(GPFL, HYPER, momentum=0.9, weight_decay=0.01)


def test_the_valve_by_hand():
    """D = 2: gamma's layer has the weights ((1, 0), (0, -1)), beta's ((0, 1), (1, 0)); no biases; condition (3, 4).

    gamma: (3, -4), ReLU (3, 0), norm (c, -c), c = 1.5 / sqrt(2.25 + 1e-5).
    beta: (4, 3), ReLU the same, norm (d, -d), d = 0.5 / sqrt(0.25 + 1e-5), plus its own (1, 1).
    z = (2, 10): ((c + 1) 2 + d + 1, (1 - c) 10 - d + 1).  z = (-5, 0): (0, 1 - d), as (c + 1) (-5) + d + 1 < 0.
    """
    task = Task(nn.Sequential(nn.Linear(1, 2, bias=False), nn.Linear(2, 1, bias=False)))
    gamma, beta = [1, 0, 0, -1, 0, 0, 1, 1, 0, 0], [0, 1, 1, 0, 0, 0, 1, 1, 1, 1]
    guide = torch.tensor([7, 7, *gamma, *beta], dtype=torch.float64)
    z, condition = torch.tensor([[2.0, 10.0], [-5.0, 0.0]]).double(), torch.tensor([3.0, 4.0]).double()
    c, d = 1.5 / sqrt(2.25 + 1e-5), 0.5 / sqrt(0.25 + 1e-5)
    got = make(GPFL, HYPER, task=task).valve(guide, z, condition)
    close(got, [[(c + 1) * 2 + d + 1, (1 - c) * 10 - d + 1], [0, 1 - d]])
