"""A hook of mkdocs: the site has the paths of the checkout, so that one relative link works on GitHub and in the site.

README.md is the home page; docs/, reports/ and examples/ keep their names. Without this hook mkdocs takes docs/ as its
root, and no page can link to a report.
"""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
FOLDERS = ("docs", "reports", "examples")
KINDS = {".md", ".png", ".svg", ".html", ".csv", ".tex", ".ipynb"}


def sources() -> list[str]:
    """Return the files of the site, relative to the checkout, in order."""
    found = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in KINDS)
    return [*PAGES, *sorted(path.relative_to(ROOT).as_posix() for path in found)]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return the theme's files and those of the checkout, in place of what mkdocs has found below docs/."""
    kept = [file for file in files if file.src_dir != config.docs_dir]
    return Files([*kept, *(File.generated(config, source, abs_src_path=str(ROOT / source)) for source in sources())])


def on_page_markdown(markdown: str, **_: object) -> str:
    """Return a page whose <details> hold Markdown. GitHub reads it as such; mkdocs wants to be told."""
    return markdown.replace("<details>", '<details markdown="1">')
