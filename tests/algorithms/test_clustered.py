import math

import pytest
import torch

from pflsweep.algorithms.clustered import Clustered, Server, bipartition, cosines
from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.engine.simulation import Schedule, Simulation
from pflsweep.methods import stock
from pflsweep.methods.protocol import Verbs
from tests.algorithms.helpers import (
    EVERYBODY,
    NETWORK,
    Quadratic,
    by_hand,
    close,
    federation,
    make,
    same_in_chunks,
    simulate,
)
from tests.works import simulation

TASK, W0 = NETWORK
EAGER = {"eps1": 100.0, "eps2": 0.0, "after": 0, "split": "code", "gamma_max": 0.5}
NEVER = {**EAGER, "eps1": 0.0}


def fan(*degrees):
    """Return unit vectors at these angles."""
    return torch.tensor([[math.cos(math.radians(a)), math.sin(math.radians(a))] for a in degrees], dtype=torch.float64)


def leaving(delta, **hyper):
    return make(Clustered, {**EAGER, **hyper}).leaving(delta).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("split", ["code", "paper"])
def test_finds_two_planted_groups_of_real_digits(split):
    """Clients 0 to 2 have the digits 0 to 4, clients 3 to 5 the others."""
    sim = simulation(
        "algorithm=clustered algorithm.after=3 algorithm.eps1=2 algorithm.eps2=0.1 algorithm.gamma_max=0.3 "
        f"algorithm.split={split} dataset=digits model=mlp partition=pathological partition.clients=6 "
        "partition.classes_per_client=5 train.participation=1 train.rounds=4 train.lr=0.1 tracking=none"
    )
    labels = sim.federation.class_counts > 0
    assert (labels == labels[[0, 0, 0, 3, 3, 3]]).all()
    assert not (labels[0] & labels[3]).any()
    list(sim.run())
    assert sim.server.cluster.tolist() in ([0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0])


@pytest.mark.parametrize("split", ["code", "paper"])
@pytest.mark.parametrize("participation", [0.6, 1.0])
def test_clusters_partition_the_clients(split, participation):
    most = 0
    for rounds in range(1, 6):
        server = simulate(
            Clustered, {**EAGER, "split": split, "gamma_max": 0.1}, rounds=rounds, participation=participation
        ).server
        assert sorted(set(server.cluster.tolist())) == list(range(len(server.models))), "each cluster has somebody"
        assert len(server.cluster) == EVERYBODY
        assert len(server.models) >= most, "clusters only split"
        most = len(server.models)
    assert most > 1


@pytest.mark.parametrize("off", [{"eps1": 0.0}, {"eps2": 100.0}, {"after": 3}])
def test_without_a_split_it_is_uniform_fedavg(off):
    ours = simulate(Clustered, {**EAGER, **off}, rounds=3, participation=0.6)
    fedavg = simulate(FedAvg, rounds=3, participation=0.6, weights="uniform")
    close(ours.personal, fedavg.personal)
    assert len(simulate(Clustered, {**EAGER, "after": 2}, rounds=3).server.models) == 2, "the fourth would be too late"


def test_a_split_needs_a_converged_mean_and_clients_that_disagree():
    delta = torch.tensor([[1.0, 0.5], [1.0, -0.5], [-1.8, 0.0], [-1.0, 0.0]]).double()  # mean -0.2, longest 1.8
    assert leaving(delta, eps1=0.21, eps2=1.79) == [2, 3]
    assert leaving(delta, eps1=0.19, eps2=1.79) == []
    assert leaving(delta, eps1=0.21, eps2=1.81) == []
    assert leaving(delta[1:3]) == [], "two clients are not split"


def test_complete_and_single_linkage():
    """Single linkage cuts the widest gap, complete linkage keeps both parts narrow."""
    alike = cosines(fan(0, 20, 41, 60, 85))
    assert bipartition(alike, "single").tolist() in ([False] * 4 + [True], [True] * 4 + [False])
    complete = bipartition(alike, "complete")
    assert complete.tolist() in ([True, True, False, False, False], [False, False, True, True, True])


def test_the_papers_cut_is_accepted_where_gamma_max_permits():
    """sqrt((1 - cos 25 degrees) / 2) = sin 12.5 degrees = 0.2164; the first client stays."""
    delta = fan(0, 20, 41, 60, 85)
    assert leaving(delta, split="paper", gamma_max=0.21) == [4]
    assert leaving(delta, split="paper", gamma_max=0.22) == []
    assert leaving(delta, gamma_max=1.0) == [2, 3, 4], "the code's cut is always accepted"


