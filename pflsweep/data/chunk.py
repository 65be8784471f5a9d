"""Chunk: the rows of a chunk of clients in one round, and the batches that are made of them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pflsweep.data.batching import Batching
from pflsweep.data.federation import Federation
from pflsweep.methods.batches import Batches
from pflsweep.methods.protocol import Spent
from pflsweep.methods.task import Batch
from pflsweep.ops import random
from pflsweep.util.errors import UserError

# A client's data of up to so many values (64 MB) are converted once instead of batch by batch.
_ONCE = 1 << 24
# The rows of a client without a batch.
NO_ROWS = np.zeros(0, dtype=np.int64)


class Member(NamedTuple):
    """A client of a federation in one round."""

    federation: Federation
    client: int
    round: int

    @property
    def stable_id(self) -> int:
        return int(self.federation.stable_ids[self.client])


class Tally:
    """A count of what was trained on a chunk's data so far. All parts of the data, such as a holdout's, share one.

    samples: [C] in the batches of each client. private: (live, rate, gradients) of each private batch. poisson_passes:
    numbers the passes over private data.
    """

    def __init__(self, clients: int) -> None:
        self.samples = np.zeros(clients, dtype=np.int64)
        self.private: list[tuple[Tensor, Tensor, list[None]]] = []
        self.poisson_passes = count()

    @property
    def spent(self) -> Spent:
        """The private training of each client, for the privacy accountant."""
        steps, gradients = (torch.zeros(len(self.samples), dtype=torch.int64) for _ in range(2))
        rate = torch.zeros(len(self.samples), dtype=torch.float64)
        for live, own, taken in self.private:
            if taken:
                steps, rate = steps + live, torch.maximum(rate, own * live)
                gradients = torch.maximum(gradients, len(taken) * live)
        return Spent(steps, rate, gradients, (steps > 0).long())


@dataclass(eq=False)
class Chunk:
    """The clients of a chunk, and their rows of the dataset by split: `rows["train"]` has an array for each client.

    batch: rows of a mini-batch. large: rows of a batch that is not trained on. purpose: separates the draws of this use
    from those of others. Clients are named by their positions in the chunk.
    """

    members: list[Member]
    rows: dict[str, list[np.ndarray]]
    batch: int
    large: int
    purpose: str
    batching: Batching

    @classmethod
    def joined(cls, parts: list["Chunk"]) -> "Chunk":
        """Return the clients of several chunks as one. Their federations may differ in partition and seed.

        Raises ValueError if the parts have different datasets, are normalised by different training rows, or are cut
        into different batches.
        """
        first, datasets = parts[0], [chunk.federation.dataset for chunk in parts]
        sets = {(data.checksum, data.augment) for data in datasets}
        if len(sets) > 1 or len({(each.batch, each.large, each.purpose, each.batching) for each in parts}) > 1:
            raise ValueError("the trials' data are not of one dataset, or are not cut into the same batches")
        if not all(chunk.federation.normalised_as(first.federation) for chunk in parts[1:]):
            raise ValueError("dataset.standardise normalises the trials' data by different training rows")
        members = [member for chunk in parts for member in chunk.members]
        rows = {split: [own for chunk in parts for own in chunk.rows[split]] for split in first.rows}
        return replace(first, members=members, rows=rows)

    def __len__(self) -> int:
        return len(self.members)

    @property
    def federation(self) -> Federation:
        """Return the federation of the first client.

        Federations of joined chunks share the dataset, its normalisation and the device.
        """
        return self.members[0].federation

    def of_rows(self, train: list[np.ndarray]) -> "Chunk":
        """Return the same clients with other training rows."""
        return replace(self, rows={**self.rows, "train": train})

    # An order is a permutation of a client's rows; a plan is a list of arrays of its rows, one for each batch.

    def generator(self, c: int, stream: str, *more: int) -> np.random.Generator:
        """Return a generator of a client's draws in this round. more: tells draws of one stream apart."""
        who = self.members[c]
        return random.generator(who.federation.seed, f"{self.purpose}/{stream}", who.round, who.stable_id, *more)

    def order(self, c: int, stream: str, epoch: int) -> np.ndarray:
        """Return a client's training rows in the order of an epoch."""
        who = self.members[c]

        def generator(*at: int) -> np.random.Generator:
            if at:
                return self.generator(c, stream, *at)
            # keyed by neither stream nor round, so the order is the same in the whole trial
            return random.generator(who.federation.seed, "order", who.stable_id)

        return self.batching.order(self.rows["train"][c], generator, epoch)

    def shuffled(self, c: int, epochs: int, stream: str) -> list[np.ndarray]:
        """Return a client's mini-batches of some epochs, as prescribed or drawn."""

        def one(epoch: int) -> list[np.ndarray]:
            return self.batching.cut(self.order(c, stream, epoch), self.batch)

        return self._as_prescribed(c, stream, self.batching.batches_of(epochs, one))

    def grouped(self, c: int, count: int, epochs: int, stream: str) -> list[list[np.ndarray]]:
        """Return a client's groups of `count` mini-batches of some epochs, see ClientData.batches."""

        def one(epoch: int) -> list[list[np.ndarray]]:
            groups, order = [], self.order(c, stream, epoch)
            for group in self.batching.cut(order, count * self.batch):
                if len(group) >= count:
                    groups.append(np.array_split(group, count))
                elif len(order) < count:  # the client has fewer samples than batches: reuse them
                    groups.append([group[k % len(group)][None] for k in range(count)])
            return groups

        drawn = self.batching.batches_of(epochs, one)
        flat = self._as_prescribed(c, stream, [rows for group in drawn for rows in group])
        return [flat[start : start + count] for start in range(0, len(flat), count)]

    def _as_prescribed(self, c: int, stream: str, drawn: list[np.ndarray]) -> list[np.ndarray]:
        """Return the batches that the user prescribes for a client in this round, or else `drawn`.

        Only the stream of local training has prescribed batches. A client without any is in no cohort, but a study may
        train it. Raises UserError if their number differs from that of the drawn ones, where one is too large, and
        on rows that the method does not train on.
        """
        who = self.members[c]
        place = (who.round, who.client)
        prescribed = who.federation.batches if (self.purpose, stream) == ("train", "epochs") else None
        if prescribed is None or place not in prescribed:
            return drawn
        given, where = prescribed[place], f"batches: round {who.round}, client {who.client}"
        if len(given) != len(drawn):
            raise UserError(
                f"{where} has {len(given)} batches, and its local training takes {len(drawn)}: set train.epochs, "
                "train.steps, train.batch and train.last_batch as they were where these are from."
            )
        if (most := max(map(len, given), default=0)) > self.batch:
            raise UserError(
                f"{where} has a batch of {most} rows, and train.batch is {self.batch}: set it to the largest."
            )
        rows = np.concatenate(given) if given else NO_ROWS
        foreign = rows[~np.isin(rows, self.rows["train"][c])]
        if len(foreign):
            raise UserError(
                f"{where} has row {foreign[0]} of the dataset, which is none that the method trains this client on. "
                "Rows are numbers in the dataset, not in the client's part of it."
            )
        return given

    def batches(self, plans: list[list[np.ndarray]], stream: str | None) -> Batches:
        """Return the batches of these plans. stream: of the batches' keys; None: they have none."""
        return Batches(list(map(len, plans)), partial(self._part, plans, stream))

    def _part(
        self, plans: list[list[np.ndarray]], stream: str | None, at: list[int], start: int, stop: int
    ) -> Iterator[Batch]:
        """Return the batches of the clients at some positions of the chunk, from step `start` to before `stop`."""
        keys = [None] * (stop - start) if stream is None else self.keys(stream, range(start, stop), at)
        if len(plans) == 1:
            return self.of_one(plans[0][start:stop], keys)
        return self._of_many([plans[c][start:stop] for c in at], keys)

    def _of_many(self, plans: list[list[np.ndarray]], keys: Any) -> Iterator[Batch]:
        """Yield the batches of a chunk's clients, each padded to the longest of its step.

        All row numbers go to the device at once, since a GPU's queue of work is empty after each transfer.
        """
        rows = [[plan[step] if step < len(plan) else NO_ROWS for plan in plans] for step in range(len(keys))]
        device, sizes = self.federation.device, torch.tensor([[len(own) for own in step] for step in rows])
        blocks = [self.block(step) for step in rows]
        index = torch.from_numpy(np.concatenate([block.ravel() for block in blocks] or [NO_ROWS])).to(device)
        sizes = sizes.to(device)
        steps = zip(index.split([block.size for block in blocks]), blocks, sizes, sizes > 0, keys, strict=True)
        for where, block, size, live, key in steps:
            yield self.padded(where.view(block.shape), size, key, live)

    def of_one(self, plan: list[np.ndarray], keys: Any) -> Iterator[Batch]:
        """Yield the batches of a chunk's only client, x [1, B, ...], y [1, B].

        Training batches, which have a key, are augmented. If they have at least as many rows as the client, its data
        are converted once and the batches are cut from the result, unless the data are too large.
        """
        rows = np.concatenate(plan) if plan else NO_ROWS
        own = len(self.rows["train"][0])
        converted = self._converted if plan and keys[0] is not None and len(rows) >= own else None
        if converted is not None:
            rows = np.searchsorted(self.rows["train"][0], rows)
        index = torch.from_numpy(rows).to(self.federation.device)
        for where, key in zip(index.split([len(rows) for rows in plan]), keys, strict=True):
            x, y = self.federation.gather(where) if converted is None else (column[where] for column in converted)
            x = x[None]
            yield Batch(x if key is None else self.federation.augmented(x, key), y[None], None, None, key)

    @cached_property
    def _converted(self) -> tuple[Tensor, Tensor] | None:
        rows = self.rows["train"][0]
        if len(rows) * math.prod(self.federation.dataset.shape) > _ONCE:
            return None
        return self.federation.gather(torch.from_numpy(rows).to(self.federation.device))

    def block(self, rows: list[np.ndarray]) -> np.ndarray:
        """Return each client's row numbers of a batch, padded to the longest, [C, B]."""
        block = np.full((len(rows), max(1, *map(len, rows))), self.federation.padding, dtype=np.int64)
        for line, own in zip(block, rows, strict=True):
            line[: len(own)] = own
        return block

    def padded(self, index: Tensor, sizes: Tensor, key: Tensor | None, live: Tensor) -> Batch:
        """Return the batch of these rows. index [C, B]: what `block` returns. sizes [C]: how many are no padding.

        key, live: as in Batch. All are on the device.
        """
        mask = torch.arange(index.shape[1], device=index.device) < sizes[:, None]
        x, y = self.federation.gather(index)
        return Batch(x if key is None else self.federation.augmented(x, key), y, mask, live, key)

    def keys(self, stream: str, steps: range, at: list[int]) -> Tensor:
        """Return a key for each of these steps of a stream and each client at some positions, [steps, C] int64."""
        name, members = f"{self.purpose}/{stream}", [self.members[c] for c in at]
        keys = [random.tensor_key(who.federation.seed, name, who.round, who.stable_id) for who in members]
        numbers = torch.arange(steps.start, steps.stop)
        return random.fold(torch.stack(keys), numbers[:, None]).to(self.federation.device)
