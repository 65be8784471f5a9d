"""Read and write a trial's checkpoint, and the files of tensors that hold checkpoints and models."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pflsweep.util.files import atomic

FORMAT = 1  # version of the checkpoint file's layout


@dataclass(frozen=True)
class Checkpoint:
    """The state from which a trial continues after a round: tensors, numbers, lists and dicts in one file.

    identity: of the trial; it reveals a file that was copied from another trial's record.
    simulation: the result of `Simulation.state()`.
    study: the result of `Study.state()`; empty without a study.
    """

    identity: str
    simulation: dict[str, Any]
    study: dict[str, Any]

    @property
    def round(self) -> int:
        """Return the number of rounds that were trained."""
        return int(self.simulation["round"])

    def write(self, path: Path) -> None:
        """Write the checkpoint into a file. Raises OSError if the disk is full or read-only."""
        write_torch(path, {"format": FORMAT, **vars(self)})

    @classmethod
    def read(cls, path: Path) -> "Checkpoint":
        """Read a file that `write` has written. Raises ValueError if the file is something else."""
        content = read_torch(path, ("format", "identity", "simulation", "study"))
        if content.pop("format") != FORMAT:
            raise ValueError(f"not of format {FORMAT}")
        return cls(**content)


def write_torch(path: Path, content: dict[str, Any]) -> None:
    """Write a dict of tensors and numbers. Raises OSError if the disk is full or read-only."""
    import torch

    def save(temporary: Path) -> None:
        try:
            torch.save(content, temporary)
        except RuntimeError as error:
            # Torch reports a full disk as RuntimeError
            raise OSError(str(error).partition("\n")[0]) from error

    atomic(path, save)


def read_torch(path: Path, needed: tuple[str, ...] = ()) -> dict[str, Any]:
    """Read what `write_torch` has written. Raises ValueError unless it is a dict with the keys `needed`."""
    import torch

    # On the CPU, since the file may come from a machine with another device. Memory-mapped, since the state of many
    # clients may be larger than the memory.
    content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    if not isinstance(content, dict) or not set(needed) <= content.keys():
        raise ValueError(f"no dict with {' and '.join(needed)}")
    return content
