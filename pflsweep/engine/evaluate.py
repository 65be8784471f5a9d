"""Evaluation: an instrument. It reads models as vectors and changes nothing.

A *view* is whose models are scored: personal, global, or trained (before aggregation). A *target* is on which rows:
a client's own, a subset of the federation's, or all; and `validation`, the client's own rows that are held back for
sweeps to select on, where there are some.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pflsweep.config.options import Metrics
from pflsweep.data.federation import Federation
from pflsweep.methods.task import Task
from pflsweep.models.layers import Stats, context
from pflsweep.ops import random

CALIBRATION_BATCHES = 4  # large batches of a client's training data from which batch norm's statistics come
TOGETHER = 16  # models that share the same rows: converting them then costs next to nothing
BLOCK = 1 << 23  # values that are converted at once: 32 MB

Targets = dict[str, list[np.ndarray]]  # by name, the rows of the dataset on which each client's models are scored
Logits = Callable[[Tensor, Tensor], Tensor]


# Personal and global models on each client's own test rows alone
OWN = Metrics.of({"subset": 0.0, "subset_size": "union", "all": False, "trained": False})


class Scores(NamedTuple):
    """One view of the federation: N clients' models, each on its client's rows of one target."""

    n: np.ndarray  # [N] samples; 0: the client has none, or is malicious, and counts nowhere
    correct: np.ndarray  # [N]
    loss: np.ndarray  # [N] mean cross-entropy, nan without samples
    f1: np.ndarray  # [N] macro F1 in [0, 1], nan without samples

    @property
    def accuracy(self) -> np.ndarray:
        """[N] in [0, 1]; nan without samples."""
        return self.correct / np.where(self.n > 0, self.n, np.nan)


NOTHING = (0.0, 0.0, math.nan, math.nan)  # Scores of a client without samples


def without(scores: Scores, clients: np.ndarray) -> Scores:
    """The scores without some clients [N]."""
    return Scores(*(np.where(clients, gone, seen) for seen, gone in zip(scores, NOTHING, strict=True)))


def merged(clients: int, parts: Iterable[tuple[np.ndarray, dict[str, Scores]]]) -> dict[str, Scores]:
    """Scores of all clients [N], from pairs (some clients, their scores [C] by view)."""
    views: dict[str, Scores] = {}
    for ids, by_view in parts:
        for view, scores in by_view.items():
            everybody = views.setdefault(view, Scores(*(np.full(clients, value) for value in NOTHING)))
            for column, own in zip(everybody, scores, strict=True):
                column[ids] = own
    return views


def targets(federation: Federation, split: str, metrics: Metrics) -> Targets:
    """The rows of a split to score on; each client's are sorted and hold none twice."""
    own = federation.rows[split]
    found: Targets = {"own": [np.unique(rows) for rows in own]}
    if metrics.subset:
        found["subset"] = [_joined(federation, own, i, metrics) for i in range(federation.clients)]
    if metrics.all:
        everybody = np.unique(np.concatenate(own))
        drawn = metrics.all_size == "own"
        found["all"] = [
            _drawn(federation, "all", i, everybody, len(rows)) if drawn else everybody for i, rows in enumerate(own)
        ]
    if split != "validation" and any(map(len, federation.rows["validation"])):
        found["validation"] = [np.unique(rows) for rows in federation.rows["validation"]]
    return found


def _joined(federation: Federation, own: list[np.ndarray], client: int, metrics: Metrics) -> np.ndarray:
    """A client's rows with those of ceil((N - 1) c) others (at c = 1/2 these are N // 2, as in the code of FedPG's
    platform). A draw from keys, the same in every round and for all methods under one seed.
    """
    generator = random.generator(federation.data_seed, "subset", int(federation.keys[client]))
    by_key = federation.keys.argsort().numpy()
    others = generator.permutation(by_key[by_key != client])[: math.ceil(len(own[1:]) * metrics.subset - 1e-9)]
    rows = np.unique(np.concatenate([own[client], *(own[j] for j in others)]))
    return rows if metrics.subset_size == "union" else np.sort(generator.permutation(rows)[: len(own[client])])


def _drawn(federation: Federation, purpose: str, client: int, rows: np.ndarray, size: int) -> np.ndarray:
    """Return `size` of some rows, sorted: a client's draw, the same in every round and for all methods."""
    generator = random.generator(federation.data_seed, purpose, int(federation.keys[client]))
    return np.sort(generator.permutation(rows)[:size])


def cover(found: Targets) -> list[np.ndarray]:
    """For each client the rows, sorted, that have all its targets' rows: one pass over them serves every target."""
    if "all" in found and "validation" not in found and all(rows is found["all"][0] for rows in found["all"]):
        return found["all"]
    return [np.unique(np.concatenate(rows)) for rows in zip(*found.values(), strict=True)]


