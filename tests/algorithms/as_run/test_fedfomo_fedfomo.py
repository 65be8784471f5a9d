"""FedFomo and its variant MA as their authors run them, compared with their code's steps written out."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.cluster import SpectralClustering
from torch import Tensor

from pflsweep.algorithms.as_run.fedfomo_fedfomo import FedFomoFedFomo, Server, mean_of_active
from pflsweep.algorithms.as_run.fedfomo_fedfomo_ma import FedFomoFedFomoMA
from pflsweep.algorithms.fedfomo import Client
from pflsweep.data.loader import ClientData
from pflsweep.ops import random
from pflsweep.util.errors import UserError
from tests.algorithms.as_run.written_out import BATCH, LR, NAMES, W0, answers, entropy, joined, moved, named
from tests.algorithms.helpers import EVERYBODY, FEDERATION, STILL, Run, by_hand, close, federation, simulate

HELD = 0.3
HYPER: dict[str, Any] = {"models": 3, "epsilon": 0.6, "decay": 0.05, "validation": HELD, "first_epochs": None}
FOMO = {**HYPER, "clusters": 2}


def data_of(client: int, round: int, purpose: str = "train") -> ClientData:
    return ClientData.of(FEDERATION, [client], round, batch=BATCH, large=16, purpose=purpose)


def risk(w: Tensor, validation: ClientData, evaluation: int) -> float:
    """Return class_eval: the mean of the batches' mean losses."""
    batches = list(validation.rating(f"rating/{evaluation}"))
    return float(np.mean([float(entropy(answers(named(w), b.x[0]), b.y[0])) for b in batches]))


def trained(w: Tensor, data: ClientData, epochs: int = 2) -> Tensor:
    parameters = named(w)
    for batch in data.train(epochs):
        x, y = batch.x[0], batch.y[0]
        parameters = moved(parameters, lambda p, x=x, y=y: entropy(answers(p, x), y), NAMES, LR)
    return joined(parameters)


