"""Build the objects of a trial from its checked config."""

import inspect
import logging
import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hydra.utils import instantiate

from pflsweep.config.compose import Config, compose, folders, option_files, read_option, unknown_key
from pflsweep.config.identity import portable
from pflsweep.config.keys import PLUGS, as_override, flat, put
from pflsweep.config.node import Node
from pflsweep.config.options import Train
from pflsweep.config.schema import check
from pflsweep.util.errors import UserError, one_line

# This module imports PyTorch, which a plan does without
if TYPE_CHECKING:
    from pflsweep.data.prescribed import Prescribed

log = logging.getLogger(__name__)

# In PyTorch's messages about a model that is too large
TOO_LARGE = re.compile("allocate|out of memory|verflow|Storage size|Numerical result out of range")
COPIES = 3  # copies of a model's weights that training one client holds at least
CROWD = 4  # worker processes allowed per core: slower than one a core, but harmless
FASTEST = 1_000_000  # training samples per second, more than any trial of the pages in reports/ trains
YEAR = 365.25 * 86400  # seconds
TOO_LONG = 10  # years
# Partitions that cut the data by owners, which may be in a column
OF_OWNERS = ("pflsweep.data.partition.natural.split", "pflsweep.data.partition.domain.split")


class Parts(NamedTuple):
    """The objects of a trial."""

    federation: Any
    new: Any  # the federation of the clients that do not train; None without such clients
    model: Any
    task: Any
    method: Any
    plugins: dict[str, Any]  # by config group
    verbs: Any
    schedule: Any
    metrics: Any
    study: Any  # None without a study


def build(config: Config, prescribed: "Prescribed | None" = None) -> Parts:
    """Build all objects of a trial. Raises UserError where options do not go together."""
    from pflsweep.methods.optimizer import Sgd
    from pflsweep.methods.protocol import Verbs
    from pflsweep.methods.task import Task

    train = config.train
    federation, new = build_federation(config, prescribed)
    _check_text(config.node("dataset"), config.node("model"), federation.dataset.vocabulary)
    model = build_model(config, federation.dataset.shape, federation.classes)
    _check_precision(train.precision, federation.device.type)
    task = Task(model, train.precision)
    shared = {
        "task": task,
        "opt": Sgd(train.momentum, train.weight_decay),
        # With train.steps one epoch consists of that many steps
        "epochs": train.epochs if train.steps is None else 1,
        "keys": federation.draw_keys,
    }
    method = _construct(config.node("algorithm"), shared)
    plugins = {group: _construct(config.node(group), shared) for group in PLUGS if config.chooses(group)}
    _check_partners(config.choices, {"algorithm": method, **plugins})
    _check_private_batches(config, prescribed)
    if train.lr_of != "round" and not method.own_lr:
        raise UserError(_no_own_lr(train.lr_of, config.node("algorithm")))
    verbs = Verbs.of(method, *plugins.values())
    schedule = _schedule(train, federation, task.size)
    if prescribed is not None:
        prescribed.require_fit(federation, schedule.cohort(federation.clients), schedule.rounds, schedule.sampling)
    looks_at = {"method": method, "plugins": tuple(plugins.values())}
    study = _construct(config.node("study"), looks_at) if config.chooses("study") else None
    return Parts(federation, new, model, task, method, plugins, verbs, schedule, config.metrics, study)


