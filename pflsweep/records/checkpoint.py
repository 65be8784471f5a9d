"""A trial's checkpoint, and the files of tensors that hold checkpoints and models."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pflsweep.records.content import CHECKPOINT
from pflsweep.util.files import atomic

FORMAT = 1  # of the file of a checkpoint


@dataclass(frozen=True)
class Checkpoint:
    """What a trial needs to go on after a round, as `checkpoint.pt` holds it: tensors, numbers, lists and dicts.

    identity: the trial's, since its record may get another trial's file.
    simulation: `Simulation.state()`.
    study: `Study.state()`; empty without a study.
    """

    identity: str
    simulation: dict[str, Any]
    study: dict[str, Any]

    @property
    def round(self) -> int:
        """The number of rounds that were trained."""
        return int(self.simulation["round"])

    def write(self, folder: Path) -> None:
        """Write it into a record's folder. Raises OSError where the disk does not let it."""
        write_torch(folder / CHECKPOINT, {"format": FORMAT, **vars(self)})

    @classmethod
    def read(cls, path: Path) -> "Checkpoint":
        """Read a file that `write` has written. Raises ValueError where it is no such file."""
        content = read_torch(path, ("format", "identity", "simulation", "study"))
        if content.pop("format") != FORMAT:
            raise ValueError(f"not of format {FORMAT}")
        return cls(**content)


def write_torch(path: Path, content: dict[str, Any]) -> None:
    """Write a dict of tensors and numbers. Raises OSError where the disk does not let it."""
    import torch

    def save(temporary: Path) -> None:
        try:
            torch.save(content, temporary)
        except RuntimeError as error:  # how torch says that the disk is full
            raise OSError(str(error).partition("\n")[0]) from error

    atomic(path, save)


def read_torch(path: Path, needed: tuple[str, ...] = ()) -> dict[str, Any]:
    """Read what `write_torch` has written. Raises ValueError where it is no dict with the keys `needed`."""
    import torch

    # on the CPU, since it may be another machine's; mapped, since of many clients it may be larger than the memory
    content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    if not isinstance(content, dict) or not set(needed) <= content.keys():
        raise ValueError(f"no dict with {' and '.join(needed)}")
    return content
