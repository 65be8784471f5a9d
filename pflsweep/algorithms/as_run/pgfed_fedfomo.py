"""FedFomo as PGFed's authors run it: as in PFLlib, except that normalised weights are added to P."""

from dataclasses import dataclass
from typing import Any

from pflsweep.algorithms.as_run.pfllib_fedfomo import PfllibFedFomo
from pflsweep.algorithms.fedfomo import Work, normalised
from pflsweep.methods.protocol import Given


@dataclass(frozen=True, kw_only=True)
class PgfedFedFomo(PfllibFedFomo):
    """FedFomo (Zhang et al., ICLR 2021) in pgfed b1d70f7, the code of PGFed's authors, which descends from PFLlib.

    It differs from the paper as PfllibFedFomo does, and in one more point: the normalised weights of the mix, which are
    0 for a model without a gain, are added to the server's table P, not the raw ones. Losses and validation
    rows are as there.
    """

    paper = "Zhang et al., ICLR 2021, as PGFed's authors run it"
    dp_incompatible_reason = ""  # apart from the gains, as FedFomo

    def start(self, given: Given, data: Any) -> Work:
        work = super().start(given, data)
        return work._replace(gains=normalised(work.gains))
