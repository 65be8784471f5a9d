"""A report's markdown as one HTML file with its pictures inside, for a browser, a site, and MLflow."""

import base64
import posixpath
import re
from collections.abc import Collection, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from pflsweep.report import template
from pflsweep.util.errors import UserError

KINDS = {".png": "image/png", ".svg": "image/svg+xml"}
# markup that pages have of their own; all else that looks like HTML is shown as it is written
MARKS = re.compile(r"(<br>|</?(?:sub|u|details|summary)>)")


class SitePage(NamedTuple):
    """A page of a site."""

    file: str  # where its markdown lies in the reports
    pages: Collection[str]  # where those of all pages of the site lie
    nav: Mapping[str, str]  # the addresses of the main pages by name

    def address(self, link: str) -> str | None:
        """Return a link of the page as the site has it; None if it leads to no page of the site."""
        path, mark, anchor = link.partition("#")
        if not path or re.match("[A-Za-z][A-Za-z0-9+.-]*:", path):
            return link
        there = posixpath.normpath(posixpath.join(posixpath.dirname(self.file), unquote(path)))
        return f"{address(path)}{mark}{anchor}" if there in self.pages else None


def page(text: str, folder: Path, site: SitePage | None = None) -> str:
    """Return markdown as a page. folder: where the pictures are that the text names.

    site: where it is a page of one. Links to other pages' markdown then lead to their HTML, those to what the site does
    not have are text, and a click on a head sorts a table.
    """
    from markdown_it import MarkdownIt

    reader = MarkdownIt("commonmark", {"html": True}).enable("table")
    for kind in ("html_inline", "html_block"):
        reader.add_render_rule(kind, _marks)
    parts = reader.parse(text)
    heads = (parts[k + 1].children or [] for k, part in enumerate(parts) if part.type == "heading_open")
    # Its text without marks: a title is no markdown
    title = "".join(child.content for child in next(heads, [])) or "report"
    for part in parts:
        for child in part.children or []:
            if child.type == "image":
                child.attrSet("src", _inside(folder, str(child.attrGet("src"))))
        if site is not None and part.children:
            part.children = _linked(part.children, site)
    body = reader.renderer.render(parts, reader.options, {})
    linked = any(child.type == "link_open" for part in parts for child in part.children or [])
    return template.render(
        "page.html", title=title, body=body, linked=linked and site is None, nav=site.nav if site else {}
    )


def address(file: str) -> str:
    """Return where a site has the page of a report's markdown."""
    return f"{file.removesuffix('README.md')}index.html" if file.endswith("README.md") else f"{file[:-3]}.html"


def _linked(children: list[Any], site: SitePage) -> list[Any]:
    """Return the pieces of a line with links as a site has them. Of one that leads to no page of it the text stays."""
    kept, dead = [], False
    for child in children:
        if child.type == "link_open":
            to = site.address(str(child.attrGet("href")))
            dead = to is None
            child.attrSet("href", to or "")
        # No link is inside another
        if not (dead and child.type in ("link_open", "link_close")):
            kept.append(child)
    return kept


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
