"""What might make a local step faster on a CPU: `python -m benchmarks.ideas`. docs/speed.md has what came of each.

CPU time of one thread, so that a busy machine does not matter much; each idea takes turns with the plain eager step,
and the number is the median of the ratios, above 1 if the idea is faster.
"""

import argparse
import ctypes
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.common import CLASSES, LR, SHAPE, compare, machine, ratio, usual
from pflsweep.methods.task import Batch, Task
from pflsweep.models import cnn, layers
from pflsweep.ops import memory

Step = Callable[[], object]
SMALL_BLOCKS = 128 * 1024  # glibc's own threshold


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return usual(cnn.build(SHAPE, CLASSES))


def plain(batch: int, module: nn.Module | None = None, x: Tensor | None = None, **sgd: bool) -> Step:
    """An eager step with nn.Module and torch.optim."""
    module = module or model()
    x = torch.rand(batch, *SHAPE) if x is None else x
    y = torch.randint(0, CLASSES, (batch,))
    optimiser = torch.optim.SGD(module.parameters(), lr=LR, **sgd)

    def step() -> None:
        optimiser.zero_grad()
        F.cross_entropy(module(x), y).backward()
        optimiser.step()

    return step


def engine(batch: int) -> Step:
    """Ours: a gradient with respect to one flat vector, and an update in place."""
    task = Task(model())
    w, y = task.vector(task.model), torch.randint(0, CLASSES, (batch,))
    b = Batch(torch.rand(batch, *SHAPE), y, None, None, None)
    return lambda: w.sub_(task.grad(w, b), alpha=LR)


def channels_last(batch: int, module: nn.Sequential | None = None) -> Step:
    layout, module = torch.channels_last, module or model()
    return plain(batch, module.to(memory_format=layout), torch.rand(batch, *SHAPE).to(memory_format=layout))


def pooled_first(batch: int) -> Step:
    """ReLU after pooling, which gives the same bits, with channels last."""
    module = model()
    for block in (module.conv1, module.conv2):
        block[-2], block[-1] = block[-1], block[-2]
    return channels_last(batch, module)


def onednn(batch: int) -> Step:
    module = model()
    module.fc1[1].__class__ = layers.Linear
    return plain(batch, module)


def bf16(batch: int) -> Step:
    step = plain(batch)

    def autocast() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            step()

    return autocast


def compiled(batch: int) -> Step:
    return plain(batch, torch.compile(model()))


def small_blocks(batch: int) -> Step:
    """glibc's usual thresholds: a block of more than 128 KB is mapped anew each time."""
    step, libc = plain(batch), ctypes.CDLL(None)

    def unkept() -> None:
        for threshold in (memory.M_MMAP_THRESHOLD, memory.M_TRIM_THRESHOLD):
            libc.mallopt(threshold, SMALL_BLOCKS)
        step()
        memory.keep_freed()

    return unkept


IDEAS: dict[str, Callable[[int], Step]] = {
    "engine: flat vector, update in place": engine,
    "channels_last": channels_last,
    "channels_last, ReLU after pooling": pooled_first,
    "dense layers by oneDNN": onednn,
    "SGD(foreach=True)": lambda batch: plain(batch, foreach=True),
    "SGD(fused=True)": lambda batch: plain(batch, fused=True),
    "bf16 autocast": bf16,
    "glibc's thresholds": small_blocks,
    "torch.compile of the model": compiled,
}


def speed_up(idea: Step, base: Step, times: int, repeat: int) -> float:
    """Return how many times as fast an idea is as the base, by the CPU time of `times` steps each, in turn."""

    def repeated(step: Step) -> Step:
        return lambda: [step() for _ in range(times)]

    seconds = compare({"idea": repeated(idea), "base": repeated(base)}, repeat)
    return ratio(seconds["idea"][1], seconds["base"][1])


def evaluation(repeat: int) -> None:
    """Print the speed of forward passes of 2,048 images in batches of several sizes, beside batches of 256."""
    module, x = model(), torch.rand(2048, *SHAPE)

    def forward(batch: int) -> Step:
        def run() -> None:
            with torch.no_grad():
                for part in x.split(batch):
                    module(part)

        return run

    for batch in (32, 64, 128, 512, 1024):
        gain = speed_up(forward(batch), forward(256), 1, repeat)
        print(f"| evaluation in batches of {batch} | {gain:.2f} | |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    memory.keep_freed()
    print(f"{machine()}, one thread\n")
    print("| idea | batch 10 | batch 128 |\n|-|-|-|")
    for name, idea in IDEAS.items():
        found = []
        for batch, times in ((10, 20), (128, 3)):
            try:
                found.append(f"{speed_up(idea(batch), plain(batch), times, options.repeat):.2f}")
            except Exception as error:  # torch.compile needs a compiler
                found.append(f"{type(error).__name__}")
        print(f"| {name} | {' | '.join(found)} |", flush=True)
    evaluation(options.repeat)


if __name__ == "__main__":
    main()
