"""The simulation: the rounds of one method in one federation, as an iterator that can be stopped and continued."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pflsweep.config.options import Metrics
from pflsweep.data.batching import DEFAULT, Batching
from pflsweep.data.federation import Federation
from pflsweep.data.loader import ClientData
from pflsweep.data.participation import cohort_size, draw_cohort
from pflsweep.engine.clients import Clients, OptimiserStates
from pflsweep.engine.cohort import ChunkSize, run_round
from pflsweep.engine.communication import Traffic
from pflsweep.engine.evaluate import OWN, Scores, Targets, merged, on_same_rows, score, targets, without
from pflsweep.engine.returned import require_global, require_models, require_server, require_shown, require_tree
from pflsweep.engine.workers import Workers
from pflsweep.methods.protocol import Given, Method, Setup, Spent, Turn, Verbs
from pflsweep.methods.task import Task
from pflsweep.ops import random
from pflsweep.ops.memory import keep_freed
from pflsweep.ops.vmap import leaves, rebuilt

BLOCKS = 4  # blocks of clients for each worker in an evaluation; several, so that all end at about the same time
_UNSPENT = Spent(torch.tensor(0), torch.tensor(0.0, dtype=torch.float64), torch.tensor(0), torch.tensor(0))


@dataclass(frozen=True)
class Schedule:
    """The options of training that do not depend on the method."""

    rounds: int  # T
    participation: float  # share of the clients that is sampled in a round
    weights: str  # aggregation weights: "share" n_i / sum of the cohort's n, or "uniform"
    epochs: int  # E without train.steps, where a method's `epochs` is 1; here only for estimates of time
    batch: int  # samples in a batch of local training
    lr: float
    lr_decay: float  # lr of round t is lr * lr_decay ** (t - 1)
    eval_every: int  # rounds between evaluations; the last round is always evaluated
    eval_batch: int  # batch size of evaluation, and of what is computed over all rows
    chunk: int  # clients that run at once
    optimiser_state: str = "fresh"  # at the start of a client's turn: "fresh", or "kept" from its last turn
    workers: int = 1  # processes that train and evaluate clients in parallel
    batching: Batching = DEFAULT  # how local epochs are cut into batches
    sampling: str = "uniform"  # how cohorts are drawn, as train.sampling; "fixed": the first round's cohort in all
    first_round: str = "cohort"  # clients that the first round trains: its "cohort", or "all"
    lr_of: str = "round"  # a client's learning rate: the "round"'s, or that of the round after its "last_turn"

    def cohort_size(self, clients: int, at: int | None = None) -> int:
        """Return M, the number of clients in a round. at: the round, from 1 on; the first may train all clients."""
        if at == 1 and self.first_round == "all":
            return clients
        return cohort_size(clients, self.participation)

    @property
    def per_client_lr(self) -> bool:
        """Whether the clients of a round may have different learning rates."""
        return self.lr_of == "last_turn" and self.lr_decay != 1 and self.participation < 1

    def batches(self, rows: int) -> int:
        """Return the number of batches in the turn of a client with so many training rows."""
        steps = self.batching.steps
        return self.epochs * math.ceil(self.batching.kept(rows, self.batch) / self.batch) if steps is None else steps

    def samples(self, rows: int) -> int:
        """Return the number of samples in the turn of a client with so many training rows."""
        steps = self.batching.steps
        return self.epochs * self.batching.kept(rows, self.batch) if steps is None else steps * min(rows, self.batch)


class Privacy(NamedTuple):
    """The privacy cost of training, as epsilon."""

    composed: Tensor  # [K] over all rounds so far, of the K clients that have trained
    round: Tensor  # [M] of this round alone, of its cohort


class RoundResult(NamedTuple):
    """The results of one round."""

    round: int
    ids: Tensor  # [M] clients of the cohort
    lr: float
    images: int  # samples in the batches that were trained on
    seconds: float  # of training: send, start, fit, finish, aggregate
    eval_seconds: float  # of evaluation, and of keeping models for it
    traffic: Traffic
    scores: dict[str, Scores]  # what Simulation.evaluate returns; empty if the round is not evaluated
    shown: dict[str, Tensor]  # scalars and matrices that the method shows
    privacy: Privacy | None  # None if training is not private


class Simulation:
    """One method in one federation. `run` yields the RoundResult of each round; checkpoints use `state` and `load`."""

    def __init__(
        self,
        verbs: Verbs,
        task: Task,
        federation: Federation,
        schedule: Schedule,
        w0: Tensor,
        metrics: Metrics = OWN,
    ) -> None:
        keep_freed()
        self.verbs, self.task, self.federation, self.schedule = verbs, task, federation, schedule
        self.metrics = metrics
        w0 = w0.to(federation.device, federation.dtype)
        key = random.tensor_key(federation.seed, "method").to(federation.device)
        facts = federation.clients, self.cohort_size, schedule.rounds, federation.classes, federation.sizes
        keys = federation.draw_keys.to(federation.device)
        setup = Setup(*facts, key, keys, first_cohort=federation.clients if schedule.first_round == "all" else 0)
        self.server = require_tree(verbs, "init", verbs.init(w0, setup))
        own = require_tree(verbs, "init_client", verbs.init_client(w0, setup))
        self.clients = Clients(own, federation.clients)
        keeps = schedule.optimiser_state == "kept"
        self.optimisers = OptimiserStates(federation.clients) if keeps else None
        self.last = torch.full((federation.clients,), -1)  # [N] round of each client's last turn
        self.spent = Spent(*(part.expand(federation.clients).clone() for part in _UNSPENT))  # [N] all rounds so far
        self.workers = Workers(schedule.workers)
        self.chunks = ChunkSize(schedule.chunk)
        self.trained: Tensor | None = None  # [N, P] models after local training, with metrics.trained
        self.stale: Tensor | None = None  # [N, Q] personal models of the last turns, with metrics.personal=stale
        self._targets: dict[tuple[str, Metrics], Targets] = {}  # drawn once, since they are the same in every round
        self.round = 0  # rounds that are done

    @property
    def cohort_size(self) -> int:
        """M, the number of clients in a round; round 1 may have more (train.first_round)."""
        return self.schedule.cohort_size(self.federation.clients)

    def run(self) -> Iterator[RoundResult]:
        """Run the rounds that are still to do, and yield the result of each."""
        while self.round < self.schedule.rounds:
            yield self._next()

    def state(self) -> dict[str, Any]:
        """Return what `load` needs to continue exactly here: tensors and numbers only."""
        return {
            "round": self.round,
            "last": self.last.clone(),
            "server": leaves(self.server),
            "clients": self.clients.state(),
            "spent": [part.clone() for part in self.spent],
            **({} if self.trained is None else {"trained": self.trained.clone()}),
            **({} if self.stale is None else {"stale": self.stale.clone()}),
            **({} if self.optimisers is None else {"optimisers": self.optimisers.state()}),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned, which may have been on another device."""
        device = self.federation.device
        self.server = rebuilt(self.server, (leaf.to(device) for leaf in state["server"]))
        self.workers = Workers(self.schedule.workers)
        self.clients.load(state["clients"])
        # Without momentum "kept" and "fresh" are one trial, so that its checkpoint may lack optimiser states.
        if self.optimisers is not None and "optimisers" in state:
            self.optimisers.load(state["optimisers"], device)
        self.round, self.last = state["round"], state["last"].clone()
        spent = [part.clone() for part in state["spent"]]
        self.spent = Spent(*spent, *self.spent[len(spent) :])  # migrated ones have no `turns`, which is 0 then
        self.trained = state["trained"].to(device, copy=True) if "trained" in state else None
        self.stale = state["stale"].to(device, copy=True) if "stale" in state else None

    def personal_models(self, ids: Tensor | None = None) -> Iterator[Tensor]:
        """Yield the personalised models [P] of some clients, in order. ids: None: of all clients."""
        everybody = torch.arange(self.federation.clients) if ids is None else ids
        if self.stale is not None:
            # Copies, aligned alike: a product's last bits may depend on where a row begins in a block
            yield from (self.stale[i].clone() for i in everybody.tolist())
            return
        for _, models in self._personal(everybody, self.server):
            yield from models

    def _personal(self, ids: Tensor, server: Any) -> Iterator[tuple[slice, Tensor]]:
        """Yield (chunk, personalised models [C, Q]) of some clients, with the shared parts of `server`."""

        def one(cut: slice) -> Tensor:
            some = ids[cut]
            data = self._data(some, self.round, "evaluate")
            made = partial(self.verbs.personal, server, self.clients.get(some), data, self._turn(some))
            # As in training, the first time is looked at more closely
            looked_at = random.GENERATORS if self.round <= self.schedule.eval_every else ("PyTorch",)
            models = random.without_global_draws(made, self.verbs.who, "in `personal`", looked_at)
            return require_models(self.verbs, models, len(some), self.task.size if self._plain else None)

        return self.chunks.over(len(ids), one)

    def global_model(self) -> Tensor | None:
        """Return the global model [P]; None if the method has none."""
        return require_global(self.verbs, self.verbs.global_model(self.server), self.task.size)

    @property
    def _plain(self) -> bool:
        """Whether a personalised model is a model of the task, and not a vector for the method's own `logits`."""
        return getattr(self.verbs.logits, "__func__", None) is Method.logits

    def next_turn(self, ids: Tensor) -> tuple[Given, ClientData]:
        """Return the inputs and the data of some clients in the next round, as if they were its cohort."""
        turn = self._turn(ids, self.round + 1)
        class_counts = self.federation.class_counts.to(turn.ids.device)[turn.ids]
        given = Given(self.verbs.send(self.server, turn), self.clients.get(ids), turn, class_counts)
        return given, self._data(ids, self.round + 1, "train")

    def evaluate(self, split: str | None = None) -> dict[str, Scores]:
        """Return all clients' scores by name: `personal` is a view on each client's own rows, `personal_all` that view
        on another target's rows.

        Malicious clients and those that `metrics` leaves out have no samples in them. split: None: that of `metrics`.
        """
        key = split or self.metrics.rows, self.metrics
        if key not in self._targets:
            self._targets[key] = targets(self.federation, *key)
        found = self._targets[key]
        blocks, costs = self._blocks(found)
        parts = self.workers.map(f"evaluate {key[0]}", costs, lambda k: self._scores(blocks[k], found))
        views = merged(self.federation.clients, ((blocks[k].numpy(), part) for k, part in parts))
        left_out = torch.zeros_like(self.last, dtype=torch.bool)
        if self.verbs.malicious is not None:
            left_out |= self.verbs.malicious
        if self.metrics.clients == "trained":
            left_out |= self.last < 0
        return {view: without(scores, left_out.numpy()) for view, scores in views.items()}

    def _blocks(self, found: Targets) -> tuple[list[Tensor], list[float]]:
        """Return the clients in blocks of whole chunks, a job of evaluation each, and how many rows each is scored on.

        There is one block without workers, and several for each worker otherwise. Where all clients are scored on the
        same rows it is one for each worker, since the clients of a block share the work of preparing batches.
        """
        everybody, chunk = torch.arange(self.federation.clients), self.schedule.chunk
        count = self.workers.count * (1 if on_same_rows(found) or self.workers.count == 1 else BLOCKS)
        size = math.ceil(len(everybody) / count / chunk) * chunk
        blocks = list(everybody.split(size))
        return blocks, [float(sum(1 + len(rows[i]) for rows in found.values() for i in block)) for block in blocks]

    def _scores(self, ids: Tensor, found: Targets) -> dict[str, Scores]:
        """Return the scores [C] of some clients, by view and target as in `evaluate`."""
        large, fed, who = self.schedule.eval_batch, self.federation, ids.tolist()
        common = self.global_model()
        views: dict[str, dict[str, Scores]] = {}
        if common is not None:
            views["global"] = score(self.task, self.task.logits, ((i, common) for i in who), fed, found, large)
        # A client whose personal model is the very tensor of the global model has the global model's scores.
        known = views.get("global") if self._plain else None
        own = zip(who, self.personal_models(ids), strict=True)
        others = ((i, w) for i, w in own if known is None or common is None or w.data_ptr() != common.data_ptr())
        views["personal"] = score(self.task, self.verbs.logits, others, fed, found, large, known)
        # A client that has had no turn is scored with its personal model.
        if self.trained is not None:
            local = ((i, self.trained[i]) for i in who if self.last[i] >= 0)
            views["trained"] = score(self.task, self.task.logits, local, fed, found, large, views["personal"])
        return {
            view if target == "own" else f"{view}_{target}": Scores(*(column[who] for column in scores))
            for view, by_target in views.items()
            for target, scores in by_target.items()
        }

    def _next(self) -> RoundResult:
        """Run the next round and evaluate it if it is due."""
        self.round += 1
        size = self.schedule.cohort_size(self.federation.clients, self.round)
        ids = draw_cohort(self.federation, size, self.round, self.schedule.sampling)
        received = self.server
        turn = self._turn(ids)
        if self.metrics.personal == "stale" and self.stale is None:
            self._keep_personal(torch.arange(self.federation.clients), received)
        began = perf_counter()
        done = run_round(
            self.verbs, self.server, self.clients, self.optimisers, turn,
            lambda ids, round: self._data(ids, round, "train"), self.federation.class_counts, self.chunks,
            self.workers,
        )  # fmt: skip
        if self.federation.device.type == "cuda":
            torch.cuda.synchronize()  # kernels run asynchronously: without it the time of training would be too short
        trained = perf_counter()
        self.server = require_server(self.verbs, done.server, received)
        self.last[ids] = self.round
        if self.stale is not None:
            if self.verbs.method and (rows := self.verbs.method.rows_on_server):
                received = received._replace(**{name: getattr(self.server, name) for name in rows})
            self._keep_personal(ids, received)
        if self.metrics.trained:
            self._keep_trained(ids, getattr(done.up, "w", None))
        done = done._replace(up=None)  # frees its memory for the evaluation
        due = self.round % self.schedule.eval_every == 0 or self.round == self.schedule.rounds
        scores = self.evaluate() if due else {}
        return RoundResult(
            self.round, ids, turn.round_lr, done.images, trained - began, perf_counter() - trained, done.traffic,
            scores, require_shown(self.verbs, self.verbs.show(self.server)), self._spend(ids, done.spent),
        )  # fmt: skip

    def _keep_trained(self, ids: Tensor, w: Tensor | None) -> None:
        """Keep the models of a cohort after local training. w: what it sent; other shapes than [M, P] are not kept."""
        if w is None or w.shape != (len(ids), self.task.size):
            return
        if self.trained is None:
            self.trained = w.new_zeros(self.federation.clients, self.task.size)
        self.trained[ids.to(w.device)] = w

    def _keep_personal(self, ids: Tensor, server: Any) -> None:
        """Keep the present personalised models of some clients, with the shared parts of `server`."""
        for cut, models in self._personal(ids, server):
            if self.stale is None:
                self.stale = models.new_empty(self.federation.clients, models.shape[1])
            self.stale[ids[cut].to(self.stale.device)] = models

    def _spend(self, ids: Tensor, new: Spent) -> Privacy | None:
        """Add the cohort's private training to its clients' accounts. Return its cost, or None without privacy."""
        if self.verbs.epsilon is None:
            return None
        self.spent.steps[ids] += new.steps
        self.spent.turns[ids] += new.turns
        for total, own in ((self.spent.rate, new.rate), (self.spent.gradients, new.gradients)):
            total[ids] = torch.maximum(total[ids], own)
        trained = self.spent.steps > 0
        return Privacy(self.verbs.epsilon(Spent(*(part[trained] for part in self.spent))), self.verbs.epsilon(new))

    def _turn(self, ids: Tensor, round: int | None = None) -> Turn:
        """Return a round as some clients see it. round: None: the present one, under way or done."""
        round = self.round if round is None else round
        n = self.federation.sizes[ids]
        weight = n.double() if self.schedule.weights == "share" else torch.ones(len(ids), dtype=torch.float64)
        device, dtype = self.federation.device, self.federation.dtype
        lr = self._lr(round)
        return Turn(
            ids=ids.to(device),
            share=(weight / weight.sum()).to(device, dtype),
            n=n.to(device),
            last=self.last[ids].to(device),
            key=self.federation.draw_keys[ids].to(device),
            round=round,
            lr=self._per_client_lrs(ids).to(device, dtype) if self.schedule.per_client_lr else lr,
            rounds=self.schedule.rounds,
            round_lr=lr,
        )

    def _lr(self, round: int) -> float:
        """Return the learning rate of a round."""
        return self.schedule.lr * self.schedule.lr_decay ** max(round - 1, 0)

    def _per_client_lrs(self, ids: Tensor) -> Tensor:
        """Return each client's learning rate [C] with train.lr_of=last_turn: that of the round after its last turn.

        For a client that was in the previous round this is the present round's; before a client's first turn it is the
        first round's.
        """
        return torch.tensor([self._lr(last + 1) for last in self.last[ids].tolist()], dtype=torch.float64)

    def _data(self, ids: Tensor, round: int, purpose: str) -> ClientData:
        """Return the data of some clients in a round. purpose: separates the draws of training from others."""
        batch, large = self.schedule.batch, self.schedule.eval_batch
        return ClientData.of(
            self.federation, ids.tolist(), round,
            batch=batch, large=large, purpose=purpose, batching=self.schedule.batching,
        )  # fmt: skip
