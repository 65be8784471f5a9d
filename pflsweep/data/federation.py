"""A federation: one dataset on the training device, partitioned into clients."""

from copy import copy

import numpy as np
import torch
from torch import Tensor

from pflsweep.data.augment import crop_flip
from pflsweep.data.dataset import Dataset, Rows
from pflsweep.data.partition.stats import label_counts, summary
from pflsweep.ops import random
from pflsweep.util.errors import UserError


class Federation:
    """N clients with train, validation and test rows of one dataset.

    seed: the trial's seed. data_seed: the seed of draws that are made once, before training: validation and public
    rows, new clients, the rows of S- and G-acc. Permuted targets, holdouts, fixed orders and Dirichlet participation
    are drawn once too, but from `seed`.
    stable_ids: [N] the number by which a client's draws are keyed. It keeps it at any position in the list.
    draw_keys: [N] int64, made from the seed and the stable ids, for draws inside lifted code.
    sizes: [N] training samples. class_counts: [N, K] training rows of each class. group, accuracy: as in Rows.
    checksum: that of the dataset, followed by that of the partition.
    targets: [N] the client whose validation and test rows each client is given: itself, unless `permuted`.
    participation_probabilities: [N] each client's probability to be drawn first into a cohort; None: all are equal.
    cohorts, batches: prescribed by the user, as in Prescribed; None: they are drawn.
    """

    def __init__(
        self,
        dataset: Dataset,
        rows: Rows,
        *,
        validation: float,
        seed: int,
        data_seed: int | None = None,
        device: str | torch.device,
        dtype: torch.dtype = torch.float32,
        stable_ids: list[int] | None = None,
    ) -> None:
        self.dataset, self.device, self.dtype, self.seed = dataset, torch.device(device), dtype, seed
        self.data_seed = seed if data_seed is None else data_seed
        self.clients = len(rows.train)
        self.classes = dataset.classes
        self.stable_ids = torch.tensor(range(self.clients) if stable_ids is None else stable_ids, dtype=torch.int64)
        self.draw_keys = torch.stack([random.tensor_key(seed, "client", int(key)) for key in self.stable_ids])
        # the row of the dataset that fills up short batches; it is masked, so any row will do
        self.padding = 0
        self._public: dict[float, np.ndarray] = {}
        self._x, self._y = dataset.x.to(device), dataset.y.to(device)
        self._mean = (dataset.mean.to(dtype)).to(device)
        self._std = (dataset.std.to(dtype)).to(device)
        self.group, self.accuracy = rows.group, rows.accuracy
        self.checksum = dataset.checksum + rows.checksum
        self.targets = list(range(self.clients))
        self.participation_probabilities: np.ndarray | None = None
        self.cohorts: list[np.ndarray] | None = None
        self.batches: dict[tuple[int, int], list[np.ndarray]] | None = None
        self.rows = self._split(rows, validation)
        self.sizes = torch.tensor([len(r) for r in self.rows["train"]], dtype=torch.int64)
        self.class_counts = torch.from_numpy(self.counts("train"))

    def _split(self, rows: Rows, validation: float) -> dict[str, list[np.ndarray]]:
        """Return the clients' rows by split, with validation rows from the training rows unless prescribed.

        validation: the share of each client's training rows. They are drawn, or where rows overlap the last ones; rows
        that overlap with these are left out. Raises UserError if a client has no training rows.
        """
        split: dict[str, list[np.ndarray]] = {"train": [], "validation": [], "test": list(rows.test)}
        for i, own in enumerate(rows.train):
            if not len(own):
                raise UserError(
                    f"partition: client {i} of {self.clients} has no training data. Use fewer clients "
                    "(partition.clients) or a partition that is less uneven (for Dirichlet a larger alpha). In a file, "
                    "or in a partition of your own, give it rows."
                )
            if rows.validation is not None:
                split["validation"].append(np.sort(rows.validation[i]))
                split["train"].append(np.sort(own))
                continue
            kept, held = self._held_back(i, own, validation)
            split["validation"].append(held)
            split["train"].append(kept)
        return split

    def _held_back(self, client: int, own: np.ndarray, validation: float) -> tuple[np.ndarray, np.ndarray]:
        """Return (the rows that a client keeps for training, its validation rows), both sorted.

        Where rows overlap there are none of the latter if no row that is apart from them would be left for training.
        """
        count = min(round(validation * len(own)), len(own) - 1)
        if self.dataset.overlap:
            kept = self.dataset.before(own, len(own) - count)
            return (kept, own[len(own) - count :]) if count and len(kept) else (own, own[:0])
        shuffled = random.generator(self.data_seed, "validation", int(self.stable_ids[client])).permutation(own)
        return np.sort(shuffled[count:]), np.sort(shuffled[:count])

    def subset(self, ids: np.ndarray) -> "Federation":
        """Return the federation of some clients, with their stable ids, on the same dataset. ids: [n] positions."""
        assert all(each is None for each in (self.cohorts, self.batches, self.participation_probabilities)), (
            "they are of all clients"
        )
        some = copy(self)
        some.clients, some.targets, some._public = len(ids), list(range(len(ids))), {}
        some.stable_ids, some.draw_keys, some.sizes, some.class_counts = (
            part[ids] for part in (self.stable_ids, self.draw_keys, self.sizes, self.class_counts)
        )
        some.group = None if self.group is None else self.group[ids]
        some.rows = {split: [rows[i] for i in ids] for split, rows in self.rows.items()}
        return some

    def split_new_clients(self, count: int) -> tuple["Federation", "Federation | None"]:
        """Return (the federation without `count` random clients, a federation of these new clients, None for 0).

        Raises UserError if no client is left to train.
        """
        if count >= self.clients:
            raise UserError(f"data.new is {count}: it must be below the {self.clients} clients, as some have to train.")
        order = random.generator(self.data_seed, "newcomers").permutation(self.clients)
        by_key = self.stable_ids.argsort().numpy()[order]
        kept, new = np.sort(by_key[count:]), np.sort(by_key[:count])
        return (self.subset(kept), self.subset(new)) if count else (self, None)

    def permuted(self, shuffle: int) -> "Federation":
        """Return the federation with validation and test rows permuted among clients: out-of-local targets.

        FedFomo, section 4.2. Training rows stay; a method's holdout is permuted too, see ClientData.holdout. shuffle:
        the number of the permutation.
        """
        other = copy(self)
        order = self.stable_ids.argsort()
        drawn = random.generator(self.seed, "targets", shuffle).permutation(self.clients)
        targets = torch.empty_like(order)
        targets[order] = order[torch.from_numpy(drawn)]
        other.targets = targets.tolist()
        moved = {split: [self.rows[split][j] for j in other.targets] for split in ("validation", "test")}
        other.rows = {**self.rows, **moved}
        return other

    def standardise(self, *others: "Federation") -> None:
        """Normalise the rows of this federation, and of others, by this one's training rows.

        Each feature has mean 0 and standard deviation 1 over the training rows of all its clients; test and validation
        rows are not looked at. A feature that never changes is only centred.
        """
        rows = torch.from_numpy(np.unique(np.concatenate(self.rows["train"])))
        x = self.dataset.x[rows].double()
        mean, std = x.mean(0), x.std(0, correction=0)
        std[std == 0] = 1
        for federation in (self, *others):
            federation._mean, federation._std = (part.to(self._mean) for part in (mean, std))

    def normalised_as(self, other: "Federation") -> bool:
        """Return whether rows are normalised by the same mean and standard deviation as in another federation."""
        return torch.equal(self._mean, other._mean) and torch.equal(self._std, other._std)

    def counts(self, split: str) -> np.ndarray:
        """Return the number of samples of each client in each class, [N, K] int64."""
        return label_counts(self.rows[split], self.dataset.y.numpy(), self.classes)

    def statistics(self) -> dict[str, float]:
        """Return summary statistics of the training rows, and the embedder's accuracy where the partition has one."""
        learnt = {} if self.accuracy is None else {"embedder_accuracy": self.accuracy}
        return {**summary(self.counts("train")), **learnt}

    def gather(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows of the dataset by number [...]: x [..., *shape], normalised unless it is text, and y [...]."""
        if self.dataset.vocabulary is not None:
            return self._x[index], self._y[index]
        x = self._x[index].to(self.dtype)
        if self.dataset.scale != 1:
            x.mul_(self.dataset.scale)
        return x.sub_(self._mean).div_(self._std), self._y[index]

    def augmented(self, x: Tensor, keys: Tensor) -> Tensor:
        """Return training rows x [C, B, *shape], augmented as dataset.augment says. keys: [C] int64, of this step."""
        if self.dataset.augment == "none":
            return x
        return crop_flip(x, keys, -self._mean / self._std)

    def public(self, share: float) -> np.ndarray:
        """Return a sorted draw from all clients' n training rows, of round(share * n / K) rows of each class.

        At least one row of a class is drawn, and at most all (none for share = 0). A larger share contains the rows of
        a smaller one.
        """
        if share not in self._public:
            rows = np.unique(np.concatenate(self.rows["train"]))
            labels = self.dataset.y[torch.from_numpy(rows)].numpy()
            take = max(1, round(share * len(rows) / self.classes)) if share else 0
            drawn = [
                random.generator(self.data_seed, "public", k).permutation(rows[labels == k])[:take]
                for k in range(self.classes)
            ]
            self._public[share] = np.sort(np.concatenate(drawn))
        return self._public[share]
