"""The handle through which methods see their clients' data, in batches."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pflsweep.data.batching import DEFAULT, Batching, pieces
from pflsweep.data.federation import Federation
from pflsweep.data.poisson import NONE, Poisson
from pflsweep.methods.protocol import Spent
from pflsweep.methods.task import Batch
from pflsweep.ops import random
from pflsweep.ops.vmap import tree_map
from pflsweep.util.errors import UserError

_ONCE = 1 << 24  # values up to which a client's data are converted once rather than by the batch: 64 MB


class Member(NamedTuple):
    """Whose data they are, and in which round of its federation."""

    federation: Federation
    client: int
    round: int

    @property
    def key(self) -> int:
        return int(self.federation.keys[self.client])


class ClientData:
    """The data of a chunk of clients in one round. Batches have the chunk in front: x [C, B, ...], mask [C, B].

    Iterate it at cohort level only, never inside @per_client. Every stream of batches is a function of (seed, purpose,
    stream, round, client key): asking twice gives the same batches, and all methods see the same ones.
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
        self._served = np.zeros(len(members), dtype=np.int64)  # shared with its holdouts
        self._private: list[tuple[Tensor, Tensor, list]] = []  # so too: of each private batch (live, rate, looks)
        self._passes = count()  # and over private data
        self._held: dict[float, tuple[ClientData, ClientData]] = {}
        self._members, self._federation = members, members[0].federation  # where their rows and device are the same
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
        """The handle of some clients in one round."""
        rows = {split: [rows[i] for i in ids] for split, rows in federation.rows.items()}
        return cls([Member(federation, i, round) for i in ids], batch, large, purpose, rows, batching)

    @classmethod
    @contextmanager
    def joined(cls, parts: list["ClientData"]) -> Iterator["ClientData"]:
        """The clients of several as those of one, who may be of federations that differ in partition and seed. What has
        been trained is counted in each. Raises ValueError where they are not of one dataset, or cut otherwise.
        """
        sets = [d._federation.dataset for d in parts]
        cuts = {(d._batch, d._large, d._purpose, d._batching) for d in parts}
        if len({(of.checksum, of.augment) for of in sets}) > 1 or len(cuts) > 1:
            raise ValueError("the trials' data are not of one dataset, or are not cut into the same batches")
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
        """Samples in the batches of `train` and `batches` so far: what images/s counts."""
        return int(self._served.sum())

    @property
    def sizes(self) -> Tensor:
        """[C] training samples of each client."""
        return torch.tensor([len(own) for own in self._rows["train"]], device=self._federation.device)

    def train(self, epochs: int, stream: str = "epochs") -> Iterator[Batch]:
        """Mini-batches of `epochs` epochs, in the order and cut that `batching` says."""
        orders = [self._shuffled(c, epochs, stream) for c in range(len(self._members))]
        self._served += [sum(map(len, order)) for order in orders]
        return self._batches(orders, stream)

    def batches(self, count: int, epochs: int, stream: str = "epochs") -> Iterator[tuple[Batch, ...]]:
        """Like `train`, but each step gives `count` consecutive, disjoint batches of one shuffle (Per-FedAvg).

        A client with too few samples for disjoint ones splits what it has; with one sample it reuses it. A last group
        of fewer than `count` samples is dropped.
        """
        orders = [self._grouped(c, count, epochs, stream) for c in range(len(self._members))]
        self._served += [sum(len(rows) for group in order for rows in group) for order in orders]
        columns = [self._batches([[g[k] for g in o] for o in orders], f"{stream}/{k}") for k in range(count)]
        return zip(*columns, strict=True)

    def sample(self, share: float, stream: str, block: bool = False) -> Iterator[Batch]:
        """ceil(share * n) training rows, drawn once for a round and stream, in large batches that `cut` makes small.

        block: they are a block of the rows in their order for training, from a place that is drawn.
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
        """A large batch as mini-batches in its order, without key."""
        for start in range(0, batch.y.shape[1], self._batch):
            part = slice(start, start + self._batch)
            mask = None if batch.mask is None else batch.mask[:, part]
            yield Batch(batch.x[:, part], batch.y[:, part], mask, None if mask is None else mask.any(1), None)

    def mean(self, fn: Callable, *args: Any, split: str = "train") -> Any:
        """Mean over all samples of a split of fn(*args, batch), which returns means over its batch; [C, ...] each.

        fn is lifted (@per_client); batches are large and without key: no dropout. Every client needs samples in the
        split.
        Batches are drawn, since datasets may be sorted by class and batch norm sees which samples are together.
        """
        if not all(len(own) for own in self._rows[split]):
            raise ValueError(f"a client has no samples in '{split}': there is no mean")
        drawn = [self._generator(c, f"mean/{split}").permutation(own) for c, own in enumerate(self._rows[split])]
        order = [pieces(own, self._large) for own in drawn]
        sizes = torch.tensor([len(own) for own in self._rows[split]], dtype=torch.float64)
        total = None
        for step, batch in enumerate(self._batches(order, None)):
            count = torch.tensor([len(o[step]) if step < len(o) else 0 for o in order])
            weight = (count / sizes).to(self._federation.device, self._federation.dtype)
            part = tree_map(lambda v, w=weight: v * w.view(-1, *[1] * (v.dim() - 1)).to(v.dtype), fn(*args, batch))
            total = part if total is None else tree_map(torch.add, total, part)
        return total

    def rows(self) -> Iterator[Batch]:
        """Each training row once, in large batches without key: neither dropout nor augmentation."""
        return self._batches([pieces(own, self._large) for own in self._rows["train"]], None)

    def rating(self, stream: str) -> Iterator[Batch]:
        """Each training row once, in batches as `train` cuts them and augmented as there, but without key (no dropout),
        and not counted as training: for code that rates models on what its loader augments.
        """
        orders = [self._shuffled(c, 1, stream) for c in range(len(self._members))]
        return (batch._replace(key=None) for batch in self._batches(orders, stream))

    def holdout(self, fraction: float) -> tuple["ClientData", "ClientData"]:
        """A method's own split of the training data, the same in every round: (rest, ceil(fraction * n) rows).

        At least one sample is left; a client with a single one has it in both. Where the federation's targets are
        permuted the held rows are those that the target client holds out, which nobody trains on.
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
        """Return these clients with their test rows in the place of training rows, for variants of code that trains on
        test rows.
        """
        return self._with([np.sort(rows) for rows in self._rows["test"]])

    def public(self, share: float) -> tuple["ClientData", "ClientData"]:
        """The training data beside a public set, Federation.public: (own rows that stay private, these and the set).

        A client whose rows are all public has no private ones: it can be iterated, but has no mean.
        """
        rows = [
            (own, who.federation.public(share)) for own, who in zip(self._rows["train"], self._members, strict=True)
        ]
        private = [np.setdiff1d(own, public, assume_unique=True) for own, public in rows]
        return self._with(private), self._with([np.union1d(own, public) for own, public in rows])

    def poisson(self, clip: float, noise: float) -> Poisson:
        """The same training data for DP-SGD."""
        return Poisson(self, clip, noise)

    @property
    def spent(self) -> Spent:
        """The private training of each client so far."""
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

    # Orders: for each client a list of index arrays, one a batch

    def _generator(self, c: int, stream: str, *more: int) -> np.random.Generator:
        who = self._members[c]
        return random.generator(who.federation.seed, f"{self._purpose}/{stream}", who.round, who.key, *more)

    def _order(self, c: int, stream: str, epoch: int) -> np.ndarray:
        """Return a client's training rows in the order of an epoch."""
        who = self._members[c]

        def generator(*epoch: int) -> np.random.Generator:
            if epoch:
                return self._generator(c, stream, *epoch)
            return random.generator(who.federation.seed, "order", who.key)  # without stream and round: of the trial

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
                elif len(order) < count:  # fewer samples than batches: reuse them
                    groups.append([group[k % len(group)][None] for k in range(count)])
            return groups

        drawn = self._batching.passes(epochs, one)
        flat = self._as_prescribed(c, stream, [rows for group in drawn for rows in group])
        return [flat[start : start + count] for start in range(0, len(flat), count)]

    def _as_prescribed(self, c: int, stream: str, drawn: list[np.ndarray]) -> list[np.ndarray]:
        """Return the batches that a user prescribes for a client's turn, else those that are drawn.

        Prescribed are the batches of the stream that local training takes; a client without some is in no cohort, and
        asked by a study. Raises UserError where they are not as many as are drawn, too large, or of rows that the
        method does not train on.
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

    def _batches(self, orders: list[list[np.ndarray]], stream: str | None) -> Iterator[Batch]:
        steps = max(map(len, orders), default=0)
        keys = [None] * steps if stream is None else self._keys(stream, steps)
        if len(orders) == 1:
            yield from self._of_one(orders[0], keys)
            return
        for step, key in enumerate(keys):
            yield self._padded([o[step] if step < len(o) else NONE for o in orders], key)

    def _of_one(self, order: list[np.ndarray], keys: Any) -> Iterator[Batch]:
        """Batches of a chunk's only client, x [1, B, ...], y [1, B].

        Those of training, which have a key, are augmented, and cut from its data converted once where these are not too
        large and are used about once at least.
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

    def _padded(self, rows: list[np.ndarray], key: Tensor | None, live: Tensor | None = None) -> Batch:
        """live: which clients have a batch; None: those that have rows for it."""
        device = self._federation.device
        sizes = torch.tensor([len(r) for r in rows])
        index = np.full((len(rows), max(1, int(sizes.max()))), self._federation.padding, dtype=np.int64)
        for line, r in zip(index, rows, strict=True):
            line[: len(r)] = r
        mask = (torch.arange(index.shape[1]) < sizes[:, None]).to(device)
        x, y = self._federation.gather(torch.from_numpy(index).to(device))
        x = x if key is None else self._federation.augmented(x, key)
        return Batch(x, y, mask, (sizes > 0 if live is None else live).to(device), key)

    def _keys(self, stream: str, steps: int) -> Tensor:
        """[steps, C] int64: a key for each step of a stream and each client."""
        name = f"{self._purpose}/{stream}"
        keys = [random.tensor_key(who.federation.seed, name, who.round, who.key) for who in self._members]
        return random.fold(torch.stack(keys), torch.arange(steps)[:, None]).to(self._federation.device)


def _parted(who: Member, own: np.ndarray, fraction: float) -> tuple[np.ndarray, np.ndarray]:
    """A client's rows as (rest, held)."""
    shuffled = random.generator(who.federation.seed, "holdout", who.key).permutation(own)
    take = min(int(np.ceil(fraction * len(own) - 1e-9)), max(1, len(own) - 1))
    return np.sort(shuffled[take:] if len(own) > take else shuffled), np.sort(shuffled[:take])
