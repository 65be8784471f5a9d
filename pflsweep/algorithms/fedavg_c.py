"""FedAvg-C and FedProx-C: each client first fine-tunes the received model, and local training starts from there."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Method, Setup, Turn, hyper
from pflsweep.methods.task import Batch
from pflsweep.ops.vmap import per_client


class Work(NamedTuple):
    w: Tensor  # [C, P]
    opt: Tensor  # [C, P] or [C, 0]
    tuned: Tensor  # [C, P] theta-hat_i, from which training began


class Tuning(NamedTuple):
    """Constants of a client's fine-tuning."""

    anchor: Tensor  # [C, P] theta, as received
    lr: float | Tensor


@dataclass(frozen=True, kw_only=True)
class FedAvgC(Method):
    """A baseline of Zhang, Hua, Wang, Song, Xue, Ma, Guan: FedALA: Adaptive Local Aggregation for Personalized
    Federated Learning. AAAI 2023. https://arxiv.org/abs/2212.01197 (section 4: they "locally fine-tune the global
    model for local initialization at each iteration")

    theta-hat_i is the received model after fine-tuning on the client's data. Local training starts from it, and the
    client is evaluated with it. mu > 0 is FedProx-C (Li et al., MLSys 2020), whose anchor stays the received model.
    With finetune_epochs = 0 the trajectory is that of FedAvg (FedProx), but not under DP-SGD, which draws anew in each
    pass over the data. What the paper leaves open:
    - 15 epochs of fine-tuning are what its running times suggest; their learning rate is the run's;
    - fine-tuning and training have separate optimisers (the former's is always fresh) and orders of batches;
    - a client is evaluated with theta-hat_i of its last turn, one aggregation behind, or with the newest theta,
      fine-tuned again at every evaluation.
    """

    paper = "Zhang et al., AAAI 2023"
    unsampled_model = (
        "the newest global model; with evaluated=current after fine-tuning on its own data, as every client"
    )
    cost = "finetune_epochs more epochs a turn; a client keeps its fine-tuned model (P), or repeats them for evaluation"
    dp_incompatible_reason = ""
    reconstruction = "epochs and learning rate of the fine-tuning, and which model is evaluated"

    finetune_epochs: int = hyper("epochs of fine-tuning before the local epochs", low=0)
    finetune_lr: float | None = hyper("learning rate of the fine-tuning, without decay; null: the run's", low=0)
    mu: float = hyper("strength of the proximal term", low=0)
    ft_prox: bool = hyper("whether the proximal term acts in the fine-tuning too")
    evaluated: str = hyper("evaluate what a client fine-tuned in its last turn, or the newest model fine-tuned anew",
                           choices=("stale", "current"))  # fmt: skip

    init = stock.global_server
    send = stock.broadcast
    fit = stock.local_epochs
    aggregate = stock.average
    global_model = stock.shared_model

    @classmethod
    def relative_gradients(cls, epochs: int, **values: Any) -> float:
        return 1 + values["finetune_epochs"] / epochs

    def init_client(self, w: Tensor, setup: Setup) -> stock.Own:
        """Keep theta-hat_i of the last turn; nothing if it is not evaluated."""
        return stock.Own(w if self.evaluated == "stale" else w.new_zeros(0))

    def start(self, given: Given, data: Any) -> Work:
        tuned = self.fine_tuned(given.down.w, given.turn, data)
        return Work(tuned, self.opt.init(tuned), tuned)

    def fine_tuned(self, w: Tensor, turn: Turn, data: Any) -> Tensor:
        """Fine-tune a received theta: return theta-hat_i [C, P]."""
        lr = turn.lr if self.finetune_lr is None else self.finetune_lr
        # A copy, since the optimiser writes into it
        begin = stock.Work(w.clone(), self.opt.init(w))
        return stock.run(self.tune, Tuning(w, lr), begin, data.train(self.finetune_epochs, "finetune")).w

    @per_client
    def tune(self, tuning: Tuning, work: stock.Work, batch: Batch) -> stock.Work:
        g = self.gradient(work.w, tuning.anchor, batch, self.mu if self.ft_prox else 0.0)
        return stock.Work(*self.opt.update(work.w, work.opt, g, tuning.lr))

    @per_client
    def step(self, given: Given, work: Work, batch: Batch) -> Work:
        g = self.gradient(work.w, given.down.w, batch, self.mu)
        w, opt = self.opt.update(work.w, work.opt, g, given.turn.lr)
        return Work(w, opt, work.tuned)

    def gradient(self, w: Tensor, anchor: Tensor, batch: Batch, mu: float) -> Tensor:
        """Return the gradient of f_B(w) + mu/2 |w - theta|^2."""
        return stock.proximal_gradient(self.task.grad(w, batch), mu, w, anchor)

    def finish(self, given: Given, data: Any, work: Work) -> tuple[stock.Up, stock.Own]:
        return stock.Up(work.w), stock.Own(work.tuned) if self.evaluated == "stale" else given.client

    def personal(self, server: stock.Server, client: stock.Own, data: Any, turn: Turn) -> Tensor:
        if self.evaluated == "current":
            return self.fine_tuned(stock.to_all(server.w, turn), turn, data)
        return stock.personal_is_own_once_sampled(self, server, client, data, turn)
