"""Draws depend on their key alone, and look random."""

import threading

import numpy as np
import pytest
import torch

from pflsweep.ops import random
from pflsweep.ops.random import fold, generator, normal, tensor_key, uniform
from pflsweep.util.errors import UserError


def test_generator_depends_on_everything_and_nothing_else():
    first = generator(0, "shuffle", 1, 2).random(4)
    assert np.array_equal(first, generator(0, "shuffle", 1, 2).random(4))
    others = [
        (1, "shuffle", 1, 2),
        (0, "cohort", 1, 2),
        (0, "shuffle", 2, 1),
        (0, "shuffle", 12),
        (0, "shuffle"),
    ]
    for seed, purpose, *numbers in others:
        assert not np.array_equal(first, generator(seed, purpose, *numbers).random(4))


def test_keys_and_numbers_never_change():
    """These values are pinned, since today's records have to be reproducible for ever."""
    assert tensor_key(0, "pinned", 1).item() == 1832699482804323715
    assert uniform(torch.tensor(42), (3,)).tolist() == [
        0.5961188673973083,
        0.16036534309387207,
        0.16639775037765503,
    ]
    assert generator(0, "pinned", 1).integers(2**32) == 1382686850


def test_uniform_is_flat_and_uncorrelated():
    u = uniform(tensor_key(0, "test"), (1000, 1000)).double()
    assert u.shape == (1000, 1000)
    assert 0 <= u.min() < 1e-5
    assert 1 - 1e-5 < u.max() < 1
    assert abs(u.mean() - 1 / 2) < 5 * (1 / 12 / 1e6) ** 0.5
    assert abs(u.var() - 1 / 12) < 5 * (1 / 180 / 1e6) ** 0.5
    flat = u.flatten() - 0.5
    for lag in (1, 2, 7, 64, 1000):
        assert abs((flat[lag:] * flat[:-lag]).mean() * 12) < 5e-3
    counts = torch.histc(u, 256, 0, 1)
    chi2 = ((counts - 1e6 / 256) ** 2 / (1e6 / 256)).sum()
    assert abs(chi2 - 255) < 5 * (2 * 255) ** 0.5


def test_normal_numbers_are_normal_and_uncorrelated():
    z = normal(tensor_key(0, "test"), (1000, 1000))
    assert z.shape == (1000, 1000)
    assert z.abs().max() < 5.78
    moments = {1: 0, 2: 1, 3: 0, 4: 3}  # of a standard normal; its even moments 2k are (2k - 1)!!
    spread = {1: 1, 2: 2, 3: 15, 4: 96}  # and the variance of z^k
    for k, wanted in moments.items():
        assert abs(z.pow(k).mean() - wanted) < 5 * (spread[k] / 1e6) ** 0.5
    edges = torch.tensor([-3, -2, -1, -0.5, 0, 0.5, 1, 2, 3], dtype=torch.float64)
    share = torch.stack([(z < edge).double().mean() for edge in edges])
    assert (share - torch.special.ndtr(edges)).abs().max() < 5 * (0.25 / 1e6) ** 0.5
    flat = z.flatten()
    for lag in (1, 2, 7, 64, 1000):
        assert abs((flat[lag:] * flat[:-lag]).mean()) < 5e-3
    assert abs((z * normal(tensor_key(1, "test"), (1000, 1000))).mean()) < 5e-3


def test_normal_numbers_never_change_and_padding_and_vmap_change_none():
    key = tensor_key(0, "test")
    assert normal(torch.tensor(42), (3,)).tolist() == pytest.approx(
        [-1.810964495742051, -0.9959249789163767, -1.297105342711154], rel=1e-12
    )
    assert torch.equal(normal(key, (9, 4))[:5], normal(key, (5, 4)))
    assert normal(key, (0,)).shape == (0,)
    keys = fold(key, torch.arange(5))
    lifted = torch.func.vmap(lambda k: normal(k, (2, 3)))(keys)
    torch.testing.assert_close(lifted, torch.stack([normal(k, (2, 3)) for k in keys]), rtol=1e-13, atol=0)


