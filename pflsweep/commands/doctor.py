"""`pflsweep doctor`: check what is installed, found and reachable here, and say how to mend what is wrong."""

import argparse
import importlib.metadata
import os
import platform
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from pflsweep import __version__
from pflsweep.commands.parser import Parser
from pflsweep.config.compose import Config, compose_both
from pflsweep.config.hydra_errors import SweepOnly
from pflsweep.config.hydra_loader import option_files
from pflsweep.config.schema import check
from pflsweep.engine.workers import usable_cores
from pflsweep.sweep.command import check_command
from pflsweep.util import files, processor
from pflsweep.util.errors import UserError, counted, in_gb, one_line, without_password

OK, NOTE, WRONG = "ok", "note", "WRONG"
LITTLE = 1e9  # bytes; less free space is reported, since a record with its checkpoint may take that much
EXTRAS = {"privacy": "privacy=dp_sgd", "cluster": "PostgreSQL, Dask and Slurm", "hf": "dataset=huggingface"}
PAGE = Path("pflsweep-gpu.md")


class Finding(NamedTuple):
    """One line of the result. state: OK, NOTE or WRONG. said: what was found, and how to mend what is wrong."""

    state: str
    said: str


class CommandConfig(NamedTuple):
    """The config of a trial and the keys of a sweep that are checked, as another command would use them."""

    config: Config
    sweep: dict[str, Any]


def main(argv: list[str]) -> int:
    """Print what was found. Return 1 if something is wrong, else 0. Raises UserError on bad input."""
    asked = _parser().parse_args(argv)
    if asked.gpu:
        return _gpu(asked)
    try:
        config, sweep = compose_both(asked.overrides, asked.config_dir)
    except SweepOnly as error:
        raise UserError(f"doctor: {error.what}, and doctor checks one config: give one of them.") from error
    check(config)
    check_command(sweep)
    wrong = 0
    for title, look in CHECKS.items():
        print(title, flush=True)
        for finding in look(CommandConfig(config, sweep)):
            wrong += finding.state == WRONG
            print(f"  {finding.state:6}{finding.said}", flush=True)
    print(f"\n{wrong} of these {'is' if wrong == 1 else 'are'} wrong." if wrong else "\nNothing is wrong.")
    return 1 if wrong else 0


def _parser() -> argparse.ArgumentParser:
    about = "Say what is installed, found and reachable here, what is wrong (then it exits with 1), and how to mend it."
    parser = Parser(prog="pflsweep doctor", description=about)
    parser.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="look with these, such as tracking.uri=http://host:5000"
    )
    gpu = "on a GPU: the conformance suite and speeds, at most ten minutes, as a page to paste"
    parser.add_argument("--gpu", action="store_true", help=gpu)
    parser.add_argument("--out", type=Path, default=PAGE, metavar="FILE", help=f"the page of --gpu ({PAGE})")
    parser.add_argument("--config-dir", "-cd", default=None, help="a folder with options of your own")
    return parser


def _gpu(asked: argparse.Namespace) -> int:
    """Write the page of a GPU. Return 1 if a property failed, else 0. Raises UserError without a usable GPU."""
    import torch

    from pflsweep.commands.gpu_page import MINUTES, device_name, page, processes

    if not torch.cuda.is_available():
        raise UserError(f"doctor --gpu: {_without_cuda() or 'PyTorch sees no GPU here.'}")
    if asked.out.is_dir() or not os.access(asked.out.absolute().parent, os.W_OK):
        raise UserError(f"--out {asked.out} cannot be written to: name a file in a folder where you may write.")
    print(f"On {device_name('cuda')}, for at most {MINUTES} minutes. Nothing else should run there.", flush=True)
    text, failed = page("cuda", say=lambda line: print(line, flush=True), at_once=processes("cuda"))
    # Printed first, since it took minutes and the disk may be full
    print(f"\n{text}", flush=True)
    with files.writing(asked.out.absolute().parent, "--out FILE"):
        files.write_text(asked.out, text)
    print(f"{asked.out} has this page. Please paste it into an issue of pflsweep.")
    return 1 if failed else 0


