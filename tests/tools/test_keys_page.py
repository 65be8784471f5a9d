"""docs/keys.md agrees with the keys' declarations and conf/."""

from pflsweep.config.options import rules, sweep_rules
from tools import keys_page


def test_the_page_is_current() -> None:
    current = keys_page.PAGE.read_text(encoding="utf-8") == keys_page.page()
    assert current, "a key has changed: `python -m tools.keys_page` writes the page anew"


def test_each_key_of_an_option_has_a_meaning() -> None:
    lines = keys_page.page().splitlines()
    assert any(line.startswith("| `partition.classes_per_client` |") for line in lines)
    assert any(line.startswith("| `privacy.clip` |") for line in lines)
    assert [line for line in lines if "|  |" in line] == [], "the option's file needs a comment beside the key"


def test_each_heading_stands_once() -> None:
    """Anchors on GitHub are those of the headings, and a page has one of the first level."""
    heads = [line for line in keys_page.page().splitlines() if line.startswith("#")]
    assert [head for head in heads if head.startswith("# ")] == ["# Keys"]
    assert len(set(heads)) == len(heads)


def test_each_key_has_a_line_with_a_meaning() -> None:
    lines = keys_page.page().splitlines()
    for key, rule in {**rules(), **sweep_rules()}.items():
        assert rule.meaning
        assert sum(line.startswith(f"| `{key}` |") for line in lines) == 1
