"""FedFomo as FedPG's platform runs it: the cohort mixes its own members, and a download counts as a round."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Empty, Given, Kept, Method, Setup, Turn, Vector, hyper
from pflsweep.methods.task import Batch
from pflsweep.ops.vmap import per_client
from pflsweep.util.errors import UserError

APART = 1e-6  # added to the distance between two models


class Server(NamedTuple):
    w: Tensor  # [P] the mean of the last cohort's models before it trained, which is the global model too
    models: Tensor  # [N, P] personal models


class Down(NamedTuple):
    w: Kept  # [C, P] the client's own model, which it has


class Question(NamedTuple):
    base: Vector  # [C, P] the model to compare with
    models: Vector  # [C, M, P] those of the whole cohort


class Rated(NamedTuple):
    """Losses that have been summed up so far."""

    losses: Tensor  # [C, 1 + M] sums over rows: of the base, then of each model
    rows: Tensor  # [C] number of rows


class Reply(NamedTuple):
    w: Vector  # [C, P]


@dataclass(frozen=True, kw_only=True)
class PfedplatFedFomo(Method):
    """FedFomo (Zhang et al., ICLR 2021) in pfedplat bce4bd1, the public platform of FedPG's authors.

    Where it differs from the paper:
    - the candidates are all personal models of the present cohort, the client's own among them; there is no choice by P
      and no exploration;
    - they are rated on all training rows, in training mode (with dropout, here of one draw for all models), against
      the mean of the previous cohort's models as they were before that cohort trained;
    - the mix is sum_n w*_n theta_n with w* = max(w, 0) / its sum; a client without a gain continues with its own model;
    - a client is evaluated with the model that it trained in its last turn;
    - the platform counts each model that a client downloads as a round: with cohorts of size M, one of M rounds takes
      place. The learning rate decays with the counted rounds. The others' cohorts count as trained all the same (as in
      metrics.clients=trained);
    - a client trains with the learning rate of the round (the platform: of the round after its last turn, among those
      that take place; with 10 of 100 clients and a decay of 0.999 ours is about 9% less).
    The members of a cohort are only known at its aggregation, so clients mix and train when the server asks them then.
    Momentum, which the platform ignores, is refused.
    """

    paper = "Zhang et al., ICLR 2021, as FedPG's platform runs it"
    rows_on_server = ("models",)
    unsampled_model = "the common initial model"
    cost = "M + 1 forward passes over the training rows, in one of M rounds; the server keeps N models"
    dp_incompatible_reason = "models are rated on the training rows without noise"

    every: int | None = hyper("rounds of which one takes place; null: as many as there are clients in a cohort", low=1)

    @classmethod
    def relative_gradients(cls, epochs: int, **values: Any) -> float:
        """Clients train in one of `every` rounds."""
        return 1 / (values["every"] or values["cohort"])

    init_client = stock.stateless_client
    start = stock.start_from_down
    step = stock.sgd_step
    global_model = stock.shared_model

    def __post_init__(self) -> None:
        if self.opt.momentum:
            raise UserError(
                f"train.momentum is {self.opt.momentum}: FedPG's platform runs FedFomo with plain SGD. "
                "Use train.momentum=0."
            )

    def init(self, w: Tensor, setup: Setup) -> Server:
        return Server(w, w.repeat(setup.clients, 1))

    def send(self, server: Server, turn: Turn) -> Down:
        return Down(server.models[turn.ids])

    def fit(self, given: Given, data: Any, work: stock.Work) -> stock.Work:
        return work

    def finish(self, given: Given, data: Any, work: stock.Work) -> tuple[Empty, Empty]:
        return Empty(), given.client

    def aggregate(self, server: Server, up: Empty, turn: Turn) -> Generator[Question, Reply, Server]:
        cohort = len(turn.ids)
        if (turn.round - 1) % (self.every or cohort):
            return server
        models = server.models[turn.ids]
        replies = yield Question(stock.to_all(server.w, turn), stock.for_each(models, turn))
        return Server(models.mean(0), server.models.index_copy(0, turn.ids, replies.w))

    def answer(self, given: Given, data: Any, question: Question) -> Reply:
        like = question.base[:, 0]
        none = Rated(like.new_zeros(len(like), 1 + question.models.shape[1]), torch.zeros_like(like))
        rated = stock.run(self.rate, question, none, data.rating("rating", dropout=True))
        mix = self.mixed(question, given.down, rated)
        return Reply(stock.run(self.step, given, stock.Work(mix, self.opt.init(mix)), data.train(self.epochs)).w)

    @per_client
    def rate(self, question: Question, rated: Rated, batch: Batch) -> Rated:
        losses = torch.stack([self.task.loss(w, batch) for w in (question.base, *question.models.unbind())])
        rows = rated.rows.new_full((), len(batch.y)) if batch.mask is None else batch.mask.to(losses.dtype).sum()
        return Rated(rated.losses + rows * losses, rated.rows + rows)

    @per_client
    def mixed(self, question: Question, down: Down, rated: Rated) -> Tensor:
        """Return theta-hat [P]. Candidates are added one by one, since all clients of a chunk read the same [M, P]."""
        losses, models = rated.losses / rated.rows, question.models.unbind()
        distance = torch.stack([(w - question.base).norm() for w in models])
        gains = (losses[0] - losses[1:]) / (distance + APART)
        weight = torch.where(gains.isfinite(), gains, 0).clamp(min=0)  # 0 for models that diverged
        total = weight.sum()
        mix = sum(torch.where(part > 0, part * w, 0) for part, w in zip(weight.unbind(), models, strict=True))
        return torch.where(total > 0, mix / torch.where(total > 0, total, 1), down.w)

    def personal(self, server: Server, client: Empty, data: Any, turn: Turn) -> Tensor:
        return server.models[turn.ids]
