"""Methods with one defect each: what the conformance suite exists to catch."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.engine import parts
from pflsweep.engine.lift import each
from pflsweep.engine.protocol import Given, Setup, Turn, Vector, hyper
from pflsweep.engine.task import Batch


class WritesIntoDown(FedAvg):
    @each
    def step(self, given: Given, work: parts.Work, batch: Batch) -> parts.Work:
        given.down.w.mul_(0.999)
        g = self.task.grad(work.w, batch)
        return parts.Work(*self.opt.update(work.w, work.opt, g, given.turn.lr))


class TrainsWhatItWasSent(FedAvg):
    """Its fit forgets the work that the engine has copied for it."""

    def fit(self, given: Given, data: Any, work: parts.Work) -> parts.Work:
        return parts.run(self.step, given, work._replace(w=given.down.w), data.train(self.epochs))


class WritesIntoWork(FedAvg):
    @each
    def step(self, given: Given, work: parts.Work, batch: Batch) -> parts.Work:
        g = self.task.grad(work.w, batch)
        return parts.Work(*self.opt.update(work.w.mul_(0.999), work.opt, g, given.turn.lr))


class ReadsOldWork(FedAvg):
    """Right under vmap, and wrong where the update was made in place."""

    @each
    def step(self, given: Given, work: parts.Work, batch: Batch) -> parts.Work:
        w, opt = self.opt.update(work.w, work.opt, self.task.grad(work.w, batch), given.turn.lr)
        return parts.Work(w + 0.1 * (w - work.w), opt)


class PersonalMovesTheServer(FedAvg):
    def personal(self, server: parts.Server, client: Any, data: Any, turn: Turn) -> Tensor:
        return parts.to_all(server.w.mul_(0.999), turn)


class PersonalDraws(FedAvg):
    def personal(self, server: parts.Server, client: Any, data: Any, turn: Turn) -> Tensor:
        return parts.to_all(server.w + np.random.normal(), turn)  # noqa: NPY002 (the defect)


class IgnoresTheMask(FedAvg):
    @each
    def step(self, given: Given, work: parts.Work, batch: Batch) -> parts.Work:
        g = self.task.grad(work.w, batch, lambda logits, batch: F.cross_entropy(logits, batch.y))
        return parts.Work(*self.opt.update(work.w, work.opt, g, given.turn.lr))


class LooksAtItsNeighbours(FedAvg):
    """Mixes the clients of a chunk, which no method can know."""

    def finish(self, given: Given, data: Any, work: parts.Work) -> tuple[parts.Up, Any]:
        return parts.Up(work.w + 0.1 * work.w.mean(0)), given.client


class ReadsTheRateForAll(FedAvg):
    """Outside @each, where it is one number only as long as all clients are of one trial."""

    def fit(self, given: Given, data: Any, work: parts.Work) -> parts.Work:
        work = parts.run(self.step, given, work, data.train(self.epochs))
        return work._replace(w=work.w - given.turn.lr * 0.1 * work.w)


class DrawsFromTheGlobalGenerator(FedAvg):
    def start(self, given: Given, data: Any) -> parts.Work:
        w = given.down.w + 0.01 * torch.randn(given.down.w.shape)
        return parts.Work(w, self.opt.init(w))


class SeedsTheGlobalGenerator(FedAvg):
    def start(self, given: Given, data: Any) -> parts.Work:
        torch.manual_seed(0)
        return parts.Work(given.down.w, self.opt.init(given.down.w))


class KnowsClientZero(FedAvg):
    """Looks at a client's place in the list rather than at its key."""

    def aggregate(self, server: parts.Server, up: parts.Up, turn: Turn) -> parts.Server:
        share = turn.share * (1 + (turn.ids == 0))
        return parts.Server(share / share.sum() @ up.w)


class KeepsAMemoryOfItsOwn(FedAvg):
    """Server momentum that stands in the method instead of in the state."""

    def aggregate(self, server: parts.Server, up: parts.Up, turn: Turn) -> parts.Server:
        move = turn.share @ up.w - server.w + 0.5 * self.__dict__.get("move", 0)
        self.__dict__["move"] = move
        return parts.Server(server.w + move)


class Counting(NamedTuple):
    w: Tensor  # [P]
    rounds: int


class CountsInANumber(FedAvg):
    """A checkpoint keeps tensors; a number in the state is lost."""

    def init(self, w: Tensor, setup: Setup) -> Counting:  # type: ignore[override]
        return Counting(w, 0)

    def aggregate(self, server: Any, up: parts.Up, turn: Turn) -> Counting:  # type: ignore[override]
        return Counting(turn.share @ up.w, server.rounds + 1)


class OverwritesTheServer(FedAvg):
    """Its server and the clients' initial state are one tensor, in which it aggregates."""

    init_client = parts.own_model  # type: ignore[assignment]

    def finish(self, given: Given, data: Any, work: parts.Work) -> tuple[parts.Up, parts.Own]:  # type: ignore[override]
        return parts.Up(work.w), parts.Own(work.w)

    def aggregate(self, server: parts.Server, up: parts.Up, turn: Turn) -> parts.Server:
        server.w.copy_(turn.share @ up.w)
        return server


class TwoUp(NamedTuple):
    w: Vector  # [C, P]
    more: Vector  # [C, P] in every second round


class SendsMoreThanItSays(FedAvg):
    def finish(self, given: Given, data: Any, work: parts.Work) -> tuple[TwoUp, Any]:  # type: ignore[override]
        return TwoUp(work.w, work.w if given.turn.round % 2 else work.w[:, :0]), given.client


class SaysNothing(NamedTuple):
    w: Tensor  # neither Vector, Scalars nor Ids


class SendsWhatCannotBeCounted(FedAvg):
    def finish(self, given: Given, data: Any, work: parts.Work) -> tuple[SaysNothing, Any]:  # type: ignore[override]
        return SaysNothing(work.w), given.client


class Ascends(FedAvg):
    @each
    def step(self, given: Given, work: parts.Work, batch: Batch) -> parts.Work:
        g = -self.task.grad(work.w, batch)
        return parts.Work(*self.opt.update(work.w, work.opt, g, given.turn.lr))


class DividesByZero(FedAvg):
    """By n - 1, where one client has a single sample."""

    def finish(self, given: Given, data: Any, work: parts.Work) -> tuple[parts.Up, Any]:
        spread = (given.turn.n / (given.turn.n - 1)).clamp(max=1)
        return parts.Up(work.w * spread[:, None] / (given.turn.n - 1).clamp(max=1)[:, None]), given.client


@dataclass(frozen=True, kw_only=True)
class NeedsAValue(FedAvg):
    strength: float = hyper("how strongly it does nothing", low=0, high=1)


class MakesItOnTheCpu(FedAvg):
    """Works on a machine without a GPU."""

    def aggregate(self, server: parts.Server, up: parts.Up, turn: Turn) -> parts.Server:
        kept = torch.ones(len(turn.ids), dtype=turn.share.dtype)
        return parts.Server((kept * turn.share) @ up.w)
