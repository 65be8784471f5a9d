"""One recorded trajectory a method: when its numbers move, its `version` has to.

Records are shared by identity, of which the version is a part: without a new one, old results would pass for new ones.

`python -m tests.test_golden`, after a change of what numbers depend on, of a `version`, or for a new method, computes
all trajectories. If one has moved, it says so and writes nothing. Else it writes three files:
- golden.json: the trajectories that were not there yet. A test compares them up to rounding, on any machine.
- golden_bits.json: hashes of their bits on this kind of machine, and of what models, datasets and partitions give, with
  the digests of the code that computed them. What needs files or trains (latent, domain; studies) is not among them.
- pflsweep/util/equivalent.json: the digests of the present code. They join those of golden_bits.json where each
  trajectory has the same bits as it had then, so that a refactoring marks no record that it continues; else they stand
  apart.
"""

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pflsweep.commands.check import method_at
from pflsweep.config.compose import compose
from pflsweep.config.hydra_loader import conf_dir, read_option
from pflsweep.config.keys import PLUGS
from pflsweep.config.node import import_object
from pflsweep.conformance.case import advance
from pflsweep.methods.task import Batch, Task
from pflsweep.plugins.ala import Ala
from pflsweep.trial.build import build_dataset, build_federation, build_model
from pflsweep.util import processor
from pflsweep.util.source_hash import EQUIVALENT, ROOT, code_digests
from tests.conformance.test_methods import OWN, REFERENCES, TABLE, YAMLS, case

FILE = Path(__file__).parent / "golden.json"
BITS = FILE.with_name("golden_bits.json")
ROWS = [name for name in TABLE if name not in REFERENCES and name not in OWN]
REL = 1e-9  # between machines, in double precision


def options(*groups: str) -> dict[str, Path]:
    """Return the files of some config groups by option, such as model=cnn."""
    return {f"{group}={f.stem}": f for group in groups for f in sorted((conf_dir() / group).glob("*.yaml"))}


MODELS = list(options("model"))
DATASETS = ["dataset=digits", "dataset=synthetic"]
# Options that need files or training
NEEDING = ("partition=domain", "partition=latent", "partition=from_file")
PARTITIONS = [option for option in options("partition") if option not in NEEDING]


def classes(name: str) -> list[type]:
    """Return the class of a row's method and those of its plug-ins."""
    row = TABLE[name]
    return [method_at(YAMLS[row.algorithm or name]["_target_"]), *([Ala] if row.ala else []), *row.plugs]


def version(name: str) -> str:
    """Return the version of a method and of its plug-ins, such as 1 or 1+2."""
    return "+".join(str(cls.version) for cls in classes(name))  # type: ignore[attr-defined]


def trajectory(name: str) -> list[float]:
    """Return a few numbers that depend on everything in four rounds: of the personal models and the global one."""
    sim = advance(case(name).simulation(), 4)
    personal = torch.stack(list(sim.personal_models()))
    common = sim.global_model()
    models = [personal] if common is None else [personal, common[None]]
    numbers = []
    for w in models:
        weights = torch.linspace(-1, 1, w.shape[1], dtype=w.dtype).cos()
        numbers += [(w @ weights).sum(), w.abs().sum(), w.square().sum()]
    return [float(number) for number in numbers]


def given() -> dict[str, str]:
    """Return hashes of what trajectories do not cover: a gradient of each model, rows of datasets, partitions."""
    found = {}
    for option in (*MODELS, "model=cnn_norm model.norm=batch"):
        words = {"model=fasttext": 1000, "model=char_lstm": 80}.get(option, 0)
        shape = (20,) if words else (3, 32, 32)
        named = ["model.name=mobilenet_v3_small"] if option == "model=torchvision" else []
        model = build_model(compose([*option.split(), *named]), shape, 10).double()
        draw = np.random.default_rng(0)
        x = draw.integers(1, words, (4, *shape)) if len(shape) == 1 else draw.normal(size=(4, *shape))
        task, batch = Task(model), Batch(torch.from_numpy(x), torch.arange(4), None, None, torch.tensor(1))
        w = task.vector(model)
        found[option] = hashed(w.numpy(), task.grad(w, batch).numpy())
    for option in DATASETS:
        data = build_dataset(compose([option]))
        found[option] = hashed(data.x.numpy(), data.y.numpy(), data.mean.numpy(), data.std.numpy(), data.scale)
    for option in PARTITIONS:
        dataset = "dataset=synthetic" if option == "partition=natural" else "dataset=digits"
        federation, _ = build_federation(compose([dataset, option, "data.validation=0.2", "device=cpu"]))
        found[option] = hashed(*(rows for split in federation.rows.values() for rows in split))
    return found


