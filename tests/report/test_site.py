"""A static site of reports: every page of it, every link in it, and tables that a click sorts."""

import re
import shutil
from contextlib import chdir
from pathlib import Path

import pytest

from pflsweep.commands.report import main
from pflsweep.report import html
from pflsweep.util.errors import UserError
from tests.browser import browser
from tests.report.paper.fixtures import Sweep

LEADERBOARD = "benchmark/index.html"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site of a leaderboard and of a paper's table."""
    folder = tmp_path_factory.mktemp("site")
    with chdir(folder):
        board = Sweep(Path("runs"), "benchmark", seeds=(0,))
        for place in [f"{data}/{part}" for data in ("digits", "fmnist") for part in ("dir0.1", "dir0.3", "pat2")]:
            for correct, method in enumerate(("local", "fedavg", "fedprox", "ditto"), start=3):
                board.add(place, method, {0: [correct, correct + 1]})
        board.write()
        table = Sweep(Path("runs"), "fedfomo/table1", seeds=(0,))
        for method, option in (("fedfomo_n5", "fedfomo"), ("cfl", "clustered"), ("fedprox", "fedavg")):
            table.add("mnist/clients15", method, {0: [9, 9, 9, 8]}, algorithm___option_=option)
        table.write("b" * 16)
        for name in ("benchmark", "fedfomo/table1"):
            assert main([name]) == 0
        assert main(["site"]) == 0
    return folder / "site"


def test_every_link_leads_to_a_page_and_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert {"index.html", "methods.html", LEADERBOARD, "fedfomo/table1/index.html", "methods/ditto.html"} <= {
        page.relative_to(site).as_posix() for page in pages
    }
    assert {file.suffix for file in site.rglob("*") if file.is_file()} == {".html"}
    for page in pages:
        text = page.read_text()
        links = re.findall(r'href="([^"]*)"', text)
        assert len(links) >= 3, "the main pages"
        lost = [link for link in links if not (page.parent / link).resolve().is_file() and "://" not in link]
        assert not lost, page
        assert all(source.startswith("data:image/") for source in re.findall(r'src="([^"]*)"', text)), page
        assert "<link" not in text


