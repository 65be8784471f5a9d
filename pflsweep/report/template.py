"""Pages are the jinja2 templates of report/templates. What they are given is escaped: as HTML in a page.html, as
markdown in a page.md, so that a foreign record's text becomes neither markup nor a link nor a row of a table.
"""

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pflsweep.report import markdown

if TYPE_CHECKING:
    from jinja2 import Environment


def render(name: str, **given: Any) -> str:
    """Return a page. What is markdown, or HTML, already stands in its template as `x | safe`."""
    text = _environment(Path(name).suffix).get_template(name).render(given)
    return re.sub("\n{3,}", "\n\n", text).rstrip() + "\n"  # parts that are left out leave their blank lines


@cache
def _environment(suffix: str) -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    def as_markdown(value: Any) -> Any:
        return value if hasattr(value, "__html__") else Markup(markdown.inline(value))

    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        finalize=as_markdown if suffix == ".md" else None,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters["code"] = lambda value: Markup(markdown.code(value))
    made.filters["code_cell"] = lambda value: Markup(markdown.cell(markdown.code(value)))
    return made
