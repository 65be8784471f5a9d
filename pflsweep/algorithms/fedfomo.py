"""FedFomo: each client mixes the models that help on its own validation data."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Ids, Method, Scalars, Setup, Turn, Vector, hyper
from pflsweep.methods.task import Batch
from pflsweep.ops import random
from pflsweep.ops.vmap import per_client
from pflsweep.util.errors import UserError

SAME = 1e-5  # models closer than this, relative to their norm, count as the same: their weight would be mere rounding


class Server(NamedTuple):
    models: Tensor  # [N, P] each client's latest upload
    known: Tensor  # [N] whether it has uploaded yet
    keys: Tensor  # [N] draw keys of the clients that have uploaded
    p: Tensor  # [N, N] P, how much each client has gained from each other


class Down(NamedTuple):
    models: Vector  # [C, m, P] the other clients' models
    ids: Ids  # [C, m] their clients; -1: no model


class Client(NamedTuple):
    before: Tensor  # [P] theta_i^{t-1}: where its last local training began
    trained: Tensor  # [P] and where it ended


class Work(NamedTuple):
    w: Tensor  # [P]
    opt: Tensor
    start: Tensor  # [P] theta-hat
    gains: Tensor  # [1 + m] raw weights w_n, the client's own model first


class Up(NamedTuple):
    w: Vector  # [C, P]
    gains: Scalars  # [C, 1 + m]
    ids: Ids  # [C, m]


def require_models(models: int, clients: int) -> None:
    """Raise UserError if more models are asked for than there are clients."""
    if models > clients:
        raise UserError(f"algorithm.models is {models}, but there are {clients} clients: it must be at most {clients}.")


@dataclass(frozen=True, kw_only=True)
class Fomo(Method):
    """Base class of FedFomo and its model-average variant: the server's table P, and the choice of models to mix.

    Abstract: subclasses define what is sent and how it is mixed (`send`, `start`).
    """

    # Whether a client's own upload is a candidate like all others, which is sent to it, as in PFLlib. If not, its own
    # model is always mixed and never sent
    sends_own_model: ClassVar[bool] = False

    models: int = hyper("M: models mixed a round, the client's own among them", low=1)
    epsilon: float = hyper("probability that a download is a random model", low=0, high=1)
    decay: float = hyper("decrease of epsilon each round", low=0, high=1)
    validation: float = hyper("share of the training data that rates models and is not trained on", above=0, below=1)

    step = stock.sgd_step

    def init(self, w: Tensor, setup: Setup) -> Server:
        n = setup.clients
        if not self.sends_own_model:
            # Else `models` is an upper bound: a small cohort has fewer
            require_models(self.models, n)
        return Server(
            w.new_zeros(n, len(w)),
            torch.zeros(n, dtype=torch.bool, device=w.device),
            torch.zeros(n, dtype=torch.int64, device=w.device),
            torch.eye(n, dtype=w.dtype, device=w.device),
        )

    def init_client(self, w: Tensor, setup: Setup) -> Client:
        return Client(w, w)

    def choose(self, server: Server, turn: Turn) -> Tensor:
        """Return ids [C, m] of the clients with the largest P among those that have uploaded.

        Each is replaced by a random one with probability epsilon; -1 where there are too few. The client itself is left
        out unless `sends_own_model`.
        """
        count = min(self.models - (not self.sends_own_model), int(server.known.sum()))
        if not count:
            return turn.ids.new_zeros(len(turn.ids), 0)
        round_key = random.fold(turn.key, turn.round)
        rank = server.p[turn.ids].masked_fill(~server.known, -torch.inf)
        if not self.sends_own_model:
            rank.scatter_(1, turn.ids[:, None], -torch.inf)
        chance = random.fold(round_key[:, None], server.keys)  # [C, N] an independent random order for each client
        by_chance = chance.argsort(1)
        order = by_chance.gather(1, rank.gather(1, by_chance).sort(dim=1, descending=True, stable=True).indices)
        ids = self._explore(order, rank, chance, round_key, count, turn.round)
        return torch.where(rank.gather(1, ids) == -torch.inf, -1, ids)

    def _explore(
        self, order: Tensor, rank: Tensor, chance: Tensor, round_key: Tensor, count: int, round: int
    ) -> Tensor:
        """Replace entries of order[:, :count] by random available clients that are not among them: [C, count]."""
        epsilon = max(0.0, self.epsilon - self.decay * (round - 1))
        chosen, rest = order[:, :count], order[:, count:]
        if not epsilon or not rest.shape[1]:
            return chosen
        luck = random.fold(chance.gather(1, rest), 1)
        # Clients that are not available come last
        luck = luck.masked_fill(rank.gather(1, rest) == -torch.inf, torch.iinfo(torch.int64).max)
        rest = rest.gather(1, luck.argsort(1))
        flips = torch.stack([random.uniform(random.fold(key, 2), (count,)) for key in round_key]) < epsilon
        # The k-th replacement takes the k-th of the rest
        place = (flips.cumsum(1) - 1).clamp(min=0)
        possible = flips & (place < rest.shape[1])
        other = rest.gather(1, place.clamp(max=rest.shape[1] - 1))
        possible &= rank.gather(1, other) > -torch.inf
        return torch.where(possible, other, chosen)

    @per_client
    def losses(self, models: Tensor, batch: Batch) -> Tensor:
        return torch.stack([self.task.loss(w, batch) for w in models.unbind()])

    def fit(self, given: Given, data: Any, work: Work) -> Work:
        rest, _ = data.holdout(self.validation)
        return stock.run(self.step, given, work, rest.train(self.epochs))

    def finish(self, given: Given, data: Any, work: Work) -> tuple[Up, Client]:
        return Up(work.w, work.gains, given.down.ids), Client(work.start, work.w)

    def aggregate(self, server: Server, up: Up, turn: Turn) -> Server:
        """P_in <- P_in + w_n."""
        everyone = torch.cat([turn.ids[:, None], up.ids], 1)
        gained = torch.where((everyone >= 0) & up.gains.isfinite(), up.gains, 0)
        p = server.p.index_put((turn.ids[:, None], everyone.clamp(min=0)), gained, accumulate=True)
        models, known, keys = server.models.clone(), server.known.clone(), server.keys.clone()
        # A model that diverged is not stored
        sound = up.w.isfinite().all(1)
        ids = turn.ids[sound]
        models[ids], known[ids], keys[ids] = up.w[sound], True, turn.key[sound]
        return Server(models, known, keys, p)

    def global_model(self, server: Server) -> Tensor | None:
        """Return the plain mean of all latest models, as in FedPG's tables; None before the first upload."""
        return server.models.sum(0) / server.known.sum() if server.known.any() else None

    def personal(self, server: Server, client: Client, data: Any, turn: Turn) -> Tensor:
        return client.before

    def show(self, server: Server) -> dict[str, Tensor]:
        return {"P": server.p}


