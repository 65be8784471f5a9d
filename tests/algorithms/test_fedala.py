import numpy as np
import pytest
import torch

from pflsweep.algorithms.fedala import FedALA
from pflsweep.algorithms.fedamp import FedAMP
from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.algorithms.fedphp import FedPHP
from pflsweep.algorithms.fedprox import FedProx
from pflsweep.algorithms.fedrep import FedRep
from pflsweep.algorithms.partialfed import PartialFed
from pflsweep.algorithms.perfedavg import PerFedAvg
from pflsweep.config.compose import compose
from pflsweep.data.batching import Batching
from pflsweep.data.loader import ClientData
from pflsweep.engine.simulation import Schedule, Simulation
from pflsweep.methods.protocol import Verbs
from pflsweep.methods.task import Batch
from pflsweep.plugins.ala import Ala, Client, Learned, Mixture
from pflsweep.trial.build import build
from pflsweep.util.errors import UserError
from tests.algorithms.helpers import EVERYBODY, FEDERATION, NETWORK, close, make, same_in_chunks, simulate

TASK, W0 = NETWORK
HYPER = {"layers": 1, "share": 0.8, "rate": 1.0, "idle": 0.0, "draw": "random"}
META = {"form": "fo", "alpha": 0.05, "delta": 0.001, "eval_lr": None}
OWN_MODELS = [
    (FedAMP, {"alpha": 0.5, "sigma": 4.0, "lam": 0.5, "start_from": "sent"}),
    (FedPHP, {"strength": 0.3, "transfer": "mmd", "mu": 0.9, "grows": True}),
    (PartialFed, {"strategy_lr": 5.0, "first_tau": 5.0, "last_tau": 0.5}),
]


def plugged(method, hyper=None, ala=HYPER, *, rounds=4, chunk=1, participation=1.0) -> Simulation:
    verbs = Verbs.of(make(method, hyper), Ala(task=TASK, **ala))
    schedule = Schedule(rounds, participation, "share", 2, 4, 0.1, 1.0, 1, 16, chunk)
    simulation = Simulation(verbs, TASK, FEDERATION, schedule, W0)
    for _ in simulation.run():
        pass
    return simulation


def rows(simulation: Simulation):
    return simulation.clients.get(torch.arange(EVERYBODY))


@pytest.mark.parametrize("hyper", [{"layers": 0}, {"rate": 0.0}, {"share": 0.0}])
def test_without_learning_the_server_goes_fedavgs_way(hyper):
    ours = simulate(FedALA, {**HYPER, **hyper}, rounds=4, participation=0.6)
    close(ours.w, simulate(FedAvg, rounds=4, participation=0.6).w)


def test_weights_are_learned_and_stay_between_0_and_1():
    weight = simulate(FedALA, HYPER, rounds=4).clients.weight
    assert (weight >= 0).all()
    assert (weight <= 1).all()
    assert (weight < 1).any()


def test_weight_0_keeps_the_clients_own_top():
    """With W = 0 the mixed part of the start is the client's last trained model; the layers below are the server's."""
    run = simulate(FedALA, {**HYPER, "rate": 0.0}, rounds=2)
    simulation = run.simulation
    simulation.clients._rows.weight.zero_()
    own, sent = run.clients.own.clone(), run.w.clone()
    simulation._next()
    start = rows(simulation).mix
    close(start[:, TASK.head], own)
    close(start[:, TASK.extractor], sent[TASK.extractor].expand(EVERYBODY, -1))


def test_the_step_is_the_gradient_of_the_weights():
    """Compare eq. 5 with autograd through eq. 4."""
    method = make(FedALA, HYPER)
    (ala,) = method.plugins()
    data = ClientData.of(FEDERATION, [3], 1, batch=4, large=16)
    batch = next(data.cut(next(data.sample(0.8, "ala"))))
    torch.manual_seed(1)
    own, model = torch.randn_like(W0)[TASK.head], torch.randn_like(W0)
    weight = torch.rand_like(own).requires_grad_()
    start = torch.cat([model[TASK.extractor], own + (model[TASK.head] - own) * weight])
    (slope,) = torch.autograd.grad(TASK.loss(start, type(batch)(*(v if v is None else v[0] for v in batch))), weight)
    seen = ala._seen_by_top(model[None], batch, 1)
    mixture = Mixture(own[None], (model[TASK.head] - own)[None], model[None, :0], TASK.head, 1)
    got = ala._step(mixture, Learned(weight.detach()[None], torch.zeros(1)), seen).weight
    close(got[0], (weight.detach() - slope).clamp(0, 1))


