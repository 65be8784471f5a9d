"""Embed a dataset: train a network on it, and take the principal components of its last hidden linear layer."""

import hashlib
import json
import logging
import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pflsweep.data.augment import KINDS
from pflsweep.data.dataset import Dataset, Rows
from pflsweep.data.datasets.cache import prepared
from pflsweep.data.datasets.files import one_at_a_time
from pflsweep.data.datasets.pack import Content, content
from pflsweep.data.federation import Federation
from pflsweep.data.loader import ClientData
from pflsweep.data.partition.common import require
from pflsweep.methods.optimizer import Sgd
from pflsweep.methods.task import Task
from pflsweep.ops import random
from pflsweep.ops.vmap import squeeze_client
from pflsweep.util.errors import UserError
from pflsweep.util.source_hash import own_source_hashes

log = logging.getLogger(__name__)
# The version of the code below: raising it recomputes all stored embeddings.
VERSION = 1
LARGE = 1000  # rows of a forward pass without gradient
POSITIVE = ("epochs", "batch", "lr", "clip")
OPTIONS = (*POSITIVE, "momentum", "weight_decay", "augment", "seed")


class Embedding(NamedTuple):
    """The embedding of all rows of a dataset."""

    z: np.ndarray  # [n, components] float32
    accuracy: float  # of the embedder on the test split
    checksum: str  # of z and the embedder's predictions


def embed(
    dataset: Dataset,
    build: Callable[..., nn.Sequential],
    training: Mapping[str, Any],
    components: int,
    expected: float,
    root: Path,
    device: str,
) -> Embedding:
    """Return the embedding of every row by build(shape, classes), trained on the training split.

    The result is stored below `root` and verified when it is read. training: epochs, batch, lr (the peak, see _course),
    momentum, weight_decay, clip (the largest norm of a gradient), augment and seed. An accuracy on the test split below
    `expected` is logged as a warning. One process trains while others wait for it. Raises UserError on options that do
    not fit.
    """
    _check(training, dataset)
    moments = [dataset.mean.flatten().tolist(), dataset.std.flatten().tolist()]
    options = [VERSION, dataset.checksum, moments, _described(build), dict(training), components]
    digest = hashlib.blake2b(json.dumps(options).encode(), digest_size=8).hexdigest()
    name = f"{dataset.name}-embedding-{digest}"
    with one_at_a_time(root, name):
        kept = prepared(root, name, None, options, partial(_made, dataset, build, training, components, device))
    truth = dataset.y[dataset.train :].numpy()
    accuracy = float(np.mean(kept.y[dataset.train :] == truth))
    log.info("the embedder of %s reaches %.2f%% on its test split", dataset.name, 100 * accuracy)
    if accuracy < expected:
        log.warning(
            "THE EMBEDDER OF %s REACHES %.2f%% ON ITS TEST SPLIT, BELOW THE %.0f%% OF partition.expected: its clusters "
            "are not those of the paper. The record says so too; train it longer (partition.training.epochs).",
            dataset.name, 100 * accuracy, 100 * expected,
        )  # fmt: skip
    return Embedding(kept.x, accuracy, kept.checksum)


def _check(training: Mapping[str, Any], dataset: Dataset) -> None:
    for key in OPTIONS:
        require(key in training, "training", dict(training), f"it lacks '{key}'")
    for key in POSITIVE:
        require(training[key] > 0, f"training.{key}", training[key], "it must be greater than 0")
    for key in ("momentum", "weight_decay"):
        right = 0 <= training[key] < 1
        require(right, f"training.{key}", training[key], "it must be at least 0 and below 1")
    kinds = KINDS if dataset.x.dim() == 4 else KINDS[:1]
    rule = f"for {dataset.name} it must be {' or '.join(kinds)}"
    require(training["augment"] in kinds, "training.augment", training["augment"], rule)


def _described(build: Callable) -> list:
    """Return what identifies a builder: its name, its options, and the hash of its code where it is the user's own."""
    function = getattr(build, "func", build)
    own = own_source_hashes({f"{function.__module__}.{function.__qualname__}": function})
    return [f"{function.__module__}.{function.__qualname__}", getattr(build, "keywords", {}), *([own] if own else [])]