@torch.no_grad()
def score(
    task: Task,
    logits: Logits,
    models: Iterable[tuple[int, Tensor]],
    federation: Federation,
    found: Targets,
    large: int,
    known: dict[str, Scores] | None = None,
) -> dict[str, Scores]:
    """Scores by target of clients' models: pairs (client, w [P]), in the order of clients.

    known: scores that clients without a pair keep; where there are none, they have no samples.
    """
    if known is None:
        known = dict.fromkeys(found, Scores(*(np.full(federation.clients, value) for value in NOTHING)))
    scores = {name: Scores(*(column.copy() for column in known[name])) for name in found}
    y, rows = federation.dataset.y.numpy(), cover(found)
    for group in _groups(models, rows, apart=task.calibrated):
        outputs = _outputs(task, logits, group, federation, large)
        for client, key in group.clients:
            for name, of_clients in found.items():
                own = of_clients[client]
                at = slice(None) if own is group.rows else np.searchsorted(group.rows, own)
                seen, loss = (output[at] for output in outputs[key])
                for column, value in zip(scores[name], _tally(y[own], seen, loss, task.classes), strict=True):
                    column[client] = value
    return scores


def _tally(y: np.ndarray, seen: np.ndarray, loss: np.ndarray, classes: int) -> tuple[float, float, float, float]:
    """(n, correct, loss, F1) of predictions `seen` of classes y. All [n].

    Macro F1: the mean over classes of 2 TP / (2 TP + FP + FN). A class neither there nor predicted is left out.
    """
    if not len(y):
        return NOTHING
    hits = np.bincount(y[seen == y], minlength=classes)
    both = np.bincount(y, minlength=classes) + np.bincount(seen, minlength=classes)
    return len(y), hits.sum(), loss.mean(dtype=np.float64), (2 * hits[both > 0] / both[both > 0]).mean()


class _Group(NamedTuple):
    """Clients in a row whose models are scored on the very same rows."""

    rows: np.ndarray
    clients: list[tuple[int, int]]  # (client, key of its model)
    models: dict[int, tuple[int, Tensor]]  # by key: (a client that has it, w); each is scored once


def _groups(models: Iterable[tuple[int, Tensor]], rows: list[np.ndarray], apart: bool) -> Iterator[_Group]:
    """Up to TOGETHER different models each. apart: clients with one and the same model score it differently."""
    group: _Group | None = None
    for client, w in models:
        key = client if apart else w.data_ptr()  # of tensors that are alive at the same time
        full = group is not None and len(group.models) == TOGETHER and key not in group.models
        if group is not None and (full or rows[client] is not group.rows):
            yield group
            group = None
        if group is None:
            group = _Group(rows[client], [], {})
        group.clients.append((client, key))
        group.models.setdefault(key, (client, w))
    if group is not None:
        yield group


def _outputs(
    task: Task, logits: Logits, group: _Group, federation: Federation, large: int
) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """(predicted class, cross-entropy) of each model on each row: by key, both [rows].

    Rows are converted once for all models, in blocks of many batches, and a model takes a whole block while its weights
    are in the cache.
    """
    stats = {
        key: _calibrate(task, w, federation, client, large) if task.calibrated else None
        for key, (client, w) in group.models.items()
    }
    parts: dict[int, list[tuple[Tensor, Tensor]]] = {key: [] for key in group.models}
    batches = max(1, BLOCK // (large * math.prod(federation.dataset.shape)))
    for block in torch.from_numpy(group.rows).to(federation.device).split(large * batches):
        x, y = federation.gather(block)
        for key, (_, w) in group.models.items():
            with nullcontext() if stats[key] is None else context(stats=stats[key]):
                out = torch.cat([logits(w, part) for part in x.split(large)])
            parts[key].append((out.argmax(1), F.cross_entropy(out, y, reduction="none")))
    return {
        key: tuple(torch.cat(column).cpu().numpy() for column in zip(*pairs, strict=True))  # type: ignore[misc]
        for key, pairs in parts.items()
    }


def _calibrate(task: Task, w: Tensor, federation: Federation, client: int, large: int) -> Stats:
    """Batch norm's statistics for one model on one client's training data, in batches that are drawn: datasets may be
    sorted by class. Nothing of it is kept.
    """
    stats: Stats = {}
    generator = random.generator(federation.seed, "calibration", int(federation.keys[client]))
    rows = torch.from_numpy(generator.permutation(federation.rows["train"][client])).to(federation.device)
    for part in islice(rows.split(large), CALIBRATION_BATCHES):
        with context(collect=stats):
            task.logits(w, federation.gather(part)[0])
    return stats
