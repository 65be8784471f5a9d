"""pFedMe as PGFed's authors run it: with an unnamed weight decay in the inner steps."""

from dataclasses import dataclass

from torch import Tensor

from pflsweep.algorithms.pfedme import PFedMe
from pflsweep.methods import stock
from pflsweep.methods.protocol import hyper
from pflsweep.methods.task import Batch


@dataclass(frozen=True, kw_only=True)
class PgfedPFedMe(PFedMe):
    """pFedMe (Dinh et al., NeurIPS 2020) in pgfed b1d70f7, the code of PGFed's authors, and in the original code.

    The optimiser of the inner steps adds a weight decay of 1e-3, which no option names. In pgfed a client is evaluated
    with w_i of its last turn, which has overwritten the personalised model there (eval = "w").
    """

    paper = "Dinh et al., NeurIPS 2020, as PGFed's authors run it"
    version = 2
    supports_ala = True
    unsampled_model = "the common initial model"
    dp_incompatible_reason = ""

    inner_decay: float = hyper("weight decay of the inner steps", low=0)

    personal = stock.personal_is_own

    def inner_gradient(self, theta: Tensor, w: Tensor, batch: Batch) -> Tensor:
        return super().inner_gradient(theta, w, batch) + self.inner_decay * theta