def _versions(command: CommandConfig) -> Iterator[Finding]:
    """Yield the installed versions, and those that do not satisfy pflsweep's requirements."""
    from packaging.requirements import Requirement

    from pflsweep.trial.metadata import commit

    where = Path(__file__).parents[1]
    yield Finding(
        OK, f"pflsweep {__version__}, {f'commit {found}' if (found := commit()) else 'a release'}, in {where}"
    )
    yield Finding(OK, f"Python {platform.python_version()} on {platform.platform()}")
    try:
        wanted = [Requirement(text) for text in importlib.metadata.requires("pflsweep") or ()]
    except importlib.metadata.PackageNotFoundError:
        yield Finding(NOTE, "pflsweep was not installed by pip, so that versions of libraries cannot be compared")
        return
    fine, lost = [], dict[str, list[str]]()
    for each in wanted:
        extra = next((name for name in EXTRAS if each.marker and f'"{name}"' in str(each.marker)), "")
        if each.marker and not each.marker.evaluate({"extra": extra}):
            # Only needed for development
            continue
        version = _version(each.name)
        if version is None and extra:
            lost.setdefault(extra, []).append(each.name)
        elif version is None or not each.specifier.contains(version, prereleases=True):
            has = f"{each.name} is {version}" if version else f"{each.name} is not installed"
            yield Finding(
                WRONG, f"{has}, and pflsweep needs {each.specifier}: pip install '{each.name}{each.specifier}'"
            )
        else:
            fine.append(f"{each.name} {version}")
    yield Finding(OK, ", ".join(fine))
    for extra, names in lost.items():
        yield Finding(NOTE, f"{', '.join(names)} not installed, for {EXTRAS[extra]}: pip install 'pflsweep[{extra}]'")


