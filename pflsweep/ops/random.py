"""Every random number is a function of its key: nothing depends on the order in which things are computed.

Index-sized draws (partitions, shuffles, cohorts) come from `generator`. Inside lifted code (dropout, DP
noise, Gumbel) numbers come from `uniform` and `normal`, a counter-based hash in integer tensor operations: the same
on a CPU, a GPU, under torch.func.vmap and compiled. The hash is the finaliser of SplitMix64 (Steele, Lea and
Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014), whose multiplications wrap around
modulo 2^64 as int64 ones do.
"""

import hashlib
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor


def _signed(value: int) -> int:
    """The int64 with the same 64 bits."""
    return (value + 2**63) % 2**64 - 2**63


_STEP = _signed(0x9E3779B97F4A7C15)  # odd, 2^64 / golden ratio: neighbouring counters land far apart
_PER_STEP = _signed(pow(_STEP, -1, 2**64))  # times _STEP it is 1
_FOLD = _signed(0xD1B54A32D192ED03)  # keeps the children of a key apart from the numbers drawn with it
_FIRST, _SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)

_TORCHS_OWN = threading.RLock()  # held by the thread that PyTorch's own generator belongs to


def generator(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    """The numpy generator of a (seed, purpose, numbers), e.g. (3, "shuffle", round, client key)."""
    return np.random.default_rng(int.from_bytes(_digest(seed, purpose, numbers, 16), "little"))


@contextmanager
def first_model(seed: int, purpose: str) -> Iterator[None]:
    """Within it PyTorch's own generator, from which models draw their first weights, is that of a (seed, purpose);
    afterwards as before. One thread at a time, since all threads have the same one: stacked trials are threads. Models
    are made on the CPU, so GPUs' generators stay as they are.
    """
    with _TORCHS_OWN, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(generator(seed, purpose).integers(2**63)))
        yield


def tensor_key(seed: int, purpose: str, *numbers: int) -> Tensor:
    """The key of a (seed, purpose, numbers) for `uniform` and `fold`. [] int64, on the CPU."""
    return torch.tensor(int.from_bytes(_digest(seed, purpose, numbers, 8), "little", signed=True))


def fold(key: Tensor, number: int | Tensor) -> Tensor:
    """A child of a key: another key for each number. Shapes broadcast, so int64 [C] numbers give [C] keys."""
    step = _signed(number * _STEP) if isinstance(number, int) else number * _STEP
    return _mix(_mix(key ^ _FOLD) + step)


def uniform(key: Tensor, shape: Sequence[int]) -> Tensor:
    """Uniform numbers in [0, 1), multiples of 2^-24. key [] int64 -> `shape` float32, on the key's device.

    The i-th number (in row-major order) depends on key and i alone, so padding a batch changes no other row.
    """
    count = torch.arange(math.prod(shape), dtype=torch.int64, device=key.device)
    # _mix(key) + (count + 1) * _STEP, but a compiler must not work out products of a count: it would not let them wrap
    bits = _mix((count + (_mix(key) * _PER_STEP + 1)) * _STEP)
    return ((bits >> 40) & 0xFFFFFF).to(torch.float32).mul(2.0**-24).reshape(tuple(shape))


def normal(key: Tensor, shape: Sequence[int]) -> Tensor:
    """Standard normal numbers by Box and Muller's transform. key [] int64 -> `shape` float64, on the key's device.

    The i-th number depends on key and i alone. From `uniform`'s steps of 2^-24 none is larger than 5.77.
    """
    radius = (1 - uniform(fold(key, 0), shape).double()).log().mul(-2).sqrt()
    return radius * uniform(fold(key, 1), shape).double().mul(2 * math.pi).cos()


def _mix(z: Tensor) -> Tensor:
    """SplitMix64's finaliser: a bijection in which each input bit flips about half of the output."""
    z = (z ^ _shift(z, 30)) * _FIRST
    z = (z ^ _shift(z, 27)) * _SECOND
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    """z >> bits as if z were unsigned: int64's own shift copies the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _digest(seed: int, purpose: str, numbers: Sequence[int], size: int) -> bytes:
    """A stable hash of text, in which no two lists read alike, as they may in 32-bit words."""
    text = "|".join([purpose, *(str(int(number)) for number in (seed, *numbers))])
    return hashlib.blake2b(text.encode(), digest_size=size).digest()
