"""FedLC: a client's rare classes get a margin in its loss, so that frequent ones do not dominate."""

from dataclasses import dataclass

from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Method, hyper
from pflsweep.methods.task import Batch, cross_entropy
from pflsweep.ops.vmap import per_client

MISSING = 1e-8  # count of a class without samples, whose margin is then 100 tau, as in FL-bench


@dataclass(frozen=True, kw_only=True)
class FedLC(Method):
    """Zhang, Li, Li, Xu, Wu, Ding, Wu: Federated Learning with Label Distribution Skew via Logits Calibration.
    ICML 2022. https://arxiv.org/abs/2209.00189

    tau = 0 is FedAvg; at tau = 1 a class that a client lacks has almost no weight in its softmax. Where we differ:
    - the paper calls its loss a calibrated softmax cross-entropy, but prints a denominator without the true class. That
      loss has no lower bound, and FL-bench reports that training with it collapses. Here, as in FL-bench, the sum is
      over all classes;
    - n_c counts all training data of a client; a class that it lacks counts as 1e-8 samples.
    """

    paper = "Zhang et al., ICML 2022"
    supports_ala = True
    unsampled_model = "the global model"
    cost = "nothing"
    dp_incompatible_reason = "label counts enter its loss"

    tau: float = hyper("size of the margins", low=0)

    init = stock.global_server
    init_client = stock.stateless_client
    send = stock.broadcast
    start = stock.start_from_down
    fit = stock.local_epochs
    finish = stock.upload
    aggregate = stock.average
    personal = stock.personal_is_global
    global_model = stock.shared_model

    @per_client
    def step(self, given: Given, work: stock.Work, batch: Batch) -> stock.Work:
        """SGD on -log e^{f_y - m_y} / sum_c e^{f_c - m_c}, where m_c = tau n_c^{-1/4}."""
        margin = self.tau * given.class_counts.to(work.w.dtype).clamp(min=MISSING) ** -0.25

        def calibrated(logits: Tensor, batch: Batch) -> Tensor:
            return cross_entropy(logits - margin, batch)

        g = self.task.grad(work.w, batch, calibrated)
        return stock.Work(*self.opt.update(work.w, work.opt, g, given.turn.lr))
