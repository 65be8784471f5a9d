"""APPLE: a client's model is a weighted sum of all clients' core models; it learns its weights in every step."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Ids, Kept, Method, Scalars, Setup, Turn, Vector, hyper
from pflsweep.methods.task import Batch
from pflsweep.ops import memory, random
from pflsweep.ops.vmap import per_client
from pflsweep.util.errors import UserError, in_gb


class Server(NamedTuple):
    cores: Tensor  # [V, P] all versions of core models that a client holds; the first is the common initial model
    held: Tensor  # [N, N] row of `cores` with the version of w_j that client i holds; diagonal: the newest versions
    p: Tensor  # [N, N] row i is DR vector p_i
    prior: Tensor  # [N, N] row i is p_i's initial value p_0
    keys: Tensor  # [N] draw keys of the clients that have uploaded
    length: Tensor  # [] L, rounds until the regulariser is gone


class Down(NamedTuple):
    fresh: Vector  # [C, M, P] core models downloaded now
    ids: Ids  # [C, M] their clients
    own: Kept  # [C, P] the client's own core model w_i
    stale: Kept  # [C, N-1-M, P] the others, as downloaded in earlier rounds
    rest: Kept  # [C, N-1-M] their clients
    p: Kept  # [C, N] p_i, of the client itself, `rest` and `ids`, in this order
    prior: Kept  # [C, N] p_0 in this order
    pull: Scalars  # [C] lambda(r) mu


class Work(NamedTuple):
    w: Tensor  # [C, P] the own core model
    opt: Tensor
    p: Tensor  # [C, N] in Down's order


class Up(NamedTuple):
    w: Vector  # [C, P]
    p: Scalars  # [C, N] in the order of clients


@dataclass(frozen=True, kw_only=True)
class Apple(Method):
    """Luo, Wu: Adapt to Adaptation: Learning Personalization for Cross-Silo Federated Learning (APPLE).
    IJCAI 2022. https://arxiv.org/abs/2110.08394

    A client is evaluated with W_i = sum_j p_ij w_j of the core models that it held in its last turn. The server stores
    each version of a core model once. What the paper leaves open, or the authors' code does otherwise:
    - all core models start as the common initial model, which all clients have;
    - p_i takes plain gradient steps at a rate that does not decay (code: momentum, and the decay of w's rate);
    - the regulariser has the factor 1/2 of the paper (code: without) and the cosine schedule (code: exponential);
    - with M < N - 1, cores that the client never downloaded come first, then a draw without repetition with chances
      proportional to base^|p_ij|, base = max(threshold, preference r M / N), as in the code (whose record of downloads
      is never written); cores that were never trained come last;
    - prior = "own" (p_0 = e_i) is ours: with dr_lr = 0 it is Local.
    """

    paper = "Luo and Wu, IJCAI 2022"
    unsampled_model = "the common initial model"
    cost = "a step reads N - 1 core models twice (2 (N - 1) P); a client keeps N, the server all versions in use"
    # p_i moves along inner products of private gradients with models that the server knows
    dp_incompatible_reason = ""

    models: int = hyper("M: core models downloaded a round, at most those of all others", low=1)
    dr_lr: float = hyper("learning rate of the DR vector (eta_2)", low=0)
    mu: float = hyper("weight of the regulariser that holds p_i near p_0", low=0)
    length: int | None = hyper("L: rounds until the regulariser is gone; null: all rounds of the run", low=1)
    prior: str = hyper("p_0: clients' shares of the samples, or the own core model alone", choices=("sizes", "own"))
    preference: float = hyper("growth of the base of base^|p_ij| with the cores downloaded so far", low=0)
    threshold: float = hyper("smallest base", low=1)

    fit = stock.local_epochs
    personal = stock.personal_is_own
    init_client = stock.own_model
    global_model = stock.no_global_model

    @property
    def resumable(self) -> bool:  # type: ignore[override]
        """Return whether the trial can be continued by more rounds: not where L is the number of rounds."""
        return self.length is not None

    def init(self, w: Tensor, setup: Setup) -> Server:
        self._refuse_what_does_not_fit(w, setup)
        n = setup.clients
        if self.prior == "own":
            prior = torch.eye(n, dtype=w.dtype, device=w.device)
        else:
            sizes = setup.sizes.to(w.device, w.dtype)
            prior = (sizes / sizes.sum()).repeat(n, 1)
        nobody = torch.zeros(n, dtype=torch.int64, device=w.device)
        length = w.new_tensor(self.length or setup.rounds)
        return Server(w[None].clone(), nobody.repeat(n, 1), prior, prior, nobody, length)

    def _refuse_what_does_not_fit(self, w: Tensor, setup: Setup) -> None:
        """Raise UserError if the versions of core models may exceed the device's memory.

        In the worst case every client holds another version of each core, or the versions of all rounds are held.
        """
        n, m = setup.clients, setup.cohort
        # With all clients in each round and all cores downloaded, everybody holds the cores of the round before
        all_alike = m == n and self.models >= n - 1
        versions = 2 * n + 1 if all_alike else min(n * n, m * setup.rounds) + 1
        # Versions twice, of the old and the new round; uploads; personal models; at least one client's cores
        need = (2 * versions + m + n + n) * w.numel() * w.element_size()
        have = memory.total(w.device)
        if need > have:
            instead = (
                "" if all_alike else f", or train.participation=1 with algorithm.models={n - 1}, where none pile up"
            )
            raise UserError(
                f"algorithm: APPLE may come to hold {versions} versions of {n} clients' core models, with what a round "
                f"needs beside them {in_gb(need)}, but {w.device.type} has {in_gb(have)}. Use a "
                f"smaller model, fewer clients (partition.clients) or fewer rounds (train.rounds){instead}."
            )

    def send(self, server: Server, turn: Turn) -> Down:
        ids, newest, own = self.downloads(server, turn), server.held.diagonal(), turn.ids[:, None]
        has = torch.zeros_like(server.held[turn.ids]).scatter(1, torch.cat([own, ids], 1), 1)
        rest = has.argsort(stable=True, dim=1)[:, : has.shape[1] - 1 - ids.shape[1]]
        order = torch.cat([own, rest, ids], 1)
        r = turn.round - 1  # the paper counts the federation's rounds from 0
        schedule = torch.where(r < server.length, (torch.cos(torch.pi * r / server.length) + 1) / 2, 0)  # lambda(r)
        return Down(
            fresh=server.cores[newest[ids]],
            ids=ids,
            own=server.cores[newest[turn.ids]],
            stale=server.cores[server.held[own, rest]],
            rest=rest,
            p=server.p[own, order],
            prior=server.prior[own, order],
            pull=(self.mu * schedule).expand(len(ids)),
        )

    def downloads(self, server: Server, turn: Turn) -> Tensor:
        """Return ids [C, M] of the clients whose core models each client downloads."""
        n = len(server.held)
        m = min(self.models, n - 1)
        held, newest = server.held[turn.ids], server.held.diagonal()
        chance = random.fold(random.fold(turn.key, turn.round)[:, None], server.keys)  # [C, N]
        u = torch.func.vmap(lambda key: random.uniform(key, ()))(chance.flatten()).view(chance.shape)
        base = max(self.threshold, self.preference * (turn.round - 1) * m / n)
        weight = server.p[turn.ids].abs().double() * math.log(base)
        # The largest values of log(weight) + Gumbel noise are a draw without repetition
        score = torch.where(held > 0, weight, 0) - (-u.double().log()).log()
        group = torch.where(newest > 0, torch.where(held > 0, 1, 2), 0)  # 2: never downloaded; 0: never trained
        group = group.scatter(1, turn.ids[:, None], -1)  # -1: its own, which is not sent
        order = score.argsort(1, descending=True)
        order = order.gather(1, group.gather(1, order).sort(dim=1, descending=True, stable=True).indices)
        return order[:, :m]

    def start(self, given: Given, data: Any) -> Work:
        own = given.down.own
        return Work(own, self.opt.init(own), given.down.p)

    @per_client
    def step(self, given: Given, work: Work, batch: Batch) -> Work:
        """Update w_i and p_i along gradients at the same W_i. The others' core models stay as they are."""
        down, p = given.down, work.p
        g = self.task.grad(self.mixed(down, work.w, p), batch)
        slope = torch.cat([(g @ work.w)[None], down.stale @ g, down.fresh @ g]) + down.pull * (p - down.prior)
        w, opt = self.opt.update(work.w, work.opt, p[0] * g, given.turn.lr)
        return Work(w, opt, p - self.dr_lr * slope)

    def mixed(self, down: Down, w: Tensor, p: Tensor) -> Tensor:
        """Return W_i = sum_j p_ij w_j of one client, [P]."""
        split = 1 + down.stale.shape[0]
        return p[0] * w + p[1:split] @ down.stale + p[split:] @ down.fresh

    def finish(self, given: Given, data: Any, work: Work) -> tuple[Up, stock.Own]:
        order = torch.cat([given.turn.ids[:, None], given.down.rest, given.down.ids], 1)
        return Up(work.w, torch.zeros_like(work.p).scatter(1, order, work.p)), stock.Own(self.trained(given, work))

    @per_client
    def trained(self, given: Given, work: Work) -> Tensor:
        return self.mixed(given.down, work.w, work.p)

    def aggregate(self, server: Server, up: Up, turn: Turn) -> Server:
        """Store the cohort's core models as the newest versions, and drop versions that no client holds any more."""
        fresh, versions = self.downloads(server, turn), len(server.cores)
        held, p, keys = server.held.clone(), server.p.clone(), server.keys.clone()
        held[turn.ids[:, None], fresh] = server.held.diagonal()[fresh]
        held[turn.ids, turn.ids] = versions + torch.arange(len(turn.ids), device=held.device)
        p[turn.ids], keys[turn.ids] = up.p, turn.key
        used, held = torch.cat([held.new_zeros(1), held.flatten()]).unique(return_inverse=True)
        old = used[used < versions]
        cores = server.cores.new_empty(len(used), up.w.shape[1])
        torch.index_select(server.cores, 0, old, out=cores[: len(old)])
        cores[len(old) :] = up.w
        return server._replace(cores=cores, held=held[1:].view(p.shape), p=p, keys=keys)

    def show(self, server: Server) -> dict[str, Tensor]:
        return {"P": server.p, "versions": server.p.new_tensor(len(server.cores))}
