"""FedALA: a client starts from its own mix of the global model and its last local one (ALA)."""

from dataclasses import dataclass

from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.methods.protocol import Plugin
from pflsweep.plugins.ala import Ala, Mixing


@dataclass(frozen=True, kw_only=True)
class FedALA(Mixing, FedAvg):  # type: ignore[override]
    """Zhang, Hua, Wang, Song, Xue, Ma, Guan: FedALA: Adaptive Local Aggregation for Personalized Federated Learning.
    AAAI 2023. https://arxiv.org/abs/2212.01197 (Algorithm 1)

    This is FedAvg with ALA in front; see Ala for what the paper leaves open. With layers = 0 or rate = 0 the server's
    trajectory is FedAvg's up to rounding.
    """

    version = 2
    paper = "Zhang et al., AAAI 2023"
    supports_ala = False  # it has ALA already
    supports_per_client_lr = False
    cost = (
        "one gradient pass of the mixed top over a share s of the data (the layers below run forward once), about "
        "eleven in the first turn; a client keeps P and the mixed part twice"
    )
    dp_incompatible_reason = "its weights learn on the data without noise and shape what a client trains and sends"

    def plugins(self) -> tuple[Plugin, ...]:
        values = {name: getattr(self, name) for name in Mixing.__dataclass_fields__}
        return (Ala(task=self.task, **values),)