@dataclass(frozen=True, kw_only=True)
class FedFomo(Fomo):
    """Zhang, Sapra, Fidler, Yeung, Alvarez: Personalized Federated Learning with First Order Model Optimization.
    ICLR 2021. https://arxiv.org/abs/2012.08565

    A client is evaluated with its mix theta-hat, before local training. What the paper leaves open:
    - `models` counts the client's own model, which is always mixed and is not sent;
    - before the first upload every client trains alone, and a client's first mix starts from the initial model;
    - ties in P, and the epsilon-greedy replacements (one draw a download, without repetition), are keyed draws;
    - epsilon falls by `decay` a round, from round 1 on, to 0 at least;
    - a model that hardly differs from theta (by SAME of its norm), or whose loss is not finite, has weight 0.
    Until all have uploaded, a client may be sent an empty download (id -1), which the traffic counts like a full one.
    Under privacy=dp_sgd the guarantee covers the training rows alone, as in the paper: the gains, which are sent, and
    the mix come from losses on the validation rows, without noise.
    """

    paper = "Zhang et al., ICLR 2021"
    unsampled_model = "the common initial model"
    cost = "M + 1 forward passes over the validation share; reads M models (M P); the server keeps N"
    dp_incompatible_reason = ""  # apart from the gains, see above

    def send(self, server: Server, turn: Turn) -> Down:
        ids = self.choose(server, turn)
        return Down(server.models[ids.clamp(min=0)], ids)

    def start(self, given: Given, data: Any) -> Work:
        """Start from theta-hat = theta + sum_n w*_n (theta_n - theta), w* = max(w, 0) / its sum (eq. 3 and below)."""
        down, client = given.down, given.client
        _, validation = data.holdout(self.validation)
        models = torch.cat([client.trained[:, None], down.models], 1)
        losses = validation.mean(self.losses, torch.cat([client.before[:, None], models], 1))
        apart = models - client.before[:, None]
        distance = apart.norm(dim=2)
        valid = torch.nn.functional.pad(down.ids >= 0, (1, 0), value=True)
        valid &= distance > SAME * client.before.norm(dim=1, keepdim=True)
        valid &= losses[:, 1:].isfinite() & losses[:, :1].isfinite()
        # A model that diverged must not enter the sum, not even with weight 0
        apart = torch.where(valid[:, :, None], apart, 0)
        gains = torch.where(valid, (losses[:, :1] - losses[:, 1:]) / torch.where(valid, distance, 1), 0)
        mix = client.before + (normalised(gains)[:, None] @ apart)[:, 0]
        return Work(mix, self.opt.init(mix), mix, gains)


def normalised(gains: Tensor) -> Tensor:
    """Return w* = max(w, 0) / its sum, of raw weights [C, n]; 0 if none is positive."""
    weight = gains.clamp(min=0)
    total = weight.sum(1, keepdim=True)
    return weight / torch.where(total > 0, total, 1)
