"""Write docs/keys.md: the meaning, the default and the allowed values of each of the trainer's keys.

python -m tools.keys_page
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pflsweep.config.compose import compose, sweep_defaults
from pflsweep.config.fields import Rule
from pflsweep.config.keys import as_override
from pflsweep.config.options import GROUPS, OF_A_SWEEP, Keys, rules, sweep_rules

PAGE = Path(__file__).parents[1] / "docs" / "keys.md"
INTRO = """# Keys

The keys of a trial that are the trainer's own, whatever the method. `key=value` on the command line sets one. Keys of
methods are in [reports/methods.md](../reports/methods.md); those of models, datasets and partitions are the parameters
of their functions (`pflsweep list models`, `pflsweep list datasets`, `pflsweep list partitions`). This page is written
by `python -m tools.keys_page`; `pflsweep list keys` prints the same.
"""


def page() -> str:
    """Return the page as markdown: a table a group."""
    lines = [INTRO.rstrip(), *_tables(GROUPS, rules(), compose([]).flat)]
    lines += ["", "# Keys of a sweep", "", "With `-m` alone; trials do not know them."]
    return "\n".join([*lines, *_tables(OF_A_SWEEP, sweep_rules(), sweep_defaults())]) + "\n"


def _tables(groups: dict[str, type[Keys]], rules: dict[str, Rule], defaults: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a table for each group."""
    for group, keys in groups.items():
        head = f"`{group}`" if group else "Without a group"
        yield from ("", f"## {head}", "", (keys.__doc__ or "").partition("\n")[0], "")
        yield from ("| key | default | meaning | allowed |", "|-|-|-|-|")
        for key, rule in rules.items():
            if key.rpartition(".")[0] == group:
                yield f"| `{key}` | {as_override(defaults[key])} | {rule.meaning} | {rule} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
