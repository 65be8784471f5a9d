"""What a round of each method costs: `python -m benchmarks.methods [OPTION ...]` measures all, or some, and writes
reports/methods.md and one page per method below reports/methods.

Methods and FedAvg take turns in one process; a number is the median of the pairwise ratios. reports/methods.csv keeps
what was measured, so that the pages can be written again without measuring (`--page`).
"""

import argparse
from datetime import date
from pathlib import Path

import pandas as pd
import torch

from benchmarks.common import compare, federation, ratio, simulation
from pflsweep.config.hydra_loader import option_files
from pflsweep.report import methods
from pflsweep.util import processor

REPORTS = Path(__file__).parents[1] / "reports"
CLIENTS, SAMPLES, EPOCHS, BATCH, WARM_UP = 6, 100, 2, 10, 3


def measured(name: str, repeat: int, device: str) -> dict[str, float]:
    """Return the models that a client sends and receives in a round ("traffic"), and the round's seconds divided by
    those of FedAvg ("time").
    """
    fed = federation(CLIENTS, SAMPLES, 1, device)
    ours, fedavg = (simulation(option, fed, epochs=EPOCHS, batch=BATCH) for option in (name, "fedavg"))
    for _ in range(WARM_UP):
        result = next(ours.run())
    times = compare({"ours": lambda: next(ours.run()), "fedavg": lambda: next(fedavg.run())}, repeat)
    traffic = (result.traffic.floats_down + result.traffic.floats_up) / ours.task.size
    return {"traffic": traffic, "time": 1 / ratio(times["ours"][0], times["fedavg"][0])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("options", nargs="*", help="methods to measure, such as fedavg; none: all")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--page", action="store_true", help="write the pages from what was measured before")
    asked = parser.parse_args()
    if not asked.page:
        measure(asked.options, asked.repeat, asked.device)
    pages = written()
    for file in (REPORTS / methods.FOLDER).glob("*.md"):
        file.unlink()
    for file, text in pages.items():
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, "utf-8")


def measure(names: list[str], repeat: int, device: str) -> None:
    """Measure some methods, all where none is named; what was measured of others is kept."""
    torch.set_num_threads(1)
    where = f"one thread of {processor.name()}" if device == "cpu" else torch.cuda.get_device_name()
    when, file = f"{date.today()}, {where}, torch {torch.__version__}, median of {repeat}", REPORTS / methods.COSTS
    known = pd.read_csv(file, index_col="option").T.to_dict() if names else {}
    for name in names or sorted(option_files("algorithm", None)):
        known[name] = {key: round(value, 4) for key, value in measured(name, repeat, device).items()} | {"when": when}
        print(
            f"{name}: {known[name]['traffic']:.3g} models, {known[name]['time']:.2f} times FedAvg's round", flush=True
        )
    REPORTS.mkdir(exist_ok=True)
    pd.DataFrame(known).T.sort_index().to_csv(file, index_label="option")


def written() -> dict[Path, str]:
    """Return the table and the pages of methods, from what was measured last, by file."""
    costs = methods.costs(REPORTS)
    when = "; ".join(costs["when"].unique())
    setting = (
        f"(CNN on CIFAR-10's shapes, {CLIENTS} clients of {SAMPLES} images, all in every round, {EPOCHS} epochs, "
        f"batch {BATCH}, each method's own defaults; {when}; on a machine that did other work too, "
        "two such runs differed by up to a fifth)"
    )
    every = methods.options()
    pages = {REPORTS / methods.FOLDER / f"{name}.md": text for name, text in methods.pages(every, costs).items()}
    return {REPORTS / methods.TABLE: methods.table(every, costs, setting), **pages}


if __name__ == "__main__":
    main()