def build_federation(config: Config, prescribed: "Prescribed | None" = None) -> tuple[Any, Any]:
    """Return the dataset cut into clients, and the federation of new clients, which do not train (None without).

    Raises UserError.
    """
    from pflsweep.data.datasets.files import find_root
    from pflsweep.data.federation import Federation
    from pflsweep.data.participation import participation_probabilities

    data, seed, data_seed = config.data, config.seed, config.data_seed
    root, device = find_root(data.root), device_of(config)
    dataset = build_dataset(config)
    if data.limit is not None:
        dataset = dataset.part(data.limit, data_seed)
    _check_prescribed(config, prescribed)
    if prescribed is None or prescribed.partition is None:
        rows = _call(config.node("partition"), dataset, data_seed, root=root, device=device)
    else:
        rows = prescribed.rows_of(dataset, config.node("partition").options.get("clients"))
    if data.validation and rows.validation is not None:
        raise UserError(
            f"data.validation is {data.validation}, which draws validation rows, and partition has some as well: "
            "leave one of them out."
        )
    everybody = Federation(dataset, rows, validation=data.validation, seed=seed, data_seed=data_seed, device=device)
    federation, new = everybody.newcomers(data.new)
    if data.targets == "permuted":
        federation = federation.permuted(data.shuffle)
    federation.chances = participation_probabilities(federation, config.train.sampling, config.train.sampling_alpha)
    if prescribed is not None:
        federation.cohorts, federation.batches = prescribed.cohorts, prescribed.batches
    return federation, new


def _check_prescribed(config: Config, prescribed: "Prescribed | None") -> None:
    """Raise UserError where a config does not go with what is prescribed."""
    data = config.data
    if data.prescribed != (None if prescribed is None else prescribed.digest):
        raise UserError(
            f"data.prescribed is {as_override(data.prescribed)}: it is no key to set, but the hash of a partition, "
            "cohorts or batches that pflsweep.run is given in Python: call it with the same ones."
        )
    if prescribed is None:
        return
    if prescribed.cohorts is not None and config.train.first_round == "all":
        raise UserError(
            "train.first_round is 'all', and cohorts are prescribed: put all clients into the first of them, and leave "
            "train.first_round out."
        )
    if data.new and (prescribed.cohorts is not None or prescribed.batches is not None):
        raise UserError(
            f"data.new is {data.new}, which draws clients that do not train: with cohorts or batches, leave it out."
        )


def build_dataset(config: Config) -> Any:
    """Read the dataset from data.root. Raises UserError where it cannot be read."""
    from pflsweep.data.datasets.files import find_root, reading

    with reading(config.choices["dataset"]):
        root, column = find_root(config.data.root), _owner_column(config)
        return _call(config.node("dataset"), root, config.data.download, **column)


