"""Write and read files of tensors, which hold checkpoints and models."""

from pathlib import Path
from typing import Any

from pflsweep.util.files import atomic


def write_torch(path: Path, content: Any) -> None:
    import torch

    def save(temporary: Path) -> None:
        try:
            torch.save(content, temporary)
        except RuntimeError as error:  # how torch says that the disk is full
            raise OSError(str(error).partition("\n")[0]) from error

    atomic(path, save)


def read_torch(path: Path) -> Any:
    import torch

    # on the CPU, since it may be another machine's; mapped, since of many clients it may be larger than the memory
    return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
