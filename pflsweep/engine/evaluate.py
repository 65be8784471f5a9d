"""Evaluation of clients' models. It reads models as vectors and changes nothing.

A *view* says which models are scored: personal, global, or trained (after local training, before aggregation).
A *target* says on which rows: `own` are the client's rows, `subset` those together with some other clients', `all`
every client's, and `validation` the client's rows that are held back for sweeps to select on, where there are some.
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

CALIBRATION_BATCHES = 4  # large batches of a client's training data from which batch norm's statistics are computed
# Models that are scored on the same rows at once. The cost of converting rows to floats is divided among so many.
TOGETHER = 16
BLOCK = 1 << 23  # values that are converted at once: 32 MB
# Predictions that are read from a device at once: 12 MB. A GPU that several processes use lets each wait its turn
READ = 1 << 20

Targets = dict[str, list[np.ndarray]]  # target -> for each client the rows of the dataset that it is scored on
Logits = Callable[[Tensor, Tensor], Tensor]  # (w [P], x [B, ...]) -> [B, K]


# Personal and global models on each client's own test rows alone
OWN = Metrics.of({"subset": 0.0, "subset_size": "union", "all": False, "trained": False})


class Scores(NamedTuple):
    """Scores of one view and target: N clients' models, each on its client's rows."""

    n: np.ndarray  # [N] samples; 0 if the client has none or is left out of the evaluation
    correct: np.ndarray  # [N] samples that are predicted correctly
    loss: np.ndarray  # [N] mean cross-entropy; NaN without samples
    f1: np.ndarray  # [N] macro F1 in [0, 1]; NaN without samples

    @property
    def accuracy(self) -> np.ndarray:
        """Accuracy of each client: [N] in [0, 1]; NaN without samples."""
        return self.correct / np.where(self.n > 0, self.n, np.nan)


NOTHING = (0.0, 0.0, math.nan, math.nan)  # Scores of a client without samples


def without(scores: Scores, clients: np.ndarray) -> Scores:
    """Return the scores with some clients left out, as if they had no samples. clients: [N] bool."""
    return Scores(*(np.where(clients, gone, seen) for seen, gone in zip(scores, NOTHING, strict=True)))


def merged(clients: int, parts: Iterable[tuple[np.ndarray, dict[str, Scores]]]) -> dict[str, Scores]:
    """Return by view the scores of all clients [N]. parts: pairs (ids of some clients, their scores [C] by view)."""
    views: dict[str, Scores] = {}
    for ids, by_view in parts:
        for view, scores in by_view.items():
            everybody = views.setdefault(view, Scores(*(np.full(clients, value) for value in NOTHING)))
            for column, own in zip(everybody, scores, strict=True):
                column[ids] = own
    return views


def targets(federation: Federation, split: str, metrics: Metrics) -> Targets:
    """Return the rows of a split to score on, by target. Each client's are sorted, without duplicates."""
    own = federation.rows[split]
    found: Targets = {"own": [np.unique(rows) for rows in own]}
    if metrics.subset:
        found["subset"] = [_joined(federation, own, i, metrics) for i in range(federation.clients)]
    if metrics.all:
        everybody = np.unique(np.concatenate(own))
        drawn = metrics.all_size == "own"
        found["all"] = [
            _drawn(federation, i, everybody, len(rows)) if drawn else everybody for i, rows in enumerate(own)
        ]
    if split != "validation" and any(map(len, federation.rows["validation"])):
        found["validation"] = [np.unique(rows) for rows in federation.rows["validation"]]
    return found


def _joined(federation: Federation, own: list[np.ndarray], client: int, metrics: Metrics) -> np.ndarray:
    """Return a client's rows together with those of ceil((N - 1) c) other clients, where c is metrics.subset.

    At c = 1/2 these are N // 2 clients, as in the code of FedPG's platform. They are drawn from keys: the same in every
    round, and for all methods with one seed.
    """
    generator = random.generator(federation.data_seed, "subset", int(federation.stable_ids[client]))
    by_key = federation.stable_ids.argsort().numpy()
    others = generator.permutation(by_key[by_key != client])[: math.ceil(len(own[1:]) * metrics.subset - 1e-9)]
    rows = np.unique(np.concatenate([own[client], *(own[j] for j in others)]))
    return rows if metrics.subset_size == "union" else np.sort(generator.permutation(rows)[: len(own[client])])


