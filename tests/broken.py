"""Methods with one defect each, which the conformance suite has to find."""

import random
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Method, Setup, Turn, Vector, hyper
from pflsweep.methods.task import Batch
from pflsweep.ops import random as keyed
from pflsweep.ops.vmap import per_client


class WritesIntoDown(FedAvg):
    @per_client
    def step(self, given: Given, work: stock.Work, batch: Batch) -> stock.Work:
        given.down.w.mul_(0.999)
        g = self.task.grad(work.w, batch)
        return stock.Work(*self.opt.update(work.w, work.opt, g, given.turn.lr))


class TrainsWhatItWasSent(FedAvg):
    """Method whose `fit` ignores the work that the engine has copied, and trains the sent model."""

    def fit(self, given: Given, data: Any, work: stock.Work) -> stock.Work:
        return stock.run(self.step, given, work._replace(w=given.down.w), data.train(self.epochs))


class WaitsForTheDevice(FedAvg):
    """Method whose step copies a number to the device, for which the CPU waits."""

    @per_client
    def step(self, given: Given, work: stock.Work, batch: Batch) -> stock.Work:
        half = work.w.new_tensor(0.5)
        return stock.Work(*self.opt.update(work.w, work.opt, half * self.task.grad(work.w, batch), given.turn.lr))


class WritesIntoWork(FedAvg):
    @per_client
    def step(self, given: Given, work: stock.Work, batch: Batch) -> stock.Work:
        g = self.task.grad(work.w, batch)
        return stock.Work(*self.opt.update(work.w.mul_(0.999), work.opt, g, given.turn.lr))


class ReadsOldWork(FedAvg):
    """Method that reads the state from before an in-place update: right under vmap, wrong otherwise."""

    @per_client
    def step(self, given: Given, work: stock.Work, batch: Batch) -> stock.Work:
        w, opt = self.opt.update(work.w, work.opt, self.task.grad(work.w, batch), given.turn.lr)
        return stock.Work(w + 0.1 * (w - work.w), opt)


class PersonalMovesTheServer(FedAvg):
    def personal(self, server: stock.Server, client: Any, data: Any, turn: Turn) -> Tensor:
        return stock.to_all(server.w.mul_(0.999), turn)


class PersonalDraws(FedAvg):
    def personal(self, server: stock.Server, client: Any, data: Any, turn: Turn) -> Tensor:
        return stock.to_all(server.w + np.random.normal(), turn)  # noqa: NPY002 (the defect)


class PersonalForgets(FedAvg):
    """Method whose evaluations differ by a memory of its own."""

    def personal(self, server: stock.Server, client: Any, data: Any, turn: Turn) -> Tensor:
        seen = self.__dict__.setdefault("seen", [])
        seen.append(None)
        return stock.to_all(server.w + len(seen), turn)


class IgnoresTheMask(FedAvg):
    @per_client
    def step(self, given: Given, work: stock.Work, batch: Batch) -> stock.Work:
        g = self.task.grad(work.w, batch, lambda logits, batch: F.cross_entropy(logits, batch.y))
        return stock.Work(*self.opt.update(work.w, work.opt, g, given.turn.lr))


class TrainsOnTestRows(FedAvg):
    def fit(self, given: Given, data: Any, work: stock.Work) -> stock.Work:
        return stock.local_epochs(self, given, data.test(), stock.local_epochs(self, given, data, work))


class SlowsTowardsTheLastRound(FedAvg):
    def aggregate(self, server: stock.Server, up: stock.Up, turn: Turn) -> stock.Server:
        return stock.Server(server.w + (1 - turn.round / turn.rounds) * (turn.share @ up.w - server.w))


class LooksAtItsNeighbours(FedAvg):
    """Method that mixes the clients of a chunk, although chunks are an arbitrary choice of the engine."""

    def finish(self, given: Given, data: Any, work: stock.Work) -> tuple[stock.Up, Any]:
        return stock.Up(work.w + 0.1 * work.w.mean(0)), given.client


class ReadsTheRateForAll(FedAvg):
    """Method that reads the learning rate outside @per_client, where it is one number only if all clients are of one
    trial.
    """

    def fit(self, given: Given, data: Any, work: stock.Work) -> stock.Work:
        work = stock.run(self.step, given, work, data.train(self.epochs))
        return work._replace(w=work.w - given.turn.lr * 0.1 * work.w)


class DrawsFromTheGlobalGenerator(FedAvg):
    def start(self, given: Given, data: Any) -> stock.Work:
        w = given.down.w + 0.01 * torch.randn(given.down.w.shape)
        return stock.Work(w, self.opt.init(w))


