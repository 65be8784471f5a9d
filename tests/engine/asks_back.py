"""A method that asks back while it aggregates: what the protocol's questions are for, and a test of them."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from pflsweep.engine import parts
from pflsweep.engine.lift import each
from pflsweep.engine.protocol import Given, Method, Scalars, Turn, Vector, hyper
from pflsweep.engine.task import Batch


class Up(NamedTuple):
    delta: Vector  # [C, P] trained minus received
    loss: Scalars  # [C] on all of the client's data, of the model it received


class Question(NamedTuple):
    move: Vector  # [C, P] from the model that the clients received


class Reply(NamedTuple):
    loss: Scalars  # [C] there


@dataclass(frozen=True, kw_only=True)
class LineSearch(Method):
    """FedAvg that halves the server's step until the cohort's mean loss falls."""

    paper = "none: a test of the protocol"
    unsampled = "the global model"

    trials: int = hyper("steps that are tried, at most", low=1)

    init = parts.global_server
    init_client = parts.stateless_client
    send = parts.broadcast
    start = parts.start_from_down
    step = parts.sgd_step
    fit = parts.local_epochs
    personal = parts.personal_is_global
    global_model = parts.shared_model

    @each
    def risk(self, w: Tensor, batch: Batch) -> Tensor:
        return self.task.loss(w, batch)

    def finish(self, given: Given, data: Any, work: parts.Work) -> tuple[Up, Any]:
        return Up(work.w - given.down.w, data.mean(self.risk, given.down.w)), given.client

    def aggregate(self, server: parts.Server, up: Up, turn: Turn) -> Generator[Question, Reply, parts.Server]:
        move, before = turn.share @ up.delta, turn.share @ up.loss
        for trial in range(self.trials):
            step = move / 2**trial
            replies = yield Question(parts.to_all(step, turn))
            if turn.share @ replies.loss < before:
                return parts.Server(server.w + step)
        return server

    def answer(self, given: Given, data: Any, question: Question) -> Reply:
        return Reply(data.mean(self.risk, given.down.w + question.move))
