"""Write docs/keys.md: the meaning, the default and the allowed values of each of the trainer's keys.

python -m tools.keys_page
"""

from pathlib import Path
from typing import Any

from pflsweep.config.compose import compose
from pflsweep.config.fields import Rule
from pflsweep.config.hydra_loader import sweep_defaults
from pflsweep.config.keys import as_override
from pflsweep.config.options import KEY_GROUPS, SWEEP_GROUPS, Keys, rules, sweep_rules
from pflsweep.report.markdown import table

PAGE = Path(__file__).parents[1] / "docs" / "keys.md"
INTRO = """# Keys

The keys that every trial has. `key=value` on the command line sets one. Keys of
methods are in [reports/methods.md](../reports/methods.md); those of models, datasets and partitions are the parameters
of their functions (`pflsweep list models`, `pflsweep list datasets`, `pflsweep list partitions`). This page is written
by `python -m tools.keys_page`; `pflsweep list keys` prints the same.
"""


def page() -> str:
    """Return the page as markdown: a table a group."""
    of_a_sweep = "# Keys of a sweep\n\nWith `-m` alone; trials do not know them.\n"
    of_trials = _sections(KEY_GROUPS, rules(), compose([]).flat)
    return "\n".join([INTRO, *of_trials, of_a_sweep, *_sections(SWEEP_GROUPS, sweep_rules(), sweep_defaults())])


def _sections(groups: dict[str, type[Keys]], rules: dict[str, Rule], defaults: dict[str, Any]) -> list[str]:
    """Return a heading and a table for each group."""
    sections = []
    for group, keys in groups.items():
        rows = [
            [f"`{key}`", as_override(defaults[key]), rule.meaning, str(rule)]
            for key, rule in rules.items()
            if key.rpartition(".")[0] == group
        ]
        head, about = f"`{group}`" if group else "Without a group", (keys.__doc__ or "").partition("\n")[0]
        sections.append(f"## {head}\n\n{about}\n\n{table(['key', 'default', 'meaning', 'allowed'], rows, ':--')}")
    return sections


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
