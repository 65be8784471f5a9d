"""Write docs/keys.md: the meaning, the default and the allowed values of each key.

python -m tools.keys_page
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pflsweep.config.compose import compose
from pflsweep.config.fields import Rule, rules_of
from pflsweep.config.hydra_loader import option_files, read_option, sweep_defaults
from pflsweep.config.identity import needs
from pflsweep.config.keys import as_override
from pflsweep.config.node import Node
from pflsweep.config.options import KEY_GROUPS, SWEEP_GROUPS, Keys, rules, sweep_rules
from pflsweep.report.markdown import table

PAGE = Path(__file__).parents[1] / "docs" / "keys.md"
INTRO = """# Keys

`key=value` on the command line sets a key. `pflsweep list keys` prints those of every trial and of a sweep. Keys of
methods are in [reports/methods.md](../reports/methods.md). A key that needs another one has no effect without it, and
a command that sets it says so. This page is written by `python -m tools.keys_page`.
"""
OF_OPTIONS = {
    "dataset": "Keys of a dataset",
    "partition": "Keys of a partition",
    "model": "Keys of a model",
    "ala": "Keys of ALA",
    "attack": "Keys of an attack",
    "privacy": "Keys of DP-SGD",
}
# Keys that have a row in another table, and those that cannot be set
ELSEWHERE = ("_target_", "defaults", "dataset.name", "partition.seed")


def page() -> str:
    """Return the page as markdown: a table a group."""
    of_trials = _sections(KEY_GROUPS, rules(), compose([]).flat, "Seed and device")
    of_options = [f"## {head}\n\n{option_table(group)}" for group, head in OF_OPTIONS.items()]
    of_sweeps = _sections(SWEEP_GROUPS, sweep_rules(), sweep_defaults(), "Keys of a sweep")
    return "\n".join([INTRO, *of_trials, *of_options, *of_sweeps])


def option_table(group: str) -> str:
    """Return a table of the keys of a group's options. Options in which a key means the same share a row."""
    found: dict[tuple[str, str, str], dict[str, list[str]]] = {}
    for name, file in option_files(group).items():
        for key, default, *said in _keys_of(group, name, file):
            found.setdefault((key, *said), {}).setdefault(default, []).append(f"`{name}`")
    rows = []
    for (key, *said), defaults in sorted(found.items()):
        shown = "; ".join(f"{default} ({', '.join(options)})" for default, options in defaults.items())
        rows.append([f"`{key}`", shown, *said])
    allowed = ["allowed"] if any(row[-1] for row in rows) else []
    return table(["key", "default (option)", "meaning", *allowed], [row[: 3 + len(allowed)] for row in rows], ":--")


def _keys_of(group: str, name: str, file: Path) -> Iterator[tuple[str, str, str, str]]:
    """Yield key, default, meaning and allowed values of each key of an option.

    Classes declare meanings and allowed values. The keys of functions have a comment in the option's file.
    """
    values = read_option(file)
    found = Node.of(group, name, values).load() if values else None
    declared = rules_of(found) if isinstance(found, type) else {}
    for key, default, comment in _lines(file.read_text("utf-8")):
        if key in ELSEWHERE or f"{group}.{key}" in ELSEWHERE:
            continue
        rule = declared.get(key)
        yield f"{group}.{key}", default, rule.meaning if rule else comment, str(rule) if rule else ""


def _lines(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield key, value and comment of each line of a YAML file that sets a key, such as training.lr."""
    above = ""
    for indent, key, value, comment in re.findall(r"^( *)(\w+):(?: +([^#\n]*?))?(?: +# (.*))?$", text, re.MULTILINE):
        if not value:
            above = f"{key}."
        else:
            yield (above if indent else "") + key, value, comment


def _sections(groups: dict[str, type[Keys]], rules: dict[str, Rule], defaults: dict[str, Any], first: str) -> list[str]:
    """Return a heading and a table for each group. first: the heading of the keys that are in no group."""
    sections = []
    for group, keys in groups.items():
        rows = [
            [f"`{key}`", as_override(defaults[key]), rule.meaning + needs(key), str(rule)]
            for key, rule in rules.items()
            if key.rpartition(".")[0] == group
        ]
        head, about = f"`{group}`" if group else first, (keys.__doc__ or "").partition("\n")[0]
        sections.append(f"## {head}\n\n{about}\n\n{table(['key', 'default', 'meaning', 'allowed'], rows, ':--')}")
    return sections


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
