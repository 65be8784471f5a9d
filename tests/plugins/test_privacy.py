"""DP-SGD: clipped gradients with noise, Poisson batches, and the epsilon that they cost."""

import importlib
import pkgutil
import signal
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from opacus.accountants import RDPAccountant
from torch import Tensor, nn

import pflsweep
from pflsweep import algorithms
from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.algorithms.fedfomo import FedFomo
from pflsweep.algorithms.fedrep import FedRep
from pflsweep.commands.check import method_at
from pflsweep.config.compose import compose
from pflsweep.conformance.case import assert_same, kept_states, models
from pflsweep.data.loader import ClientData
from pflsweep.data.poisson import Poisson
from pflsweep.engine.simulation import Privacy
from pflsweep.methods.protocol import Method, Spent, Verbs
from pflsweep.methods.task import Batch, Private, Task, cross_entropy
from pflsweep.models import cnn_norm
from pflsweep.models.blocks import model_of
from pflsweep.models.layers import Dropout
from pflsweep.ops import random
from pflsweep.ops.vmap import per_client
from pflsweep.plugins import privacy
from pflsweep.plugins.fedfomo_privacy import FedFomoDpSgd
from pflsweep.plugins.privacy import DpSgd
from pflsweep.trial.build import build
from pflsweep.trial.run import Stopped, run_trial
from pflsweep.trial.tables import privacy_columns
from pflsweep.util.errors import UserError
from tests import broken
from tests.algorithms.helpers import (
    CLASSES,
    EVERYBODY,
    FEATURES,
    FEDERATION,
    NETWORK,
    SIZES,
    close,
    federation,
    make,
    simulate,
)
from tests.conformance.test_methods import YAMLS
from tests.trial.test_run import FakeTracker
from tests.trial.test_run import assert_same as assert_same_record
from tests.works import HARD, accuracy, holds

TASK, W0 = NETWORK
# A norm that no gradient reaches
FREE = 1e12


def dp(
    clip: float = 1.0,
    sigma: float = 1.0,
    delta: float = 1e-5,
    task: Task = TASK,
    read_after: float | None = None,
) -> DpSgd:
    return DpSgd(task=task, clip=clip, sigma=sigma, delta=delta, read_after=read_after)


def private(batch: Batch, clip: float, noise: float = 0.0, size: float = 4.0, key: int = 1) -> Batch:
    return batch._replace(private=Private(torch.tensor(size), torch.tensor(key), clip, noise, []))


def a_batch(size: int = 5, seed: int = 0) -> Batch:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        x = torch.randn(size, FEATURES, dtype=torch.float64)
    return Batch(x, torch.arange(size) % CLASSES, None, None, None)


def clipped(batch: Batch, clip: float, **options: Any) -> Tensor:
    """Return the sum of the samples' clipped gradients, computed one after the other."""
    total = 0
    for k in range(len(batch.y)):
        g = TASK.grad(W0, Batch(batch.x[k : k + 1], batch.y[k : k + 1], None, None, None), **options)
        total = total + g * min(1.0, clip / float(g.norm()))
    return total


# Gradients


@pytest.mark.parametrize("part", [None, TASK.head, TASK.extractor])
@pytest.mark.parametrize("clip", [0.3, 1.0, FREE])
def test_a_private_gradient_is_the_sum_of_clipped_ones_over_the_expected_size(clip: float, part: slice | None) -> None:
    got = TASK.grad(W0, private(a_batch(), clip), part=part)
    close(got, clipped(a_batch(), clip, part=part) / 4)


def test_gradients_by_parameter_are_private_too() -> None:
    batch = private(a_batch(), 0.3)
    by_parameter = TASK.grads(W0, batch)
    for name, g in TASK.views(TASK.grad(W0, batch)).items():
        close(by_parameter[name], g)


def test_the_sum_moves_by_no_more_than_the_clip_when_a_sample_comes() -> None:
    x = a_batch().x.clone()
    x[4] *= 1e6
    five, four = (Batch(x[:n], a_batch().y[:n], None, None, None) for n in (5, 4))
    apart = 4 * (TASK.grad(W0, private(five, 0.5)) - TASK.grad(W0, private(four, 0.5)))
    assert float(apart.norm()) == pytest.approx(0.5)