class SeedsTheGlobalGenerator(FedAvg):
    def start(self, given: Given, data: Any) -> stock.Work:
        torch.manual_seed(0)
        return stock.Work(given.down.w, self.opt.init(given.down.w))


class DrawsOnTheServer(FedAvg):
    def aggregate(self, server: stock.Server, up: stock.Up, turn: Turn) -> stock.Server:
        return stock.Server(turn.share @ up.w + 0.01 * torch.randn_like(server.w))


class DrawsLate(FedAvg):
    """Method that draws from Python's generator, at which training itself looks in the first round alone."""

    def aggregate(self, server: stock.Server, up: stock.Up, turn: Turn) -> stock.Server:
        return stock.Server(turn.share @ up.w + (0.01 * random.random() if turn.round > 1 else 0))


class KnowsClientZero(FedAvg):
    """Method that depends on a client's position in the list rather than on its key."""

    def aggregate(self, server: stock.Server, up: stock.Up, turn: Turn) -> stock.Server:
        share = turn.share * (1 + (turn.ids == 0))
        return stock.Server(share / share.sum() @ up.w)


class KeepsAMemoryOfItsOwn(FedAvg):
    """Method that keeps server momentum in itself instead of in the server state."""

    def aggregate(self, server: stock.Server, up: stock.Up, turn: Turn) -> stock.Server:
        move = turn.share @ up.w - server.w + 0.5 * self.__dict__.get("move", 0)
        self.__dict__["move"] = move
        return stock.Server(server.w + move)


@dataclass(frozen=True, kw_only=True)
class KeepsAMemoryInItsClass(FedAvg):
    """Method that computes its step size once for all trials of a process."""

    derived: ClassVar[dict[str, float]] = {}
    size: float = hyper("a step size", above=0, high=1)

    def init(self, w: Tensor, setup: Setup) -> stock.Server:
        self.derived["size"] = self.size / 2
        return stock.Server(w)

    def aggregate(self, server: stock.Server, up: stock.Up, turn: Turn) -> stock.Server:
        return stock.Server(server.w + self.derived["size"] * (turn.share @ up.w - server.w))


class TurnsDouble(FedAvg):
    """Method whose noise is float64, and so is the model after it."""

    def aggregate(self, server: stock.Server, up: stock.Up, turn: Turn) -> stock.Server:
        return stock.Server(turn.share @ up.w + keyed.normal(keyed.own(turn.key[0]), server.w.shape))


class TakesOneRateForAll(FedAvg):
    """Method that has the learning rate of a client, [C], multiply models [C, P]."""

    supports_per_client_lr = True

    def finish(self, given: Given, data: Any, work: stock.Work) -> tuple[stock.Up, Any]:
        return stock.Up(work.w * (1 - given.turn.lr)), given.client


class Counting(NamedTuple):
    w: Tensor  # [P]
    rounds: int


class CountsInANumber(FedAvg):
    """Method with a plain number in its state, which a checkpoint loses, since it keeps tensors."""

    def init(self, w: Tensor, setup: Setup) -> Counting:
        return Counting(w, 0)

    def aggregate(self, server: Any, up: stock.Up, turn: Turn) -> Counting:
        return Counting(turn.share @ up.w, server.rounds + 1)


class OverwritesTheServer(FedAvg):
    """Method whose server and initial client states share one tensor, which it overwrites in aggregation."""

    init_client = stock.own_model

    def finish(self, given: Given, data: Any, work: stock.Work) -> tuple[stock.Up, stock.Own]:
        return stock.Up(work.w), stock.Own(work.w)

    def aggregate(self, server: stock.Server, up: stock.Up, turn: Turn) -> stock.Server:
        server.w.copy_(turn.share @ up.w)
        return server


class High(NamedTuple):
    w: Tensor  # [P]
    high: Tensor  # [] whether client 2 was in the last cohort


class TwoDown(NamedTuple):
    w: Vector  # [C, P]
    more: Vector  # [C, P] after an odd cohort


class SendsByChance(FedAvg):
    """Method that sends the model twice if client 2 was in the last cohort."""

    def init(self, w: Tensor, setup: Setup) -> High:
        return High(w, w.new_zeros(()))

    def send(self, server: Any, turn: Turn) -> TwoDown:
        w = stock.to_all(server.w, turn)
        return TwoDown(w, w if server.high > 0 else w[:, :0])

    def aggregate(self, server: Any, up: stock.Up, turn: Turn) -> High:
        return High(turn.share @ up.w, (turn.ids == 2).any().to(server.w))


