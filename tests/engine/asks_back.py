"""A method that asks clients while it aggregates, as an example of the protocol's questions and for their tests."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Method, Scalars, Turn, Vector, hyper
from pflsweep.methods.task import Batch
from pflsweep.ops.vmap import per_client


class Up(NamedTuple):
    delta: Vector  # [C, P] trained minus received
    loss: Scalars  # [C] of the received model, on all of the client's data


class Question(NamedTuple):
    move: Vector  # [C, P] step from the received model


class Reply(NamedTuple):
    loss: Scalars  # [C] after that step


@dataclass(frozen=True, kw_only=True)
class LineSearch(Method):
    """FedAvg that halves the server's step until the cohort's mean loss falls."""

    paper = "none: a test of the protocol"
    unsampled_model = "the global model"

    trials: int = hyper("steps that are tried, at most", low=1)

    init = stock.global_server
    init_client = stock.stateless_client
    send = stock.broadcast
    start = stock.start_from_down
    step = stock.sgd_step
    fit = stock.local_epochs
    personal = stock.personal_is_global
    global_model = stock.shared_model

    @per_client
    def risk(self, w: Tensor, batch: Batch) -> Tensor:
        return self.task.loss(w, batch)

    def finish(self, given: Given, data: Any, work: stock.Work) -> tuple[Up, Any]:
        return Up(work.w - given.down.w, data.mean(self.risk, given.down.w)), given.client

    def aggregate(self, server: stock.Server, up: Up, turn: Turn) -> Generator[Question, Reply, stock.Server]:
        move, before = turn.share @ up.delta, turn.share @ up.loss
        for trial in range(self.trials):
            step = move / 2**trial
            replies = yield Question(stock.to_all(step, turn))
            if turn.share @ replies.loss < before:
                return stock.Server(server.w + step)
        return server

    def answer(self, given: Given, data: Any, question: Question) -> Reply:
        return Reply(data.mean(self.risk, given.down.w + question.move))