def test_a_gradient_that_is_not_finite_has_no_say() -> None:
    """Such a gradient cannot be clipped, and NaN in the sum would reveal that its sample is there."""
    batch = a_batch(5)
    broken = batch._replace(x=batch.x.index_fill(0, torch.tensor([2]), torch.inf))
    others = torch.tensor([0, 1, 3, 4])
    rest = batch._replace(x=batch.x[others], y=batch.y[others])
    torch.testing.assert_close(TASK.grad(W0, private(broken, 1.0)), TASK.grad(W0, private(rest, 1.0)))


def test_a_method_that_asks_back_is_refused_when_it_does() -> None:
    verbs = dp().plug(Verbs.of(make(FedAvg)))
    with pytest.raises(UserError, match="asks its clients back"):
        verbs.answer(None, None, None)


def test_a_loss_of_ones_own_on_logits_and_features_is_clipped_by_sample() -> None:
    def loss(logits: Tensor, z: Tensor, batch: Batch) -> Tensor:
        return cross_entropy(2 * logits, batch) + z.square().sum(1).mean()

    _, got = TASK.value_and_grad(W0, private(a_batch(), 0.7), loss, features=True)
    wanted = 0
    for k in range(5):
        x, y = (v[k : k + 1] for v in a_batch()[:2])
        one = Batch(x, y, None, None, None)
        _, g = TASK.value_and_grad(W0, one, loss, features=True)
        wanted = wanted + g * min(1.0, 0.7 / float(g.norm()))
    close(got, wanted / 4)


def test_noise_has_the_promised_size_and_every_gradient_its_own() -> None:
    batch = private(a_batch(), 0.5, noise=3.0)
    many = torch.stack([TASK.grad(W0, batch) for _ in range(200)])
    noise = (4 * many - clipped(a_batch(), 0.5)) / (3.0 * 0.5)
    assert len(batch.private.gradients) == 200
    assert abs(noise.mean()) < 5 / noise.numel() ** 0.5
    assert abs(noise.square().mean() - 1) < 5 * (2 / noise.numel()) ** 0.5
    again = TASK.grad(W0, private(a_batch(), 0.5, noise=3.0))
    close(again, many[0])
    assert not torch.allclose(TASK.grad(W0, private(a_batch(), 0.5, noise=3.0, key=2)), again)


def test_padding_has_no_say_and_an_empty_batch_is_noise_alone() -> None:
    five = a_batch()
    x = torch.cat([five.x, torch.full((2, FEATURES), 1e200, dtype=torch.float64)])
    padded = Batch(x, torch.cat([five.y, torch.zeros(2, dtype=torch.int64)]), torch.arange(7) < 5, None, None)
    close(TASK.grad(W0, private(padded, 0.5, 1.0)), TASK.grad(W0, private(five, 0.5, 1.0)))
    empty = private(padded._replace(mask=torch.zeros(7, dtype=torch.bool)), 0.5, 1.0)
    close(TASK.grad(W0, empty), 0.5 * random.normal(random.fold(torch.tensor(1), 0), (TASK.size,)) / 4)


def test_clients_at_once_as_one_by_one() -> None:
    class Steps:
        @per_client
        def grad(self, w: Tensor, batch: Batch) -> Tensor:
            return TASK.grad(w, batch)

    batches = [a_batch(seed=k) for k in range(3)]
    how = Private(torch.full((3,), 4.0), torch.arange(3), 0.5, 1.0, [])
    x, y = (torch.stack(v) for v in zip(*(b[:2] for b in batches), strict=True))
    rows = Batch(x, y, None, None, torch.arange(3), how)
    together = Steps().grad(W0.expand(3, -1), rows)
    for k in range(3):
        one = [v[k : k + 1] for v in (rows.x, rows.y, rows.key, how.size, how.key)]
        alone = Batch(one[0], one[1], None, None, one[2], Private(one[3], one[4], 0.5, 1.0, []))
        close(together[k], Steps().grad(W0[None], alone)[0])


# Poisson batches


def handle(ids: list[int], batch: int = 4, fed: Any = FEDERATION, round: int = 1) -> Any:
    return ClientData.of(fed, ids, round, batch=batch, large=16)


