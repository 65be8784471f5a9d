"""FedAS: received extractors first learn the client's old features; clients weigh by their Fisher information."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Method, Scalars, Setup, Turn, Vector, hyper
from pflsweep.methods.task import Batch, by_class
from pflsweep.ops.vmap import per_client


class Work(NamedTuple):
    w: Tensor  # [C, P] extractor and head
    opt: Tensor  # [C, P] or [C, 0]
    prototypes: Tensor  # [C, K, D] each class's mean features under the client's previous model
    known: Tensor  # [C, K] whether the class has a prototype
    fisher: Tensor  # [C] the trace so far


class Up(NamedTuple):
    w: Vector  # [C, F] the trained extractor
    fisher: Scalars  # [C] the trace of the trained model's Fisher information


@dataclass(frozen=True, kw_only=True)
class FedAS(Method):
    """Yang, Huang, Ye: FedAS: Bridging Inconsistency in Personalized Federated Learning. CVPR 2024.
    https://openaccess.thecvf.com/content/CVPR2024/html/Yang_FedAS_Bridging_Inconsistency_in_Personalized_Federated_Learning_CVPR_2024_paper.html

    Parameter alignment: the received extractor learns the mean features that the client's previous model gives to each
    class. Client synchronisation: extractors are averaged with weights proportional to the trace of their clients'
    Fisher information, so that under-trained stragglers weigh little. Written from the authors' code
    (xiyuanyang45/FedAS); the paper's text was not at hand. What is decided here, or differs:
    - the trace is the sum over mini-batches of |grad f_B|^2, as in the code; by definition it is over single samples;
    - a batch is aligned sample by sample, all classes weighing the same, as in the code (FL-bench: by its class means);
    - a client's first turn aligns nothing, since there is no previous model (the code: the random initial one);
    - where all traces of a round are 0 the run's weights are used;
    - clients are evaluated with the model of their own last turn, extractor included, as in the code.
    """

    paper = "Yang et al., CVPR 2024"
    unsampled_model = "the newest extractor with the common initial head"
    cost = "a forward pass for the prototypes, epochs of alignment and a pass for the Fisher trace; a client keeps P"
    dp_incompatible_reason = "it sends the trace of its Fisher information, of gradients that are not private"

    align_epochs: int = hyper("epochs that align the received extractor", low=0)
    align_lr: float = hyper("learning rate of the alignment, without decay", low=0)

    init_client = stock.own_model
    send = stock.broadcast
    step = stock.sgd_step
    class_features = stock.class_features
    global_model = stock.no_global_model

    @classmethod
    def relative_gradients(cls, epochs: int, **values: Any) -> float:
        return 1 + (values["align_epochs"] + 1) / epochs

    def init(self, w: Tensor, setup: Setup) -> stock.Server:
        return stock.Server(w[self.task.extractor])

    def start(self, given: Given, data: Any) -> Work:
        own = given.client.w
        w = torch.cat([given.down.w, own[:, self.task.head]], 1)
        sums, share = data.mean(self.class_features, own)
        known = (share > 0) & (given.turn.last >= 0)[:, None]
        return Work(w, self.opt.init(w), stock.class_means(sums, share), known, w.new_zeros(len(w)))

    def fit(self, given: Given, data: Any, work: Work) -> Work:
        work = stock.run(self.align_step, given, work, data.train(self.align_epochs, "align"))
        work = stock.run(self.step, given, work, data.train(self.epochs))
        return stock.run(self.fisher_step, given, work, data.train(1, "fisher"))

    @per_client
    def align_step(self, given: Given, work: Work, batch: Batch) -> Work:
        """SGD of the extractor on the sum over classes of their samples' mean squared distance to the prototype."""

        def apart(logits: Tensor, z: Tensor, batch: Batch) -> Tensor:
            squares = (z - work.prototypes[batch.y]).square().mean(1, keepdim=True)
            sums, share = by_class(squares, batch, self.task.classes)
            return (stock.class_means(sums, share)[:, 0] * work.known).sum()

        body = self.task.extractor
        _, g = self.task.value_and_grad(work.w, batch, apart, part=body, features=True)
        return work._replace(w=torch.cat([work.w[body] - self.align_lr * g, work.w[self.task.head]]))

    @per_client
    def fisher_step(self, given: Given, work: Work, batch: Batch) -> Work:
        """Add one batch to tr F, with a gradient without dropout."""
        g = self.task.grad(work.w, batch._replace(key=None))
        return work._replace(fisher=work.fisher + g @ g)

    def finish(self, given: Given, data: Any, work: Work) -> tuple[Up, stock.Own]:
        return Up(work.w[:, self.task.extractor], work.fisher), stock.Own(work.w)

    def aggregate(self, server: stock.Server, up: Up, turn: Turn) -> stock.Server:
        """phi = sum_i tr F_i phi_i / sum_i tr F_i"""
        total = up.fisher.sum()
        weight = torch.where(total > 0, up.fisher / torch.where(total > 0, total, 1), turn.share)
        return stock.Server(weight @ up.w)

    def personal(self, server: stock.Server, client: stock.Own, data: Any, turn: Turn) -> Tensor:
        newest = torch.cat([stock.to_all(server.w, turn), client.w[:, self.task.head]], 1)
        return torch.where(turn.last[:, None] < 0, newest, client.w)
