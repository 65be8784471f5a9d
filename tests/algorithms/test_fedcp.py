from math import exp, sqrt

import pytest
import torch
from torch import nn
from torch.func import functional_call

from pflsweep.algorithms.fedcp import WIDTHS, FedCP
from pflsweep.algorithms.fedphp import mmd
from pflsweep.methods.task import Batch, Task
from tests.algorithms.as_run.written_out import SHARE, batches, entropy
from tests.algorithms.helpers import EVERYBODY, NETWORK, close, make, opened, same_in_chunks, simulate

TASK, W0 = NETWORK
HYPER = {"lam": 2.0}
D, SIZE, HEAD = TASK.width, TASK.size, TASK.head


class Policy(nn.Module):
    """The authors' ConditionalSelection, with a softmax in place of the Gumbel-softmax."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(D, 2 * D), nn.LayerNorm(2 * D), nn.ReLU()).double()

    def forward(self, x):
        out = self.fc(x).view(len(x), 2, -1).softmax(1)
        return out[:, 0], out[:, 1]


POLICY, SHAPES = Policy(), {name: p.shape for name, p in Policy().named_parameters()}
EXTRACTOR = nn.Sequential(*list(TASK.model)[:-1])


def pieces(vector):
    return dict(zip(SHAPES, vector.split([shape.numel() for shape in SHAPES.values()]), strict=True))


def features(body, x):
    views = {n.replace("fc1", "0", 1): v for n, v in TASK.views(torch.cat([body, W0[HEAD]])).items() if "head" not in n}
    return functional_call(EXTRACTOR, views, (x,))


def gaussian_mmd(x, y):
    def kernel(a, b):
        return sum(torch.exp(-0.5 * (a[:, None] - b).square().sum(2) / width) for width in (10, 15, 20, 50))

    return (kernel(x, x) + kernel(y, y) - 2 * kernel(x, y)).mean()


def ensemble(w, common, context, x):
    """Return logits and features of a client's parts (body, head, policy)."""
    body, head, policy = w[: HEAD.start], w[HEAD], w[SIZE:]
    z = features(body, x)
    p = {name: piece.view(SHAPES[name]) for name, piece in pieces(policy).items()}
    r, s = functional_call(POLICY, p, (z * context,))
    return TASK.classify(head, r * z) + TASK.classify(common, s * z), z


def context_of(head):
    return nn.functional.normalize(head[: D * 3].view(3, D).sum(0, keepdim=True))


def written_out(start, count=3):
    shared, heads = start, [W0[HEAD]] * EVERYBODY
    for round in range(1, count + 1):
        uploads = []
        for i in range(EVERYBODY):
            w, context, common = (
                torch.cat([shared[: HEAD.start], heads[i], shared[SIZE:]]),
                context_of(heads[i]),
                shared,
            )
            for x, y in batches(i, round, 2):
                free = w.clone().requires_grad_()
                logits, z = ensemble(free, common[HEAD], context, x)
                loss = entropy(logits, y) + 2.0 * gaussian_mmd(z, features(common[: HEAD.start], x))
                w = w - 0.1 * torch.autograd.grad(loss, free)[0]
            heads[i] = w[HEAD]
            uploads.append(torch.cat([w[: HEAD.start], 0.5 * w[HEAD] + 0.5 * common[HEAD], w[SIZE:]]))
        shared = SHARE @ torch.stack(uploads)
    return shared, torch.stack(heads)


def test_trajectory_is_that_of_the_authors_code_written_out():
    run = simulate(FedCP, HYPER, rounds=3)
    shared, heads = written_out(simulate(FedCP, HYPER, rounds=0).w)
    close(run.w, shared)
    close(run.clients.head, heads)
    x = torch.randn(7, 4, dtype=torch.float64)
    whole = torch.cat([run.w[: HEAD.start], heads[3], run.w[SIZE:]])
    close(run.method.logits(run.personal[3], x), ensemble(whole, run.w[HEAD], context_of(heads[3]), x)[0])


def test_the_policy_begins_as_a_layer_of_pytorch():
    one, other = (simulate(FedCP, HYPER, rounds=0).w[SIZE:] for _ in range(2))
    assert torch.equal(one, other), "from the run's seed"
    linear = one[: 2 * D * D + 2 * D]
    assert linear.abs().max() <= 1 / sqrt(D)
    assert linear.std() > 0.3 / sqrt(D)
    close(one[2 * D * D + 2 * D :], [1.0] * 2 * D + [0.0] * 2 * D)


def test_global_parts_stay_in_a_turn():
    """The global head has no gradient: another head with equal logits leaves the own head's first step unchanged."""
    run = simulate(FedCP, HYPER)
    given, data, work = opened(run, [3])
    after = run.method.step(given, work._replace(w=work.w.clone()), next(data.train(1)))
    up, own = run.method.finish(given, data, after)
    close(2 * up.w[:, HEAD] - own.head, given.down.w[:, HEAD])


def test_padding_has_no_part_in_mmd():
    x, y = torch.randn(2, 5, 3, dtype=torch.float64)
    mask = torch.tensor([1, 1, 1, 0, 0], dtype=torch.bool)
    padded = Batch(x, torch.zeros(5, dtype=torch.int64), mask, None, None)
    close(mmd(x, y, padded, WIDTHS), gaussian_mmd(x[:3], y[:3]))


def test_the_shared_parts_travel():
    size = SIZE + 2 * D * D + 6 * D
    assert simulate(FedCP, HYPER).traffic == (size, size)


def test_any_chunking_is_the_same_round():
    same_in_chunks(FedCP, HYPER, momentum=0.9, weight_decay=0.01)


@pytest.mark.parametrize("sign", [1, -1])
def test_by_hand(sign):
    """D = 1, two classes. The CPN's weights are (1, -1) without bias: of a feature 2 and the context 1 its norm makes
    (c, -c), c = 2 / sqrt(4 + 1e-5), the ReLU (c, 0) and the softmax r = e^c / (e^c + 1), s = 1 - r; the other way round
    where the own head's weights, 3 and 1, have the other sign, and so the context -1.
    The logits are r 2 (3, 1) + s 2 (10, 20), without biases.
    """
    task = Task(nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 2, bias=False)))
    method = make(FedCP, HYPER, task=task)
    cpn = torch.tensor([1, -1, 0, 0, 1, 1, 0, 0], dtype=torch.float64)
    own, common = sign * torch.tensor([3.0, 1.0]).double(), torch.tensor([10.0, 20.0]).double()
    got = method.split(cpn, own, own, common, torch.tensor([[2.0]]).double())
    c = 2 / sqrt(4 + 1e-5)
    r = 1 / (1 + exp(-sign * c))
    close(got, [[sign * 6 * r + 20 * (1 - r), sign * 2 * r + 40 * (1 - r)]])