def test_a_block_of_all_rows_is_the_order_of_training():
    method = make(FedALA, {**HYPER, "share": 1.0, "draw": "block"})
    (ala,) = method.plugins()
    data = ClientData.of(FEDERATION, [3], 1, batch=4, large=16, batching=Batching(shuffle="once"))
    ours = torch.cat([batch.x for batch in ala._sample(W0[None], slice(0, len(W0)), data)], 1)
    close(ours, torch.cat([batch.x for batch in data.train(1)], 1))


def test_initial_stage_belongs_to_each_clients_first_turn_with_a_model():
    run = simulate(FedALA, HYPER, rounds=4, participation=0.4)
    turns = torch.zeros(EVERYBODY, dtype=torch.int64)
    for result in run.results:
        turns[result.ids] += 1
    assert torch.equal(run.clients.converged, turns >= 2)


def test_a_client_that_was_never_sampled_has_the_newest_global_model():
    run = simulate(FedALA, HYPER, rounds=2, participation=0.4)
    never = run.simulation.last < 0
    assert never.any()
    close(run.personal[never], run.w.expand(int(never.sum()), -1))


def test_the_initial_stage_ends_when_losses_are_flat(monkeypatch):
    """It ends when the population std of the last ten losses is below 0.01, or after 100 epochs. Later turns have one
    epoch.
    """
    losses = (
        # Flat at once
        lambda epoch: 0.0,
        # Flat from epoch 20 on
        lambda epoch: max(0.0, 20.0 - epoch),
        # Never flat
        lambda epoch: -float(epoch),
        # The sample std would be 0.0103
        lambda epoch: 0.0098 * (-1) ** epoch,
        lambda epoch: 0.0102 * (-1) ** epoch,
        lambda epoch: -float(epoch),  # its initial stage is over
        lambda epoch: -float(epoch),  # has no model of its own yet
    )
    epochs = iter(range(1, 101))

    def step(self, mixture, learned, batch):
        epoch = next(epochs)
        return Learned(learned.weight + 1, torch.tensor([loss(epoch) for loss in losses]))

    monkeypatch.setattr(Ala, "_step", step)
    client = Client(None, torch.zeros(7, 1), torch.zeros(7, 1), torch.arange(7) == 5, None)
    (ala,) = make(FedALA, HYPER).plugins()
    mixture = Mixture(client.own, client.own, client.own[:, :0], TASK.head, 1)
    batch = Batch(torch.zeros(7, 1, 1), torch.zeros(7, 1), None, None, None)
    learned = ala._learn(client, mixture, [batch], torch.arange(7) != 6)
    assert learned[:, 0].tolist() == [11, 29, 100, 11, 100, 1, 0]


def test_the_first_turn_starts_from_the_global_model():
    run = simulate(FedALA, HYPER, rounds=1)
    close(run.clients.mix, W0.expand(EVERYBODY, -1))
    assert (run.clients.weight == 1).all()


def test_while_ala_is_idle_it_is_fedavg_to_the_bit_in_evaluation_too():
    ours = simulate(FedALA, {**HYPER, "idle": 1.0}, rounds=4, participation=0.6)
    plain = simulate(FedAvg, rounds=4, participation=0.6)
    assert torch.equal(ours.w, plain.w)
    for one, other in zip(ours.results, plain.results, strict=True):
        for view in ("personal", "global"):
            np.testing.assert_array_equal(one.scores[view].loss, other.scores[view].loss)


def test_the_initial_stage_comes_after_the_idle_rounds():
    """Three of five rounds are idle; in the fourth all clients, which have models by then, begin to learn weights."""
    run = simulate(FedALA, {**HYPER, "idle": 0.6}, rounds=5)
    states = []
    again = Simulation(Verbs.of(run.method), TASK, FEDERATION, run.simulation.schedule, W0)
    for _ in again.run():
        states.append(rows(again))
    assert [bool(state.converged.any()) for state in states] == [False, False, False, True, True]
    assert [bool((state.weight < 1).any()) for state in states] == [False, False, False, True, True]
    plain = simulate(FedAvg, rounds=3)
    close(states[3].mix[:, TASK.extractor], plain.w[TASK.extractor].expand(EVERYBODY, -1))