def test_neighbouring_keys_give_unrelated_streams():
    key = tensor_key(0, "test")
    for keys in (
        torch.arange(300),
        fold(key, torch.arange(300)),
        fold(torch.arange(300), 0),
        2 ** torch.arange(62),
    ):
        streams = torch.stack([uniform(k, (4096,)) for k in keys]).double() - 0.5
        correlation = torch.corrcoef(streams) - torch.eye(len(keys))
        assert correlation.abs().max() < 6 / 4096**0.5
        across = streams[:, 0]  # the first number of each key is random too
        assert abs(across.mean()) < 5 * (1 / 12 / len(keys)) ** 0.5


def test_fold_gives_distinct_keys():
    key = tensor_key(0, "test")
    children = fold(key, torch.arange(100_000))
    assert children.unique().numel() == 100_000
    assert fold(key, 5) == children[5]
    assert fold(fold(key, 1), 2) != fold(fold(key, 2), 1)
    assert fold(key, 2**63 + 1).dtype == torch.int64  # any int will do


def test_a_methods_own_draws_are_independent_of_the_trainers() -> None:
    """Dropout folds the number of its layer into the key of a batch, and `normal` folds 0 and 1."""
    key = tensor_key(0, "test")
    mine = fold(torch.stack([random.own(key, number) for number in range(4)]), 0)
    trainers = torch.stack([key, *(fold(key, number) for number in range(4))])
    keys = torch.cat([mine, *(random.own(key, number)[None] for number in range(4)), trainers])
    assert keys.unique().numel() == len(keys)
    streams = torch.stack([uniform(k, (4096,)) for k in keys]).double() - 0.5
    assert (torch.corrcoef(streams) - torch.eye(len(keys))).abs().max() < 6 / 4096**0.5
    assert torch.equal(random.own(key), random.own(key, 0))


@pytest.mark.parametrize("draw", [uniform, normal])
def test_one_draw_with_the_keys_of_several_clients_is_refused(draw) -> None:
    keys = fold(tensor_key(0, "test"), torch.arange(3))
    with pytest.raises(ValueError, match=r"takes one key, not keys \[3\]: draw in a function marked @per_client"):
        draw(keys, (2,))


def test_vmap_changes_nothing():
    keys = fold(tensor_key(3, "test"), torch.arange(5))
    lifted = torch.func.vmap(lambda k: uniform(fold(k, 7), (2, 3)))(keys)
    assert torch.equal(lifted, torch.stack([uniform(fold(k, 7), (2, 3)) for k in keys]))


def test_padding_changes_no_other_row():
    key = tensor_key(0, "test")
    assert torch.equal(uniform(key, (9, 4))[:5], uniform(key, (5, 4)))
    assert uniform(key, (0, 4)).shape == (0, 4)
    assert uniform(key, ()).shape == ()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_draws_the_same():
    keys = fold(tensor_key(0, "test"), torch.arange(8))
    draw = torch.func.vmap(lambda key: uniform(key, (1000,)))
    assert torch.equal(draw(keys.cuda()).cpu(), draw(keys))


def test_a_model_that_another_thread_builds_meanwhile_is_no_draw_of_this_one() -> None:
    begun, over = threading.Event(), threading.Event()

    def build() -> None:
        with random.seeded_for(0, "model"):
            begun.set()
            over.wait(10)

    other = threading.Thread(target=build)
    with random.no_unseeded_draws("a draw"):
        other.start()
        assert not begun.wait(0.3), "it waits, since both would use one generator"
    over.set()
    other.join()
    assert begun.is_set()


def test_an_unseeded_draw_is_refused_and_taken_back() -> None:
    before = torch.get_rng_state()
    with pytest.raises(UserError, match="a draw"), random.no_unseeded_draws("a draw"):
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before), "what comes next is as without it"
