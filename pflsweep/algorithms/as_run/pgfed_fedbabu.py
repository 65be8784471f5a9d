"""FedBABU as PGFed's authors run it: clients fine-tune from a head of zeros."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pflsweep.algorithms.fedbabu import FedBABU, Server
from pflsweep.methods import stock
from pflsweep.methods.protocol import Turn


@dataclass(frozen=True, kw_only=True)
class PgfedFedBABU(FedBABU):
    """FedBABU (Oh et al., ICLR 2022) in pgfed b1d70f7, the code of PGFed's authors.

    Their server sums the clients' extractors into a model of zeros, which clients receive and fine-tune. So fine-tuning
    begins with a head of zeros, and not with the one under which the extractor was learnt.
    """

    paper = "Oh et al., ICLR 2022, as PGFed's authors run it"

    def personal(self, server: Server, client: stock.OwnHead, data: Any, turn: Turn) -> Tensor:
        return super().personal(server, stock.OwnHead(torch.zeros_like(client.head)), data, turn)
