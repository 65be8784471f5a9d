"""Malicious clients: which ones they are, what they upload, and that no score counts them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import pflsweep
from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.algorithms.fedfv import FedFV
from pflsweep.algorithms.scaffold import Scaffold
from pflsweep.config.compose import compose
from pflsweep.conformance.case import advance, assert_same, kept_states, models
from pflsweep.methods import stock
from pflsweep.methods.protocol import Plugin, Vector
from pflsweep.ops import random
from pflsweep.plugins.ala import Ala
from pflsweep.plugins.attack import Attack, Gaussian, Scaled
from pflsweep.trial.build import build
from pflsweep.trial.tables import score_summary
from pflsweep.util.errors import UserError
from tests.algorithms.helpers import EVERYBODY, FEDERATION, NETWORK, Quadratic, by_hand, close, opened, simulate
from tests.conformance.test_methods import TABLE, case
from tests.works import HARD, accuracy, holds

if TYPE_CHECKING:
    from pflsweep.methods.protocol import Given

KEYS = FEDERATION.draw_keys


def scaled(factor: float = 100.0, share: float = 0.4, keys: Tensor = KEYS) -> Scaled:
    return Scaled(share=share, keys=keys, factor=factor)


def gaussian(sigma: float = 2.0, around: bool = False, share: float = 0.4, keys: Tensor = KEYS) -> Gaussian:
    return Gaussian(share=share, keys=keys, sigma=sigma, around=around)


class Uploads(NamedTuple):
    forged: Any
    honest: Any
    bad: Tensor  # [N]
    received: Tensor  # [N, P]


def uploads(attack: Attack, method: Any = FedAvg, hyper: dict[str, Any] | None = None) -> Uploads:
    """Return what all clients upload in one more round, with the attack and without."""
    run = simulate(method, hyper, rounds=2)
    given, data, work = opened(run, list(range(EVERYBODY)))
    verbs = run.simulation.verbs
    work = verbs.fit(given, data, work)
    (forged, kept), (honest, own) = (v.finish(given, data, work) for v in (attack.plug(verbs), verbs))
    # Its own state is unchanged
    close(kept, own)
    return Uploads(forged, honest, attack.malicious(), given.down.w)


@pytest.mark.parametrize(("share", "clients", "count"), [(0.1, 100, 10), (0.1, 19, 1), (0.1, 5, 1), (0.58, 50, 29)])
def test_the_share_is_rounded_down_to_at_least_one(share: float, clients: int, count: int) -> None:
    keys = random.fold(random.tensor_key(0, "test"), torch.arange(clients))
    assert int(scaled(share=share, keys=keys).malicious().sum()) == count


def test_somebody_has_to_be_honest() -> None:
    with pytest.raises(UserError, match=r"attack\.share is 0\.4: of 1 clients none would be honest"):
        scaled(keys=KEYS[:1]).malicious()


def test_who_is_malicious_follows_client_and_seed_alone() -> None:
    order = torch.tensor([3, 0, 4, 1, 2])
    assert torch.equal(gaussian(keys=KEYS[order]).malicious(), scaled().malicious()[order])
    seeds = [random.fold(random.tensor_key(seed, "test"), torch.arange(20)) for seed in range(9)]
    assert len({tuple(scaled(keys=keys).malicious().tolist()) for keys in seeds}) == 9
    fedavg, scaffold = (
        build(compose([f"algorithm={name}", "attack=gaussian"])).verbs for name in ("fedavg", "scaffold")
    )
    assert torch.equal(fedavg.malicious, scaffold.malicious)
    assert int(fedavg.malicious.sum()) == 2


def test_two_steps_by_hand() -> None:
    """f_i(w) = 1/2 |w - m_i|^2, m = (2, 0), (0, 4); one step of 0.5 a round; client 1 triples its update.

    From w = (0, 0) the clients reach (1, 0) and (0, 2), of which the second uploads (0, 6): w = (0.5, 3).
    From there they reach (1.25, 1.5) and (0.25, 3.5); the second uploads (0.5, 3) + 3 (-0.25, 0.5) = (-0.25, 4.5):
    w = (0.5, 3) again.
    """
    clients = by_hand([[([2.0, 0.0], 0)], [([0.0, 4.0], 0)]], keys=[0, 1])
    if scaled(share=0.5, keys=clients.draw_keys).malicious()[0]:
        clients = by_hand([[([2.0, 0.0], 0)], [([0.0, 4.0], 0)]], keys=[1, 0])
    attack = scaled(3.0, share=0.5, keys=clients.draw_keys)
    task = Quadratic([[1.0, 0.0], [0.0, 1.0]])
    settings = {"federation": clients, "network": (task, torch.zeros(2, dtype=torch.float64)), "epochs": 1, "lr": 0.5}
    for chunk in (1, 2):
        for rounds in (1, 2):
            close(simulate(FedAvg, rounds=rounds, chunk=chunk, plugins=(attack,), **settings).w, [0.5, 3.0])


def test_a1_is_noise_of_its_own_for_each_client_and_field() -> None:
    """SCAFFOLD uploads a model and an update: both become noise, without anything that was trained."""
    forged, honest, bad, _ = uploads(gaussian(), Scaffold, {"global_lr": 1.0})
    noise = torch.cat([forged.w[bad], forged.delta[bad]]) / 2.0
    assert abs(noise.mean()) < 5 / noise.numel() ** 0.5
    assert abs(noise.square().mean() - 1) < 5 * (2 / noise.numel()) ** 0.5
    assert (torch.corrcoef(noise) - torch.eye(len(noise))).abs().max() < 5 / noise.shape[1] ** 0.5
    close([forged.w[~bad], forged.delta[~bad]][0], honest.w[~bad])
    close(forged.delta[~bad], honest.delta[~bad])


def test_a1_is_other_noise_in_each_round() -> None:
    attack, run = gaussian(), simulate(FedAvg, rounds=2)
    given, data, work = opened(run, list(range(EVERYBODY)))
    verbs, bad = attack.plug(run.simulation.verbs), attack.malicious()
    this, same, following = (
        verbs.finish(given._replace(turn=given.turn._replace(round=round)), data, work)[0].w[bad] for round in (3, 3, 4)
    )
    assert torch.equal(this, same)
    assert abs(torch.corrcoef(torch.stack([this.flatten(), following.flatten()]))[0, 1]) < 5 / this.numel() ** 0.5


def test_a1_around_the_received_model() -> None:
    alone, around = uploads(gaussian()), uploads(gaussian(around=True))
    close(around.forged.w[around.bad] - around.received[around.bad], alone.forged.w[alone.bad])


def test_a2_scales_the_update_and_losses_stay_honest() -> None:
    forged, honest, bad, received = uploads(scaled(), FedAvg)
    close(forged.w[bad], received[bad] + 100 * (honest.w[bad] - received[bad]), 1e-9)
    close(forged.w[~bad], honest.w[~bad])
    scaffold = uploads(scaled(), Scaffold, {"global_lr": 1.0})
    close(scaffold.forged.delta[bad], 100 * scaffold.honest.delta[bad])
    fair = uploads(scaled(), FedFV, {"alpha": 0.1, "tau": 1, "external": "code"})
    close(fair.forged.loss, fair.honest.loss)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedrep", "fedavg ala", "fedavg private"])
def test_a2_with_factor_1_is_no_attack(name: str) -> None:
    row = TABLE[name]
    harmless = row._replace(plugs={**row.plugs, Scaled: {"share": 0.4, "factor": 1.0}})
    ours, theirs = (advance(case(name, row=each).simulation(), 4) for each in (harmless, row))
    assert_same({**kept_states(ours), **models(ours)}, {**kept_states(theirs), **models(theirs)}, "factor 1")


def test_malicious_clients_count_nowhere() -> None:
    attack = scaled()
    ours, theirs = simulate(FedAvg, plugins=(attack,)), simulate(FedAvg)
    bad = attack.malicious().numpy()
    clean = theirs.simulation.evaluate()
    for view, scores in ours.simulation.evaluate().items():
        assert scores.n.tolist() == np.where(bad, 0, clean[view].n).tolist()
        assert not scores.correct[bad].any()
        assert np.isnan(scores.loss).tolist() == bad.tolist()
        assert score_summary(scores)["accuracy"] == pytest.approx(scores.accuracy[~bad].mean())
    assert len(list(ours.simulation.personal_models())) == EVERYBODY


def test_the_mix_of_a_malicious_client_stays_its_own() -> None:
    """ALA keeps the trained model, whatever the client uploads."""
    attack = scaled()
    run = simulate(
        FedAvg, rounds=1, plugins=(Ala(task=NETWORK[0], layers=1, share=0.8, rate=1.0, idle=0.0, draw="random"), attack)
    )
    plain = simulate(
        FedAvg, rounds=1, plugins=(Ala(task=NETWORK[0], layers=1, share=0.8, rate=1.0, idle=0.0, draw="random"),)
    )
    close(run.clients, plain.clients)
    assert not torch.allclose(run.w, plain.w)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["algorithm=local", "attack=gaussian"], ["attack=gaussian does not go with algorithm=local", "neither"]),
        (["algorithm=pgfed", "attack=scaled"], ["algorithm=pgfed", "upload `grad` too", "It goes with", "fedavg"]),
        (["algorithm=fedfomo", "attack=scaled"], ["algorithm=fedfomo", "no shared model `w`"]),
        (["algorithm=fedfomo", "attack=gaussian", "attack.around=true"], ["algorithm=fedfomo", "no shared model `w`"]),
        (["algorithm=as_run/fedfomo_fedfomo", "attack=scaled"], ["as_run/fedfomo_fedfomo", "no shared model `w`"]),
    ],
)
def test_what_cannot_be_forged_is_refused_before_training(overrides: list[str], words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        build(compose(overrides))
    assert [word for word in words if word not in str(caught.value)] == []
    assert "\n" not in str(caught.value)
    assert build(compose(["algorithm=fedfomo", "attack=gaussian"])).verbs.malicious.any()


@dataclass(frozen=True, kw_only=True)
class Silent(FedAvg):
    """A method whose `finish` has no return annotation."""

    def finish(self, given, data, work):
        return stock.Empty(), given.client


def test_a_method_without_annotations_is_refused_when_it_uploads() -> None:
    assert scaled().refusal(Silent) == ""
    with pytest.raises(UserError, match="upload neither a model nor an update"):
        simulate(Silent, plugins=(scaled(),))


@dataclass(frozen=True, kw_only=True)
class Unreadable(FedAvg):
    """A method whose annotations name what is imported under TYPE_CHECKING alone."""

    def finish(self, given: "Given", data, work) -> tuple[stock.Up, stock.Empty]:
        return super().finish(given, data, work)


def test_annotations_that_cannot_be_read_say_nothing() -> None:
    assert scaled().refusal(Unreadable) == ""
    simulate(Unreadable, plugins=(scaled(),))


class UnreadableUp(NamedTuple):
    """An upload with a field whose type is imported under TYPE_CHECKING alone."""

    w: Vector
    loss: "Given"


@dataclass(frozen=True, kw_only=True)
class UnreadableField(FedAvg):
    """A method that says that it uploads `UnreadableUp`."""

    def finish(self, given, data, work) -> tuple[UnreadableUp, stock.Empty]:
        return UnreadableUp(work.w, work.w[:, 0]), given.client


def test_an_upload_whose_fields_cannot_be_read_is_refused_before_training() -> None:
    assert "'Given' is not defined. Import it outside `if TYPE_CHECKING`" in scaled().refusal(UnreadableField)


@dataclass(frozen=True, kw_only=True)
class SaysNothingOfDown(FedAvg):
    """A method whose `send` has no return annotation."""

    def send(self, server, turn):
        return OtherName(super().send(server, turn).w)

    def start(self, given, data):
        return stock.Work(given.down.model.clone(), self.opt.init(given.down.model))


class OtherName(NamedTuple):
    model: Vector


def test_a_method_that_sends_no_w_is_refused_when_a_model_is_forged_from_it() -> None:
    assert scaled().refusal(SaysNothingOfDown) == ""
    with pytest.raises(UserError, match="what the method sends has no `w`"):
        simulate(SaysNothingOfDown, plugins=(scaled(),))


def test_plug_ins_have_nothing_to_say_of_each_other() -> None:
    assert scaled().refusal(Ala) == Plugin().refusal(FedAvg) == ""


def test_the_record_says_who_was_malicious(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["tracking=none", "partition.clients=6", "model.hidden=[16]", "train.rounds=2", "train.threads=1"]
    result = pflsweep.run([*small, "attack=scaled", "attack.share=0.34"])
    meta = result.record.meta
    assert meta["name"] == "fedavg+scaled-digits-dirichlet-0"
    assert meta["plugin_versions"] == {"attack": 1}
    assert len(meta["malicious"]) == 2
    silent = result.clients[result.clients["n"] == 0]
    assert set(silent["client"]) == set(meta["malicious"])
    assert pflsweep.run(small).record.meta["malicious"] == []


# Enough rounds to see which methods learn
LONG = HARD + " train.rounds=15"


def margins(on: str, off: str) -> np.ndarray:
    """Return how much higher the global model's accuracy is with `on` than with `off`, for each seed."""
    a, b = (
        np.array([accuracy(f"{side} tracking=none {LONG}", "global", seed) for seed in range(3)]) for side in (on, off)
    )
    return a - b


@pytest.mark.slow
def test_a2_ruins_an_average_and_not_normalised_directions() -> None:
    """FedPG's Table 3: FedAvg falls to chance; FedMGDA+, whose gradients all have length 1, does not."""
    attacked = [accuracy(f"algorithm=fedavg attack=scaled tracking=none {LONG}", "global", seed) for seed in range(3)]
    assert np.mean(attacked) < 0.2
    assert holds(margins("algorithm=fedavg", "algorithm=fedavg attack=scaled") - 0.4)
    assert holds(margins("algorithm=fedmgda attack=scaled", "algorithm=fedavg attack=scaled") - 0.1)


@pytest.mark.slow
def test_a2_does_not_ruin_fedpg_whose_step_has_the_median_length() -> None:
    fedpg = "algorithm=fedpg algorithm.reference=median"
    assert holds(margins(f"{fedpg} attack=scaled", "algorithm=fedavg attack=scaled") - 0.4)
    # Not worse than without the attack by more than 0.15
    assert holds(margins(f"{fedpg} attack=scaled", fedpg) + 0.15)


@pytest.mark.slow
def test_a1_hurts_an_average() -> None:
    assert holds(margins("algorithm=fedavg", "algorithm=fedavg attack=gaussian") - 0.1)
