"""FedAvg: one model for all, the data-weighted mean of locally trained copies."""

from dataclasses import dataclass

from pflsweep.methods import stock
from pflsweep.methods.protocol import Method


@dataclass(frozen=True, kw_only=True)
class FedAvg(Method):
    """McMahan, Moore, Ramage, Hampson, Aguera y Arcas: Communication-Efficient Learning of Deep Networks from
    Decentralized Data. AISTATS 2017. https://arxiv.org/abs/1602.05629 (Algorithm 1)
    """

    paper = "McMahan et al., AISTATS 2017"
    supports_ala = True
    supports_per_client_lr = True
    unsampled_model = "the global model"
    cost = "none: the reference"
    dp_incompatible_reason = ""

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