class Code:
    """The authors' server and clients, with their names: first_model, client_weights, federated_model_dicts."""

    def __init__(self, hyper: dict[str, Any], clusters: int | None) -> None:
        self.hyper, self.clusters = hyper, clusters
        self.first_model = [W0] * EVERYBODY
        self.model = [W0] * EVERYBODY
        self.client_weights = 0.1 * np.eye(EVERYBODY)
        self.last_active_round = np.zeros(EVERYBODY, dtype=int)
        self.uploaded_clients: list[int] = []
        self.means: list[Tensor] = []
        self.explored = self.without_gain = 0

    def get_federating_clients(self, client: int, epoch: int) -> list[int]:
        possible = [c for c in self.uploaded_clients if c != client]
        key = FEDERATION.draw_keys[client]
        # Instead of numpy's draws, which are the same in each round: two random orders and a number for each place

        luck, shuffle = (random.fold(random.fold(key, k), FEDERATION.draw_keys).tolist() for k in (1, 2))
        top_clients = sorted(possible, key=lambda c: (-self.client_weights[client, c], luck[c]))
        rand_clients = sorted(possible, key=lambda c: shuffle[c])
        count = min(self.hyper["models"] - 1, len(self.uploaded_clients))
        explore = random.uniform(random.fold(key, 3), (count,)).tolist()
        clients = [client]
        for ix in range(min(count, len(possible))):
            chosen = False
            while not chosen:
                explores = explore[ix] < self.hyper["epsilon"] - epoch * self.hyper["decay"]
                candidate = (rand_clients if explores else top_clients).pop(0)
                if candidate not in clients:
                    self.explored += explores
                    clients.append(candidate)
                    chosen = True
        return clients

    def federated(self, client: int, epoch: int, validation: ClientData) -> tuple[Tensor, dict[int, float]]:
        """Return the client's mix, and the weights that its client_weights adds."""
        clients = self.get_federating_clients(client, epoch)
        models = [self.model[c] for c in clients]
        if self.clusters is None:  # model_avg
            baseline, comparison = self.average(), []
            for c in clients:
                others = [self.model[o] for o in clients if o != c] or models
                comparison.append(torch.stack(others).mean(0))
        else:  # first_model
            models += self.means
            baseline, comparison = self.first_model[client], models
        sign = 1 if self.clusters is None else -1
        base = risk(baseline, validation, 0)
        deltas = [sign * (risk(w, validation, k) - base) for k, w in enumerate(comparison, 1)]
        norms = [float((w - baseline).abs().sum()) for w in comparison]
        deltas = [delta / norm if norm else 0.0 for delta, norm in zip(deltas, norms, strict=True)]
        normalization_factor = abs(sum(deltas))
        if normalization_factor < 1e-9:
            normalization_factor += 1e-9
        adds = {c: delta / normalization_factor for c, delta in zip(clients, deltas, strict=False)}
        positive = [(delta, w) for delta, w in zip(deltas, models, strict=True) if delta > 0]
        self.without_gain += not positive
        total = sum(delta for delta, _ in positive)
        return baseline + sum((delta / total * (w - baseline) for delta, w in positive), torch.zeros_like(W0)), adds

    def average(self) -> Tensor:
        """Return Federation.model over those that were active last."""
        return self.weighted(range(EVERYBODY), self.uploaded_clients)

    def weighted(self, clients: Any, among: Any) -> Tensor:
        last = max(self.last_active_round[c] for c in clients if c in among)
        active = [c for c in clients if c in among and self.last_active_round[c] == last]
        total = sum(int(FEDERATION.sizes[c]) for c in active)
        return sum(int(FEDERATION.sizes[c]) / total * self.model[c] for c in active)

    def update_server_models(self, known: list[int]) -> None:
        matrix = np.array([np.exp(row) / np.exp(row).sum() for row in self.client_weights[np.ix_(known, known)]])
        labels = range(len(known))
        if len(known) > self.clusters:
            labels = SpectralClustering(
                n_clusters=self.clusters, affinity="precomputed", random_state=0, assign_labels="discretize"
            ).fit_predict((matrix + matrix.T) * 0.5)
        groups = [[c for c, label in zip(known, labels, strict=True) if label == k] for k in range(self.clusters)]
        self.means = [self.weighted(group, group) for group in groups if group]
        self.means.append(torch.stack(self.means).mean(0))


def followed(run: Run, hyper: dict[str, Any], clusters: int | None, first_epochs: int | None = None) -> Code:
    code, ever = Code(hyper, clusters), set()
    for result in run.results:
        epoch, cohort = result.round - 1, result.ids.tolist()
        mixes = {}
        for c in cohort:
            _, validation = data_of(c, result.round).holdout(HELD)
            nobody = not code.uploaded_clients
            mixes[c] = (code.first_model[c], {}) if nobody else code.federated(c, epoch, validation)
        for c, (mix, adds) in mixes.items():
            rest, _ = data_of(c, result.round).holdout(HELD)
            epochs = first_epochs if first_epochs is not None and epoch == 0 else 2
            code.first_model[c], code.model[c] = mix, trained(mix, rest, epochs)
            for other, added in adds.items():
                code.client_weights[c, other] += added
        code.last_active_round[cohort] = result.round
        code.uploaded_clients = cohort
        ever |= set(cohort)
        if clusters is not None and not (first_epochs is not None and epoch == 0):
            order = sorted(ever, key=lambda c: int(FEDERATION.draw_keys[c]))
            code.update_server_models(order)
    return code


def scored(run: Run, code: Code) -> Tensor:
    """Federate once more, without training."""
    round = run.results[-1].round
    held = [data_of(c, round, "evaluate").holdout(HELD)[1] for c in range(EVERYBODY)]
    return torch.stack([code.federated(c, round, held[c])[0] for c in range(EVERYBODY)])


