"""FML: each client's own model and its copy of the global model learn from each other's predictions."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Method, hyper
from pflsweep.methods.task import Batch, Loss, cross_entropy, mean_over
from pflsweep.ops.vmap import per_client


class Work(NamedTuple):
    w: Tensor  # [C, P] the meme model, a fork of the global one
    opt: Tensor  # [C, P] or [C, 0]
    v: Tensor  # [C, P] the personalised model
    v_opt: Tensor  # [C, P] or [C, 0]


@dataclass(frozen=True, kw_only=True)
class FML(Method):
    """Shen, Zhang, Jia, Zhang, Huang, Zhou, Kuang, Wu, Wu: Federated Mutual Learning. arXiv 2020.
    https://arxiv.org/abs/2006.16765

    alpha = beta = 1 trains Local and FedAvg side by side. Here both models have the same architecture, since a client's
    model is one vector of common length. The paper's text was not at hand: this is its published loss, and what public
    code (PFLlib) does. What is decided here, or differs from that code:
    - the teacher is constant in its student's gradient, as in deep mutual learning (Zhang et al. 2018); PFLlib's
      gradients flow through both predictions, so each model also learns to be easy to imitate;
    - both learn from predictions before the batch's step, and teachers have no dropout;
    - the divergence is summed over classes (PFLlib: the mean over them, 1 / K of it);
    - gradients are not clipped (PFLlib: at a norm of 10);
    - memes are averaged with the run's weights.
    """

    paper = "Shen et al., arXiv 2020"
    unsampled_model = "the newest global model"
    cost = "a second model is trained on each batch, and each needs one more forward pass; a client keeps P"
    dp_incompatible_reason = "teachers see whole batches, whose effect on the guarantee was not examined"

    alpha: float = hyper("weight of the labels in the personalised model's loss; the meme has the rest", low=0, high=1)
    beta: float = hyper("weight of the labels in the meme's loss; the personalised model has the rest", low=0, high=1)

    init = stock.global_server
    init_client = stock.own_model
    send = stock.broadcast
    fit = stock.local_epochs
    aggregate = stock.average
    personal = stock.personal_is_own_once_sampled
    global_model = stock.shared_model
    relative_gradients = classmethod(stock.two_gradients)

    def start(self, given: Given, data: Any) -> Work:
        w, v = given.down.w, given.client.w
        return Work(w, self.opt.init(w), v, self.opt.init(v))

    @per_client
    def step(self, given: Given, work: Work, batch: Batch) -> Work:
        """SGD on L_local = alpha L_C + (1 - alpha) KL(p_meme || p_local); on L_meme with beta, and the two swapped."""
        g = self.task.grad(work.w, batch, self.taught(self.beta, work.v, batch))
        g_v = self.task.grad(work.v, batch, self.taught(self.alpha, work.w, batch))
        return Work(
            *self.opt.update(work.w, work.opt, g, given.turn.lr),
            *self.opt.update(work.v, work.v_opt, g_v, given.turn.lr),
        )

    def taught(self, weight: float | Tensor, teacher: Tensor, batch: Batch) -> Loss:
        """Return the loss weight * CE + (1 - weight) * KL(p_teacher || p) of one client's batch."""
        log_p = stock.teacher_logits(self.task, teacher, batch).log_softmax(1)

        def loss(logits: Tensor, batch: Batch) -> Tensor:
            divergence = (log_p.exp() * (log_p - logits.log_softmax(1))).sum(1)
            return weight * cross_entropy(logits, batch) + (1 - weight) * mean_over(divergence, batch)

        return loss

    def finish(self, given: Given, data: Any, work: Work) -> tuple[stock.Up, stock.Own]:
        return stock.Up(work.w), stock.Own(work.v)