def test_an_epoch_has_as_many_steps_as_batches_and_each_sample_the_same_chance() -> None:
    fed = federation((50,))
    sizes = [float(b.x.shape[1]) for b in handle([0], 8, fed).poisson(1.0, 1.0).train(400) if b.mask is None]
    assert len(list(handle([0], 8, fed).poisson(1.0, 1.0).train(1))) == 7
    assert np.mean(sizes) == pytest.approx(8, abs=5 * (8 * 0.84 / len(sizes)) ** 0.5)
    assert np.var(sizes) == pytest.approx(8 * 0.84, rel=0.1)
    seen = torch.cat([b.x[0, :, 0] for b in handle([0], 8, fed).poisson(1.0, 1.0).train(400)])
    _, counts = seen.unique(return_counts=True)
    assert len(counts) == 50
    assert (counts - 2800 * 8 / 50).abs().max() < 5 * (2800 * 0.16 * 0.84) ** 0.5


def test_a_client_with_few_samples_uses_all_of_them() -> None:
    (batch,) = handle([2], 4).poisson(1.0, 1.0).train(1)
    assert batch.x.shape[:2] == (1, 1)
    assert batch.private.size.tolist() == [1.0]


def test_each_pass_draws_anew_and_the_same_again() -> None:
    data, again = handle([3]).poisson(1.0, 1.0), handle([3]).poisson(1.0, 1.0)
    first, second = ([b.private.key.item() for b in data.train(2)] for _ in range(2))
    assert not set(first) & set(second)
    assert first == [b.private.key.item() for b in again.train(2)]
    of_holdout = handle([3]).poisson(1.0, 1.0).holdout(0.2)[0].train(2)
    assert isinstance(handle([3]).poisson(1.0, 1.0).holdout(0.2)[0], Poisson)
    assert len(list(of_holdout)) == 8


def test_an_empty_batch_is_a_noisy_step() -> None:
    """With B = 1 and n = 20 every third batch is empty; clients without further batches still do not move."""
    data = handle([3, 0], 1)
    batches = list(data.poisson(1.0, 1.0).train(1))
    assert len(batches) == 20
    live = torch.stack([b.live for b in batches], 1)
    assert live.sum(1).tolist() == [20, 7]
    empty = torch.stack([~b.mask.any(1) for b in batches], 1) & live
    assert empty[0].any()
    for k, batch in enumerate(handle([3], 1).poisson(1.0, 1.0).train(1)):
        assert batch.live is None or bool(batch.live)
        assert (batch.mask is not None) == bool(empty[0, k])


def test_other_ways_to_read_the_data_are_refused() -> None:
    with pytest.raises(UserError, match=r"data\.batches, which DP-SGD does not cover"):
        handle([0]).poisson(1.0, 1.0).batches(2, 1)
    with pytest.raises(UserError, match=r"data\.mean"):
        handle([0]).poisson(1.0, 1.0).mean(lambda batch: batch.x)


def test_without_noise_and_clipping_a_step_is_the_sum_of_gradients_over_b() -> None:
    """One round of FedAvg equals plain steps on the same Poisson batches."""
    run = simulate(FedAvg, rounds=1, epochs=2, plugins=(dp(FREE, 0.0),))
    trained = []
    for i, n in enumerate(SIZES):
        w = W0
        for batch in handle([i]).poisson(1.0, 0.0).train(2):
            if batch.mask is None:
                count = batch.y.shape[1]
                w = w - 0.1 * TASK.grad(w, Batch(batch.x[0], batch.y[0], None, None, None)) * count / min(4, n)
        trained.append(w)
    close(run.w, torch.tensor(SIZES, dtype=torch.float64) / sum(SIZES) @ torch.stack(trained))


# Methods


