"""A report's markdown as one HTML file with its pictures inside: what a browser shows, and MLflow of a run's files."""

import base64
from html import escape
from pathlib import Path

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


def page(text: str, folder: Path) -> str:
    """folder: where the pictures are that the text names."""
    from markdown_it import MarkdownIt

    reader = MarkdownIt("commonmark", {"html": True}).enable("table")
    parts = reader.parse(text)
    title = next((parts[k + 1].content for k, part in enumerate(parts) if part.type == "heading_open"), "report")
    for part in parts:
        for child in part.children or []:
            if child.type == "image":
                child.attrSet("src", _inside(folder / str(child.attrGet("src"))))
    body = reader.renderer.render(parts, reader.options, {})
    if any(child.type == "link_open" for part in parts for child in part.children or []):
        body = FRAMED + body
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>\n{STYLE}</style>'
    return f"<!doctype html>\n<html lang=en><head>{head}</head><body>\n{body}</body></html>\n"


def _inside(picture: Path) -> str:
    """A picture as an address that holds it; as SVG where there is one, since that has the page's letter size."""
    picture = svg if (svg := picture.with_suffix(".svg")).exists() else picture
    return f"data:{KINDS[picture.suffix]};base64,{base64.b64encode(picture.read_bytes()).decode()}"
