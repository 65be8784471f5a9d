"""ClientData: the data of a chunk of clients, in batches, as methods see it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pflsweep.data.batching import DEFAULT, Batching, pieces
from pflsweep.data.chunk import Chunk, Member, Tally
from pflsweep.data.federation import Federation
from pflsweep.data.poisson import Poisson
from pflsweep.methods.batches import Batches
from pflsweep.methods.protocol import Spent
from pflsweep.methods.task import Batch
from pflsweep.ops import random
from pflsweep.ops.vmap import tree_map


class ClientData:
    """The data of a chunk of clients in one round. The first dimension of a batch is the client: x [C, B, ...].

    Iterate it at cohort level only, never inside @per_client. Every stream of batches is a function of (seed, purpose,
    stream, round, client key): a second iteration gives the same batches, and all methods see the same ones.
    """

    def __init__(self, chunk: Chunk, tally: Tally | None = None) -> None:
        self._chunk, self._tally = chunk, tally or Tally(len(chunk))
        self._held: dict[float, tuple[ClientData, ClientData]] = {}

    @classmethod
    def of(
        cls,
        federation: Federation,
        ids: list[int],
        round: int,
        *,
        batch: int,
        large: int,
        purpose: str = "train",
        batching: Batching = DEFAULT,
    ) -> "ClientData":
        """Return the data of some clients of a federation in one round.

        batch: rows of a mini-batch. large: rows of a batch that is not trained on. purpose: separates the draws of this
        use from those of others.
        """
        members = [Member(federation, i, round) for i in ids]
        rows = {split: [rows[i] for i in ids] for split, rows in federation.rows.items()}
        return cls(Chunk(members, rows, batch, large, purpose, batching))

    @classmethod
    @contextmanager
    def joined(cls, parts: list["ClientData"]) -> Iterator["ClientData"]:
        """Yield the clients of several ClientData as one. Their federations may differ in partition and seed.

        At the end each part has counted the samples that its clients were trained on. Raises ValueError if the parts
        have different datasets, are normalised by different training rows, or are cut into different batches.
        """
        whole = cls(Chunk.joined([data._chunk for data in parts]))
        yield whole
        ends = np.cumsum([len(data._chunk) for data in parts])[:-1]
        for data, samples in zip(parts, np.split(whole._tally.samples, ends), strict=True):
            data._tally.samples += samples

    @property
    def trained(self) -> int:
        """The number of samples in the batches of `train` and `batches` so far, which images/s is computed from."""
        return int(self._tally.samples.sum())

    @property
    def sizes(self) -> Tensor:
        """[C] training samples of each client."""
        return torch.tensor([len(own) for own in self._chunk.rows["train"]], device=self._chunk.federation.device)

    def train(self, epochs: int, stream: str = "epochs") -> Batches:
        """Return the mini-batches of `epochs` epochs, ordered and cut as `batching` says."""
        plans = [self._chunk.shuffled(c, epochs, stream) for c in range(len(self._chunk))]
        self._tally.samples += [sum(map(len, plan)) for plan in plans]
        return self._chunk.batches(plans, stream)

    def batches(self, count: int, epochs: int, stream: str = "epochs") -> Batches:
        """Return a tuple of `count` consecutive, disjoint mini-batches for each step, as Per-FedAvg takes them.

        epochs, stream: as in `train`. A group with too few rows for full batches is split evenly. A client with fewer
        than `count` samples reuses them; for other clients a last group of fewer than `count` samples is dropped.
        """
        plans = [self._chunk.grouped(c, count, epochs, stream) for c in range(len(self._chunk))]
        self._tally.samples += [sum(len(rows) for group in plan for rows in group) for plan in plans]
        columns = [
            self._chunk.batches([[group[k] for group in plan] for plan in plans], f"{stream}/{k}") for k in range(count)
        ]

        def part(*numbers: Any) -> Iterator[tuple[Batch, ...]]:
            return zip(*(column.part(*numbers) for column in columns), strict=True)

        return Batches(list(map(len, plans)), part)

    def sample(self, share: float, stream: str, block: bool = False) -> Iterator[Batch]:
        """Return ceil(share * n) training rows, drawn once for a round and stream, in large batches for `cut`.

        block: the rows are consecutive in the order of the first epoch, from a start that is drawn.
        """
        size = max(self._chunk.large // self._chunk.batch, 1) * self._chunk.batch
        order = []
        for c, own in enumerate(self._chunk.rows["train"]):
            take = int(np.ceil(share * len(own) - 1e-9))
            start = self._chunk.generator(c, stream).integers(len(own) - take + 1) if block else 0
            rows = self._chunk.order(c, stream, 0) if block else self._chunk.generator(c, stream).permutation(own)
            order.append(pieces(rows[start : start + take], size))
        return self._chunk.batches(order, stream)

    def cut(self, batch: Batch) -> Iterator[Batch]:
        """Yield the mini-batches of a large batch, in order and without key."""
        for start in range(0, batch.y.shape[1], self._chunk.batch):
            part = slice(start, start + self._chunk.batch)
            mask = None if batch.mask is None else batch.mask[:, part]
            yield Batch(batch.x[:, part], batch.y[:, part], mask, None if mask is None else mask.any(1), None)

    def mean(self, fn: Callable, *args: Any) -> Any:
        """Return the mean of fn(*args, batch) over all training samples, [C, ...] each.

        fn: lifted (@per_client), returns means over its batch. Batches are large and without key: no dropout. Raises
        ValueError where a client has no samples.
        """
        rows = self._chunk.rows["train"]
        if not all(map(len, rows)):
            raise ValueError("a client has no samples: there is no mean")
        # shuffled, since a dataset may be sorted by class and batch norm depends on which samples are in a batch
        drawn = [self._chunk.generator(c, "mean/train").permutation(own) for c, own in enumerate(rows)]
        order = [pieces(own, self._chunk.large) for own in drawn]
        sizes = torch.tensor([len(own) for own in rows], dtype=torch.float64)
        total = None
        for step, batch in enumerate(self._chunk.batches(order, None)):
            count = torch.tensor([len(o[step]) if step < len(o) else 0 for o in order])
            weight = (count / sizes).to(self._chunk.federation.device, self._chunk.federation.dtype)
            part = tree_map(lambda v, w=weight: v * w.view(-1, *[1] * (v.dim() - 1)).to(v.dtype), fn(*args, batch))
            total = part if total is None else tree_map(torch.add, total, part)
        return total

    def rows(self) -> Iterator[Batch]:
        """Return each training row once, in large batches without key: neither dropout nor augmentation."""
        return self._chunk.batches([pieces(own, self._chunk.large) for own in self._chunk.rows["train"]], None)

    def rating(self, stream: str, dropout: bool = False, drop: bool = False) -> Iterator[Batch]:
        """Return each training row once, in mini-batches that are shuffled and augmented as those of training.

        For variants of authors' code that rate models, or count classes, on such batches. They do not count as
        training. dropout: batches keep their key, so that the models drop units as in training. drop: a partial last
        batch is left out where train.last_batch says so.
        """
        chunk = self._chunk
        cut = chunk.batching.cut if drop else pieces
        plans = [cut(chunk.order(c, stream, 0), chunk.batch) for c in range(len(chunk))]
        return (batch if dropout else batch._replace(key=None) for batch in chunk.batches(plans, stream))

    def holdout(self, fraction: float) -> tuple["ClientData", "ClientData"]:
        """Return a split of the training data for a method, the same in every round: (rest, ceil(fraction * n) rows).

        The held rows are drawn, or where rows overlap the last ones; rows that overlap with these are in neither part,
        unless no other row would be left. The rest has at least one sample; a client with a single sample has it in
        both parts. Where the federation's targets are permuted, the held rows are those of the target client, which no
        client trains on.
        """
        if fraction not in self._held:
            parts = [
                _parted(who, own, fraction)
                for who, own in zip(self._chunk.members, self._chunk.rows["train"], strict=True)
            ]
            rest, held = ([part[k] for part in parts] for k in (0, 1))
            for c, who in enumerate(self._chunk.members):
                target = who._replace(client=who.federation.targets[who.client])
                if target != who:
                    held[c] = _parted(target, who.federation.rows["train"][target.client], fraction)[1]
            self._held[fraction] = self._with(rest), self._with(held)
        return self._held[fraction]

    def test(self) -> "ClientData":
        """Return these clients with their test rows as training rows, for variants of code that trains on test rows.

        A method that calls it says so in `reads_test_rows`.
        """
        return self._with([np.sort(rows) for rows in self._chunk.rows["test"]])

    def public(self, share: float) -> tuple["ClientData", "ClientData"]:
        """Return (each client's training rows that are not public, these and the public set), see Federation.public.

        Where all rows of a client are public, the first part can be iterated but has no mean.
        """
        rows = [
            (own, who.federation.public(share))
            for own, who in zip(self._chunk.rows["train"], self._chunk.members, strict=True)
        ]
        private = [np.setdiff1d(own, public, assume_unique=True) for own, public in rows]
        return self._with(private), self._with([np.union1d(own, public) for own, public in rows])

    def poisson(self, clip: float, noise: float) -> Poisson:
        """Return the same training data in the batches of DP-SGD. clip, noise: as in methods.task.Private."""
        return Poisson(self, self._chunk, self._tally, clip, noise)

    @property
    def spent(self) -> Spent:
        """The private training of each client so far, for the privacy accountant."""
        return self._tally.spent

    def _with(self, train: list[np.ndarray]) -> "ClientData":
        return ClientData(self._chunk.of_rows(train), self._tally)


def _parted(who: Member, own: np.ndarray, fraction: float) -> tuple[np.ndarray, np.ndarray]:
    """Return a client's rows as (rest, held), see ClientData.holdout."""
    take = min(max(1, int(np.ceil(fraction * len(own) - 1e-9))), max(1, len(own) - 1))
    if who.federation.dataset.overlap:
        last = len(own) - take
        rest = who.federation.dataset.before(own, last)
        return rest if len(rest) else own[: max(last, 1)], own[last:]
    shuffled = random.generator(who.federation.seed, "holdout", who.stable_id).permutation(own)
    return np.sort(shuffled[take:] if len(own) > take else shuffled), np.sort(shuffled[:take])
