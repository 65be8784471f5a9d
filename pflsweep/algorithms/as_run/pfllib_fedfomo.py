"""FedFomo as FedALA's authors run it: candidates are the last cohort's models; clients are evaluated after training."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from pflsweep.algorithms.fedfomo import Client, FedFomo, Server, Up, Work, normalised
from pflsweep.methods.protocol import Given, Turn

APART = 1e-5  # added to the distance between two models


@dataclass(frozen=True, kw_only=True)
class PfllibFedFomo(FedFomo):
    """FedFomo (Zhang et al., ICLR 2021) in PFLlib 43c5744, the library of FedALA's authors.

    Where it differs from the paper:
    - the candidates are the models of the last cohort alone. A client's own model is one of them only where the client
      was in that cohort, and then counts among the `models` that are sent;
    - there is no exploration (`epsilon` is 0);
    - a client without a gain continues with the model that it has trained (the paper: with the one from before);
    - clients are evaluated with the models that they trained in their last turn.
    Gains are rated as in the paper, against the model from which the client's last training began. Where we differ from
    the code: losses on the validation rows are means over rows (the code: over batches), and these rows are
    ceil(0.2 n) drawn ones (the code: the last int(0.2 n)).
    """

    paper = "Zhang et al., ICLR 2021, as FedALA's authors run it"
    dp_incompatible_reason = ""  # apart from the gains, as FedFomo
    sends_own_model: ClassVar[bool] = True

    def start(self, given: Given, data: Any) -> Work:
        down, client = given.down, given.client
        _, validation = data.holdout(self.validation)
        losses = validation.mean(self.losses, torch.cat([client.before[:, None], down.models], 1))
        distance = (down.models - client.before[:, None]).norm(dim=2)
        valid = (down.ids >= 0) & losses[:, 1:].isfinite() & losses[:, :1].isfinite() & distance.isfinite()
        gains = torch.where(valid, (losses[:, :1] - losses[:, 1:]) / (distance + APART), 0)
        weight, models = normalised(gains), torch.where(valid[:, :, None], down.models, 0)
        mix = (weight[:, None] @ models)[:, 0]
        mix = torch.where((weight > 0).any(1, keepdim=True), mix, client.trained)
        # The first column is for the own model, whose gain is among the others here
        return Work(mix, self.opt.init(mix), mix, pad(gains, (1, 0)))

    def aggregate(self, server: Server, up: Up, turn: Turn) -> Server:
        """P_in <- P_in + w_n; then this cohort's models replace all earlier ones."""
        nobody = server._replace(models=torch.zeros_like(server.models), known=torch.zeros_like(server.known))
        return super().aggregate(nobody, up, turn)

    def personal(self, server: Server, client: Client, data: Any, turn: Turn) -> Tensor:
        return client.trained
