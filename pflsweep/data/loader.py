"""ClientData: the data of a chunk of clients, in batches, as methods see it."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pflsweep.data.batching import DEFAULT, Batching, pieces
from pflsweep.data.federation import Federation
from pflsweep.data.poisson import NONE, Poisson
from pflsweep.methods.batches import Batches
from pflsweep.methods.protocol import Spent
from pflsweep.methods.task import Batch
from pflsweep.ops import random
from pflsweep.ops.vmap import tree_map
from pflsweep.util.errors import UserError

# A client's data of up to so many values (64 MB) are converted once instead of batch by batch.
_ONCE = 1 << 24


class Member(NamedTuple):
    """A client of a federation in one round."""

    federation: Federation
    client: int
    round: int

    @property
    def key(self) -> int:
        return int(self.federation.keys[self.client])


class ClientData:
    """The data of a chunk of clients in one round. The first dimension of a batch is the client: x [C, B, ...].

    Iterate it at cohort level only, never inside @per_client. Every stream of batches is a function of (seed, purpose,
    stream, round, client key): a second iteration gives the same batches, and all methods see the same ones.
    """

    def __init__(
        self,
        members: list[Member],
        batch: int,
        large: int,
        purpose: str,
        rows: dict[str, list[np.ndarray]],
        batching: Batching,
    ) -> None:
        # these three are shared with the handles that `_with` derives: samples trained on so far by client, (live,
        # rate, looks) of each private batch, and the number of the next pass over private data
        self._served = np.zeros(len(members), dtype=np.int64)
        self._private: list[tuple[Tensor, Tensor, list]] = []
        self._passes = count()
        self._held: dict[float, tuple[ClientData, ClientData]] = {}
        # the federations of joined members share the dataset, its normalisation and the device: the first serves all
        self._members, self._federation = members, members[0].federation
        self._rows, self._batch, self._large, self._purpose, self._batching = rows, batch, large, purpose, batching

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
        rows = {split: [rows[i] for i in ids] for split, rows in federation.rows.items()}
        return cls([Member(federation, i, round) for i in ids], batch, large, purpose, rows, batching)

    @classmethod
    @contextmanager
    def joined(cls, parts: list["ClientData"]) -> Iterator["ClientData"]:
        """Yield the clients of several ClientData as one. Their federations may differ in partition and seed.

        At the end each part has counted the samples that its clients were trained on. Raises ValueError if the parts
        have different datasets, are normalised by different training rows, or are cut into different batches.
        """
        sets = [d._federation.dataset for d in parts]
        cuts = {(d._batch, d._large, d._purpose, d._batching) for d in parts}
        if len({(of.checksum, of.augment) for of in sets}) > 1 or len(cuts) > 1:
            raise ValueError("the trials' data are not of one dataset, or are not cut into the same batches")
        if not all(data._federation.normalised_as(parts[0]._federation) for data in parts[1:]):
            raise ValueError("dataset.standardise normalises the trials' data by different training rows")
        rows = {split: [own for data in parts for own in data._rows[split]] for split in parts[0]._rows}
        members = [member for data in parts for member in data._members]
        first = parts[0]
        whole = cls(members, first._batch, first._large, first._purpose, rows, first._batching)
        yield whole
        ends = np.cumsum([len(data._members) for data in parts])[:-1]
        for data, served in zip(parts, np.split(whole._served, ends), strict=True):
            data._served += served

    @property
    def trained(self) -> int:
        """The number of samples in the batches of `train` and `batches` so far, which images/s is computed from."""
        return int(self._served.sum())

    @property
    def sizes(self) -> Tensor:
        """[C] training samples of each client."""
        return torch.tensor([len(own) for own in self._rows["train"]], device=self._federation.device)

    def train(self, epochs: int, stream: str = "epochs") -> Batches:
        """Return the mini-batches of `epochs` epochs, ordered and cut as `batching` says."""
        orders = [self._shuffled(c, epochs, stream) for c in range(len(self._members))]
        self._served += [sum(map(len, order)) for order in orders]
        return self._batches(orders, stream)

    def batches(self, count: int, epochs: int, stream: str = "epochs") -> Batches:
        """Return groups of `count` consecutive, disjoint mini-batches of one shuffle (Per-FedAvg), else as `train`.

        A group with too few rows for full batches is split evenly. A client with fewer than `count` samples reuses
        them; for other clients a last group of fewer than `count` samples is dropped.
        """
        orders = [self._grouped(c, count, epochs, stream) for c in range(len(self._members))]
        self._served += [sum(len(rows) for group in order for rows in group) for order in orders]
        columns = [self._batches([[g[k] for g in o] for o in orders], f"{stream}/{k}") for k in range(count)]

        def part(*of: Any) -> Iterator[tuple[Batch, ...]]:
            return zip(*(column.part(*of) for column in columns), strict=True)

        return Batches(list(map(len, orders)), part)

    def sample(self, share: float, stream: str, block: bool = False) -> Iterator[Batch]:
        """Return ceil(share * n) training rows, drawn once for a round and stream, in large batches for `cut`.

        block: the rows are consecutive in the order of the first epoch, from a start that is drawn.
        """
        size = max(self._large // self._batch, 1) * self._batch
        order = []
        for c, own in enumerate(self._rows["train"]):
            take = int(np.ceil(share * len(own) - 1e-9))
            start = self._generator(c, stream).integers(len(own) - take + 1) if block else 0
            rows = self._order(c, stream, 0) if block else self._generator(c, stream).permutation(own)
            order.append(pieces(rows[start : start + take], size))
        return self._batches(order, stream)

    def cut(self, batch: Batch) -> Iterator[Batch]:
        """Yield the mini-batches of a large batch, in order and without key."""
        for start in range(0, batch.y.shape[1], self._batch):
            part = slice(start, start + self._batch)
            mask = None if batch.mask is None else batch.mask[:, part]
            yield Batch(batch.x[:, part], batch.y[:, part], mask, None if mask is None else mask.any(1), None)

    def mean(self, fn: Callable, *args: Any) -> Any:
        """Return the mean of fn(*args, batch) over all training samples, [C, ...] each.

        fn: lifted (@per_client), returns means over its batch. Batches are large and without key: no dropout. Raises
        ValueError where a client has no samples.
        """
        rows = self._rows["train"]
        if not all(map(len, rows)):
            raise ValueError("a client has no samples: there is no mean")
        # shuffled, since a dataset may be sorted by class and batch norm depends on which samples are in a batch
        drawn = [self._generator(c, "mean/train").permutation(own) for c, own in enumerate(rows)]
        order = [pieces(own, self._large) for own in drawn]
        sizes = torch.tensor([len(own) for own in rows], dtype=torch.float64)
        total = None
        for step, batch in enumerate(self._batches(order, None)):
            count = torch.tensor([len(o[step]) if step < len(o) else 0 for o in order])
            weight = (count / sizes).to(self._federation.device, self._federation.dtype)
            part = tree_map(lambda v, w=weight: v * w.view(-1, *[1] * (v.dim() - 1)).to(v.dtype), fn(*args, batch))
            total = part if total is None else tree_map(torch.add, total, part)
        return total

    def rows(self) -> Iterator[Batch]:
        """Return each training row once, in large batches without key: neither dropout nor augmentation."""
        return self._batches([pieces(own, self._large) for own in self._rows["train"]], None)

    def rating(self, stream: str, dropout: bool = False) -> Iterator[Batch]:
        """Return one epoch of `train`, augmented as there, but not counted as training.

        For variants of authors' code that rate models on augmented batches. dropout: batches keep their key, so that
        the models drop units as in training.
        """
        orders = [self._shuffled(c, 1, stream) for c in range(len(self._members))]
        return (batch if dropout else batch._replace(key=None) for batch in self._batches(orders, stream))

    def holdout(self, fraction: float) -> tuple["ClientData", "ClientData"]:
        """Return a split of the training data for a method, the same in every round: (rest, ceil(fraction * n) rows).

        The held rows are drawn, or where rows overlap the last ones; rows that overlap with these are in neither part,
        unless no other row would be left. The rest has at least one sample; a client with a single sample has it in
        both parts. Where the federation's targets are permuted, the held rows are those of the target client, which no
        client trains on.
        """
        if fraction not in self._held:
            parts = [_parted(who, own, fraction) for who, own in zip(self._members, self._rows["train"], strict=True)]
            rest, held = ([part[k] for part in parts] for k in (0, 1))
            for c, who in enumerate(self._members):
                target = who._replace(client=who.federation.targets[who.client])
                if target != who:
                    held[c] = _parted(target, who.federation.rows["train"][target.client], fraction)[1]
            self._held[fraction] = self._with(rest), self._with(held)
        return self._held[fraction]

    def test(self) -> "ClientData":
        """Return these clients with their test rows as training rows, for variants of code that trains on test rows.

        A method that calls it says so in `reads_test_rows`.
        """
        return self._with([np.sort(rows) for rows in self._rows["test"]])

    def public(self, share: float) -> tuple["ClientData", "ClientData"]:
        """Return (each client's training rows that are not public, these and the public set), see Federation.public.

        Where all rows of a client are public, the first part can be iterated but has no mean.
        """
        rows = [
            (own, who.federation.public(share)) for own, who in zip(self._rows["train"], self._members, strict=True)
        ]
        private = [np.setdiff1d(own, public, assume_unique=True) for own, public in rows]
        return self._with(private), self._with([np.union1d(own, public) for own, public in rows])

    def poisson(self, clip: float, noise: float) -> Poisson:
        """Return the same training data in the batches of DP-SGD. clip, noise: as in methods.task.Private."""
        return Poisson(self, clip, noise)

    @property
    def spent(self) -> Spent:
        """The private training of each client so far, for the privacy accountant."""
        steps, looks = (torch.zeros(len(self._members), dtype=torch.int64) for _ in range(2))
        rate = torch.zeros(len(self._members), dtype=torch.float64)
        for live, own, taken in self._private:
            if taken:
                steps, rate = steps + live, torch.maximum(rate, own * live)
                looks = torch.maximum(looks, len(taken) * live)
        return Spent(steps, rate, looks, (steps > 0).long())

    def _with(self, train: list[np.ndarray]) -> "ClientData":
        rows = {**self._rows, "train": train}
        data = ClientData(self._members, self._batch, self._large, self._purpose, rows, self._batching)
        data._served, data._private, data._passes = self._served, self._private, self._passes
        return data

    # An order is, for each client, a list of index arrays, one for each batch.

    def _generator(self, c: int, stream: str, *more: int) -> np.random.Generator:
        who = self._members[c]
        return random.generator(who.federation.seed, f"{self._purpose}/{stream}", who.round, who.key, *more)

    def _order(self, c: int, stream: str, epoch: int) -> np.ndarray:
        """Return a client's training rows in the order of an epoch. c: its position in the chunk."""
        who = self._members[c]

        def generator(*epoch: int) -> np.random.Generator:
            if epoch:
                return self._generator(c, stream, *epoch)
            # keyed by neither stream nor round, so the order is the same in the whole trial
            return random.generator(who.federation.seed, "order", who.key)

        return self._batching.order(self._rows["train"][c], generator, epoch)

    def _shuffled(self, c: int, epochs: int, stream: str) -> list[np.ndarray]:
        def one(epoch: int) -> list[np.ndarray]:
            return self._batching.cut(self._order(c, stream, epoch), self._batch)

        return self._as_prescribed(c, stream, self._batching.passes(epochs, one))

    def _grouped(self, c: int, count: int, epochs: int, stream: str) -> list[list[np.ndarray]]:
        def one(epoch: int) -> list[list[np.ndarray]]:
            groups, order = [], self._order(c, stream, epoch)
            for group in self._batching.cut(order, count * self._batch):
                if len(group) >= count:
                    groups.append(np.array_split(group, count))
                elif len(order) < count:  # the client has fewer samples than batches: reuse them
                    groups.append([group[k % len(group)][None] for k in range(count)])
            return groups

        drawn = self._batching.passes(epochs, one)
        flat = self._as_prescribed(c, stream, [rows for group in drawn for rows in group])
        return [flat[start : start + count] for start in range(0, len(flat), count)]

    def _as_prescribed(self, c: int, stream: str, drawn: list[np.ndarray]) -> list[np.ndarray]:
        """Return the batches that the user prescribes for a client in this round, or else `drawn`.

        Only the stream of local training has prescribed batches. A client without any is in no cohort, but a study may
        train it. Raises UserError if their number differs from that of the drawn ones, where one is too large, and
        on rows that the method does not train on.
        """
        who = self._members[c]
        place = (who.round, who.client)
        prescribed = who.federation.batches if (self._purpose, stream) == ("train", "epochs") else None
        if prescribed is None or place not in prescribed:
            return drawn
        given, where = prescribed[place], f"batches: round {who.round}, client {who.client}"
        if len(given) != len(drawn):
            raise UserError(
                f"{where} has {len(given)} batches, and its local training takes {len(drawn)}: set train.epochs, "
                "train.steps, train.batch and train.last_batch as they were where these are from."
            )
        if (most := max(map(len, given), default=0)) > self._batch:
            raise UserError(
                f"{where} has a batch of {most} rows, and train.batch is {self._batch}: set it to the largest."
            )
        rows = np.concatenate(given) if given else NONE
        foreign = rows[~np.isin(rows, self._rows["train"][c])]
        if len(foreign):
            raise UserError(
                f"{where} has row {foreign[0]} of the dataset, which is none that the method trains this client on. "
                "Rows are numbers in the dataset, not in the client's part of it."
            )
        return given

    def _batches(self, orders: list[list[np.ndarray]], stream: str | None) -> Batches:
        return Batches(list(map(len, orders)), partial(self._part, orders, stream))

    def _part(
        self, orders: list[list[np.ndarray]], stream: str | None, at: list[int], start: int, stop: int
    ) -> Iterator[Batch]:
        """Return the batches of the clients at some positions of the chunk, from step `start` to before `stop`."""
        keys = [None] * (stop - start) if stream is None else self._keys(stream, range(start, stop), at)
        if len(orders) == 1:
            return self._of_one(orders[0][start:stop], keys)
        return self._of_many([orders[c][start:stop] for c in at], keys)

    def _of_many(self, orders: list[list[np.ndarray]], keys: Any) -> Iterator[Batch]:
        """Yield the batches of a chunk's clients, each padded to the longest of its step.

        All row numbers go to the device at once, since a GPU's queue of work is empty after each transfer.
        """
        rows = [[order[step] if step < len(order) else NONE for order in orders] for step in range(len(keys))]
        device, sizes = self._federation.device, torch.tensor([[len(own) for own in step] for step in rows])
        blocks = [self._block(step) for step in rows]
        index = torch.from_numpy(np.concatenate([block.ravel() for block in blocks] or [NONE])).to(device)
        sizes = sizes.to(device)
        steps = zip(index.split([block.size for block in blocks]), blocks, sizes, sizes > 0, keys, strict=True)
        for where, block, size, live, key in steps:
            yield self._padded(where.view(block.shape), size, key, live)

    def _of_one(self, order: list[np.ndarray], keys: Any) -> Iterator[Batch]:
        """Yield the batches of a chunk's only client, x [1, B, ...], y [1, B].

        Training batches, which have a key, are augmented. If they have at least as many rows as the client, its data
        are converted once and the batches are cut from the result, unless the data are too large.
        """
        rows = np.concatenate(order) if order else NONE
        own = len(self._rows["train"][0])
        converted = self._converted if order and keys[0] is not None and len(rows) >= own else None
        if converted is not None:
            rows = np.searchsorted(self._rows["train"][0], rows)
        index = torch.from_numpy(rows).to(self._federation.device)
        for where, key in zip(index.split([len(rows) for rows in order]), keys, strict=True):
            x, y = self._federation.gather(where) if converted is None else (column[where] for column in converted)
            x = x[None]
            yield Batch(x if key is None else self._federation.augmented(x, key), y[None], None, None, key)

    @cached_property
    def _converted(self) -> tuple[Tensor, Tensor] | None:
        rows = self._rows["train"][0]
        if len(rows) * math.prod(self._federation.dataset.shape) > _ONCE:
            return None
        return self._federation.gather(torch.from_numpy(rows).to(self._federation.device))

    def _block(self, rows: list[np.ndarray]) -> np.ndarray:
        """Return each client's row numbers of a batch, padded to the longest, [C, B]."""
        block = np.full((len(rows), max(1, *map(len, rows))), self._federation.padding, dtype=np.int64)
        for line, own in zip(block, rows, strict=True):
            line[: len(own)] = own
        return block

    def _padded(self, index: Tensor, sizes: Tensor, key: Tensor | None, live: Tensor) -> Batch:
        """Return the batch of these rows. index [C, B]: what `_block` returns. sizes [C]: how many are no padding.

        key, live: as in Batch. All are on the device.
        """
        mask = torch.arange(index.shape[1], device=index.device) < sizes[:, None]
        x, y = self._federation.gather(index)
        return Batch(x if key is None else self._federation.augmented(x, key), y, mask, live, key)

    def _keys(self, stream: str, steps: range, at: list[int]) -> Tensor:
        """Return a key for each of these steps of a stream and each client at some positions, [steps, C] int64."""
        name, members = f"{self._purpose}/{stream}", [self._members[c] for c in at]
        keys = [random.tensor_key(who.federation.seed, name, who.round, who.key) for who in members]
        numbers = torch.arange(steps.start, steps.stop)
        return random.fold(torch.stack(keys), numbers[:, None]).to(self._federation.device)


def _parted(who: Member, own: np.ndarray, fraction: float) -> tuple[np.ndarray, np.ndarray]:
    """Return a client's rows as (rest, held), see ClientData.holdout."""
    take = min(max(1, int(np.ceil(fraction * len(own) - 1e-9))), max(1, len(own) - 1))
    if overlap := who.federation.dataset.overlap:
        last = len(own) - take
        return own[: last - overlap if last > overlap else max(last, 1)], own[last:]
    shuffled = random.generator(who.federation.seed, "holdout", who.key).permutation(own)
    return np.sort(shuffled[take:] if len(own) > take else shuffled), np.sort(shuffled[:take])