@pytest.mark.parametrize("chunk", [1, EVERYBODY])
@pytest.mark.parametrize("participation", [1.0, 0.6])
@pytest.mark.parametrize("cls", [FedFomoFedFomo, FedFomoFedFomoMA])
def test_it_follows_the_authors_code(cls: type, participation: float, chunk: int) -> None:
    clusters = 2 if cls is FedFomoFedFomo else None
    run = simulate(cls, HYPER if clusters is None else FOMO, rounds=6, participation=participation, chunk=chunk, lr=LR)
    code = followed(run, HYPER, clusters)
    close(run.clients.trained, torch.stack(code.model))
    close(run.clients.before, torch.stack(code.first_model))
    close(run.server.p, torch.from_numpy(code.client_weights), 1e-8)
    assert code.explored, "some place explores"
    if clusters is not None and participation < 1:
        assert code.without_gain, "some client is without a gain"
    close(run.personal, scored(run, code))
    if clusters is not None:
        close(run.simulation.global_model(), code.means[-1])
        assert run.server.there.sum() == len(code.means)


def test_below_full_participation_an_epoch_of_all_clients_comes_first() -> None:
    hyper = {**FOMO, "first_epochs": 1}
    run = simulate(FedFomoFedFomo, hyper, rounds=4, participation=0.4, first_round="all", sampling="fixed", lr=LR)
    assert [len(result.ids) for result in run.results] == [EVERYBODY, 2, 2, 2]
    assert [bool(result.scores["personal"].n.all()) for result in run.results] == [True] * 4
    code = followed(run, hyper, 2, first_epochs=1)
    close(run.clients.trained, torch.stack(code.model))
    close(run.server.p, torch.from_numpy(code.client_weights), 1e-8)
    first = simulate(FedFomoFedFomo, hyper, rounds=1, participation=0.4, first_round="all", lr=LR)
    assert not first.server.there.any(), "nothing is clustered yet"
    assert first.simulation.global_model() is None


# two clients of two samples each, one of which each holds out: f = 1/2 (w - m)^2 with m = 4 for A, -4 for B
PAIR = [[([4, 0], 0)] * 2, [([-4, 0], 0)] * 2]
HAND: dict[str, Any] = {"epochs": 1, "batch": 1, "lr": 0.5, "network": STILL}


@pytest.mark.parametrize("chunk", [1, 2])
def test_fedfomo_by_hand(chunk: int) -> None:
    """Round 1: A goes from 0 to 2, B to -2. Each is a cluster: means 2 and -2, the global model 0.

    Round 2, A: its baseline is 0, with loss 8; candidates 2 (its own, loss 2), -2 (B's, loss 18), the means 2 and -2,
    and 0, at distance 0. L1 distances are 2: w = 3, -5, 3, -5, 0. Its mix is 1/2 * 2 + 1/2 * 2 = 2, and P adds to its
    own entry 3 / |-4| = 0.75, to that of B -5 / 4 = -1.25; B's the same. Then A steps to 3, B to -3.
    Evaluation after it, A: baseline 2 (loss 2); 3 (0.5), -3 (24.5), means 3 and -3, 0 (8). w = 1.5, -4.5, 1.5, -4.5,
    -3; its mix is 3.
    """
    hyper = {"models": 2, "clusters": 2, "epsilon": 0.0, "decay": 0.0, "validation": 0.5, "first_epochs": None}
    run = simulate(FedFomoFedFomo, hyper, rounds=2, federation=by_hand(PAIR), chunk=chunk, **HAND)
    close(run.clients.before, [[2, 7], [-2, 7]])
    close(run.clients.trained, [[3, 7], [-3, 7]])
    close(run.server.p, [[0.85, -1.25], [-1.25, 0.85]])
    close(run.personal, [[3, 7], [-3, 7]])
    assert run.traffic == ((1 + 3) * 2, 2)


