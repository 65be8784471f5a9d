"""Write docs/keys.md: the meaning, the default and the allowed values of each of the trainer's keys.

python -m tools.keys_page
"""

from pathlib import Path

from pflsweep.config.compose import compose
from pflsweep.config.keys import as_override
from pflsweep.config.options import GROUPS, rules

PAGE = Path(__file__).parents[1] / "docs" / "keys.md"
INTRO = """# Keys

The keys of a trial that are the trainer's own, whatever the method. `key=value` on the command line sets one. Keys of
methods are in [reports/methods.md](../reports/methods.md); those of models, datasets and partitions are the parameters
of their functions (`pflsweep list models`, `pflsweep list datasets`, `pflsweep list partitions`). This page is written
by `python -m tools.keys_page`; `pflsweep list keys` prints the same.
"""


def page() -> str:
    """Return the page as markdown: a table a group."""
    defaults = compose([]).flat
    lines = [INTRO.rstrip()]
    for group, keys in GROUPS.items():
        head = f"`{group}`" if group else "Without a group"
        lines += ["", f"## {head}", "", keys.__doc__.partition("\n")[0] if keys.__doc__ else "", ""]
        lines += ["| key | default | meaning | allowed |", "|-|-|-|-|"]
        own = {key: rule for key, rule in rules().items() if key.rpartition(".")[0] == group}
        lines += [f"| `{key}` | {as_override(defaults[key])} | {rule.meaning} | {rule} |" for key, rule in own.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