def _drawn(federation: Federation, client: int, rows: np.ndarray, size: int) -> np.ndarray:
    """Return `size` of some rows, sorted, drawn for a client: the same in every round and for all methods."""
    generator = random.generator(federation.data_seed, "all", int(federation.stable_ids[client]))
    return np.sort(generator.permutation(rows)[:size])


def cover(found: Targets) -> Callable[[int], np.ndarray]:
    """Return a function of a client: the union of all its targets' rows, sorted. One pass over it serves every target.

    It is computed when it is asked for, since a block of clients needs its own alone.
    """
    if on_same_rows(found) and "validation" not in found:
        return lambda client: found["all"][0]
    return lambda client: np.unique(np.concatenate([rows[client] for rows in found.values()]))


def on_same_rows(found: Targets) -> bool:
    """Return whether all clients are scored on the same rows, apart from their validation rows."""
    return "all" in found and all(rows is found["all"][0] for rows in found["all"])


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
    """Return by target the scores of clients' models.

    models: pairs (client, w [P]), in the order of clients. found: the targets. large: batch size.
    known: the scores of clients without a pair; None: they count as clients without samples.
    """
    if known is None:
        known = dict.fromkeys(found, Scores(*(np.full(federation.clients, value) for value in NOTHING)))
    scores = {name: Scores(*(column.copy() for column in known[name])) for name in found}
    y = federation.dataset.y.numpy()
    for one, outputs in _read(_passes(task, logits, models, federation, found, large)):
        for client, key in one.clients:
            for name in one.targets:
                own, output = found[name][client], outputs[key]
                if own is not one.rows:
                    at = np.searchsorted(one.rows, own)
                    output = output[0][at], output[1][at]
                for column, value in zip(scores[name], _tally(y[own], *output, task.classes), strict=True):
                    column[client] = value
    return scores


class _Pass(NamedTuple):
    """Predictions of models on the same rows, on the device that has computed them."""

    targets: list[str]
    rows: np.ndarray
    clients: list[tuple[int, int]]  # (client, key of its model)
    outputs: dict[int, list[tuple[Tensor, Tensor]]]  # as `_outputs` returns them


def _passes(
    task: Task,
    logits: Logits,
    models: Iterable[tuple[int, Tensor]],
    federation: Federation,
    found: Targets,
    large: int,
) -> Iterator[_Pass]:
    """Yield the predictions from which models are scored. For the arguments see `score`."""
    # Validation rows are a client's own: together with rows that all share they would part clients with one model
    alone = {"validation"} & found.keys() if on_same_rows(found) else set()
    together = {name: rows for name, rows in found.items() if name not in alone}
    for group in _groups(models, cover(together), apart=task.calibrated):
        stats = {
            key: _calibrate(task, w, federation, client, large) if task.calibrated else None
            for key, (client, w) in group.models.items()
        }
        outputs = _outputs(logits, group.rows, group.models, stats, federation, large)
        yield _Pass(list(together), group.rows, group.clients, outputs)
        for client, key in group.clients:
            for name in alone:
                # Without rows the scores stay those of a client without samples
                if len(own := found[name][client]):
                    outputs = _outputs(logits, own, {key: group.models[key]}, stats, federation, large)
                    yield _Pass([name], own, [(client, key)], outputs)


def _read(passes: Iterable[_Pass]) -> Iterator[tuple[_Pass, dict[int, tuple[np.ndarray, np.ndarray]]]]:
    """Yield each pass with its outputs in memory. They are read from the device once READ predictions wait there."""
    waiting: list[_Pass] = []
    predictions = 0
    for one in passes:
        waiting.append(one)
        predictions += len(one.rows) * len(one.outputs)
        if predictions >= READ:
            yield from zip(waiting, _on_cpu(waiting), strict=True)
            waiting, predictions = [], 0
    yield from zip(waiting, _on_cpu(waiting), strict=True)


def _on_cpu(passes: list[_Pass]) -> list[dict[int, tuple[np.ndarray, np.ndarray]]]:
    """Return the outputs of each pass in memory: by key of a model its predictions and cross-entropies, both [rows]."""
    parts = [part for one in passes for pairs in one.outputs.values() for part in pairs]
    if not parts:
        return []
    seen, loss = (torch.cat(column).cpu().numpy() for column in zip(*parts, strict=True))
    found: list[dict[int, tuple[np.ndarray, np.ndarray]]] = []
    end = 0
    for one in passes:
        found.append({})
        for key in one.outputs:
            start, end = end, end + len(one.rows)
            found[-1][key] = seen[start:end], loss[start:end]
    return found