@pytest.mark.parametrize("chunk", [1, 2])
def test_the_model_average_variant_by_hand(chunk: int) -> None:
    """Round 1: A goes from 0 to 2, B to -2; the mean of all is 0, with loss 8 for both.

    Round 2, A: without itself the average is -2 (loss 18), without B it is 2 (loss 2); distances 2: w = 5 and -3. The
    mix is 0 + (2 - 0) = 2; P adds 5 / 2 = 2.5 for A itself, -3 / 2 for B. Then A steps to 3, B to -3.
    """
    hyper = {"models": 2, "epsilon": 0.0, "decay": 0.0, "validation": 0.5, "first_epochs": None}
    run = simulate(FedFomoFedFomoMA, hyper, rounds=2, federation=by_hand(PAIR), chunk=chunk, **HAND)
    close(run.clients.before, [[2, 7], [-2, 7]])
    close(run.clients.trained, [[3, 7], [-3, 7]])
    close(run.server.p, [[2.6, -1.5], [-1.5, 2.6]])
    close(run.personal, [[3, 7], [-3, 7]])
    close(run.simulation.global_model(), [0, 7])
    assert run.traffic == (2 * 2, 2)


def test_means_that_differ_by_rounding_alone_have_no_weight() -> None:
    """With clients of one size, and a cohort that all fits among the candidates, an absent client's own model is left
    out of the mean of the cohort, which is the baseline.
    """
    hyper = {**HYPER, "models": EVERYBODY, "epsilon": 0.0}
    equal = federation((9,) * EVERYBODY)
    run = simulate(FedFomoFedFomoMA, hyper, rounds=3, participation=0.6, federation=equal, lr=LR)
    absent = (~run.server.active).nonzero().flatten()
    data = ClientData.of(equal, absent.tolist(), 4, batch=BATCH, large=16, purpose="train")
    down = run.method.send(run.server, run.simulation._turn(absent)._replace(round=4))
    without_own, apart = down.models.mean(1), down.models.sub(down.mean[:, None]).abs().sum(2)
    assert (without_own - down.mean).abs().max() < 1e-12 < apart.min(), "equal but for rounding"
    client = Client(run.clients.before[absent], run.clients.trained[absent])
    _, gains = run.method.mixed(down, client, data)
    assert (gains[:, 0] == 0).all()
    assert (gains[:, 1:] != 0).all()


def test_a_clusters_mean_is_of_those_that_were_active_last() -> None:
    """With last rounds 3, 3, 1 and 2 the first two count, with weights 1 and 3 of 4; of the last two, the one of round
    2.
    """
    models = torch.tensor([[4.0], [8], [100], [7]])
    server = Server(
        models, torch.tensor([3, 3, 1, 2]), torch.arange(4), torch.tensor([1, 3, 5, 5]), torch.eye(4), models, models
    )
    assert mean_of_active(server, torch.tensor([True, True, True, False])).tolist() == [7]
    assert mean_of_active(server, torch.tensor([False, False, True, True])).tolist() == [7]
    assert server.active.tolist() == [True, True, False, False]


def test_explorations_draws_are_those_of_every_round() -> None:
    """With an unchanged P and epsilon 1 the same clients are chosen in each round, since numpy's seed is set again."""
    run = simulate(FedFomoFedFomo, {**FOMO, "epsilon": 1.0, "decay": 0.0}, rounds=3)
    turn = run.simulation._turn(torch.arange(EVERYBODY))
    chosen = [run.method.choose(run.server, turn._replace(round=round)) for round in (2, 3, 9)]
    assert all(torch.equal(a, b) for a, b in pairwise(chosen))
    assert all(i not in ids for i, ids in enumerate(chosen[0].tolist())), "its own model has a place already"


def test_more_models_than_clients_are_refused() -> None:
    with pytest.raises(UserError, match=r"algorithm.models is 6, but there are 5 clients"):
        simulate(FedFomoFedFomo, {**FOMO, "models": 6})
