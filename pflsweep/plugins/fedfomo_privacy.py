"""DP-SGD with the epsilon that FedFomo's authors' code reports."""

import math
from dataclasses import dataclass

import numpy as np

from pflsweep.methods.protocol import hyper
from pflsweep.plugins.privacy import DpSgd, orders, rdp


@dataclass(frozen=True, kw_only=True)
class FedFomoDpSgd(DpSgd):
    """DP-SGD (Abadi et al., CCS 2016) with epsilon computed as in NVlabs/FedFomo fe04f66.

    Read from federated/train.py (train, eval) and client.py (train). Clients train as with DpSgd. Epsilon differs:
    - Each round has a new accountant, so that nothing is composed over rounds. It is read after an epoch of the round
      (`read_after`: 0.2 is the first of five epochs, 1 the whole round).
    - The accountant is attached in an evaluation, with the size of the evaluated set. So the sampling rate is B over
      that size (50 of 667, where training draws from 2,667).
    - An epoch has floor(n / B) steps, since the last batch is dropped.
    - Renyi DP is converted as in Mironov 2017: the smallest over the orders of rdp + log(1 / delta) / (order - 1).

    Such an epsilon is not a privacy guarantee. It reproduces how the printed numbers were computed.
    """

    evaluated: float = hyper("rows of an evaluated set as a share of those and the training rows", above=0, below=1)

    def converted(self, steps: int, rate: float, noise: float) -> float:
        batches = 1 / rate  # n / B
        # DpSgd has counted ceil(n / B) steps an epoch (other numbers with train.steps, which the code does not have)
        steps = max(1, round(steps * max(1, math.floor(batches + 1e-9)) / math.ceil(batches - 1e-9)))
        rate = min(1.0, rate * (1 - self.evaluated) / self.evaluated)
        found = steps * rdp(rate, noise) + math.log(1 / self.delta) / (np.asarray(orders()) - 1)
        return float(found.min())