def _owner_column(config: Config) -> dict[str, Any]:
    """Return the argument that tells a dataset's loader the column of the rows' owners; {} without such a column.

    Raises UserError where the partition names one and the dataset has no columns.
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


def _check_text(dataset: Node, model: Node, tokens: int | None) -> None:
    """Raise UserError unless texts meet a model of word vectors, with one for each token. tokens: their number; None
    where the dataset is no text.
    """
    words = model.options.get("vocabulary")
    if words is None and tokens is not None:
        raise UserError(f"{dataset} is text and {model} has no word vectors. Use model=fasttext, or char_lstm.")
    if words is not None and tokens is None:
        raise UserError(f"{model} reads texts and {dataset} is none. Use another model, such as model=mlp.")
    if words is not None and tokens is not None and words < tokens:
        raise UserError(f"model.vocabulary is {words}, but {dataset} has {tokens} token ids. Use at least as many.")


def config_of_model(name: str, node: Any, seed: int, config_dir: str | Path | None = None) -> Config:
    """Return a config with the model of a record. name: the record's meta["model"]. node: `model` in its config.

    A record may come from somebody else. So code is imported by the option's file alone, in conf/model or config_dir;
    it has to be the code that the record names, and the record's other values have to pass the option's rules.

    Raises UserError where they do not.
    """
    if not isinstance(node, dict):
        raise UserError(f"its config says model: {node!r}, and not a model's options.")
    option = name.removesuffix(f".{node.get('name')}")
    places = [folder / "model" for folder in folders(config_dir)]
    # Looked up in a list and not joined to a path, since a record's option name may contain ".."
    known = {str(file.relative_to(place).with_suffix("")) for place in places for file in place.rglob("*.yaml")}
    if option not in known:
        where = f"there is none in '{config_dir}' either" if config_dir else "name the folder that has it: config_dir"
        raise UserError(
            f"model={option} is none of pflsweep's options, and code is never taken from a record: {where} "
            '(as with --config-dir). For example: result.load_global(config_dir="my_conf").'
        )
    config = compose([f"model={option}", "tracking=none"], config_dir)
    allowed, given = flat(portable({"model": config.reference["model"]}, config.choices)), flat({"model": node})
    for key, value in given.items():
        if key not in allowed:
            raise UserError(unknown_key(key, list(allowed)))
        if key == "model" and value != allowed[key]:
            path = config.reference["model"]["_target_"]
            raise UserError(
                f"the record's model was built by {value!r}, but model={option} is {allowed[key]!r} ({path}). What a "
                "record names is not run: if that code is yours, build the model with it and load "
                "`result.record.models()` into it."
            )
        if key != "model":
            put(config.values, key, value)
    config.values["seed"] = seed
    check(config)
    return config


def build_model(config: Config, shape: tuple[int, ...], classes: int) -> Any:
    """Build the initial model, whose weights depend on the seed alone: all methods begin with the same.

    Raises UserError where it is too large, or has no blocks, of which some methods share a part.
    """
    from pflsweep.models.blocks import head_of, unsuited
    from pflsweep.ops import random

    check_size(config, shape, classes)
    try:
        with random.first_model(config.seed, "model"):
            model = _call(config.node("model"), shape, classes)
    except (RuntimeError, TypeError, OverflowError, MemoryError) as error:
        if not isinstance(error, MemoryError) and not TOO_LARGE.search(str(error)):
            raise
        said = str(error).partition("\n")[0]
        raise UserError(f"{config.node('model')} is too large with its options: {said}") from error
    try:
        head_of(model)
    except TypeError as error:
        raise UserError(f"{config.node('model')}: {error}.") from error
    if why := unsuited(model):
        raise UserError(f"{config.node('model')}: {why}.")
    return model


def check_size(config: Config, shape: tuple[int, ...], classes: int) -> None:
    """Raise UserError where a model and the least that its training needs exceed the device's memory.

    Weights are counted on PyTorch's meta device, without memory. A system that overcommits memory would let the model
    be built, and kill the process later without a message.
    """
    import torch

    from pflsweep.ops import memory, random

    try:
        with random.first_model(config.seed, "model"), torch.device("meta"):
            model = _call(config.node("model"), shape, classes)
        count = sum(math.prod(weight.shape) for weight in model.parameters())
    except UserError:
        raise
    except OverflowError as error:
        raise UserError(f"{config.node('model')} is too large with its options: {one_line(error)}.") from error
    except Exception:
        # A user's own model may need the values of its weights: then its size is not known before it is built
        return
    device = torch.device(device_of(config))
    least, has = COPIES * 4 * count, memory.total(device)
    if least > has:
        options = ", ".join(f"model.{key}={as_override(value)}" for key, value in config.node("model").options.items())
        raise UserError(
            f"{config.node('model')} has {count:,} parameters with its options ({options or 'none'}), "
            f"{_bytes(4 * count)} in 32 bits. To train it takes {COPIES} times as much at least (weights, their "
            f"gradient and a client's update), {_bytes(least)}, and this machine's {device.type} has {_bytes(has)} of "
            "memory. Use a smaller model."
        )


def _bytes(count: float) -> str:
    """Return a number of bytes as text, in GB or TB."""
    return f"{count / 1e12:,.1f} TB" if count >= 1e12 else f"{count / 1e9:.1f} GB"


def _call(node: Node, *args: Any, **offered: Any) -> Any:
    """Call the function that a node names, with the node's options and those of `offered` that it has parameters for.

    Raises UserError where they do not fit.
    """
    function: Callable = node.load()
    if not callable(function):
        raise UserError(f"{node}: {node.path} is no function or class, but {_kind(function)}.")
    try:
        takes = inspect.signature(function).parameters
    except ValueError as error:
        # Some built-in functions have no signature
        raise UserError(f"{node}: {node.path} cannot be used: {one_line(error)}.") from error
    if taken := node.options.keys() & offered.keys():
        key = min(taken)
        raise UserError(
            f"{node.group}.{key}: '{key}' is an argument that pflsweep passes to {node.path} itself "
            f"({offered[key]!r} here). Give the option of {node} another name."
        )
    given = {key: value for key, value in offered.items() if key in takes}
    try:
        inspect.signature(function).bind(*args, **node.options, **given)
    except TypeError as error:
        raise UserError(f"{node}: its keys do not fit {node.path} ({error}).") from error
    return _maker(node)(*args, **given)


def _kind(found: Any) -> str:
    """Say what an object that cannot be called is."""
    return "a module: name a function in it" if inspect.ismodule(found) else f"a value of type {type(found).__name__}"


def _maker(node: Node) -> Callable:
    """Return the function or class of a node with its options filled in, not yet called.

    The caller calls it, since Hydra would wrap its exceptions, UserError among them. A node inside the node, such as
    the embedder of partition=latent, becomes a function with its options filled in as well.
    """
    # Loaded first for the sake of its errors: Hydra's name neither option nor remedy
    node.loaded()
    return instantiate(_as_partial({"_target_": node.path, **node.options}), _convert_="all")


def _as_partial(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    inner = {key: _as_partial(each) for key, each in value.items()}
    return {**inner, "_partial_": True} if "_target_" in value else inner


def _construct(node: Node, shared: dict[str, Any]) -> Any:
    fields = node.load().__dataclass_fields__
    return _maker(node)(**{name: value for name, value in shared.items() if name in fields})


def _check_partners(options: dict[str, str], chosen: dict[str, Any]) -> None:
    """Raise UserError where a plug-in does not go with the method or with another plug-in. options: by group."""
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


def _check_private_batches(config: Config, prescribed: "Prescribed | None") -> None:
    """Raise UserError where DP-SGD is combined with keys about the order of batches: it draws its batches itself."""
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


def _no_own_lr(lr_of: str, algorithm: Node) -> str:
    """Return the message for clients with their own learning rates in a method that reads one for all."""
    known = [name for name, cls in _methods().items() if cls.own_lr]
    return (
        f"train.lr_of is '{lr_of}', but {algorithm} takes one learning rate for all clients of a round. It goes with "
        f"{', '.join(known)}; with others use train.lr_of=round."
    )


def _methods() -> dict[str, Any]:
    """Return the class of each algorithm in conf/, by option."""
    files = option_files("algorithm")
    return {name: Node.of("algorithm", name, read_option(file)).load() for name, file in files.items()}


def _schedule(train: Train, federation: Any, size: int) -> Any:
    """Return the trial's schedule. size: parameters of the model. Raises UserError where no machine could run it."""
    from pflsweep.data.batching import Batching
    from pflsweep.engine.simulation import Schedule

    usual = 1 if federation.device.type == "cpu" else federation.clients
    chunk = usual if train.chunk == "auto" else int(train.chunk)
    names = [name for name in Schedule.__dataclass_fields__ if name not in ("chunk", "workers", "batching")]
    batching = Batching(train.shuffle, train.last_batch, train.steps)
    schedule = Schedule(**{name: getattr(train, name) for name in names}, chunk=chunk, batching=batching)
    cohort = schedule.cohort(federation.clients)
    samples = sum(map(schedule.samples, federation.sizes.tolist()))
    _check_end(train, cohort / federation.clients * samples)
    return replace(schedule, workers=_workers(train, federation.device, cohort, size))


