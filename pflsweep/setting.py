"""What a record says about its trial before training: identity, name, environment."""

import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from pflsweep import __version__
from pflsweep.compose import Config
from pflsweep.config import Parts
from pflsweep.record import identity


def describe(config: Config, parts: Parts) -> dict[str, Any]:
    """meta.json of a trial."""
    chosen, dataset = config.choices, parts.federation.dataset
    method = chosen["algorithm"] + ("" if chosen["ala"] == "none" else "+ala")
    return {
        "identity": identity(
            config.values,
            data_checksum=dataset.checksum,
            version=parts.method.version,
            extends=parts.method.extends,
        ),
        "name": f"{method}-{chosen['dataset']}-{chosen['partition']}-{config.values['seed']}",
        "method": chosen["algorithm"],
        **{group: chosen[group] for group in ("dataset", "partition", "model", "ala")},
        "seed": config.values["seed"],
        "method_version": parts.method.version,
        "data_checksum": dataset.checksum,
        "shape": list(dataset.shape),
        "classes": dataset.classes,
        "commit": _commit(),
        "version": __version__,
        "environment": _environment(parts),
    }


def _environment(parts: Parts) -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "device": str(parts.federation.device),
    }


def _processor() -> str:
    """The processor's name: platform.processor() is empty on many Linux systems."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


def _commit() -> str | None:
    """The commit of pflsweep's own checkout, None where it is installed from a wheel."""
    root = Path(__file__).parent.parent
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
