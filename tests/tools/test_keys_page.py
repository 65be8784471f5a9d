"""docs/keys.md agrees with the keys' declarations and conf/."""

from pflsweep.config.options import rules, sweep_rules
from tools import keys_page


def test_the_page_is_current() -> None:
    current = keys_page.PAGE.read_text(encoding="utf-8") == keys_page.page()
    assert current, "a key has changed: `python -m tools.keys_page` writes the page anew"


def test_each_key_has_a_line_with_a_meaning() -> None:
    lines = keys_page.page().splitlines()
    for key, rule in {**rules(), **sweep_rules()}.items():
        assert rule.meaning
        assert sum(line.startswith(f"| `{key}` |") for line in lines) == 1