def _check_end(train: Train, samples: float) -> None:
    """Raise UserError where the last round's learning rate would overflow, or all rounds would take years.

    samples: training samples of a round.
    """
    last = math.log10(train.lr) + (train.rounds - 1) * math.log10(train.lr_decay)
    if last >= 38:
        raise UserError(
            f"train.lr_decay is {train.lr_decay:g}: after {train.rounds} rounds the learning rate would be about "
            f"1e{last:.0f}, more than 32 bits hold. Use at most 1, or fewer rounds."
        )
    images = train.rounds * samples
    years = images / FASTEST / YEAR
    if years > TOO_LONG:
        turn = f"train.epochs {train.epochs}" if train.steps is None else f"train.steps {train.steps}"
        raise UserError(
            f"train.rounds is {train.rounds} and {turn}: about {images:.2g} training "
            f"samples in all, which are {years:,.0f} years at {FASTEST:,} a second. Use fewer."
        )


def _workers(train: Train, device: Any, cohort: int, size: int) -> int:
    """Return how many processes train a cohort: by default as many as this process has threads.

    They are never more than the cohort has clients. With fewer than half as many clients as cores, threads are faster.
    Raises UserError on several workers with several threads each, which a fork cannot have, and on more workers than
    the machine's cores and memory can hold.
    """
    import torch

    from pflsweep.engine.workers import possible

    threads, workers = train.threads, None if train.workers == "auto" else int(train.workers)
    if workers is not None:
        _check_workers(workers, device, cohort, size)
    if not possible(device):
        return 1
    if workers is None:
        cores = torch.get_num_threads()
        return min(cores, cohort) if threads in ("auto", 1) and 2 * cohort >= cores else 1
    if workers > 1 and threads not in ("auto", 1):
        raise UserError(
            f"train.workers is {workers} and train.threads {threads}, but workers are processes of one thread each: "
            "use train.threads=1, or train.workers=1."
        )
    return min(workers, cohort)


