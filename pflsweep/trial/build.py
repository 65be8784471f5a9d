"""Build the objects of a trial from its checked config."""

import inspect
import math
import re
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn

from pflsweep.config.compose import Config
from pflsweep.config.hydra_loader import option_files, read_option
from pflsweep.config.keys import PLUGS, as_override
from pflsweep.config.node import Node
from pflsweep.config.options import Metrics
from pflsweep.data.dataset import Dataset
from pflsweep.data.datasets.files import find_root, one_at_a_time, reading
from pflsweep.data.federation import Federation
from pflsweep.data.participation import participation_probabilities
from pflsweep.data.partition.apart import require_apart
from pflsweep.data.prescribed import Prescribed, checked_partition
from pflsweep.engine.simulation import Schedule
from pflsweep.methods.optimizer import Sgd
from pflsweep.methods.protocol import Method, Plugin, Verbs, unexamined
from pflsweep.methods.task import Task
from pflsweep.models.blocks import MalformedError, head_of, unsuited
from pflsweep.models.layers import context
from pflsweep.ops import memory, random
from pflsweep.studies.study import Study
from pflsweep.trial.device import check_precision, device_of
from pflsweep.trial.schedule import COPIES, schedule_of
from pflsweep.util import trace
from pflsweep.util.errors import UserError, in_gb, one_line
from pflsweep.util.once import warn_once

# In PyTorch's messages about a model that is too large
TOO_LARGE = re.compile("allocate|out of memory|verflow|Storage size|Numerical result out of range")
# What a partition that draws from a global generator has to do
BY_SEED = "draw from random.generator(seed, NAME), with `from pflsweep.ops import random` and the seed that it is given"
# Partitions that cut the data by owners, which may be in a column
OF_OWNERS = ("pflsweep.data.partition.natural.split", "pflsweep.data.partition.domain.split")


class Parts(NamedTuple):
    """The objects of a trial."""

    federation: Federation
    new: Federation | None  # the clients that do not train; None without such clients
    model: nn.Sequential
    task: Task
    method: Method
    plugins: dict[str, Plugin]  # by config group
    verbs: Verbs
    schedule: Schedule
    metrics: Metrics
    study: Study | None


def build(config: Config, prescribed: Prescribed | None = None) -> Parts:
    """Build all objects of a trial. Raises UserError if options do not go together."""
    train = config.train
    federation, new = build_federation(config, prescribed)
    _check_text(config.node("dataset"), config.node("model"), federation.dataset)
    model = build_model(config, federation.dataset.shape, federation.classes)
    check_precision(train.precision, federation.device.type)
    task = Task(model, train.precision)
    _require_forward_pass(config.node("model"), task, federation)
    shared = {
        "task": task,
        "opt": Sgd(train.momentum, train.weight_decay),
        # With train.steps one epoch consists of that many steps
        "epochs": train.epochs if train.steps is None else 1,
        "keys": federation.draw_keys,
    }
    method = config.node("algorithm").construct(shared)
    plugins = {group: config.node(group).construct(shared) for group in PLUGS if config.chooses(group)}
    _check_partners(config.choices, {"algorithm": method, **plugins})
    _check_private_batches(config, prescribed)
    if train.lr_of != "round":
        _check_per_client_lr(type(method), train.lr_of, config.node("algorithm"))
    verbs = Verbs.of(method, *plugins.values())
    schedule = schedule_of(train, federation, task.size)
    if prescribed is not None:
        sizes = [schedule.cohort_size(federation.clients, at) for at in range(1, schedule.rounds + 1)]
        prescribed.require_fit(federation, sizes, schedule.sampling)
    looks_at = {"method": method, "plugins": tuple(plugins.values())}
    study = config.node("study").construct(looks_at) if config.chooses("study") else None
    return Parts(federation, new, model, task, method, plugins, verbs, schedule, config.metrics, study)