def _tally(y: np.ndarray, seen: np.ndarray, loss: np.ndarray, classes: int) -> tuple[float, float, float, float]:
    """Return (n, correct, loss, F1) of predictions `seen` [n] of labels y [n] with cross-entropies `loss` [n]. A
    prediction of -1 is none, and wrong.

    Macro F1 is the mean over classes of 2 TP / (2 TP + FP + FN). A class neither present nor predicted is left out.
    """
    if not len(y):
        return NOTHING
    hits = np.bincount(y[seen == y], minlength=classes)
    both = np.bincount(y, minlength=classes) + np.bincount(seen[seen >= 0], minlength=classes)
    return len(y), hits.sum(), loss.mean(dtype=np.float64), (2 * hits[both > 0] / both[both > 0]).mean()


class _Group(NamedTuple):
    """Consecutive clients whose models are scored on the same rows."""

    rows: np.ndarray
    clients: list[tuple[int, int]]  # (client, key of its model)
    models: dict[int, tuple[int, Tensor]]  # key -> (a client that has the model, w); each is scored once


def _groups(
    models: Iterable[tuple[int, Tensor]], rows_of: Callable[[int], np.ndarray], apart: bool
) -> Iterator[_Group]:
    """Yield groups of up to TOGETHER different models.

    rows_of: as `cover` returns it. apart: clients that share a model score it differently, since batch norm is
    calibrated on each client's data.
    """
    group: _Group | None = None
    for client, w in models:
        rows = rows_of(client)
        # The address identifies a model among those of a group, which are alive at the same time.
        key = client if apart else w.data_ptr()
        full = group is not None and len(group.models) == TOGETHER and key not in group.models
        if group is not None and (full or rows is not group.rows):
            yield group
            group = None
        if group is None:
            group = _Group(rows, [], {})
        group.clients.append((client, key))
        group.models.setdefault(key, (client, w))
    if group is not None:
        yield group


def _outputs(
    logits: Logits,
    rows: np.ndarray,
    models: dict[int, tuple[int, Tensor]],
    stats: dict[int, Stats | None],
    federation: Federation,
    large: int,
) -> dict[int, list[tuple[Tensor, Tensor]]]:
    """Return by key of a model (predicted classes, cross-entropies) on some rows, in parts one after the other. Where
    the cross-entropy is not finite the class is -1.

    models: as in a group. stats: batch norm's statistics by key, where models have it.
    Rows are converted once for all models, in blocks of many batches. A model takes a whole block while its weights are
    in the processor's cache.
    """
    parts: dict[int, list[tuple[Tensor, Tensor]]] = {key: [] for key in models}
    batches = max(1, BLOCK // (large * math.prod(federation.dataset.shape)))
    # non_blocking: the copy does not wait for kernels that still run
    for block in torch.from_numpy(rows).to(federation.device, non_blocking=True).split(large * batches):
        x, y = federation.gather(block)
        for key, (_, w) in models.items():
            with nullcontext() if stats[key] is None else context(stats=stats[key]):
                out = torch.cat([logits(w, part) for part in x.split(large)])
            loss = F.cross_entropy(out, y, reduction="none")
            # argmax of a row of NaN is 0, so that a diverged model would be right about class 0
            parts[key].append((torch.where(loss.isfinite(), out.argmax(1), -1), loss))
    return parts


def _calibrate(task: Task, w: Tensor, federation: Federation, client: int, large: int) -> Stats:
    """Return batch norm's statistics of one model on one client's training data.

    The batches are drawn, since datasets may be sorted by class. The statistics are computed anew in each evaluation.
    """
    stats: Stats = {}
    generator = random.generator(federation.seed, "calibration", int(federation.stable_ids[client]))
    rows = torch.from_numpy(generator.permutation(federation.rows["train"][client])).to(federation.device)
    for part in islice(rows.split(large), CALIBRATION_BATCHES):
        with context(collect=stats):
            task.logits(w, federation.gather(part)[0])
    return stats