def numbers(site: Path, page: str, table: str) -> list[list[str]]:
    """Return the numbers on a method's page that are of a table."""
    rows = re.findall(r"<tr>.*?</tr>", (site / f"methods/{page}.html").read_text(), re.DOTALL)
    own = [row for row in rows if f"../{table}/index.html" in row]
    return [[re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<td.*?</td>", row)] for row in own]


def test_a_methods_page_has_its_numbers_and_links_to_their_tables(site: Path) -> None:
    where = ["mnist/clients15", "acc", "percent", "87.5"]
    row = ["fedfomo/table1", "paper", "Ours (5 clients downloaded)", *where, "99.62 ± 2.91"]
    assert numbers(site, "fedfomo", "fedfomo/table1") == [row]
    heads = re.findall("<th(.*?)>(.*?)</th>", (site / "methods/fedfomo.html").read_text().partition("Its numbers")[2])
    right = [head for style, head in heads if "right" in style]
    assert right == ["ours", "published"]
    assert len(numbers(site, "ditto", "benchmark")) == 6
    assert "Its numbers" not in (site / "methods/apple.html").read_text()


def test_a_number_stands_on_the_page_of_the_method_that_its_trials_have_whatever_its_row_is_called(site: Path) -> None:
    (row,) = numbers(site, "clustered", "fedfomo/table1")
    assert row[2] == "Clustered FL (CFL) (Sattler et al., 2020)"
    (row,) = numbers(site, "fedavg", "fedfomo/table1")
    assert row[2] == "FedProx (Li et al., 2020)"
    assert numbers(site, "fedprox", "fedfomo/table1") == []
    assert len(numbers(site, "fedprox", "benchmark")) == 6


def test_a_click_on_a_head_sorts_the_leaderboard(site: Path, tmp_path: Path) -> None:
    column = "[...document.querySelectorAll('tbody')[0].rows].map(row => row.cells[{}].innerText)"
    with browser(tmp_path / "profile") as page:
        page.open((site / LEADERBOARD).as_uri(), "document.readyState === 'complete'")
        head = "[...document.querySelectorAll('thead th')].find(head => head.innerText.startsWith('{}')).click()"
        assert page.ask(column.format(1)) == ["Ditto", "FedProx", "FedAvg", "Local"]
        page.ask(head.format("mean accuracy"))
        assert page.ask(column.format(1)) == ["Local", "FedAvg", "FedProx", "Ditto"]
        page.ask(head.format("mean accuracy"))
        assert page.ask(column.format(1)) == ["Ditto", "FedProx", "FedAvg", "Local"]
        page.ask(head.format("method"))
        assert page.ask(column.format(1)) == ["Ditto", "FedAvg", "FedProx", "Local"]


@pytest.mark.parametrize("cells", [["+2.00", "+10.00", "-"], ["paper2: 8.5", "paper2: 100.0", "paper2: missing"]])
def test_numbers_with_a_sign_or_a_reading_are_sorted_by_size(tmp_path: Path, cells: list[str]) -> None:
    rows = "\n".join(f"| {cell} |" for cell in reversed(cells))
    file = tmp_path / "index.html"
    file.write_text(
        html.page(f"# A\n\n| gain |\n|-|\n{rows}\n", tmp_path, html.SitePage("index.md", ["index.md"], {"A": "."}))
    )
    with browser(tmp_path / "profile") as page:
        page.open(file.as_uri(), "document.readyState === 'complete'")
        page.ask("document.querySelector('thead th').click()")
        assert page.ask("[...document.querySelectorAll('tbody td')].map(cell => cell.innerText)") == cells


def test_a_site_of_no_reports_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"There are no reports in 'reports'\. Make one first \(`pflsweep report pgfed"):
        main(["site"])
    with pytest.raises(UserError, match=r"There are no reports in 'here'"):
        main(["site", "--reports", "here"])


def test_a_site_that_cannot_be_written_says_so(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(site.parent)
    Path("taken").write_text("a file")
    with pytest.raises(UserError, match=r"taken cannot be written to .*--out DIR"):
        main(["site", "--out", "taken"])


@pytest.mark.parametrize(
    ("link", "address"),
    [
        ("../table1/README.md", "../table1/index.html"),
        ("../table1/README.md#order", "../table1/index.html#order"),
        ("#order", "#order"),
        ("../../methods.md", "../../methods.html"),
        ("http://127.0.0.1:5000/README.md", "http://127.0.0.1:5000/README.md"),
        ("../../../docs/sweeps.md#readings", None),
        ("../table2/README.md", None),
        ("table.csv", None),
    ],
)
def test_an_address_in_a_site(link: str, address: str | None, tmp_path: Path) -> None:
    of = html.SitePage("fedpg/table3/README.md", ["fedpg/table1/README.md", "methods.md"], {})
    assert of.address(link) == address
    shown = html.page(f"see [*it*]({link}), and [all](../../methods.md)", tmp_path, of)
    it = "<em>it</em>" if address is None else f'<a href="{address}"><em>it</em></a>'
    assert f'<p>see {it}, and <a href="../../methods.html">all</a></p>' in shown


@pytest.mark.parametrize(
    ("file", "damage", "said"),
    [
        ("fedfomo/table1/report.json", "<<<<<<< ours", "report.json is damaged"),
        ("fedfomo/table1/README.md", None, "README.md cannot be read (No such file"),
    ],
)
def test_a_report_that_is_damaged_is_named(
    site: Path, tmp_path: Path, file: str, damage: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(site.parent / "reports", "reports")
    if damage is None:
        Path("reports", file).unlink()
    else:
        Path("reports", file).write_text(damage)
    with pytest.raises(UserError, match=re.escape(said)):
        main(["site"])
    assert not Path("site").exists()