def build_federation(config: Config, prescribed: Prescribed | None = None) -> tuple[Federation, Federation | None]:
    """Return the dataset cut into clients, and the federation of new clients, which do not train (None without).

    Raises UserError.
    """
    data, seed, data_seed = config.data, config.seed, config.data_seed
    root, device = find_root(data.root), device_of(config.device)
    dataset = build_dataset(config)
    if data.limit is not None:
        if data.limit >= len(dataset.y):
            warn_once(__name__, f"data.limit is {data.limit}, and {dataset.name} has {len(dataset.y)} rows: no effect")
        dataset = dataset.part(data.limit, data_seed)
    _check_prescribed(config, prescribed)
    if prescribed is None or prescribed.partition is None:
        partition = config.node("partition")

        def cut() -> Any:
            return partition.call(dataset, data_seed, root=root, device=device)

        own = not partition.path.startswith("pflsweep.")
        what = "when it cuts the dataset"
        returned = random.without_global_draws(cut, str(partition), what, remedy=BY_SEED) if own else cut()
        try:
            rows = checked_partition(returned, dataset)
        except UserError as error:
            raise UserError(f"{partition}: {error}") from error
        if own and partition.options.get("clients") not in (None, len(rows.train)):
            raise UserError(
                f"{partition} returned {len(rows.train)} clients, and partition.clients is "
                f"{partition.options['clients']}: return as many, or name that key otherwise."
            )
    else:
        rows = prescribed.rows_of(dataset, config.node("partition").options.get("clients"))
    if data.validation and rows.validation is not None:
        raise UserError(
            f"data.validation is {data.validation}, which draws validation rows, and partition has some as well: "
            "leave one of them out. A search draws its own (tune.validation)."
        )
    require_apart(dataset, rows)
    everybody = Federation(dataset, rows, validation=data.validation, seed=seed, data_seed=data_seed, device=device)
    federation, new = everybody.split_new_clients(data.new)
    if dataset.standardise:
        federation.standardise(*([] if new is None else [new]))
    if data.targets == "permuted":
        federation = federation.permuted(data.shuffle)
    federation.participation_probabilities = participation_probabilities(
        federation, config.train.sampling, config.train.sampling_alpha
    )
    if prescribed is not None:
        federation.cohorts, federation.batches = prescribed.cohorts, prescribed.batches
    return federation, new


def build_dataset(config: Config) -> Dataset:
    """Read the dataset from data.root. Raises UserError if it cannot be read or its loader returns no dataset."""
    with reading(config.choices["dataset"]):
        root, column = find_root(config.data.root), _owner_column(config)
        with one_at_a_time(root, config.choices["dataset"]) if config.data.download else nullcontext():
            dataset = config.node("dataset").call(root, config.data.download, **column)
    if not isinstance(dataset, Dataset):
        raise UserError(
            f"{config.node('dataset')}: its loader returned {type(dataset).__name__}, and has to return a Dataset, as "
            "`pack` of pflsweep.data.datasets.pack does."
        )
    if fault := dataset.fault():
        raise UserError(f"{config.node('dataset')}: {fault}.")
    return dataset


def _owner_column(config: Config) -> dict[str, Any]:
    """Return the argument that names to a dataset's loader the column of the rows' owners; {} without such a column.

    Raises UserError if the partition names one and the dataset has no columns.
    """
    partition, dataset = config.node("partition"), config.node("dataset")
    # A user's own partition may mean something else by this key
    column = partition.options.get("column") if partition.path in OF_OWNERS else None
    if column is None:
        return {}
    if "owner_column" not in inspect.signature(dataset.load()).parameters:
        raise UserError(
            f"partition.column is '{column}', but {dataset} has no columns: csv, npz and huggingface have. "
            "Leave the key out, or use one of these."
        )
    return {"owner_column": column}


