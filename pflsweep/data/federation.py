"""A federation: one dataset on the training device, cut into clients."""

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

    seed: of the trial. data_seed: of what is drawn of the data once, before training: validation and public rows,
    clients that do not train, the rows of S- and G-acc.
    keys: [N] the clients' keys for draws: a client keeps its key, and so its draws, wherever it stands in the list.
    draw_keys: [N] int64, the same mixed with the seed, for draws inside lifted code.
    sizes: [N] training samples. labels: [N, K] class counts of the training rows. group, accuracy: as in Rows.
    checksum: of the dataset and of what its partition was learnt from. targets: [N] the client whose validation and
    test rows each client is given, its own where not `permuted`. chances: [N] how likely a client is in a round, to the
    sum 1; None: all alike. cohorts, batches: those that a user prescribes, as in Prescribed; None: they are drawn.
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
        keys: list[int] | None = None,
    ) -> None:
        self.dataset, self.device, self.dtype, self.seed = dataset, torch.device(device), dtype, seed
        self.data_seed = seed if data_seed is None else data_seed
        self.clients = len(rows.train)
        self.classes = dataset.classes
        self.keys = torch.tensor(range(self.clients) if keys is None else keys, dtype=torch.int64)
        self.draw_keys = torch.stack([random.tensor_key(seed, "client", int(key)) for key in self.keys])
        self.padding = 0  # the row of the dataset that fills up short batches; masked, so any will do
        self._public: dict[float, np.ndarray] = {}
        self._x, self._y = dataset.x.to(device), dataset.y.to(device)
        self._mean = (dataset.mean.to(dtype)).to(device)
        self._std = (dataset.std.to(dtype)).to(device)
        self.group, self.accuracy = rows.group, rows.accuracy
        self.checksum = dataset.checksum + rows.checksum
        self.targets = list(range(self.clients))
        self.chances: np.ndarray | None = None
        self.cohorts: list[np.ndarray] | None = None
        self.batches: dict[tuple[int, int], list[np.ndarray]] | None = None
        self.rows = self._split(rows, validation)
        self.sizes = torch.tensor([len(r) for r in self.rows["train"]], dtype=torch.int64)
        self.labels = torch.from_numpy(self.counts("train"))

    def _split(self, rows: Rows, validation: float) -> dict[str, list[np.ndarray]]:
        """Take each client's validation rows out of its training rows."""
        split: dict[str, list[np.ndarray]] = {"train": [], "validation": [], "test": list(rows.test)}
        for i, own in enumerate(rows.train):
            if not len(own):
                raise UserError(
                    f"partition: client {i} of {self.clients} has no training data. Use fewer clients "
                    "(partition.clients) or a partition that is less uneven (for Dirichlet a larger alpha)."
                )
            if rows.validation is not None:
                split["validation"].append(rows.validation[i])
                split["train"].append(own)
                continue
            shuffled = random.generator(self.data_seed, "validation", int(self.keys[i])).permutation(own)
            held = min(round(validation * len(own)), len(own) - 1)
            split["validation"].append(np.sort(shuffled[:held]))
            split["train"].append(np.sort(shuffled[held:]))
        return split

    def only(self, ids: np.ndarray) -> "Federation":
        """Some of its clients, with their keys; the dataset is shared."""
        some = copy(self)
        some.clients, some.targets, some._public = len(ids), list(range(len(ids))), {}
        some.keys, some.draw_keys, some.sizes, some.labels = (
            part[ids] for part in (self.keys, self.draw_keys, self.sizes, self.labels)
        )
        some.group = None if self.group is None else self.group[ids]
        some.rows = {split: [rows[i] for i in ids] for split, rows in self.rows.items()}
        return some

    def newcomers(self, count: int) -> tuple["Federation", "Federation | None"]:
        """(The federation without `count` random clients, these), which are new to what the others train together.

        Raises UserError where nobody is left to train.
        """
        if count >= self.clients:
            raise UserError(f"data.new is {count}: it must be below the {self.clients} clients, as some have to train.")
        order = random.generator(self.data_seed, "newcomers").permutation(self.clients)
        by_key = self.keys.argsort().numpy()[order]
        kept, new = np.sort(by_key[count:]), np.sort(by_key[:count])
        return (self.only(kept), self.only(new)) if count else (self, None)

    def permuted(self, shuffle: int) -> "Federation":
        """Out-of-local targets (FedFomo, section 4.2): validation and test rows change hands among clients.

        A method's holdout goes with them, see Data.holdout; training rows stay. shuffle: a number of the permutation.
        """
        other = copy(self)
        order = self.keys.argsort()
        drawn = random.generator(self.seed, "targets", shuffle).permutation(self.clients)
        targets = torch.empty_like(order)
        targets[order] = order[torch.from_numpy(drawn)]
        other.targets = targets.tolist()
        moved = {split: [self.rows[split][j] for j in other.targets] for split in ("validation", "test")}
        other.rows = {**self.rows, **moved}
        return other

    def counts(self, split: str) -> np.ndarray:
        """[N, K] int64: samples of each client in each class."""
        return label_counts(self.rows[split], self.dataset.y.numpy(), self.classes)

    def statistics(self) -> dict[str, float]:
        """The partition's training rows in a few numbers, and the accuracy of the embedder where one made it."""
        learnt = {} if self.accuracy is None else {"embedder_accuracy": self.accuracy}
        return {**summary(self.counts("train")), **learnt}

    def gather(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of the dataset by number [...] -> x [..., *shape], normalised where it is no text; y [...]."""
        if self.dataset.vocabulary is not None:
            return self._x[index], self._y[index]
        x = self._x[index].to(self.dtype)
        if self.dataset.scale != 1:
            x.mul_(self.dataset.scale)
        return x.sub_(self._mean).div_(self._std), self._y[index]

    def augmented(self, x: Tensor, keys: Tensor) -> Tensor:
        """Training rows x [C, B, *shape] of C clients, as dataset.augment says; keys [C] int64 of their step."""
        if self.dataset.augment == "none":
            return x
        return crop_flip(x, keys, -self._mean / self._std)

    def public(self, share: float) -> np.ndarray:
        """A class-uniform draw from all clients' n training rows, sorted: round(share * n / K) of each class, at least
        one and at most what there is (share = 0: none). A larger draw contains a smaller one.
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
