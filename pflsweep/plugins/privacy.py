"""DP-SGD: clients train on clipped and noised gradients of Poisson batches, and epsilon is accounted for."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflsweep.methods.protocol import Plugin, Spent, Verbs, hyper, unexamined
from pflsweep.methods.task import Task
from pflsweep.util.errors import UserError


@dataclass(frozen=True, kw_only=True)
class DpSgd(Plugin):
    """DP-SGD in local training.

    M. Abadi, A. Chu, I. Goodfellow, H. B. McMahan, I. Mironov, K. Talwar and L. Zhang, "Deep Learning with Differential
    Privacy", CCS 2016, https://arxiv.org/abs/1607.00133, Algorithm 1, as FedFomo's Tables 3 and 5 use it.

    A batch's gradient is (sum of its samples' gradients, each clipped to C, + N(0, sigma^2 C^2)) / B. Batches are
    Poisson samples (data/poisson.py says how many); an empty batch still takes a noisy step. Whatever a method does
    with these gradients is post-processing. With sigma = 0 gradients are only clipped, and epsilon is infinite.

    Epsilon protects one sample of one client against all who see what this client sends. It is composed over all rounds
    in which the client has trained (with `read_after` over that many of them), at the client's sampling rate. opacus'
    accountant computes it: Renyi DP of the sampled Gaussian mechanism at opacus' default orders, converted as in Balle
    et al. 2020, Theorem 21 (Mironov's conversion gives a tenth more). k gradients of one batch (APFL, pFedMe) have
    independent noise and count as one step with sigma / sqrt(k): together they are a Gaussian mechanism of sensitivity
    sqrt(k) C.

    It is an upper bound where a part of the training stays with the client, as in Local, Ditto and APFL: that part is
    counted too. Epsilon covers neither the evaluation, which stays with the client, nor the sizes n_i. Methods that
    send more than gradient steps are refused, except FedFomo: its gains are losses on validation rows, to which no
    noise is added, as in its paper. The noise follows from the seed: this simulates private training and is not a way
    to release models.
    """

    dp_incompatible_reason = ""

    clip: float = hyper("C: the longest that one sample's gradient may be", above=0)
    sigma: float = hyper("noise multiplier: the noise's standard deviation over C", low=0)
    delta: float = hyper("delta of (epsilon, delta)-DP", above=0, below=1)
    read_after: float | None = hyper(
        "rounds of a client after which epsilon is read, parts of one too; null: all of them", above=0, neutral=None
    )

    task: Task

    def refusal(self, partner: type) -> str:
        reason = str(getattr(partner, "dp_incompatible_reason", Plugin.dp_incompatible_reason))
        return reason or unexamined(partner, "dp_incompatible_reason")

    def plug(self, verbs: Verbs) -> Verbs:
        if self.task.calibrated:
            raise UserError(
                "privacy=dp_sgd does not go with batch norm, in which a sample's gradient depends on its whole batch. "
                "Use model.norm=group."
            )
        _opacus()

        def on_private_data(verb: Callable) -> Callable:
            return lambda given, data, *rest: verb(given, data.poisson(self.clip, self.sigma), *rest)

        def answer(*_: Any) -> Any:
            raise UserError(
                "privacy=dp_sgd: this method asks its clients back within a round, and what they answer is not "
                "accounted for. Use privacy=none."
            )

        trains = ("start", "fit", "finish")
        private: dict[str, Any] = {name: on_private_data(getattr(verbs, name)) for name in trains}
        return verbs._replace(**private, answer=answer, epsilon=self.epsilon)

    def epsilon(self, spent: Spent) -> Tensor:
        """Return the epsilon of each client's private training, [C] float64."""
        clients = zip(*(part.tolist() for part in spent), strict=True)
        return torch.tensor([self._of_one(*numbers) for numbers in clients], dtype=torch.float64)

    def _of_one(self, steps: int, rate: float, gradients: int, turns: int) -> float:
        """Return the epsilon of one client. The arguments are the fields of Spent."""
        if not steps:
            return 0.0
        if not self.sigma:
            return float("inf")
        if self.read_after is not None:  # a client takes equally many steps in each of its rounds
            steps = max(1, round(steps / turns * min(turns, self.read_after)))
        return self.converted(steps, rate, self.sigma / gradients**0.5)

    def converted(self, steps: int, rate: float, noise: float) -> float:
        """Return the epsilon of some steps. rate: sampling rate. noise: noise multiplier of a step."""
        # opacus warns where the best order is its first or last one. Epsilon then is still an upper bound.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Optimal order is the")
            found, _ = _opacus().get_privacy_spent(orders=orders(), rdp=steps * rdp(rate, noise), delta=self.delta)
        return max(float(found), 0.0)


@cache
def rdp(rate: float, noise: float) -> NDArray[np.float64]:
    """Return the Renyi DP of one step at each order. rate: sampling rate. noise: noise multiplier."""
    return np.asarray(_opacus().compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=orders()))


def orders() -> list[float]:
    """Return the orders of Renyi DP: opacus' default ones."""
    from opacus.accountants import RDPAccountant

    return list(RDPAccountant.DEFAULT_ALPHAS)


@cache
def _opacus() -> Any:
    """Return opacus' functions for Renyi DP. Imported when needed, which takes seconds. Raises UserError without it."""
    try:
        from opacus.accountants.analysis import rdp
    except ImportError as error:
        raise UserError(
            f"privacy=dp_sgd needs opacus to compute epsilon, and it cannot be imported ({error}). "
            "In a checkout: `pip install -e '.[privacy]'`."
        ) from error
    return rdp
