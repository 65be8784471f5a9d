"""docs/reports.md lists the files of a record as `records/content.py` does."""

from pathlib import Path

from pflsweep.records.content import PARTS

DOCS = Path(__file__).parents[2] / "docs" / "reports.md"
WRITTEN = {"begin": "always", "round": "from the first round on", "some": "where there is one"}


def test_the_docs_list_every_file_of_a_record() -> None:
    rows = [f"| `{name}` | {part.holds} | {WRITTEN[part.written]} |" for name, part in PARTS.items()]
    assert "\n".join(rows) in DOCS.read_text(), "the table of files is not that of records/content.py"