def hashed(*content: Any) -> str:
    """Return 8 hex digits of the bits of arrays, or of what repr says of other content."""
    parts = [each.tobytes() if isinstance(each, np.ndarray) else repr(each).encode() for each in content]
    return hashlib.blake2b(b"".join(parts), digest_size=4).hexdigest()


def present() -> dict[str, str]:
    """Return the digests of the code with which the command computes: of the engine, and of each option."""
    tried = {cls for name in ROWS for cls in classes(name)}
    files = options("algorithm", *PLUGS, "model", "dataset", "partition")
    paths = {option: path for option, file in files.items() if (path := read_option(file).get("_target_"))}
    used = {option: path for option, path in paths.items() if import_object(path, option) in tried}
    used |= {option: paths[option] for option in (*MODELS, *DATASETS, *PARTITIONS)}
    return code_digests({option: [path.rpartition(".")[0]] for option, path in used.items()})


def unrecorded(digests: dict[str, str], equivalent: dict[str, list[list[str]]]) -> list[str]:
    """Return the components whose digest is in no class of equivalent digests."""
    known = {name: {digest for same in classes for digest in same} for name, classes in equivalent.items()}
    return [name for name, digest in digests.items() if digest not in known.get(name, ())]


def recorded(
    numbers: dict[str, list[float]], others: dict[str, str], digests: dict[str, str],
    golden: dict[str, Any], bits: dict[str, Any], equivalent: dict[str, list[list[str]]], machine: str,
) -> tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]:  # fmt: skip
    """Return what was found, as a line, and the new content of the three files: golden, bits, equivalent.

    numbers: the trajectories. others: hashes of what they do not go through. digests: of the present code. Raises
    ValueError where a trajectory has moved, or where the bits of before are needed and not known for this machine.
    """
    moved = [key for key, found in numbers.items() if key in golden and found != pytest.approx(golden[key], rel=REL)]
    if moved:
        raise ValueError(f"Moved: {', '.join(moved)}. Raise their version. Nothing was written.")
    new = unrecorded(digests, equivalent)
    edited, before = [name for name in new if name in equivalent], bits.get(machine, {"digests": {}, "bits": {}})
    if edited and machine not in bits:
        raise ValueError(
            f"Edited: {', '.join(edited)}. {BITS.name} does not have the bits of before for this machine ({machine}). "
            f"Run this command on the code before the edit (git stash, or a worktree), then here with the {BITS.name} "
            "that it has written. Nothing was written."
        )
    now = {key: hashed(found) for key, found in numbers.items()} | others
    differ = [key for key, own in now.items() if before["bits"].get(key, own) != own]
    classes = {name: [[*same] for same in found] for name, found in equivalent.items()}
    for name in new:
        same = [each for each in classes.get(name, []) if before["digests"].get(name) in each and not differ]
        if same:
            same[0].append(digests[name])
        else:
            classes.setdefault(name, []).append([digests[name]])
    said = f"{len(numbers)} trajectories are as recorded"
    if differ:
        said += f", but not bitwise: {', '.join(differ)}"
    if new:
        said += f". {'Another version of' if differ else 'Equivalent or new'}: {', '.join(new)}"
    return (
        f"{said}.",
        {key: golden.get(key, found) for key, found in numbers.items()},
        {**bits, machine: {"digests": digests, "bits": now}},
        dict(sorted(classes.items())),
    )


@pytest.mark.parametrize("name", ROWS)
def test_numbers_move_only_with_the_version(name: str) -> None:
    golden = json.loads(FILE.read_text())
    key = f"{name} v{version(name)}"
    assert key in golden, f"no trajectory is recorded for {key}: run `python -m tests.test_golden`"
    assert trajectory(name) == pytest.approx(golden[key], rel=REL), f"{key} moved: raise its version"


def test_the_present_code_is_recorded() -> None:
    new = unrecorded(present(), json.loads((ROOT / EQUIVALENT).read_text()))
    assert not new, f"edited: {', '.join(new)}. Run `python -m tests.test_golden` and commit what it writes"


def main() -> int:
    argparse.ArgumentParser(prog="python -m tests.test_golden", description=__doc__).parse_args()
    # With several threads sums have other bits
    torch.set_num_threads(1)
    kind = f"{processor.name()}, {torch.backends.cpu.get_cpu_capability()}"
    machine = f"{kind}, torch {torch.__version__}, numpy {np.__version__}"
    files = (FILE, BITS, ROOT / EQUIVALENT)
    before = [json.loads(file.read_text()) if file.exists() else {} for file in files]
    numbers = {f"{name} v{version(name)}": trajectory(name) for name in ROWS}
    try:
        said, *after = recorded(numbers, given(), present(), *before, machine=machine)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    for file, content in zip(files, after, strict=True):
        file.write_text(json.dumps(content, indent=1) + "\n")
    print(said)
    return 0


if __name__ == "__main__":
    sys.exit(main())
