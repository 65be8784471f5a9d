"""Pages from templates: values are escaped, and a missing value is an error."""

import jinja2
import pytest

from pflsweep.report import template

STATE = {"complete": 1, "cells": 2, "agree": 1, "compared": 1, "difference": "-", "tau": "-", "failed": 0, "claims": {}}


def index(title: str, **errors: str) -> str:
    made = {"a/b": {"title": title, "scale": "small", "readings": {"paper": STATE}}}
    return template.render("index.md", near=2, made=made, words=[], picture="", errors=errors, unmade=[], discussion="")


def test_text_is_escaped_as_markdown() -> None:
    text = index("a | b <b>c</b> [d](http://e) *f*", broken="x\n## y | z")
    row = next(line for line in text.splitlines() if line.startswith("| [a/b](a/b/README.md)"))
    assert row.endswith(r"a \| b &lt;b&gt;c&lt;/b&gt; [d\](http://e) \*f\* |")
    assert r"| **error**: x ## y \| z |" in text


def test_html_is_escaped_as_html() -> None:
    text = template.render("page.html", title="a <b> *c*", body="", linked=False, nav={"a": '"><b>'})
    assert "<title>a &lt;b&gt; *c*</title>" in text
    assert '<a href="&#34;&gt;&lt;b&gt;">a</a>' in text


def test_a_word_that_a_template_lacks_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError, match="'linked' is undefined"):
        template.render("page.html", title="a", body="", nav={})