def test_idle_rounds_are_whole_and_depend_on_all_rounds():
    method = make(FedALA, {**HYPER, "idle": 0.775})
    assert [method.idle_rounds(t) for t in (1, 2, 28, 200)] == [0, 1, 21, 155]
    assert not method.resumable
    assert make(FedALA, HYPER).resumable


def test_plugin_on_fedavg_is_fedala():
    ours, plug = simulate(FedALA, HYPER, rounds=4, participation=0.6), plugged(FedAvg, participation=0.6)
    assert torch.equal(ours.w, plug.server.w)
    assert torch.equal(ours.personal, torch.stack(list(plug.personal_models())))


def test_fedprox_is_held_to_what_was_sent_not_to_the_mix():
    """A method under ALA starts from the mix, and its steps see the model that the server sent."""
    seen = []
    inner = Verbs.of(make(FedProx, {"mu": 0.1}))

    def fit(given, data, work):
        seen.append((given.down.w.clone(), work.w.clone()))
        return inner.fit(given, data, work)

    verbs = Ala(task=TASK, **HYPER).plug(inner._replace(fit=fit))
    schedule = Schedule(2, 1.0, "share", 2, 4, 0.1, 1.0, 1, 16, 1)
    simulation = Simulation(verbs, TASK, FEDERATION, schedule, W0)
    simulation._next()
    sent = simulation.server.w.clone()
    seen.clear()
    simulation._next()
    for down, _ in seen:
        assert torch.equal(down[0], sent)
    assert any(not torch.equal(start[0], sent) for _, start in seen)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["scaffold", "fedrod", "fedbabu", "local", "fedala", "pgfed", "fedfomo", "apple", "fedavg_c", "fedprox_c"]
)
def test_methods_that_ala_would_distort_are_refused(method):
    config = compose([f"algorithm={method}", "ala=on", "tracking=none"])
    with pytest.raises(UserError, match=f"ala=on does not go with algorithm={method}"):
        build(config)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    ["fedavg", "fedprox", "perfedavg", "fedrep", "pfedme", "ditto", "fedamp", "fedphp", "partialfed"],
)
def test_ala_goes_in_front_of_the_methods_of_the_papers_table_4(method):
    more = ["algorithm.start_from=sent"] if method == "fedamp" else []
    build(compose([f"algorithm={method}", "ala=on", "tracking=none", *more]))


@pytest.mark.parametrize("participation", [0.2, 1.0])
def test_perfedavg_is_evaluated_one_step_from_the_mix(participation):
    simulation = plugged(PerFedAvg, META, participation=participation)
    never = (simulation.last < 0)[:, None]
    starts = torch.where(never, simulation.server.w, rows(simulation).mix)
    for i, (start, got) in enumerate(zip(starts, simulation.personal_models(), strict=True)):
        data = simulation._data(torch.tensor([i]), simulation.round, "evaluate")
        x, y = (value[0] for value in next(data.train(1, "adapt"))[:2])
        leaf = start.clone().requires_grad_()
        (g,) = torch.autograd.grad(torch.nn.functional.cross_entropy(TASK.logits(leaf, x), y), leaf)
        close(got, start - 0.05 * g)
    assert bool(never.any()) is (participation < 1)


@pytest.mark.parametrize(("method", "hyper"), OWN_MODELS)
def test_a_model_that_a_client_keeps_is_evaluated_as_ever(method, hyper):
    """A client without a model of its own has the global one, where there is one."""
    simulation = plugged(method, hyper, participation=0.2)
    own, seen = rows(simulation), simulation.last >= 0
    assert not seen.all()
    personal = torch.stack(list(simulation.personal_models()))
    assert torch.equal(personal[seen], own.inner.w[seen])
    assert not torch.equal(personal[seen], own.mix[seen])
    never = getattr(simulation.server, "w", W0)
    assert torch.equal(personal[~seen], never.expand(int((~seen).sum()), -1))


