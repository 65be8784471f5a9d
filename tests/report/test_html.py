"""A page as one HTML file."""

from base64 import b64encode
from pathlib import Path

from pflsweep.report import html

TEXT = """\
# A & B

| | head<br>below |
|:--|--:|
| <u>row</u> | **1.00** |

![curves, by round](curves.png)

![only as PNG](other.png)

![with a blank](<größe b.png>)
"""


def test_tables_marks_and_pictures(tmp_path: Path) -> None:
    for name in ("curves.png", "curves.svg", "other.png", "größe b.png"):
        (tmp_path / name).write_bytes(name.encode())
    page = html.page(TEXT, tmp_path)
    assert "<title>A &amp; B</title>" in page
    assert "id=framed" not in page, "it has no links"
    assert "head<br>below" in page
    assert "<u>row</u>" in page
    assert "<strong>1.00</strong>" in page
    assert f'src="data:image/svg+xml;base64,{b64encode(b"curves.svg").decode()}" alt="curves, by round"' in page
    assert f'src="data:image/png;base64,{b64encode(b"other.png").decode()}"' in page
    assert f'src="data:image/png;base64,{b64encode("größe b.png".encode()).decode()}" alt="with a blank"' in page


def test_a_title_is_the_text_of_the_head(tmp_path: Path) -> None:
    page = html.page("# \\_y\\_ of `x_y` \\& **50**%\n\n## other\n", tmp_path)
    assert "<title>_y_ of x_y &amp; 50%</title>" in page
    assert "<title>report</title>" in html.page("no head\n", tmp_path)


def test_a_page_with_links_says_what_to_do_in_a_frame(tmp_path: Path) -> None:
    assert "id=framed" in html.page("# A\n\nin [`run`](http://127.0.0.1:5000/#/experiments/1)\n", tmp_path)


def test_html_that_is_no_mark_of_a_page_is_shown_as_it_is_written(tmp_path: Path) -> None:
    text = (
        "# A <script>alert(1)</script>\n\n<script>alert(2)</script>\n\nb <img src=x onerror=alert(3)> <u>c</u><br>d\n"
    )
    page = html.page(text, tmp_path)
    assert "<script>" not in page
    assert "<img" not in page
    assert "<title>A &lt;script&gt;alert(1)&lt;/script&gt;</title>" in page
    assert "&lt;script&gt;alert(2)&lt;/script&gt;" in page
    assert "<u>c</u><br>d" in page


def test_what_folds_away_is_kept_and_what_stands_in_its_head_is_escaped(tmp_path: Path) -> None:
    page = html.page("# A\n\n<details>\n<summary>b <script> c</summary>\n\n**d**\n\n</details>\n", tmp_path)
    assert "<details>\n<summary>b &lt;script&gt; c</summary>\n<p><strong>d</strong></p>\n</details>" in page
    assert "<details onclick" not in html.page("# A\n\n<details onclick=alert(1)>\n\n</details>\n", tmp_path)
