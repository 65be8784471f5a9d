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

# Numbers that separate the uses of a step's key; dropout takes small ones, the numbers of layers.
DP_NOISE, CROPS, _METHOD = 1 << 40, 1 << 41, 1 << 42
# For messages about a method that draws in a verb of the client.
REMEDY = (
    "draw by a key, with `from pflsweep.ops import random`: `random.uniform(random.own(batch.key), shape)` in a step, "
    "and `random.own(batch.key, 1)` for a second draw; in other verbs `random.own(given.turn.key, given.turn.round)` "
    "has a key for each client, so draw in a function that is marked @per_client"
)
GENERATORS = ("PyTorch", "NumPy", "Python")

T = TypeVar("T")

# Held by the thread that uses PyTorch's global generator.
_TORCHS_OWN = threading.RLock()


def generator(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    """Return the numpy generator of a (seed, purpose, numbers), such as (3, "shuffle", round, client key)."""
    return np.random.default_rng(int.from_bytes(_digest(seed, purpose, numbers, 16), "little"))


@contextmanager
def seeded_for(seed: int, purpose: str) -> Iterator[None]:
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


def global_states(names: Sequence[str] = GENERATORS) -> dict[str, Any]:
    """Return the states of some global generators, PyTorch's on the CPU, to be compared.

    PyTorch's is None while another thread initialises a model with it.
    """
    return {name: _STATES[name]() for name in names}


def _state_of_torch() -> bytes | None:
    if not _TORCHS_OWN.acquire(blocking=False):
        return None
    state = torch.get_rng_state().numpy().tobytes()
    _TORCHS_OWN.release()
    return state


def _state_of_numpy() -> bytes:
    return pickle.dumps(np.random.get_state(legacy=False))  # noqa: NPY002 (a method may use it)


# In microseconds about 4, 70 and 8
_STATES: dict[str, Callable[[], Any]] = {
    "PyTorch": _state_of_torch,
    "NumPy": _state_of_numpy,
    "Python": random.getstate,
}


def without_global_draws(
    do: Callable[[], T], who: str, when: str, names: Sequence[str] = GENERATORS, remedy: str = REMEDY
) -> T:
    """Return do(). Raise UserError if it draws from a global generator or seeds one: numbers would not follow from the
    seed.

    do: may be called twice. who, when, remedy: what is at fault, in which verb, and what to do, for the message.
    names: the generators to look at. A GPU's is not among them: there steps run under torch.func.vmap, which refuses
    such draws itself.
    """
    result, drawn = _watched(do, names)
    # Threads of libraries draw from Python's generator, too, such as MLflow's client. What draws again is at fault.
    if drawn == ["Python"]:
        result, drawn = _watched(do, names)
    if drawn:
        raise UserError(
            f"{who} draws from the global generator of {' and of '.join(drawn)} (or seeds it) {when}, "
            f"so that numbers would not follow from the seed: {remedy}."
        )
    return result


def _watched(do: Callable[[], T], names: Sequence[str]) -> tuple[T, list[str]]:
    """Return do() and the names of the global generators whose state has changed meanwhile."""
    before = global_states(names)
    result = do()
    after = global_states(names)
    # A lock would not do: the trials of a stack wait inside `do` for one whose model is still to be initialised
    return result, [name for name in after if None not in (before[name], after[name]) and after[name] != before[name]]


def tensor_key(seed: int, purpose: str, *numbers: int) -> Tensor:
    """Return the key of a (seed, purpose, numbers) for `uniform`, `normal` and `fold`: [] int64, on the CPU."""
    return torch.tensor(int.from_bytes(_digest(seed, purpose, numbers, 8), "little", signed=True))


def fold(key: Tensor, number: int | Tensor) -> Tensor:
    """Return a child of a key, another one for each number. Shapes broadcast: int64 [C] numbers give [C] keys."""
    step = _signed(number * _STEP) if isinstance(number, int) else number * _STEP
    return _mix(_mix(key ^ _FOLD) + step)


def own(key: Tensor, number: int | Tensor = 0) -> Tensor:
    """Return a key for a method's own draws, another one for each number. Shapes broadcast as in `fold`.

    Its draws are independent of those that the trainer makes with the same key, such as dropout's.
    """
    return fold(fold(key, _METHOD), number)


def uniform(key: Tensor, shape: Sequence[int]) -> Tensor:
    """Return uniform numbers in [0, 1), multiples of 2^-24. key [] int64 -> `shape` float32, on the key's device.

    The i-th number (in row-major order) depends on the key and i alone, so padding a batch changes no other row. Raises
    ValueError if there is a key for each client: then draw for one client, in a function marked @per_client.
    """
    if key.dim():
        raise ValueError(f"a draw takes one key, not keys {list(key.shape)}: draw in a function marked @per_client")
    count = torch.arange(1, math.prod(shape) + 1, dtype=torch.int64, device=key.device)
    bits = _mix(_mix(key) + count * _STEP)
    return ((bits >> 40) & 0xFFFFFF).to(torch.float32).mul(2.0**-24).reshape(tuple(shape))


def normal(key: Tensor, shape: Sequence[int]) -> Tensor:
    """Return standard normal numbers by the Box-Muller transform. key [] int64 -> `shape` float64, on the key's device.
    Convert them to the model's type: random.normal(key, w.shape).to(w.dtype).

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