def test_an_update_of_zero_and_equal_ones_are_cut_as_well():
    assert len(leaving(torch.tensor([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0]]).double())) in (1, 2)
    assert len(leaving(fan(10, 10, 10))) in (1, 2)


def test_absent_members_join_the_part_with_the_lowest_key():
    """Clients 1 and 4 move away from client 3, which has the lowest key; 0 and 2, and all of cluster 1, are absent."""
    method, run = make(Clustered, EAGER), simulate(Clustered, NEVER, rounds=1)
    turn = run.simulation._turn(torch.tensor([3, 1, 4]))
    models = torch.tensor([[1.0, 1.0], [7.0, 7.0]]).double()
    server = Server(models, torch.tensor([0, 0, 0, 0, 0]))
    delta = torch.tensor([[-3.0, 0.0], [1.0, 0.0], [2.0, 1.0]]).double()
    new = method.aggregate(server, stock.Up(models[0] + delta), turn)
    assert new.cluster.tolist() == [0, 2, 0, 0, 2]
    close(new.models, [[-2, 1], [7, 7], [2.5, 1.5]])
    assert torch.equal(server.models, torch.tensor([[1.0, 1.0], [7.0, 7.0]]).double()), "the old state stays"


@pytest.mark.parametrize("seed", range(3))
def test_the_lowest_key_is_the_clients_not_that_of_its_draws(seed):
    """The order of clients in the list does not matter."""
    keys = [4, 2, 9, 1, 7]
    splits = 0
    for where in (federation(keys=keys), federation(sizes=(20, 7, 5, 12, 20), keys=keys[::-1])):
        where.seed = seed
        method = make(Clustered, EAGER)
        run = Simulation(Verbs.of(method), TASK, where, Schedule(4, 0.6, "share", 2, 4, 0.1, 1.0, 9, 16, 1), W0)
        while run.round < 4:
            before = run.server.cluster
            ids = run._next().ids
            after = run.server.cluster
            for c in before.unique():
                here = [i for i in ids.tolist() if before[i] == c]
                if len({int(after[i]) for i in here}) == 2:
                    splits += 1
                    absent = [i for i in range(EVERYBODY) if before[i] == c and i not in here]
                    lowest = min(here, key=lambda i: int(where.stable_ids[i]))
                    assert {int(after[i]) for i in absent} <= {int(after[lowest])}
    assert splits > 1


def test_a_clusters_model_is_communicated():
    run = simulate(Clustered, EAGER)
    assert run.traffic == (TASK.size, TASK.size)
    assert run.simulation.global_model() is None
    close(run.method.show(run.server)["same cluster"].diagonal(), torch.ones(EVERYBODY))


@pytest.mark.parametrize("split", ["code", "paper"])
def test_any_chunking_is_the_same_round(split):
    same_in_chunks(Clustered, {**EAGER, "split": split, "gamma_max": 0.1}, momentum=0.9)


SAMPLES = [[([4, 0], 0)], [([-4, 0], 0)], [([2, 0], 0)], [([-2, 0], 0)]]
QUADRATIC = Quadratic([[1, 0], [0, 0]]), torch.tensor([0.0, 7.0], dtype=torch.float64)


def test_by_hand():
    """f = 1/2 (w - m)^2 with m = 4, -4, 2, -2 for A, B, C, D; one step of lr 0.5 from w = 0.

    Round 1.  Delta = 2, -2, 1, -1: the mean is 0, so {A, C} and {B, D} part at once; w = 1.5 and -1.5
    Round 2.  Delta = 1.25, -1.25, 0.25, -0.25: two clients are not split again; w = 1.5 + 0.75 = 2.25 and -2.25
    With `after` = 1: w = 0 after round 1; round 2 is the first round above.
    """
    settings = {"epochs": 1, "batch": 1, "lr": 0.5, "federation": by_hand(SAMPLES), "network": QUADRATIC}
    hyper = {**EAGER, "eps1": 0.1, "eps2": 1.9}
    for chunk in (1, 4):
        first, second = (simulate(Clustered, hyper, rounds=t, chunk=chunk, **settings) for t in (1, 2))
        close(first.personal, [[1.5, 7], [-1.5, 7], [1.5, 7], [-1.5, 7]])
        close(second.personal, [[2.25, 7], [-2.25, 7], [2.25, 7], [-2.25, 7]])
        later = [simulate(Clustered, {**hyper, "after": 1}, rounds=t, chunk=chunk, **settings) for t in (1, 2)]
        close(later[0].personal, [[0, 7]] * 4)
        close(later[1].personal, first.personal)