@pytest.mark.parametrize(("method", "hyper"), [*OWN_MODELS, (PerFedAvg, META)])
def test_training_starts_from_the_mix_and_is_held_to_what_was_sent(method, hyper):
    seen = []
    inner = Verbs.of(make(method, hyper))

    def start(given, data):
        work = inner.start(given, data)
        seen.append((given.down.w.clone(), work.w.clone()))
        return work

    def fit(given, data, work):
        seen.append((given.down.w.clone(), work.w.clone()))
        return inner.fit(given, data, work)

    verbs = Ala(task=TASK, **HYPER).plug(inner._replace(start=start, fit=fit))
    simulation = Simulation(verbs, TASK, FEDERATION, Schedule(3, 1.0, "share", 2, 4, 0.1, 1.0, 1, 16, 1), W0)
    simulation._next()
    sent = verbs.send(simulation.server, simulation._turn(torch.arange(EVERYBODY))).w
    seen.clear()
    simulation._next()
    mixes = rows(simulation).mix
    for i in range(EVERYBODY):
        (given_start, begun), (given_fit, trained_from) = seen[2 * i : 2 * i + 2]
        close(given_start[0], mixes[i])
        close(begun[0], mixes[i])
        close(trained_from[0], mixes[i])
        close(given_fit[0], sent[i])
    assert not torch.equal(mixes, sent)


def test_fedrep_mixes_the_top_of_its_extractor_alone():
    simulation = plugged(FedRep, {"head_epochs": 1})
    state, extractor = rows(simulation), TASK.extractor
    assert state.weight.shape[1] == TASK.blocks[-2].stop - TASK.blocks[-2].start
    assert (state.weight < 1).any()
    assert simulation.server.w.shape == (extractor.stop,)


@pytest.mark.parametrize("participation", [0.4, 1.0])
def test_fedrep_is_evaluated_before_local_training_head_and_all(participation):
    """A client's model is that from which its last training began; before its first turn it is FedRep's own."""
    inner = Verbs.of(make(FedRep, {"head_epochs": 1}))
    begun = {}

    def fit(given, data, work):
        begun[int(given.turn.ids[0])] = work.w[0].clone()
        return inner.fit(given, data, work)

    verbs = Ala(task=TASK, **HYPER).plug(inner._replace(fit=fit))
    simulation = Simulation(verbs, TASK, FEDERATION, Schedule(3, participation, "share", 2, 4, 0.1, 1.0, 1, 16, 1), W0)
    list(simulation.run())
    newest = torch.cat([simulation.server.w, W0[TASK.head]])
    for i, w in enumerate(simulation.personal_models()):
        assert torch.equal(w, begun.get(i, newest))
    trained = rows(simulation).inner.head[list(begun)]
    assert not torch.equal(trained, torch.stack(list(begun.values()))[:, TASK.head]), "heads were trained since"
    assert (len(begun) < EVERYBODY) is (participation < 1)


def test_fedrep_is_evaluated_as_ever_while_ala_is_idle():
    idle = plugged(FedRep, {"head_epochs": 1}, {**HYPER, "idle": 1.0}, participation=0.6)
    plain = simulate(FedRep, {"head_epochs": 1}, rounds=4, participation=0.6)
    assert torch.equal(torch.stack(list(idle.personal_models())), plain.personal)


@pytest.mark.parametrize(("method", "hyper"), [(FedProx, {"mu": 0.1}), (FedRep, {"head_epochs": 1})])
def test_any_chunking_of_a_plugged_method_is_the_same(method, hyper):
    one, all_ = (plugged(method, hyper, chunk=k, participation=0.6) for k in (1, EVERYBODY))
    close(all_.server, one.server)
    close(rows(all_), rows(one))


def test_any_chunking_is_the_same_round():
    same_in_chunks(FedALA, HYPER, momentum=0.9)
    one, all_ = (simulate(FedALA, HYPER, rounds=4, chunk=k, participation=0.6) for k in (1, EVERYBODY))
    close(all_.clients, one.clients)


def test_nothing_more_than_fedavg_is_communicated():
    assert simulate(FedALA, HYPER, rounds=3).traffic == (TASK.size, TASK.size)


def test_more_layers_than_blocks_are_refused():
    with pytest.raises(UserError, match="layers is 9"):
        simulate(FedALA, {**HYPER, "layers": 9})
