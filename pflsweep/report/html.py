"""A report's markdown as one HTML file with its pictures inside, for a browser, a site, and MLflow."""

import base64
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pflsweep.report import template
from pflsweep.util.errors import UserError

KINDS = {".png": "image/png", ".svg": "image/svg+xml"}
# markup that pages have of their own; all else that looks like HTML is shown as it is written
MARKS = re.compile(r"(<br>|</?(?:sub|u|details|summary)>)")


def page(text: str, folder: Path, nav: Mapping[str, str] | None = None) -> str:
    """Return markdown as a page. folder: where the pictures are that the text names.

    nav: of a page of a site, the addresses of its main pages by name. Links to other pages' markdown then lead to their
    HTML, and a click on a head sorts a table.
    """
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
            if child.type == "link_open" and nav is not None:
                child.attrSet("href", address(str(child.attrGet("href"))))
    body = reader.renderer.render(parts, reader.options, {})
    linked = any(child.type == "link_open" for part in parts for child in part.children or [])
    return template.render("page.html", title=title, body=body, linked=linked and nav is None, nav=nav or {})


def address(link: str) -> str:
    """Return a link of a report as a site has it: that to a page's markdown leads to its HTML."""
    if "://" in link or not link.endswith(".md"):
        return link
    return f"{link.removesuffix('README.md')}index.html" if link.endswith("README.md") else f"{link[:-3]}.html"


def _marks(_reader: Any, tokens: Sequence[Any], at: int, *_: Any) -> str:
    """Return a piece of HTML with its MARKS as they are, and all between them escaped."""
    parts = MARKS.split(tokens[at].content)
    return "".join(part if number % 2 else escape(part) for number, part in enumerate(parts))


def _inside(folder: Path, name: str) -> str:
    """Return a picture of the folder as an address that holds it: as SVG where there is one, since that has the page's
    letter size. Raises UserError if there is no such picture.
    """
    # The reader of markdown quotes blanks and letters beyond ASCII, which a discussion's picture may have
    name = unquote(name)
    picture = folder / name
    picture = svg if (svg := picture.with_suffix(".svg")).exists() else picture
    if Path(name).name != name or picture.suffix not in KINDS or not picture.is_file():
        raise UserError(f"The page shows the picture '{name}', but there is none of this name in {folder}.")
    return f"data:{KINDS[picture.suffix]};base64,{base64.b64encode(picture.read_bytes()).decode()}"