class TwoUp(NamedTuple):
    w: Vector  # [C, P]
    more: Vector  # [C, P] in every second round


class SendsInTurns(FedAvg):
    """Method that sends the model twice in every second round, which is allowed."""

    def finish(self, given: Given, data: Any, work: stock.Work) -> tuple[TwoUp, Any]:
        return TwoUp(work.w, work.w if given.turn.round % 2 else work.w[:, :0]), given.client


class SaysNothing(NamedTuple):
    w: Tensor  # neither Vector, Scalars nor Ids


class SendsWhatCannotBeCounted(FedAvg):
    def finish(self, given: Given, data: Any, work: stock.Work) -> tuple[SaysNothing, Any]:
        return SaysNothing(work.w), given.client


class Ascends(FedAvg):
    @per_client
    def step(self, given: Given, work: stock.Work, batch: Batch) -> stock.Work:
        g = -self.task.grad(work.w, batch)
        return stock.Work(*self.opt.update(work.w, work.opt, g, given.turn.lr))


class DividesByZero(FedAvg):
    """Method that divides by n - 1, which is 0 for a client with a single sample."""

    def finish(self, given: Given, data: Any, work: stock.Work) -> tuple[stock.Up, Any]:
        spread = (given.turn.n / (given.turn.n - 1)).clamp(max=1)
        return stock.Up(work.w * spread[:, None] / (given.turn.n - 1).clamp(max=1)[:, None]), given.client


@dataclass(frozen=True, kw_only=True)
class NeedsAValue(FedAvg):
    strength: float = hyper("how strongly it does nothing", low=0, high=1)


class MakesItOnTheCpu(FedAvg):
    """Method that creates a tensor on the CPU, which fails only on a machine with a GPU."""

    def aggregate(self, server: stock.Server, up: stock.Up, turn: Turn) -> stock.Server:
        kept = torch.ones(len(turn.ids), dtype=turn.share.dtype)
        return stock.Server((kept * turn.share) @ up.w)


class Several(NamedTuple):
    models: Vector  # [7, P], without an axis of clients


class SendsOneForAll(FedAvg):
    def send(self, server: stock.Server, turn: Turn) -> Several:
        return Several(server.w.expand(7, -1))


class HasOnePersonalModel(FedAvg):
    def personal(self, server: stock.Server, client: Any, data: Any, turn: Turn) -> Tensor:
        return server.w


class ForgetsTheState(FedAvg):
    def finish(self, given: Given, data: Any, work: stock.Work) -> stock.Up:
        return stock.Up(work.w)


class CountsInFloat32(FedAvg):
    """Method whose first state has another type than the model, and so than what `finish` returns."""

    def init_client(self, w: Tensor, setup: Setup) -> stock.Own:
        return stock.Own(torch.zeros(3, dtype=torch.float32))

    def finish(self, given: Given, data: Any, work: stock.Work) -> tuple[stock.Up, stock.Own]:
        return stock.Up(work.w), stock.Own(work.w[:, :3])


class DrawsItsFirstModel(FedAvg):
    def init(self, w: Tensor, setup: Setup) -> stock.Server:
        return stock.Server(w + torch.randn(w.shape))


class ShowsAVector(FedAvg):
    def show(self, server: stock.Server) -> dict[str, Tensor]:
        return {"model": server.w}


class ShowsANumber(FedAvg):
    def show(self, server: stock.Server) -> dict[str, Any]:
        return {"norm": server.w.norm().item()}


class Unfinished(Method):
    """Method without three of its verbs."""

    init = stock.global_server
    start = stock.start_from_down
    step = stock.sgd_step
    fit = stock.local_epochs
    aggregate = stock.average
    global_model = stock.shared_model
    init_client = stock.stateless_client


class Bare(FedAvg):
    mu: float = hyper("a field of a class that is not a dataclass", low=0)


class BareToo(FedAvg):
    """A class that is not a dataclass, with a field that has a default."""

    eta: float = 0.5


class Misspelt(FedAvg):
    def agregate(self, given: Any, up: Any) -> Any:
        raise AssertionError("nobody calls it")


class CountsLabels(NamedTuple):
    w: Vector
    counts: Vector


@dataclass(frozen=True, kw_only=True)
class SendsLabelCounts(FedAvg):
    """Method that inherits FedAvg's word on privacy, and sends more than FedAvg."""

    def finish(self, given: Given, data: Any, work: stock.Work) -> tuple[CountsLabels, Any]:
        return CountsLabels(work.w, given.class_counts.to(work.w.dtype)), given.client
