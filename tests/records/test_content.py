"""docs/reports.md lists the files of a record as `records/content.py` does."""

from pathlib import Path

from pflsweep.engine.communication import Traffic
from pflsweep.records.content import PARTS

DOCS = Path(__file__).parents[2] / "docs" / "reports.md"
WRITTEN = {"begin": "always", "round": "from the first round on", "some": "where there is one"}


def test_the_docs_list_every_file_of_a_record() -> None:
    rows = [f"| `{name}` | {part.holds} | {WRITTEN[part.written]} |" for name, part in PARTS.items()]
    assert "\n".join(rows) in DOCS.read_text(), "the table of files is not that of records/content.py"


def test_the_docs_list_the_columns_of_the_tables() -> None:
    text = DOCS.read_text()
    for name in ("rounds.parquet", "clients.parquet", "newcomers.parquet"):
        (row,) = [
            line for line in text.partition("| table | columns |")[2].splitlines() if line.startswith(f"| `{name}`")
        ]
        columns = [*PARTS[name].columns, *(Traffic._fields if name == "rounds.parquet" else ())]
        assert [column for column in columns if f"`{column}`" not in row] == []
