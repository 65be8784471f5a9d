"""FedFomo as its authors run it: means of clusters and the global model are candidates beside the clients' models."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from sklearn.cluster import SpectralClustering
from torch import Tensor
from torch.nn.functional import pad

from pflsweep.algorithms.fedfomo import Client, Up, Work, normalised, require_models
from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Ids, Method, Setup, Turn, Vector, hyper
from pflsweep.methods.task import Batch
from pflsweep.ops import random
from pflsweep.ops.vmap import per_client

SELF = 0.1  # initial value of a client's entry of P for itself
LEAST = 1e-9  # added to a sum of weights that is smaller
SEED = 0  # of the clustering, by --seed 0 in all commands of the README


class Server(NamedTuple):
    models: Tensor  # [N, P] each client's latest upload
    last: Tensor  # [N] the round of that upload; 0: none yet
    keys: Tensor  # [N] draw keys of the clients that have uploaded
    sizes: Tensor  # [N] training samples
    p: Tensor  # [N, N] P
    means: Tensor  # [K + 1, P] of the clusters, and the global model; K = 0 if nothing is clustered
    there: Tensor  # [K + 1] whether that mean exists

    @property
    def active(self) -> Tensor:
        """Return which clients were in the last cohort, [N] bool."""
        return (self.last > 0) & (self.last == self.last.max())


class Down(NamedTuple):
    models: Vector  # [C, m, P] the other clients' models, then the means
    ids: Ids  # [C, m] their clients; N or more for a mean, -1 for an empty place


class Rated(NamedTuple):
    """Losses that have been summed up so far."""

    losses: Tensor  # [C] sum of the batches' mean losses
    batches: Tensor  # [C] number of batches


@dataclass(frozen=True, kw_only=True)
class AsRunFomo(Method):
    """Base class of FedFomo and its model-average variant in FedFomo (NVlabs) fe04f66, the authors' code: main.py,
    server.py, federation.py (compute_fomo_weights, update_client_weights, federate), client.py
    (get_federating_clients).

    Abstract: subclasses define `send` and `mixed`.
    """

    models: int = hyper("M: clients' models that are rated, the client's own among them", low=1)
    epsilon: float = hyper("probability that a place gets a random client", low=0, high=1)
    decay: float = hyper("decrease of epsilon each round", low=0, high=1)
    validation: float = hyper("share of the training data that rates models and is not trained on", above=0, below=1)
    first_epochs: int | None = hyper(
        "epochs of the first round, after which nothing is clustered yet; null: as in all others", low=1
    )

    step = stock.sgd_step

    def init(self, w: Tensor, setup: Setup) -> Server:
        n = setup.clients
        require_models(self.models, n)
        return Server(
            w.new_zeros(n, len(w)),
            torch.zeros(n, dtype=torch.int64, device=w.device),
            torch.zeros(n, dtype=torch.int64, device=w.device),
            setup.sizes.to(w.device),
            SELF * torch.eye(n, dtype=w.dtype, device=w.device),
            w.new_zeros(1, len(w)),
            torch.zeros(1, dtype=torch.bool, device=w.device),
        )

    def init_client(self, w: Tensor, setup: Setup) -> Client:
        return Client(w, w)

    def choose(self, server: Server, turn: Turn) -> Tensor:
        """Return M - 1 others of the last cohort for each client, [C, m]; -1 if there are no more.

        A place gets the best remaining client by P, or with probability epsilon the next in a random order. All draws
        are the same in each round, since the code seeds numpy in every round.
        """
        count = min(self.models - 1, int(server.active.sum()))
        key = turn.key[:, None]
        possible = server.active & (torch.arange(len(server.p), device=turn.ids.device) != turn.ids[:, None])
        ties, explored = (random.fold(random.fold(key, k), server.keys).argsort(1) for k in (1, 2))
        by_rank = ties.gather(1, server.p[turn.ids].gather(1, ties).sort(dim=1, descending=True, stable=True).indices)
        places = [order.argsort(1) for order in (by_rank, explored)]  # [C, N] each client's position in an order
        flips = torch.stack([random.uniform(random.fold(k, 3), (count,)) for k in turn.key])
        explores = flips < self.epsilon - self.decay * (turn.round - 1)
        chosen = []
        for k in range(count):
            place = torch.where(explores[:, k, None], places[1], places[0])
            best = place.masked_fill(~possible, len(server.p)).argmin(1, keepdim=True)
            chosen.append(torch.where(possible.gather(1, best), best, -1))
            possible = possible.scatter(1, best, False)
        return torch.cat(chosen, 1) if chosen else turn.ids.new_zeros(len(turn.ids), 0)

    def rated(self, validation: Any, models: Tensor) -> Tensor:
        """Return the losses [C, n] of models [C, n, P]: means of batch means, each with a new augmentation."""
        losses = []
        for k, w in enumerate(models.unbind(1)):
            none = Rated(w.new_zeros(len(w)), w.new_zeros(len(w)))
            total, batches = stock.run(self.rate, w, none, validation.rating(f"rating/{k}"))
            losses.append(total / batches.clamp(min=1))
        return torch.stack(losses, 1)

    @per_client
    def rate(self, w: Tensor, rated: Rated, batch: Batch) -> Rated:
        return Rated(rated.losses + self.task.loss(w, batch), rated.batches + 1)

    def start(self, given: Given, data: Any) -> Work:
        mix, gains = self.mixed(given.down, given.client, data)
        return Work(mix, self.opt.init(mix), mix, gains)

    def mixed(self, down: Any, client: Client, data: Any) -> tuple[Tensor, Tensor]:
        """Return theta-hat [C, P], and what is added to P for the client and each candidate, [C, 1 + m]."""
        raise NotImplementedError

    def fit(self, given: Given, data: Any, work: Work) -> Work:
        rest, _ = data.holdout(self.validation)
        first = self.first_epochs if given.turn.round == 1 else None
        return stock.run(self.step, given, work, rest.train(self.epochs if first is None else first))

    def finish(self, given: Given, data: Any, work: Work) -> tuple[Up, Client]:
        return Up(work.w, work.gains, given.down.ids), Client(work.start, work.w)

    def aggregate(self, server: Server, up: Up, turn: Turn) -> Server:
        """P_in <- P_in + w_n / |sum w|; means add nothing."""
        everyone = torch.cat([turn.ids[:, None], up.ids], 1)
        counts = (everyone >= 0) & (everyone < len(server.p)) & up.gains.isfinite()
        places = (turn.ids[:, None], torch.where(counts, everyone, 0))
        p = server.p.index_put(places, torch.where(counts, up.gains, 0), accumulate=True)
        models, last, keys = server.models.clone(), server.last.clone(), server.keys.clone()
        # A model that diverged is not stored
        sound = up.w.isfinite().all(1)
        ids = turn.ids[sound]
        models[ids], last[ids], keys[ids] = up.w[sound], turn.round, turn.key[sound]
        return server._replace(models=models, last=last, keys=keys, p=p)

    def global_model(self, server: Server) -> Tensor | None:
        return server.means[-1] if server.there[-1] else None

    def personal(self, server: Server, client: Client, data: Any, turn: Turn) -> Tensor:
        """Return the mix that would begin the next round: the code mixes once more before it evaluates."""
        return self.mixed(self.send(server, turn._replace(round=turn.round + 1)), client, data)[0]

    def send(self, server: Server, turn: Turn) -> Any:
        raise NotImplementedError

    def show(self, server: Server) -> dict[str, Tensor]:
        return {"P": server.p}


@dataclass(frozen=True, kw_only=True)
class FedFomoFedFomo(AsRunFomo):
    """FedFomo (Zhang et al., ICLR 2021) in NVlabs/FedFomo fe04f66, the authors' code.

    Where it differs from the paper:
    - candidates are the client's own model, M - 1 of the last cohort, the means of K clusters of clients, and the
      global model: 11 at M = 5 and K = 5, the true number of distributions in the commands (`clusters`);
    - clients that have uploaded are clustered by spectral clustering (scikit-learn, labels by discretisation) of the
      row softmax of P, made symmetric. A mean is over those members of a cluster that were active last, weighted by
      n_i; the global model is the plain mean of the means;
    - distances are L1 norms, with nothing added; a model at distance 0 has weight 0 (the code: NaN);
    - losses are means of batch means, with a new augmentation of the validation rows for each model;
    - P adds w_n / |sum of all signed w|, also for the client itself, whose entry begins with 0.1; means add nothing;
    - the draws of the exploration are the same in each round;
    - a client is evaluated with the mix with which it would begin the next round.
    Below full participation the code begins with an epoch of all clients (train.first_round=all and first_epochs=1),
    after which nothing is clustered; it takes round 2's candidates from round 2's cohort, here from all clients. Where
    at most K clients have uploaded, each is a cluster. The code fails on an empty cluster, which is left out here.
    Under privacy=dp_sgd the guarantee covers the training rows alone, see algorithm=fedfomo.
    """

    paper = "Zhang et al., ICLR 2021, as its authors run it"
    unsampled_model = "the mix that it would begin with"
    cost = "M + K + 2 forward passes over the validation share, in evaluation too; the server keeps N + K + 1 models"
    dp_incompatible_reason = ""  # apart from the gains, as FedFomo

    clusters: int = hyper("K: clusters of clients, whose means are candidates", low=1)

    def init(self, w: Tensor, setup: Setup) -> Server:
        count = self.clusters + 1
        means, there = w.new_zeros(count, len(w)), torch.zeros(count, dtype=torch.bool, device=w.device)
        return super().init(w, setup)._replace(means=means, there=there)

    def send(self, server: Server, turn: Turn) -> Down:
        ids = self.choose(server, turn)
        means = torch.where(server.there, len(server.p) + torch.arange(len(server.there), device=ids.device), -1)
        models = torch.cat([server.models[ids.clamp(min=0)], stock.for_each(server.means, turn)], 1)
        return Down(models, torch.cat([ids, means.expand(len(ids), -1)], 1))

    def mixed(self, down: Down, client: Client, data: Any) -> tuple[Tensor, Tensor]:
        _, validation = data.holdout(self.validation)
        valid = pad(down.ids >= 0, (1, 0), value=True)
        models = torch.cat([client.trained[:, None], down.models], 1)
        losses = self.rated(validation, torch.cat([client.before[:, None], models], 1))
        apart = models - client.before[:, None]
        weight = weights(losses[:, :1] - losses[:, 1:], apart, valid)
        return client.before + moved(weight, apart), shares(weight)

    def aggregate(self, server: Server, up: Up, turn: Turn) -> Server:
        server = super().aggregate(server, up, turn)
        if self.first_epochs is not None and turn.round == 1:
            return server
        labels, means, there = self.clustered(server), torch.zeros_like(server.means), torch.zeros_like(server.there)
        for k in range(self.clusters):
            if (labels == k).any():
                means[k], there[k] = mean_of_active(server, labels == k), True
        if there.any():
            means[-1], there[-1] = means[there].mean(0), True
        return server._replace(means=means, there=there)

    def clustered(self, server: Server) -> Tensor:
        """Return the cluster of each client, [N]; -1 for one that has not uploaded."""
        labels = torch.full_like(server.last, -1)
        ids = (server.last > 0).nonzero().flatten()
        # In the order of draw keys, so that the numbering of clients does not matter
        ids = ids[server.keys[ids].argsort()]
        if len(ids) <= self.clusters:
            labels[ids] = torch.arange(len(ids), device=ids.device)
            return labels
        chance = server.p[ids][:, ids].double().cpu().softmax(1)
        spectral = SpectralClustering(
            n_clusters=self.clusters, affinity="precomputed", random_state=SEED, assign_labels="discretize"
        )
        found = spectral.fit_predict(((chance + chance.T) / 2).numpy())
        labels[ids] = torch.from_numpy(found).to(labels)
        return labels

    def show(self, server: Server) -> dict[str, Tensor]:
        return {"P": server.p, "means": server.there.sum().float()}


def mean_of_active(server: Server, members: Tensor) -> Tensor:
    """Return the mean [P] of the models of those members that were active last, weighted by n_i. members: [N] bool."""
    active = members & (server.last == server.last[members].max())
    share = torch.where(active, server.sizes, 0).to(server.models.dtype)
    return share @ server.models / share.sum()


def weights(better: Tensor, apart: Tensor, valid: Tensor, least: Tensor | float = 0.0) -> Tensor:
    """Return the signed weights w_n [C, n]: a model's gain over the L1 norm of its difference; 0 for a norm up to
    `least` [C, 1].
    """
    distance = apart.abs().sum(2)
    valid = valid & better.isfinite() & distance.isfinite() & (distance > least)
    return torch.where(valid, better / torch.where(valid, distance, 1), 0)


def shares(weight: Tensor) -> Tensor:
    """Return w / |sum of w|, which is added to P."""
    total = weight.sum(1, keepdim=True).abs()
    return weight / torch.where(total < LEAST, total + LEAST, total)


def moved(weight: Tensor, apart: Tensor) -> Tensor:
    """Return sum_n w*_n apart_n [C, P], with w* = max(w, 0) / its sum."""
    share = normalised(weight)
    return (share[:, None] @ torch.where((share > 0)[:, :, None], apart, 0))[:, 0]