def _version(name: str) -> str | None:
    """Return the version of an installed library; None if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _devices(command: CommandConfig) -> Iterator[Finding]:
    """Yield the processor and the GPUs that PyTorch can use."""
    import torch

    from pflsweep.ops import memory
    from pflsweep.trial.device import device_of

    cores, size = usable_cores(), memory.total(torch.device("cpu"))
    yield Finding(OK, f"CPU: {processor.name()}, {counted(cores, 'core')}, {in_gb(size)} of memory")
    if not torch.cuda.is_available():
        why = _without_cuda()
        yield Finding(WRONG, why) if why else Finding(OK, "no GPU: training is on the CPU")
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        has = torch.cuda.get_device_properties(number)
        name = f"GPU {number}: {has.name}, {in_gb(has.total_memory)}"
        try:
            (torch.ones(2, 2, device=f"cuda:{number}") @ torch.ones(2, 2, device=f"cuda:{number}")).sum().item()
            yield Finding(OK, name)
        except RuntimeError as error:
            yield Finding(WRONG, f"{name}: PyTorch cannot compute there ({one_line(error)[:200]}). {REINSTALL}")
    try:
        yield Finding(OK, f"device={command.config.device} is {device_of(command.config.device)}")
    except UserError as error:
        yield Finding(WRONG, str(error))


REINSTALL = "Install PyTorch for its driver: see https://pytorch.org/get-started"


def _without_cuda() -> str:
    """Return why PyTorch sees no GPU although the machine has one; "" if it has none."""
    import torch

    tool = shutil.which("nvidia-smi")
    listed = subprocess.run([tool, "-L"], capture_output=True, text=True).stdout.strip() if tool else ""
    if not listed.startswith("GPU"):
        return ""
    first = listed.splitlines()[0].partition(" (")[0]
    build = f"is made for CUDA {torch.version.cuda}" if torch.version.cuda else "is made for CPUs alone"
    return f"{first} is here, but PyTorch {torch.__version__} {build} and does not see it. {REINSTALL}"


def _data(command: CommandConfig) -> Iterator[Finding]:
    """Yield whether the chosen dataset can be read, and which of the others are there."""
    from pflsweep.data.datasets.files import find_root
    from pflsweep.trial.build import build_dataset

    root = find_root(command.config.data.root)
    yield Finding(OK, f"looked for in {root}{'' if root.is_dir() else ', which is not there'}")
    option = command.config.choices["dataset"]
    try:
        data = build_dataset(command.config)
        yield Finding(OK, f"dataset={option}: {len(data.y):,} samples of {data.classes} classes can be read")
    except UserError as error:
        yield Finding(WRONG, str(error))
    there = [name for name, place in _places().items() if _has_files(root / place)]
    others = [name for name in _places() if name not in there]
    yield Finding(OK, f"there are: {', '.join(there) or 'none'}; digits and synthetic need no files")
    if others:
        yield Finding(
            NOTE, f"not there: {', '.join(others)}; data.download=true fetches most of them when they are used"
        )


def _has_files(place: Path) -> bool:
    """Return whether a file or a folder with something in it is there. A download that failed leaves an empty one."""
    return any(place.iterdir()) if place.is_dir() else place.exists()


def _places() -> dict[str, str]:
    """Return the place of each dataset in the data folder."""
    from pflsweep.data.datasets import agnews, cifar, cinic10, mnist, office_home, organamnist, svhn, tiny_imagenet

    known = {
        **{name: f"{source.cls}/raw" for name, source in mnist.SOURCES.items()},
        **{name: source[1] for name, source in cifar.SOURCES.items()},
        **{name: f"{agnews.FOLDER}/{names[0][0]}" for name, names in agnews.SOURCES.items()},
        "organamnist": organamnist.FILE,
        "office_home": office_home.FOLDER,
        "tiny_imagenet": tiny_imagenet.FOLDER,
        "svhn": svhn.FOLDER,
        "cinic10": cinic10.FOLDER,
        "emnist": "EMNIST/raw",
        "stl10": "stl10_binary",
    }
    return {name: known[name] for name in option_files("dataset") if name in known}


def _storage(command: CommandConfig) -> Iterator[Finding]:
    """Yield whether records, the database of sweeps and MLflow's store can be used."""
    from pflsweep.sweep.storage import check_address
    from pflsweep.tracking.address import sqlite_file
    from pflsweep.tracking.failures import as_user_error
    from pflsweep.tracking.store import check_server, check_store

    runs = Path(command.config.paths.runs).absolute()
    try:
        with tempfile.TemporaryFile(dir=files.existing(runs)):
            count = len(list(runs.glob("*/meta.json")))
        yield Finding(OK, f"records: {count} in {runs}" if count else f"records: none so far in {runs}")
    except OSError as error:
        why = f"{runs} cannot be written to ({error.strerror}). Choose another folder: paths.runs=FOLDER"
        yield Finding(WRONG, f"records: {why}")
    url, tracking = command.sweep["workers"]["storage"], command.config.tracking
    try:
        check_address(url, tracking)
        if url is None:
            yield from _database(runs / "sweeps" / "optuna.db")
        elif file := sqlite_file(url):
            yield from _database(file)
        else:
            check_server(url)
            yield Finding(OK, f"sweeps: {without_password(url)} answers")
    except UserError as error:
        yield Finding(WRONG, f"sweeps: {error}")
    except Exception as error:
        # SQLAlchemy and the drivers raise errors of their own
        said = without_password(one_line(error)[:200])
        yield Finding(
            WRONG, f"sweeps: {without_password(str(url))} cannot be used ({said}): start it, or mend its address"
        )
    if tracking.backend == "none":
        yield Finding(OK, "tracking: none")
        return
    try:
        yield Finding(OK, f"tracking: {check_store(tracking)}")
    except UserError as error:
        yield Finding(WRONG, str(error))
    except Exception as error:
        # Such as an address that cannot be parsed
        yield Finding(WRONG, str(as_user_error(str(tracking.uri), error)))


def _database(file: Path) -> Iterator[Finding]:
    """Yield whether the SQLite file that a sweep's workers share can be read."""
    if not file.exists():
        yield Finding(OK, f"sweeps: {file}, which the first sweep makes")
        return
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            connection.execute("select count(*) from studies").fetchone()
        yield Finding(OK, f"sweeps: {file} can be read")
    except sqlite3.Error as error:
        yield Finding(
            WRONG, f"sweeps: {file} cannot be read ({error}): move it away; records know what is trained without it"
        )


def _disk(command: CommandConfig) -> Iterator[Finding]:
    """Yield the free space of the folders that are written to."""
    from pflsweep.data.datasets.files import find_root

    places = {
        "paths.runs": Path(command.config.paths.runs).absolute(),
        "data.root": find_root(command.config.data.root),
        "TMPDIR": Path(tempfile.gettempdir()),
    }
    for key, place in places.items():
        free = shutil.disk_usage(files.existing(place)).free
        room = f"{key}: {in_gb(free)} are free in {place}"
        yield Finding(WRONG, f"{room}: make room, or choose another folder") if free < LITTLE else Finding(OK, room)


CHECKS: dict[str, Callable[[CommandConfig], Iterator[Finding]]] = {
    "Versions": _versions,
    "Devices": _devices,
    "Data": _data,
    "Storage": _storage,
    "Disk": _disk,
}
