"""Random crops and flips: their effect on an image, and that every method sees the same ones."""

import numpy as np
import pytest
import torch

from pflsweep.data.augment import crop_flip
from pflsweep.data.dataset import Dataset, Rows
from pflsweep.data.federation import Federation
from pflsweep.data.loader import ClientData
from pflsweep.ops import random
from pflsweep.util.errors import UserError
from tests.data.loading import from_yaml

SIDE = 16
REACH = SIDE // 8
BLACK = torch.tensor([-5.0, -6.0]).view(2, 1, 1)
KEYS = torch.stack([random.tensor_key(0, "test", c) for c in range(3)])


def images(count: int = 40, clients: int = 3) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).random((clients, count, 2, SIDE, SIDE), np.float32))


def crops(image: torch.Tensor) -> dict[tuple[int, int, bool], torch.Tensor]:
    """Return all results for one image [channels, H, W], computed plainly: pad, cut, flip."""
    padded = BLACK.expand(2, SIDE + 2 * REACH, SIDE + 2 * REACH).clone()
    padded[:, REACH:-REACH, REACH:-REACH] = image
    places = range(2 * REACH + 1)
    cut = {(i, j): padded[:, i : i + SIDE, j : j + SIDE] for i in places for j in places}
    return {(*at, flip): c.flip(2) if flip else c for at, c in cut.items() for flip in (False, True)}


def test_each_result_is_one_of_the_crops_and_all_of_them_come_up():
    x = images(count=400, clients=1)
    seen = []
    for image, got in zip(x[0], crop_flip(x, KEYS[:1], BLACK)[0], strict=True):
        matches = [at for at, crop in crops(image).items() if torch.equal(crop, got)]
        assert len(matches) == 1
        seen += matches
    assert len(set(seen)) == 2 * (2 * REACH + 1) ** 2
    assert 160 < sum(flip for *_, flip in seen) < 240


def test_rows_depend_on_key_and_place_alone():
    x = images()
    together = crop_flip(x, KEYS, BLACK)
    for c in range(3):
        assert torch.equal(crop_flip(x[c : c + 1], KEYS[c : c + 1], BLACK)[0], together[c])
    assert torch.equal(crop_flip(x[:, :7], KEYS, BLACK), together[:, :7]), "padding a batch changes no other row"
    same = crop_flip(x[:1].expand(3, -1, -1, -1, -1).contiguous(), KEYS, BLACK)
    assert not torch.equal(same[0], same[1])


def federation(augment: str, shape: tuple[int, ...] = (1, 8, 8)) -> Federation:
    rng = np.random.default_rng(1)
    x = torch.from_numpy(rng.integers(1, 256, (12, *shape), np.uint8))
    half = torch.full((shape[0], 1, 1), 0.5)
    data = Dataset("random", x, torch.arange(12) % 3, 12, 3, 1 / 255, half, half, "", augment=augment)
    rows = [np.arange(0, 5), np.arange(5, 12)]
    return Federation(data, Rows(rows, rows), validation=0.0, seed=3, device="cpu", dtype=torch.float64)


def batches(federation: Federation, ids: list[int], round: int = 1, stream: str = "epochs"):
    return list(ClientData.of(federation, ids, round, batch=3, large=4).train(2, stream))


@pytest.mark.parametrize("once", [1 << 24, 0])
def test_training_batches_are_augmented_alike_in_every_chunk(once, monkeypatch):
    monkeypatch.setattr("pflsweep.data.chunk._ONCE", once)
    plain, changed = federation("none"), federation("crop_flip")
    together = batches(changed, [0, 1])
    for i in (0, 1):
        alone = batches(changed, [i])
        mine = [batch.x[i][batch.mask[i]] for batch in together if bool(batch.live[i])]
        assert all(torch.equal(a.x[0], b) for a, b in zip(alone, mine, strict=True))
        assert all(torch.equal(a.x, b.x) for a, b in zip(alone, batches(changed, [i]), strict=True))
        before = batches(plain, [i])
        assert all(torch.equal(a.y, b.y) for a, b in zip(alone, before, strict=True)), "the same rows"
        assert not any(torch.equal(a.x, b.x) for a, b in zip(alone, before, strict=True))
    black = torch.tensor(-1.0, dtype=torch.float64)
    assert (torch.cat([b.x[0] for b in batches(changed, [1])]) == black).any(), "padding is black after normalisation"


def test_what_is_not_training_is_not_augmented():
    plain, changed = federation("none"), federation("crop_flip")
    index = torch.arange(12)
    assert torch.equal(plain.gather(index)[0], changed.gather(index)[0])
    total = {}
    for name, one in (("plain", plain), ("changed", changed)):
        total[name] = ClientData.of(one, [0, 1], 1, batch=3, large=4).mean(
            lambda batch: (batch.x * 1.0).sum((1, 2, 3, 4))
        )
    assert torch.equal(total["plain"], total["changed"])


def test_private_batches_are_augmented_too():
    def first(augment: str) -> torch.Tensor:
        return next(iter(ClientData.of(federation(augment), [1], 1, batch=7, large=9).poisson(1.0, 1.0).train(1))).x

    assert torch.equal(first("crop_flip"), first("crop_flip"))
    assert not torch.equal(first("crop_flip"), first("none"))


def test_only_images_can_be_cropped():
    assert from_yaml("digits", augment="crop_flip").augment == "crop_flip"
    with pytest.raises(UserError, match=r"dataset.augment is 'flip': it must be one of none, crop_flip"):
        from_yaml("digits", augment="flip")
