"""Keyed random numbers: each is a function of its key, so no draw depends on the order of computation.

Draws of indices (partitions, shuffles, cohorts) come from `generator`. Draws inside lifted code (dropout, DP noise,
Gumbel) come from `uniform` and `normal`, a counter-based hash in integer tensor operations, which is the same on a CPU,
on a GPU, and under torch.func.vmap. The hash is the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast
splittable pseudorandom number generators", OOPSLA 2014). Its multiplications are modulo 2^64, as those of int64 are.
"""

import hashlib
import math
import pickle
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from pflsweep.util.errors import UserError


def _signed(value: int) -> int:
    """Return the int64 that has the same 64 bits as an unsigned value."""
    return (value + 2**63) % 2**64 - 2**63


# SplitMix64's increment, 2^64 / golden ratio made odd, which spreads neighbouring counters.
_STEP = _signed(0x9E3779B97F4A7C15)
# Separates the children of a key from the numbers that are drawn with it.
_FOLD = _signed(0xD1B54A32D192ED03)
# The multipliers of SplitMix64's finaliser.
_FIRST, _SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)

# For messages about a method that draws in a verb of the client.
REMEDY = (
    "draw by a key, with `from pflsweep.ops import random`: `random.uniform(batch.key, shape)` or `random.normal` in a "
    "step, and another key for each further draw, `random.fold(batch.key, 1)`; elsewhere "
    "`random.fold(given.turn.key, given.turn.round)` is a key"
)

T = TypeVar("T")

# Held by the thread that uses PyTorch's global generator.
_TORCHS_OWN = threading.RLock()


def generator(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    """Return the numpy generator of a (seed, purpose, numbers), such as (3, "shuffle", round, client key)."""
    return np.random.default_rng(int.from_bytes(_digest(seed, purpose, numbers, 16), "little"))


@contextmanager
def first_model(seed: int, purpose: str) -> Iterator[None]:
    """Seed PyTorch's global CPU generator, which initialises models, by (seed, purpose), and restore it afterwards."""
    with seeded(int(generator(seed, purpose).integers(2**63))):
        yield


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed PyTorch's global CPU generator, and restore it afterwards.

    One thread at a time may be inside, since stacked trials are threads and share that generator. Models are created on
    the CPU, so the generators of GPUs are left alone.
    """
    with _TORCHS_OWN, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


@contextmanager
def no_unseeded_draws(message: str) -> Iterator[None]:
    """Raise UserError(message) where PyTorch's global CPU generator is used inside: numbers would not follow from the
    seed. One thread at a time may be inside, see `seeded`.
    """
    with _TORCHS_OWN:
        before = torch.get_rng_state()
        yield
        if not torch.equal(torch.get_rng_state(), before):
            torch.set_rng_state(before)
            raise UserError(message)


def global_states() -> dict[str, Any]:
    """Return the states of the global generators of PyTorch (on the CPU), NumPy and Python, to be compared.

    PyTorch's is None while another thread initialises a model with it.
    """
    torchs = None
    if _TORCHS_OWN.acquire(blocking=False):
        torchs = torch.get_rng_state().numpy().tobytes()
        _TORCHS_OWN.release()
    numpys = pickle.dumps(np.random.get_state(legacy=False))  # noqa: NPY002 (a method may use it)
    return {"PyTorch": torchs, "NumPy": numpys, "Python": random.getstate()}


def without_global_draws(do: Callable[[], T], who: str, when: str) -> T:
    """Return do(). Raise UserError if it draws from a global generator or seeds one: numbers would not follow from the
    seed.

    do: may be called twice. who, when: what is at fault, and in which verb, for the message. A GPU's generator is not
    looked at: there steps run under torch.func.vmap, which refuses such draws itself.
    """
    result, drawn = _watched(do)
    # Threads of libraries draw from Python's generator, too, such as MLflow's client. What draws again is at fault.
    if drawn == ["Python"]:
        result, drawn = _watched(do)
    if drawn:
        raise UserError(
            f"{who} draws from the global generator of {' and of '.join(drawn)} (or seeds it) {when}, "
            f"so that numbers would not follow from the seed: {REMEDY}."
        )
    return result


def _watched(do: Callable[[], T]) -> tuple[T, list[str]]:
    """Return do() and the names of the global generators whose state has changed meanwhile."""
    before = global_states()
    result = do()
    after = global_states()
    # A lock would not do: the trials of a stack wait inside `do` for one whose model is still to be initialised
    return result, [name for name in after if None not in (before[name], after[name]) and after[name] != before[name]]


def tensor_key(seed: int, purpose: str, *numbers: int) -> Tensor:
    """Return the key of a (seed, purpose, numbers) for `uniform`, `normal` and `fold`: [] int64, on the CPU."""
    return torch.tensor(int.from_bytes(_digest(seed, purpose, numbers, 8), "little", signed=True))


def fold(key: Tensor, number: int | Tensor) -> Tensor:
    """Return a child of a key, another one for each number. Shapes broadcast: int64 [C] numbers give [C] keys."""
    step = _signed(number * _STEP) if isinstance(number, int) else number * _STEP
    return _mix(_mix(key ^ _FOLD) + step)


def uniform(key: Tensor, shape: Sequence[int]) -> Tensor:
    """Return uniform numbers in [0, 1), multiples of 2^-24. key [] int64 -> `shape` float32, on the key's device.

    The i-th number (in row-major order) depends on the key and i alone, so padding a batch changes no other row.
    """
    count = torch.arange(1, math.prod(shape) + 1, dtype=torch.int64, device=key.device)
    bits = _mix(_mix(key) + count * _STEP)
    return ((bits >> 40) & 0xFFFFFF).to(torch.float32).mul(2.0**-24).reshape(tuple(shape))


def normal(key: Tensor, shape: Sequence[int]) -> Tensor:
    """Return standard normal numbers by the Box-Muller transform. key [] int64 -> `shape` float64, on the key's device.

    The i-th number depends on the key and i alone. None is larger than 5.77, since `uniform` has steps of 2^-24.
    """
    radius = (1 - uniform(fold(key, 0), shape).double()).log().mul(-2).sqrt()
    return radius * uniform(fold(key, 1), shape).double().mul(2 * math.pi).cos()


def _mix(z: Tensor) -> Tensor:
    """Return SplitMix64's finaliser of z: a bijection in which each input bit flips about half of the output bits."""
    z = (z ^ _shift(z, 30)) * _FIRST
    z = (z ^ _shift(z, 27)) * _SECOND
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    """Return z >> bits as if z were unsigned. The shift of int64 itself copies the sign bit."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _digest(seed: int, purpose: str, numbers: Sequence[int], size: int) -> bytes:
    """Return a stable hash of (seed, purpose, numbers), of `size` bytes."""
    # hashed as text, where different lists of numbers differ; in 32-bit words two of them could be the same
    text = "|".join([purpose, *(str(int(number)) for number in (seed, *numbers))])
    return hashlib.blake2b(text.encode(), digest_size=size).digest()
