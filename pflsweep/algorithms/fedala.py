"""FedALA: a client starts from its own mix of the global model and its last local one (ALA)."""

from dataclasses import dataclass

from pflsweep.methods import stock
from pflsweep.methods.protocol import Method, Plugin
from pflsweep.plugins.ala import Ala, Mixing


@dataclass(frozen=True, kw_only=True)
class FedALA(Mixing, Method):  # type: ignore[override]
    """Zhang, Hua, Wang, Song, Xue, Ma, Guan: FedALA: Adaptive Local Aggregation for Personalized Federated Learning.
    AAAI 2023. https://arxiv.org/abs/2212.01197 (Algorithm 1)

    This is FedAvg with ALA in front; see Ala for what the paper leaves open. With layers = 0 or rate = 0 the server's
    trajectory is FedAvg's up to rounding.
    """

    version = 2
    paper = "Zhang et al., AAAI 2023"
    unsampled_model = "the global model"
    cost = (
        "one gradient pass of the mixed top over a share s of the data (the layers below run forward once), about "
        "eleven in the first turn; a client keeps P and the mixed part twice"
    )
    dp_incompatible_reason = "its weights learn on the data without noise and shape what a client trains and sends"

    init = stock.global_server
    init_client = stock.stateless_client
    send = stock.broadcast
    start = stock.start_from_down
    step = stock.sgd_step
    fit = stock.local_epochs
    finish = stock.upload
    aggregate = stock.average
    personal = stock.personal_is_global
    global_model = stock.shared_model

    def plugins(self) -> tuple[Plugin, ...]:
        values = {name: getattr(self, name) for name in Mixing.__dataclass_fields__}
        return (Ala(task=self.task, **values),)
