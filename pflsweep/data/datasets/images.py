"""Read image files into one array, with checks of colours, sizes and damage."""

import io
import warnings
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from pflsweep.ops import memory
from pflsweep.util.errors import UserError, in_gb, one_line

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}


def subfolders(folder: Path) -> list[str]:
    """Return the sorted names of the folders in a folder, without hidden ones."""
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def files_of(folder: Path) -> list[Path]:
    """Return the image files in a folder, sorted by name, without hidden ones."""
    return sorted(
        path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.name[0] != "." and path.is_file()
    )


def read(images: Iterable[tuple[str, bytes]], count: int, name: str, channels: int, size: int | None) -> np.ndarray:
    """Return `count` images as one array, [count, channels, H, W] uint8.

    images: (a name for messages, the file's bytes) of each. channels: 1 reads in grey, 3 in colour. size: both sides
    are resized to it (bilinear, without keeping proportions); None: all images must have the size of the first one.
    Raises UserError on a damaged file, and if sizes differ.
    """
    has = memory.total(torch.device("cpu"))
    if size is not None and count * channels * size**2 > has:
        raise UserError(
            f"dataset.size is {size}: {count} images of {size}x{size} pixels and {channels} channels are "
            f"{in_gb(count * channels * size**2)}, and this machine has {in_gb(has)} of memory. Use less."
        )
    x: np.ndarray | None = None
    for place, (label, content) in enumerate(images):
        image = _decoded(label, content, name, channels, size)
        if x is None:
            x = np.empty((count, *image.shape), np.uint8)
        if image.shape != x.shape[1:]:
            first, this = ("x".join(map(str, shape[:0:-1])) for shape in (x.shape[1:], image.shape))
            raise UserError(
                f"dataset={name}: {label} has {this} pixels, the first image {first}. All need one size: choose one, "
                "as in dataset.size=32, where the dataset has that key."
            )
        x[place] = image
    return np.zeros((0, channels, 1, 1), np.uint8) if x is None else x


def _decoded(label: str, content: bytes, name: str, channels: int, size: int | None) -> np.ndarray:
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings(), Image.open(io.BytesIO(content)) as file:
            # PIL warns about files that it can still read; those that it cannot read are reported below
            warnings.simplefilter("ignore")
            # conversion to 8 bits would clip these modes
            if file.mode.startswith(("I", "F")):
                raise UserError(
                    f"dataset={name}: {label} has pixels of mode {file.mode}, and images here have 8 bits a channel. "
                    "Convert it, or bring such data as arrays: dataset=npz."
                )
            image = file.convert("L" if channels == 1 else "RGB")
    except UserError:
        raise
    except Exception as error:  # each of PIL's decoders raises its own for damaged files
        said = "" if isinstance(error, UnidentifiedImageError) else f" ({one_line(error)})"
        raise UserError(
            f"dataset={name}: {label} is damaged, or no image{said}. Replace it by the original file, or take it out."
        ) from error
    if size is not None:
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    array = np.asarray(image)
    return array[None] if channels == 1 else array.transpose(2, 0, 1)
