"""Choose the device of a trial, and check that it has the precision of its gradients."""

import torch

from pflsweep.util.errors import UserError
from pflsweep.util.once import warn_once


def device_of(name: str) -> str:
    """Return "cpu" or "cuda" for the key `device`. Raises UserError if it names a device that is not there."""
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("device is 'cuda', but PyTorch sees no GPU here. Use device=cpu or device=auto.")
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name


def check_precision(name: str, device: str) -> None:
    """Raise UserError if a device cannot compute gradients in this precision."""
    if name == "tf32" and device == "cpu":
        raise UserError("train.precision is 'tf32', which is of NVIDIA GPUs. On a CPU use fp32 or bf16.")
    if name == "bf16" and device == "cpu":
        _warn_emulated()


def _warn_emulated() -> None:
    """Warn where PyTorch emulates bf16 in software, which is slower than fp32 (docs/speed.md)."""
    # PyTorch 2.10 has no such function, and on ARM its keys are others: no warning then
    can: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()
    if not can.get("avx512_bf16", True) and not can.get("amx_bf16"):
        text = "train.precision=bf16: this processor has no AVX512-BF16 or AMX; here fp32 is the faster one"
        warn_once(__name__, text)