def _check_workers(workers: int, device: Any, cohort: int, size: int) -> None:
    """Raise UserError where `workers` processes are more than the machine's cores and memory can hold.

    size: parameters of the model.
    """
    from pflsweep.engine.workers import available
    from pflsweep.ops import memory

    most = CROWD * available()
    if workers > most:
        raise UserError(
            f"train.workers is {workers}: each is a process of one thread, and this machine has {available()} cores "
            f"for them, so that more than {most} ({CROWD} a core) would only wait for each other. A round has "
            f"{cohort} clients, which is another limit. Use train.workers=auto, or at most {most}."
        )
    processes = min(workers, cohort)
    needed, has = processes * COPIES * 4 * size, memory.total(device)
    if device.type == "cpu" and processes > 1 and needed > has:
        raise UserError(
            f"train.workers is {workers}: {processes} processes with {COPIES} times the model's {_bytes(4 * size)} "
            f"each (weights, their gradient and an update) take {_bytes(needed)}, and this machine has {_bytes(has)}: "
            f"use at most train.workers={max(1, int(has // (COPIES * 4 * size)))}."
        )


def _check_precision(name: str, device: str) -> None:
    """Raise UserError where a device cannot compute gradients in this precision."""
    if name == "tf32" and device == "cpu":
        raise UserError("train.precision is 'tf32', which is of NVIDIA GPUs. On a CPU use fp32 or bf16.")
    if name == "bf16" and device == "cpu":
        _tell_emulated()


# Cached to warn once a process, since a sweep builds many trials
@cache
def _tell_emulated() -> None:
    """Warn where PyTorch emulates bf16 in software, which is slower than fp32 (docs/speed.md)."""
    import torch

    # PyTorch 2.10 has no such function, and on ARM its keys are others: no warning then
    can: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()
    if not can.get("avx512_bf16", True) and not can.get("amx_bf16"):
        log.warning("train.precision=bf16: this processor has no AVX512-BF16 or AMX; here fp32 is the faster one")


def device_of(config: Config) -> str:
    """Return "cpu" or "cuda". Raises UserError where the config asks for a device that is not there."""
    import torch

    name = config.device
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("device is 'cuda', but PyTorch sees no GPU here. Use device=cpu or device=auto.")
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name
