"""A folder of runs with a sweep's ledger, made from chosen numbers, as a sweep would leave it."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from pflsweep.config.identity import RUNTIME
from pflsweep.config.keys import under
from pflsweep.records.ledger import ledgers
from pflsweep.records.writer import RecordWriter
from pflsweep.report.paper import layout
from pflsweep.report.paper.comparison import Comparison
from pflsweep.report.paper.store import Store, TrialReader
from tests.report.records import SIZE, create, finished, group, ledger, train

# 4 clients of 10 test samples each: an accuracy is a multiple of 2.5 points
Numbers = dict[tuple[str, str], dict[int, list[int]]]  # (setting, method) -> seed -> correct answers of each client


def reproduced(runs: Path, name: str) -> Comparison:
    """Return a paper's table, made anew at scale small from a folder of runs."""
    return Comparison(layout.read(name), Store(TrialReader(runs), "small", ledgers(runs)))


class Sweep:
    """Ledger and records of a sweep; call `write` after each change. peak: excess of the best round over the last."""

    def __init__(
        self,
        runs: Path,
        name: str = "pgfed/table1",
        scale: str = "small",
        seeds: tuple[int, ...] = (0, 1),
        peak: int = 0,
    ):
        self.peak = peak
        self.runs, self.name, self.scale, self.seeds = runs, name, scale, list(seeds)
        self.groups: dict[tuple[str, str], dict[str, Any]] = {}
        runs.mkdir(exist_ok=True)

    def add(self, setting: str, method: str, by_seed: dict[int, list[int]], **changes: Any) -> list[RecordWriter]:
        """Add finished runs of three rounds, with as many clients as numbers."""
        records = []
        for seed, correct in by_seed.items():
            same = {"partition__clients": len(correct), "dataset___option_": place(setting), **changes}
            records.append(finished(self.runs, method, correct, seed, **{"peak": self.peak, **same}))
            self.name_trial(setting, method, seed, records[-1])
        return records

    def name_trial(self, setting: str, method: str, seed: int, record: RecordWriter) -> None:
        self.group(setting, method, record)["trials"][str(seed)] = record.meta["identity"]

    def group(self, setting: str, method: str, record: RecordWriter | None = None) -> dict[str, Any]:
        config = {} if record is None else record.values
        asked = {k: v for k, v in config.items() if not under(k, RUNTIME) and k != "seed"}
        new = group(setting, method, config=asked or {"train.rounds": 3})
        return self.groups.setdefault((setting, method), new)

    def write(self, stem: str = "0123456789abcdef", at: float = 1e9, **more: Any) -> Path:
        """Write the ledger. at: the time of writing. more: keys that only newer ledgers have."""
        command = f"pflsweep -m sweep={self.name} scale={self.scale}"
        own = {"sweep": self.name, "scale": self.scale, "command": command, "written": at, "seeds": self.seeds}
        content = ledger(list(self.groups.values()), **{**own, **more})
        path = self.runs / "sweeps" / f"{stem}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))
        return path


def place(setting: str) -> str:
    """Return a folder for a setting, so that the same numbers in two settings are two runs."""
    return setting.replace("/", "_")


def heights(root: ET.Element, name: str) -> list[float]:
    """Return the y of a curve's points in a drawn figure. name: the id of its group."""
    group = next(each for each in root.iter("{http://www.w3.org/2000/svg}g") if each.get("id") == name)
    path = next(group.iter("{http://www.w3.org/2000/svg}path")).get("d", "")
    numbers = path.replace("M", "").replace("L", "").split()
    return [float(y) for y in numbers[1::2]]


__all__ = ["SIZE", "Sweep", "create", "finished", "train"]
