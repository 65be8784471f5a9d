"""The table of all methods, and a page for each: paper, hyperparameters, what a round costs, departures and why.

Everything is read from the methods' own files and conf/algorithm; what a round costs was measured.
"""

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints

import pandas as pd

from pflsweep.config.fields import field_rule, hyperparameters
from pflsweep.config.hydra_loader import option_files, read_option
from pflsweep.config.keys import as_override
from pflsweep.config.node import Node
from pflsweep.report import template

if TYPE_CHECKING:
    from pflsweep.methods.protocol import Method

COSTS = "methods.csv"  # beside the table: what was measured
TABLE = "methods.md"
FOLDER = "methods"  # of the pages, beside the table


class Option(NamedTuple):
    """A file of conf/algorithm."""

    name: str
    about: str  # its first line
    cls: "type[Method]"
    values: dict[str, Any]
    remarks: dict[str, str]  # hyperparameter -> the comment on its line

    @property
    def page(self) -> str:
        """The page of its class, without a suffix: options of one class share it."""
        return self.cls.__name__.lower()


def options() -> list[Option]:
    """Return all options of `algorithm=`, shipped and of the user's own, by name."""
    return [_option(name, file) for name, file in option_files("algorithm").items()]


def _option(name: str, file: Path) -> Option:
    node, text = read_option(file), file.read_text("utf-8").splitlines()
    cls = Node.of("algorithm", name, node).load()
    values = {key: value for key, value in node.items() if key != "_target_"}
    remarks = {line.partition(":")[0]: line.partition(" # ")[2] for line in text if " # " in line}
    return Option(name, text[0].removeprefix("#").strip(), cls, values, remarks)


def costs(folder: Path) -> pd.DataFrame:
    """Return what was measured, columns traffic, time and when by option; empty if the folder has no such file."""
    file = folder / COSTS
    return pd.read_csv(file, index_col="option") if file.exists() else pd.DataFrame(columns=["traffic", "time", "when"])


def table(every: list[Option], costs: pd.DataFrame, setting: str = "") -> str:
    """Return the table of methods as markdown. costs: as `costs` returns them. setting: how they were measured."""
    rows = [(option, *_cost(costs, option.name)) for option in every]
    return template.render("methods.md", rows=rows, folder=FOLDER, setting=setting)


def pages(every: list[Option], costs: pd.DataFrame, results: dict[str, str] | None = None) -> dict[str, str]:
    """Return the page of each class as markdown, by its name without a suffix. results: by page, markdown of where its
    numbers stand.
    """
    by_page: dict[str, list[Option]] = {}
    for option in every:
        by_page.setdefault(option.page, []).append(option)
    return {page: _page(own, costs, (results or {}).get(page, "")) for page, own in by_page.items()}


def _page(options: list[Option], costs: pd.DataFrame, results: str) -> str:
    cls = options[0].cls
    facts = {
        "Reconstruction": cls.reconstruction,
        "A round beside FedAvg's": cls.cost,
        "What it does with test rows": cls.reads_test_rows,
        "A client that was never sampled is evaluated with": cls.unsampled_model,
        "ALA in front (`ala=on`)": "yes" if cls.supports_ala else "",
        "DP-SGD (`privacy=dp_sgd`)": f"refused: {cls.dp_incompatible_reason}" if cls.dp_incompatible_reason else "yes",
    }
    return template.render(
        "method.md",
        method=cls.__name__,
        paper=cls.paper,
        options=[(option, *_cost(costs, option.name)) for option in options],
        about=inspect.getdoc(cls) or "",
        facts={name: text for name, text in facts.items() if text},
        fields=[_row(cls, name, options) for name in hyperparameters(cls)],
        results=results,
    )


def _cost(costs: pd.DataFrame, name: str) -> tuple[str, str]:
    """Return models sent and received and time of a round, as text; empty if they were not measured."""
    if name not in costs.index:
        return "", ""
    traffic, time = costs.loc[name, ["traffic", "time"]]
    return f"{traffic:.3g}", f"{time:.2f}"


def _row(cls: "type[Method]", name: str, options: list[Option]) -> tuple[str, str, str, list[str]]:
    """Return a hyperparameter's name, meaning, rule, and its value in each option."""
    field = hyperparameters(cls)[name]
    rule = str(field_rule(get_type_hints(cls)[name], field))
    shown = [_value(option.values.get(name), option.remarks.get(name, "")) for option in options]
    return name, field.metadata.get("meaning", ""), rule, shown


def _value(value: Any, remark: str) -> str:
    return f"{as_override(value)} ({remark})" if remark else as_override(value)
