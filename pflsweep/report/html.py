"""A report's markdown as one HTML file with its pictures inside: what a browser shows, and MLflow of a run's files."""

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from pflsweep.util.errors import UserError

KINDS = {".png": "image/png", ".svg": "image/svg+xml"}
STYLE = """\
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2328; max-width: 76rem; margin: 2rem auto; padding: 0 1.5rem; }
h1, h2 { line-height: 1.25; border-bottom: 1px solid #d1d9e0; padding-bottom: .3rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; margin: 1rem 0; }
th, td { border: 1px solid #d1d9e0; padding: .3rem .7rem; vertical-align: top; }
tr:nth-child(even) { background: #f6f8fa; }
sub { color: #59636e; vertical-align: baseline; font-size: .8em; white-space: nowrap; }
code { font: .86em ui-monospace, monospace; background: #eff1f3; padding: .1em .35em; border-radius: 4px; }
img { max-width: 100%; }
"""
# MLflow shows a page in a frame from which nothing can be opened (sandbox="allow-scripts")
FRAMED = """\
<p id=framed hidden>Links do nothing in this frame: right-click one and open it in a new tab.</p>
<script>document.getElementById("framed").hidden = parent === self</script>
"""


# markup that pages have of their own; all else that looks like HTML is shown as it is written
MARKS = ("<br>", "<sub>", "</sub>", "<u>", "</u>")
TEMPLATE = """\
<!doctype html>
<html lang=en><head><meta charset="utf-8"><title>{{ title }}</title><style>
{{ style | safe }}</style></head><body>
{{ framed | safe }}{{ body | safe }}</body></html>
"""


def page(text: str, folder: Path) -> str:
    """Return markdown as a page. folder: where the pictures are that the text names."""
    from jinja2 import Environment
    from markdown_it import MarkdownIt

    reader = MarkdownIt("commonmark", {"html": True}).enable("table")
    for kind in ("html_inline", "html_block"):
        reader.add_render_rule(kind, _marks)
    parts = reader.parse(text)
    title = next((parts[k + 1].content for k, part in enumerate(parts) if part.type == "heading_open"), "report")
    for part in parts:
        for child in part.children or []:
            if child.type == "image":
                child.attrSet("src", _inside(folder, str(child.attrGet("src"))))
    body = reader.renderer.render(parts, reader.options, {})
    linked = any(child.type == "link_open" for part in parts for child in part.children or [])
    template = Environment(autoescape=True, keep_trailing_newline=True).from_string(TEMPLATE)
    # `safe` are constants, and what the reader has escaped
    return template.render(title=title, style=STYLE, framed=FRAMED if linked else "", body=body)


def _marks(_reader: Any, tokens: Sequence[Any], at: int, *_: Any) -> str:
    """Return a piece of HTML as it is where it is one of MARKS, and else escaped."""
    content = tokens[at].content
    return content if content in MARKS else escape(content)


def _inside(folder: Path, name: str) -> str:
    """Return a picture of the folder as an address that holds it: as SVG where there is one, since that has the page's
    letter size. Raises UserError where there is no such picture.
    """
    picture = folder / name
    picture = svg if (svg := picture.with_suffix(".svg")).exists() else picture
    if Path(name).name != name or picture.suffix not in KINDS or not picture.is_file():
        raise UserError(f"The page shows the picture '{name}', but there is none of this name in {folder}.")
    return f"data:{KINDS[picture.suffix]};base64,{base64.b64encode(picture.read_bytes()).decode()}"