def _made(dataset: Dataset, build: Callable, training: Mapping[str, Any], components: int, device: str) -> Content:
    """Return the embedding z [n, components] of all rows, with the class that the embedder predicts for each as y."""
    from sklearn.decomposition import PCA

    seed = training["seed"]
    with random.seeded_for(seed, "embedder"):
        model = _built(build, dataset)
    width, rows = hidden_layer(model).out_features, len(dataset.y)
    limit = min(width, rows)
    require(components <= limit, "components", components, f"the embedder gives {width} numbers a row, of {rows} rows: "
            f"it must be 1 to {limit}")  # fmt: skip
    train, test = np.arange(dataset.train), np.arange(dataset.train, len(dataset.y))
    dataset = dataset._replace(augment=training["augment"])
    # a single client that has all rows
    whole = Federation(dataset, Rows([train], [test]), validation=0.0, seed=seed, device=device)
    task = Task(model.to(device))
    if task.calibrated:
        raise UserError(
            "partition.embedder.norm is 'batch': the embedder needs a norm without statistics (group, none)."
        )
    _check_vectors(model, whole, width)
    model.load_state_dict(task.state_dict(_trained(task, whole, training)))
    hidden, predicted = _hidden(model, whole, torch.arange(rows))
    z = PCA(components, random_state=seed).fit_transform(hidden)
    return content(z.astype(np.float32), predicted, len(train))


def _built(build: Callable, dataset: Dataset) -> nn.Sequential:
    """Return the untrained embedder.

    A model's UserError names keys of the group `model`, which are replaced by those of the embedder.
    """
    try:
        return build(dataset.shape, dataset.classes)
    except UserError as error:
        text = re.sub(r"\bmodel=", "model@partition.embedder=", str(error))
        raise UserError(re.sub(r"\bmodel\.(?=\w)", "partition.embedder.", text)) from error


def _trained(task: Task, whole: Federation, training: Mapping[str, Any]) -> Tensor:
    """Return the parameters [P] of the embedder after SGD over the training split."""
    w = task.vector(task.model)
    opt = Sgd(training["momentum"], training["weight_decay"])
    state = opt.init(w[None])[0]
    steps = training["epochs"] * math.ceil(int(whole.sizes[0]) / training["batch"])
    rates = iter(training["lr"] * _course(k, steps) for k in range(steps))
    for epoch in range(training["epochs"]):
        total, seen = torch.zeros((), device=w.device), 0
        data = ClientData.of(whole, [0], epoch, batch=training["batch"], large=LARGE)
        for batch in data.train(1):
            one = squeeze_client(batch)
            loss, g = task.value_and_grad(w, one)
            g = g * (training["clip"] / g.norm()).clamp(max=1)
            w, state = opt.update(w, state, g, next(rates))
            total, seen = total + loss * len(one.y), seen + len(one.y)
        log.info("embedder: epoch %d of %d, loss %.3f", epoch + 1, training["epochs"], float(total) / seen)
    return w


def _course(step: int, steps: int) -> float:
    """Return a step's share of the learning rate: a warm-up over the first twentieth of the steps, times a cosine.

    VGG needs the warm-up, since it has no norm at its top.
    """
    rise = steps // 20
    return min(1.0, (step + 1) / (rise + 1)) * (1 + math.cos(math.pi * step / steps)) / 2


def hidden_layer(model: nn.Sequential) -> nn.Linear:
    """Return the last linear layer before the head, in VGG-11 its second dense layer.

    Raises UserError if there is none.
    """
    layers = [layer for layer in model[:-1].modules() if isinstance(layer, nn.Linear)]
    if not layers:
        raise UserError("partition.embedder: the model has no linear layer below its head, whose output is clustered.")
    return layers[-1]


def _check_vectors(model: nn.Sequential, whole: Federation, width: int) -> None:
    """Raise UserError if the hidden layer does not give one vector for each row, as inside a ConvNeXt.

    It is checked before training, which may take long.
    """
    few = torch.arange(min(2, len(whole.dataset.y)))
    shape = _hidden(model, whole, few)[0].shape
    if shape != (len(few), width):
        raise UserError(
            "partition.embedder: what is clustered is the output of the model's last linear layer below its head, one "
            f"vector a row of data; here that has shape {list(shape)} for {len(few)} rows. Choose a model with a "
            "hidden linear layer behind its features: model@partition.embedder=vgg11, or mlp."
        )


@torch.no_grad()
def _hidden(model: nn.Sequential, whole: Federation, rows: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return the outputs of the hidden layer for some rows, [n, D] float32, and the predicted classes [n]."""
    given: list[np.ndarray] = []
    hook = hidden_layer(model).register_forward_hook(lambda _layer, _x, out: given.append(out.cpu().numpy()))
    try:
        parts = rows.to(whole.device).split(LARGE)
        predicted = [model(whole.gather(part)[0]).argmax(1).cpu().numpy() for part in parts]
    finally:
        hook.remove()
    return np.concatenate(given), np.concatenate(predicted)
