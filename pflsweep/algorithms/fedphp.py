"""FedPHP: FedAvg whose clients keep a private model over their turns, which is the teacher of each received model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Method, Setup, hyper
from pflsweep.methods.task import Batch, cross_entropy, mean_over
from pflsweep.ops.vmap import per_client

TEMPERATURE = 4  # of the teacher's logits in KD
WIDTHS = (0.25, 0.5, 1, 2, 4)  # of MMD's kernels, in units of the mean squared distance


class Client(NamedTuple):
    w: Tensor  # [P] w_i^p, the inherited private model
    turns: Tensor  # [] turns so far
    expected: int  # mean turns of a client in the whole run, by the cohort's size (the authors' code: by participation)


@dataclass(frozen=True, kw_only=True)
class FedPHP(Method):
    """Li, Zhan, Shao, Li, Song: FedPHP: Federated Personalization with Inherited Private Models. ECML PKDD 2021.
    https://doi.org/10.1007/978-3-030-86486-6_36

    A client is evaluated with its private model w_i^p, a running mean of the models that it has trained. strength = 0
    trains like FedAvg. Where the authors' code decides, or we differ from it:
    - the running mean's momentum grows from 0 with the turns that the client took before, so its first turn sets w_i^p
      to the trained model (PFLlib: with the rounds). grows = false keeps it at `mu`;
    - the teacher is w_i^p from before the turn, without dropout; in the first turn it is the common initial model;
    - KD divides only the teacher's logits by the temperature, and is a cross-entropy without a factor T^2;
    - MMD sums five Gaussian kernels whose widths are in units of the features' mean squared distance, a constant in the
      gradient. It compares distributions, so it is 0 for a batch of one sample (the code has one distance there, which
      is its own bandwidth: the pull grows without bound as the models approach each other, and training diverges);
    - gradients are not clipped (the code: by their norm).
    """

    paper = "Li et al., ECML PKDD 2021"
    version = 2
    resumable = False  # the momentum grows towards the run's last round
    supports_ala = True
    unsampled_model = "the newest global model"
    cost = "a step adds a forward pass of the private model, which it reads (P); a client keeps P"
    dp_incompatible_reason = (
        "MMD's gradient is not a sum over samples: each acts through the distances to all others of its batch"
    )

    strength: float = hyper("weight of the transfer from the private model (lambda); CE has the rest", low=0, high=1)
    transfer: str = hyper("what is transferred: the features' distribution, or logits", choices=("mmd", "kd"))
    mu: float = hyper("momentum of the private model; its last value if it grows", low=0, high=1)
    grows: bool = hyper("whether the momentum grows with the client's turns")

    init = stock.global_server
    send = stock.broadcast
    start = stock.start_from_down
    fit = stock.local_epochs
    aggregate = stock.average
    personal = stock.personal_is_own_once_sampled
    global_model = stock.shared_model

    def init_client(self, w: Tensor, setup: Setup) -> Client:
        expected = max(setup.cohort * setup.rounds // setup.clients, 1)
        return Client(w, torch.zeros((), dtype=torch.int64, device=w.device), expected)

    @per_client
    def step(self, given: Given, work: stock.Work, batch: Batch) -> stock.Work:
        """SGD on (1 - lambda) CE(w) + lambda R(w, w_i^p)."""
        if not self.strength:
            g = self.task.grad(work.w, batch)
            return stock.Work(*self.opt.update(work.w, work.opt, g, given.turn.lr))
        teacher = given.client.w
        inherited = self.task.batch_features(teacher, batch)  # [B, D] what the private model's head sees

        def loss(logits: Tensor, z: Tensor, batch: Batch) -> Tensor:
            if self.transfer == "mmd":
                taught = mmd(z, inherited, batch)
            else:
                taught = distilled(logits, self.task.classify(teacher[self.task.head], inherited), batch)
            return (1 - self.strength) * cross_entropy(logits, batch) + self.strength * taught

        _, g = self.task.value_and_grad(work.w, batch, loss, features=True)
        return stock.Work(*self.opt.update(work.w, work.opt, g, given.turn.lr))

    def finish(self, given: Given, data: Any, work: stock.Work) -> tuple[stock.Up, Client]:
        """w_i^p <- mu w_i^p + (1 - mu) w, where mu reaches its last value in the last turn of an average client."""
        w, turns, expected = given.client
        grown = (turns.to(w.dtype) / expected).clamp(max=1) if self.grows else w.new_ones(len(w))
        mu = self.mu * grown[:, None]
        return stock.Up(work.w), Client(mu * w + (1 - mu) * work.w, turns + 1, expected)


def distilled(logits: Tensor, teacher: Tensor, batch: Batch) -> Tensor:
    """Return the mean cross-entropy of logits [B, K] to the softened predictions of a teacher's logits [B, K]."""
    return mean_over(-((teacher / TEMPERATURE).softmax(1) * logits.log_softmax(1)).sum(1), batch)


def mmd(ours: Tensor, theirs: Tensor, batch: Batch, widths: Sequence[float | Tensor] = ()) -> Tensor:
    """Return the squared maximum mean discrepancy (Gretton et al. 2012) of two models' features [B, D] of one batch.

    widths: of the kernels exp(-distance^2 / width). Without any they are WIDTHS, and the result is 0 for a batch of one
    sample, whose only distance is that between the models.
    """
    here = torch.ones_like(batch.y, dtype=torch.bool) if batch.mask is None else batch.mask.bool()
    both = torch.cat([here, here])
    n = both.sum()
    z = torch.where(both[:, None], torch.cat([ours, theirs]), 0)
    # Centred, which changes no distance: then equal features of a single sample are exactly 0, and so is their distance
    z = torch.where(both[:, None], z - (z.sum(0) / n.clamp(min=1)).detach(), 0)
    squares = (z * z).sum(1)
    distances = (squares[:, None] + squares - 2 * z @ z.T).clamp(min=0)  # [2B, 2B]
    # 1e-8 as in the authors' code, since the mean distance of equal features is 0
    mean = (both[:, None] * both * distances).sum().detach() / (n * n - n).clamp(min=1) + 1e-8
    found = widths or [mean * factor for factor in WIDTHS]
    kernels = torch.stack([torch.exp(-distances / width) for width in found]).sum(0)
    sign = torch.cat([here, -1.0 * here]).to(z.dtype) / here.sum().clamp(min=1)
    value = sign @ (kernels @ sign)  # the mean of XX + YY - XY - YX
    return value if widths else torch.where(here.sum() > 1, value, 0)