def noisy_network() -> tuple[Task, Tensor]:
    """Return a network with dropout."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = model_of(fc1=nn.Sequential(nn.Linear(FEATURES, 5), nn.ReLU(), Dropout(0.3)), head=nn.Linear(5, CLASSES))
    task = Task(model.double())
    return task, task.vector(model)


def test_any_chunking_gives_the_same_private_round_with_dropout() -> None:
    network = noisy_network()
    runs = [
        simulate(FedAvg, rounds=2, chunk=chunk, network=network, plugins=(dp(task=network[0]),)).simulation
        for chunk in (1, 2, EVERYBODY)
    ]
    for other in runs[1:]:
        assert_same(
            {**kept_states(other), **models(other)}, {**kept_states(runs[0]), **models(runs[0])}, "chunks", 1e-10
        )


UNLEAKY = [name for name, node in YAMLS.items() if not method_at(node["_target_"]).dp_incompatible_reason]


@pytest.mark.slow
@pytest.mark.parametrize("name", UNLEAKY)
def test_every_method_that_leaks_nothing_trains_privately(name: str) -> None:
    node = {key: value for key, value in YAMLS[name].items() if key != "_target_"}
    cls = method_at(YAMLS[name]["_target_"])
    node = {**node, **({"models": 3} if "models" in node else {})}
    plain = simulate(cls, node, rounds=3, participation=0.6, lr=0.05)
    one, all_ = (
        simulate(cls, node, rounds=3, participation=0.6, lr=0.05, chunk=k, plugins=(dp(),)) for k in (1, EVERYBODY)
    )
    assert one.personal.isfinite().all()
    assert not torch.allclose(one.personal, plain.personal), "no gradient was private"
    spent = one.simulation.spent
    assert ((spent.steps > 0) == (one.simulation.last >= 0)).all()
    close(all_.personal, one.personal, 1e-8)
    close(all_.simulation.spent, spent)


def test_steps_and_rates_are_those_of_the_training() -> None:
    n = torch.tensor(SIZES)
    epoch, rate = -(-n // 4), (4 / n).clamp(max=1)
    spent = simulate(FedAvg, rounds=3, epochs=2, plugins=(dp(),)).simulation.spent
    close(spent, Spent(3 * 2 * epoch, rate.double(), torch.ones_like(n), torch.full_like(n, 3)), 1e-6)
    two_phases = simulate(FedRep, {"head_epochs": 3}, rounds=2, epochs=2, plugins=(dp(),)).simulation.spent
    assert torch.equal(two_phases.steps, 2 * 5 * epoch)
    hyper = {"models": 3, "epsilon": 0.3, "decay": 0.05, "validation": 0.2}
    # 7, 12, 1, 20 and 5 without a fifth, which is rounded up
    rest = torch.tensor([5, 9, 1, 16, 4])
    fomo = simulate(FedFomo, hyper, rounds=1, epochs=1, plugins=(dp(),)).simulation.spent
    assert torch.equal(fomo.steps, -(-rest // 4))
    close(fomo.rate, (4 / rest).clamp(max=1).double(), 1e-6)


# Epsilon


def spent(steps: int, rate: float, gradients: int = 1, turns: int = 1) -> Spent:
    whole = (torch.tensor([number]) for number in (steps, gradients, turns))
    return Spent(next(whole), torch.tensor([rate], dtype=torch.float64), *whole)


def test_epsilon_is_opacus_own() -> None:
    accountant = RDPAccountant()
    for _ in range(40):
        accountant.step(noise_multiplier=1.3, sample_rate=0.05)
    assert dp(sigma=1.3).epsilon(spent(40, 0.05)).tolist() == [pytest.approx(accountant.get_epsilon(1e-5))]
    assert dp(sigma=1.3).epsilon(spent(0, 0.05)).tolist() == [0.0]
    assert dp(sigma=0.0).epsilon(spent(40, 0.05)).tolist() == [float("inf")]


def test_epsilon_grows_with_steps_and_rate_and_falls_with_noise_and_delta() -> None:
    def rises(values: list[float]) -> bool:
        return all(a < b for a, b in pairwise(values))

    assert rises([float(dp().epsilon(spent(steps, 0.05))) for steps in (1, 10, 100, 1000)])
    assert rises([float(dp().epsilon(spent(100, rate))) for rate in (0.01, 0.05, 0.2, 1.0)])
    assert rises([float(dp(sigma=sigma).epsilon(spent(100, 0.05))) for sigma in (4, 2, 1, 0.5)])
    assert rises([float(dp(delta=delta).epsilon(spent(100, 0.05))) for delta in (1e-2, 1e-5, 1e-8)])


def test_several_gradients_of_a_batch_count_as_one_with_less_noise() -> None:
    """Together, k Gaussian releases of sensitivity C are one of sensitivity sqrt(k) C."""
    assert float(dp(sigma=2.0).epsilon(spent(100, 0.05, 4))) == float(dp(sigma=1.0).epsilon(spent(100, 0.05)))


@pytest.mark.parametrize(("sigma", "low", "high"), [(1.0, 9.1, 10.1), (2.0, 3.1, 3.6)])
def test_epsilon_is_near_fedfomos_table(sigma: float, low: float, high: float) -> None:
    """The table has 10.26 and 3.57 for 20 rounds of 5 epochs, batches of 50 of about 3000 samples."""
    assert low < float(dp(sigma=sigma).epsilon(spent(100 * 60, 50 / 3000))) < high


def test_epsilon_may_be_read_after_some_rounds() -> None:
    """For 20 rounds of 50 steps: after one round, after a fifth of one, and never after more rounds than there were."""
    of = spent(20 * 50, 0.05, turns=20)
    for read_after, steps in ((1.0, 50), (0.2, 10), (2.5, 125), (20.0, 1000), (30.0, 1000), (None, 1000)):
        wanted = float(dp().epsilon(spent(steps, 0.05)))
        assert float(dp(read_after=read_after).epsilon(of)) == wanted, read_after
    run = simulate(FedAvg, rounds=3, epochs=1, participation=0.6, plugins=(dp(read_after=1.0),))
    whole = {float(epsilon) for result in run.results for epsilon in result.privacy.round}
    assert {float(epsilon) for epsilon in run.results[-1].privacy.composed} <= whole, "nothing is composed"


@pytest.mark.parametrize(
    ("sigma", "epochs", "cifar10", "cifar100"),
    [
        (1.0, 5, 10.26, 10.32), (1.0, 4, 9.26, None), (1.0, 3, None, 8.20), (1.0, 2, 6.89, None),
        (2.0, 5, 3.57, None), (2.0, 4, 3.20, 3.22), (2.0, 2, None, 2.33), (2.0, 1, 1.70, 1.71),
    ],
)  # fmt: skip
def test_epsilon_as_fedfomos_code_reads_it(
    sigma: float, epochs: int, cifar10: float | None, cifar100: float | None
) -> None:
    """All epsilons of tables 3 and 5: of 20 rounds of five epochs one, read after some of its epochs.

    2,667 training rows in batches of 50 are 54 steps an epoch, of which the code drops the last; q = 50 / 667.
    """
    plugin = FedFomoDpSgd(task=TASK, clip=1.0, sigma=sigma, delta=1e-5, read_after=epochs / 5, evaluated=0.2)
    ours = float(plugin.epsilon(spent(20 * 5 * 54, 50 / 2667, turns=20)))
    assert cifar10 is None or ours == pytest.approx(cifar10, abs=0.015)
    assert cifar100 is None or ours == pytest.approx(cifar100, abs=0.055)


def test_fedfomos_code_drops_no_batch_where_all_are_whole() -> None:
    """2,450 rows in batches of 50 are 49, though 1 / (50 / 2450) is a little more."""
    plugin = FedFomoDpSgd(task=TASK, clip=1.0, sigma=1.0, delta=1e-5, read_after=1.0, evaluated=0.5)
    ours = float(plugin.epsilon(spent(20 * 5 * 49, 50 / 2450, turns=20)))
    steps = np.asarray(privacy.rdp(50 / 2450, 1.0)) * 5 * 49
    assert ours == pytest.approx((steps + np.log(1e5) / (np.asarray(privacy.orders()) - 1)).min())


def test_an_epoch_of_a_small_client_has_a_step_in_fedfomos_epsilon() -> None:
    """A client of 75 rows has one full batch of 50 in an epoch, which half of the steps of DP-SGD stand for."""

    def epsilon(sigma: float) -> float:
        plugin = FedFomoDpSgd(task=TASK, clip=1.0, sigma=sigma, delta=1e-5, read_after=0.2, evaluated=0.2)
        return plugin.converted(1, 50 / 75, sigma)

    assert epsilon(0.5) > epsilon(1.0) > epsilon(2.0)


def test_rounds_compose() -> None:
    plugin = dp()
    run = simulate(FedAvg, rounds=3, epochs=1, participation=0.6, plugins=(plugin,))
    seen = torch.zeros(EVERYBODY, dtype=torch.int64)
    steps, rate = -(-torch.tensor(SIZES) // 4), (4 / torch.tensor(SIZES, dtype=torch.float64)).clamp(max=1)
    for result in run.results:
        seen[result.ids] += 1
        each_round = Spent(steps, rate, torch.ones_like(steps), torch.ones_like(steps))
        wanted = plugin.epsilon(each_round._replace(steps=steps * seen))[seen > 0]
        close(result.privacy.composed, wanted)
        close(result.privacy.round, plugin.epsilon(each_round)[result.ids])


# From the command


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["algorithm=pgfed"], ["privacy=dp_sgd does not go with algorithm=pgfed", "gradient and the risk", "fedavg"]),
        (["algorithm=fedrod"], ["label counts"]),
        (["algorithm=fedala"], ["without noise"]),
        (["algorithm=perfedavg"], ["nest two gradients"]),
        (["ala=on"], ["privacy=dp_sgd does not go with ala=on", "without noise"]),
    ],
)
def test_what_dp_sgd_would_not_cover_is_refused(overrides: list[str], words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        build(compose(["privacy=dp_sgd", *overrides]))
    assert [word for word in words if word not in str(caught.value)] == []
    assert "\n" not in str(caught.value)


def test_batch_norm_is_refused() -> None:
    task = Task(cnn_norm.build((1, 28, 28), CLASSES, "batch", 4))
    with pytest.raises(UserError, match=r"does not go with batch norm.* Use model\.norm=group"):
        dp(task=task).plug(Verbs.of(make(FedAvg)))


def test_without_opacus_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opacus.accountants.analysis", None)
    privacy._opacus.cache_clear()
    with pytest.raises(UserError, match=r"needs opacus .* In a checkout: `pip install -e '\.\[privacy\]'`"):
        build(compose(["privacy=dp_sgd"]))


SMALL = [
    "tracking=none", "partition.clients=6", "model.hidden=[16]", "train.epochs=1", "train.threads=1", "train.rounds=4",
    "privacy=dp_sgd",
]  # fmt: skip


def test_the_columns_of_epsilon_by_hand() -> None:
    found = privacy_columns(Privacy(torch.tensor([1.0, 3.0]), torch.tensor([0.5, 1.5])))
    assert found == {"epsilon": 2.0, "epsilon_std": 1.0, "epsilon_max": 3.0, "epsilon_round": 1.0}


@pytest.mark.slow
def test_a_private_trial_records_epsilon_and_is_continued_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = pflsweep.run([*SMALL, "paths.runs=whole"])
    table = whole.rounds
    assert whole.record.meta["name"] == "fedavg+dp_sgd-digits-dirichlet-0"
    assert table["epsilon_max"].is_monotonic_increasing
    assert (table["epsilon_max"] >= table["epsilon"]).all()
    assert (table["epsilon_round"] <= table["epsilon_max"]).all()
    assert table["epsilon_std"].notna().all()
    tracker = FakeTracker(2, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(Stopped):
        run_trial(compose(SMALL), lambda config, record: tracker)
    assert_same_record(pflsweep.run(SMALL), whole)


def test_without_noise_epsilon_is_infinite_and_without_privacy_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = pflsweep.run([*SMALL, "privacy.sigma=0", "train.rounds=1"]).rounds
    assert np.isinf(table["epsilon"]).all()
    plain = pflsweep.run([*SMALL, "privacy=none", "train.rounds=1"]).rounds
    assert not [column for column in plain if str(column).startswith("epsilon")]


@pytest.mark.slow
def test_noise_costs_accuracy() -> None:
    """With more noise epsilon and accuracy fall, as in FedFomo's Tables 3 and 5."""
    where = "partition=iid model.hidden=[32] train.rounds=8 train.epochs=1 train.lr=0.2"
    common = f"algorithm=local privacy=dp_sgd tracking=none {HARD} {where}"
    without, some, much = (
        np.array([accuracy(f"{common} privacy.sigma={sigma}", "personal", seed) for seed in range(3)])
        for sigma in (0, 1, 4)
    )
    assert holds(without - some)
    assert holds(some - much)


def test_what_a_subclass_sends_is_not_taken_as_examined() -> None:
    assert dp(task=None).refusal(FedAvg) == ""
    why = dp(task=None).refusal(broken.SendsLabelCounts)
    assert why == (
        "SendsLabelCounts has another `finish` than FedAvg, whose dp_incompatible_reason it inherits: say "
        "dp_incompatible_reason in SendsLabelCounts itself"
    )


def test_every_shipped_method_with_verbs_of_its_own_says_whether_it_goes_with_dp_sgd() -> None:
    unsaid = {}
    for module in pkgutil.walk_packages(algorithms.__path__, f"{algorithms.__name__}."):
        for cls in vars(importlib.import_module(module.name)).values():
            # Base classes, which are no options, are written AsRun... or without a paper
            if isinstance(cls, type) and issubclass(cls, Method) and "paper" in vars(cls):
                why = dp(task=None).refusal(cls)
                if "has not been examined" in why or why.endswith("itself"):
                    unsaid[cls.__name__] = why
    assert unsaid == {}