def _check_prescribed(config: Config, prescribed: Prescribed | None) -> None:
    """Raise UserError if a config does not go with what is prescribed."""
    data = config.data
    if data.prescribed != (None if prescribed is None else prescribed.digest):
        raise UserError(
            f"data.prescribed is {as_override(data.prescribed)}: it is not a key to set, but the hash of a partition, "
            "cohorts or batches that pflsweep.run is given in Python: call it with the same ones."
        )
    if prescribed is None:
        return
    if data.limit is not None and (prescribed.partition is not None or prescribed.batches is not None):
        raise UserError(
            f"data.limit is {data.limit}, which draws a part of the dataset, and a partition or batches that are given "
            "name rows of the whole: leave data.limit out."
        )
    if prescribed.cohorts is not None and config.train.first_round == "all":
        raise UserError(
            "train.first_round is 'all', and cohorts are prescribed: put all clients into the first of them, and leave "
            "train.first_round out."
        )
    if data.new and (prescribed.cohorts is not None or prescribed.batches is not None):
        raise UserError(
            f"data.new is {data.new}, which draws clients that do not train: with cohorts or batches, leave it out."
        )


def build_model(config: Config, shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """Build the initial model, whose weights depend on the seed alone: all methods begin with the same.

    Raises UserError if it is too large, or has no blocks, of which some methods share a part.
    """
    check_size(config, shape, classes)
    try:
        with random.seeded_for(config.seed, "model"):
            model = config.node("model").call(shape, classes)
        outputs = head_of(model).out_features
    except MalformedError as error:
        raise UserError(f"{config.node('model')}: {error}.") from error
    except (RuntimeError, TypeError, OverflowError, MemoryError) as error:
        if not isinstance(error, MemoryError) and not TOO_LARGE.search(str(error)):
            raise
        said = str(error).partition("\n")[0]
        raise UserError(f"{config.node('model')} is too large with its options: {said}") from error
    if outputs != classes:
        raise UserError(
            f"{config.node('model')}: its head has {outputs} outputs, and the dataset has {classes} classes: take "
            "their number from the argument `classes`."
        )
    if why := unsuited(model):
        raise UserError(f"{config.node('model')}: {why}.")
    return model


def _require_forward_pass(node: Node, task: Task, federation: Federation) -> None:
    """Raise UserError if a model does not take the dataset's rows, or draws from PyTorch's own generator."""
    rows = torch.from_numpy(federation.rows["train"][0][:2]).to(federation.device)
    x = federation.gather(rows)[0].cpu()
    draws = (
        f"{node}: its blocks draw from PyTorch's own generator (as F.dropout and nn.RReLU do), in evaluation too: "
        "use pflsweep.models.layers.Dropout."
    )
    with torch.no_grad(), context(), random.no_unseeded_draws(draws):
        try:
            # The blocks run as modules: `task.logits` of a dense model would flatten, and accept, any input
            task.logits_from(task.vector(task.model), x, len(task.blocks))
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            # The file and line are named only where they are in the user's code
            place = trace.line(error) if trace.is_shortened(error) else ""
            raise UserError(
                f"{node} does not take the rows of this dataset, x {[2, *x.shape[1:]]}: {one_line(error)}{place}"
            ) from error


def check_size(config: Config, shape: tuple[int, ...], classes: int) -> None:
    """Raise UserError if a model and the least that its training needs exceed the device's memory.

    Weights are counted on PyTorch's meta device, without memory. A system that overcommits memory would let the model
    be built, and kill the process later without a message.
    """
    try:
        with random.seeded_for(config.seed, "model"), torch.device("meta"):
            model = config.node("model").call(shape, classes)
        count = sum(math.prod(weight.shape) for weight in model.parameters())
    except UserError:
        raise
    except OverflowError as error:
        raise UserError(f"{config.node('model')} is too large with its options: {one_line(error)}.") from error
    except Exception:
        # A user's own model may need the values of its weights: then its size is not known before it is built
        return
    device = torch.device(device_of(config.device))
    least, has = COPIES * 4 * count, memory.total(device)
    if least > has:
        options = ", ".join(f"model.{key}={as_override(value)}" for key, value in config.node("model").options.items())
        raise UserError(
            f"{config.node('model')} has {count:,} parameters with its options ({options or 'none'}), "
            f"{in_gb(4 * count)} in 32 bits. To train it takes {COPIES} times as much at least (weights, their "
            f"gradient and a client's update), {in_gb(least)}, and this machine's {device.type} has "
            f"{in_gb(has)} of memory. Use a smaller model."
        )


def _check_text(dataset: Node, model: Node, data: Dataset) -> None:
    """Raise UserError unless texts meet a model of word vectors, with one for each token, that reads their padding."""
    words, tokens = model.options.get("vocabulary"), data.vocabulary
    if words is None and tokens is not None:
        raise UserError(f"{dataset} is text and {model} has no word vectors. Use model=fasttext, or char_lstm.")
    if words is not None and tokens is None:
        raise UserError(f"{model} reads text, and {dataset} is not text. Use another model, such as model=mlp.")
    if words is not None and tokens is not None and words < tokens:
        raise UserError(f"model.vocabulary is {words}, but {dataset} has {tokens} token ids. Use at least as many.")
    # Windows of one text are full: there 0 is a character
    if model.options.get("padding") == "none" and not data.overlap and bool((data.x[:, -1] == 0).any()):
        raise UserError(
            f"{dataset} fills up short texts with id 0, and {model} forgets a text after which many of them follow. "
            "Use model.padding=first, or model=fasttext."
        )


def _check_partners(options: dict[str, str], chosen: dict[str, Any]) -> None:
    """Raise UserError if a plug-in does not go with the method or with another plug-in. options: by group."""
    for group, plugin in chosen.items():
        if group == "algorithm":
            continue
        for other, partner in chosen.items():
            reason = plugin.refusal(type(partner)) if other != group else ""
            if reason:
                partners = [name for name, cls in _methods().items() if not plugin.refusal(cls)]
                good = f" It goes with {', '.join(partners)}." if other == "algorithm" else ""
                pair = f"{group}={options[group]} does not go with {other}={options[other]}"
                raise UserError(f"{pair}: {reason}.{good}")


def dp_sgd(config: Config) -> tuple[float, float] | None:
    """Return clip and noise of a config's DP-SGD, as ClientData.poisson takes them; None without it."""
    if not config.chooses("privacy"):
        return None
    options = config.node("privacy").options
    # A plug-in of one's own may have others
    return options.get("clip", 1.0), options.get("sigma", 1.0)


def _check_private_batches(config: Config, prescribed: Prescribed | None) -> None:
    """Raise UserError if DP-SGD is combined with keys about the order of batches: it draws its batches itself."""
    if config.chooses("privacy") and prescribed is not None and prescribed.batches is not None:
        raise UserError(
            f"batches are prescribed, but {config.node('privacy')} draws its own (Poisson sampling), which "
            "its guarantee rests on. Leave one of them out."
        )
    cut = {"shuffle": (config.train.shuffle, "epoch"), "last_batch": (config.train.last_batch, "keep")}
    asked = [(key, value) for key, (value, usual) in cut.items() if value != usual]
    if config.chooses("privacy") and asked:
        key, value = asked[0]
        raise UserError(
            f"train.{key} is '{value}', but {config.node('privacy')} draws each batch from all of a client's samples "
            f"(Poisson sampling): there is no order that is cut. Leave train.{key} out."
        )


def _check_per_client_lr(cls: type[Method], lr_of: str, algorithm: Node) -> None:
    """Raise UserError if clients would have their own learning rates in a method that reads one for all."""
    if cls.supports_per_client_lr:
        why = unexamined(cls, "supports_per_client_lr")
    else:
        known = [name for name, one in _methods().items() if one.supports_per_client_lr]
        why = f"{algorithm} takes one learning rate for all clients of a round. It goes with {', '.join(known)}"
    if why:
        raise UserError(f"train.lr_of is '{lr_of}', but {why}. With others use train.lr_of=round.")


def _methods() -> dict[str, Any]:
    """Return the class of each algorithm in conf/, by option."""
    files = option_files("algorithm")
    return {name: Node.of("algorithm", name, read_option(file)).load() for name, file in files.items()}
