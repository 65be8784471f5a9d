"""Tracebacks from the user's own code on."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pflsweep.config.node import Node
from pflsweep.engine.workers import picklable
from pflsweep.sweep import cost
from pflsweep.util import trace
from pflsweep.util.errors import UserError

MODEL = """
from pflsweep.models.layers import Linear

def build(depth):
    return depths[depth]

def without_head():
    return Linear('a', 2)
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file of a module that can be imported, with two functions that fail."""
    (tmp_path / "failing_model.py").write_text(MODEL)
    monkeypatch.delitem(sys.modules, "failing_model", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    return tmp_path / "failing_model.py"


def raised(call: Callable[[], object]) -> Exception:
    """Return what a call raises."""
    with pytest.raises(Exception) as error:  # noqa: PT011 (any)
        call()
    return error.value


def test_a_traceback_begins_with_the_users_own_code(own: Path) -> None:
    node = Node("model", "failing", "failing_model.build", {"depth": 2})
    error = raised(node.call)
    assert trace.is_shortened(error)
    assert trace.text(error).splitlines() == [
        "Traceback (most recent call last):",
        f'  File "{own}", line 5, in build',
        "    return depths[depth]",
        "           ^^^^^^",
        "NameError: name 'depths' is not defined",
        "This is the code of model=failing.",
    ]
    assert trace.line(error) == f" ({own}, line 5)"


def test_what_the_users_code_calls_is_shown(own: Path) -> None:
    error = raised(Node("model", "failing", "failing_model.without_head", {}).call)
    files = [line for line in trace.text(error).splitlines() if line.startswith("  File ")]
    assert f'"{own}", line 8' in files[0]
    assert any("torch" in line for line in files[1:])


def test_what_an_exception_came_from_is_shortened_too(own: Path) -> None:
    def again() -> None:
        try:
            Node("model", "failing", "failing_model.build", {"depth": 2}).call()
        except NameError as error:
            raise RuntimeError("no model") from error

    text = trace.text(raised(again))
    assert text.count("  File ") == 3  # of the model; of `again` and `raised`, which pflsweep did not call
    assert "node.py" not in text


def test_a_fault_of_pflsweeps_own_keeps_all_frames() -> None:
    error = raised(lambda: cost.seconds(None, 0))
    assert not trace.is_shortened(error)
    assert "cost.py" in trace.text(error)
    assert "test_trace.py" in trace.text(error)


def test_an_error_of_another_process_is_shown_as_it_was_there(own: Path) -> None:
    def worker() -> None:
        try:
            Node("model", "failing", "failing_model.build", {"depth": 2}).call()
        except NameError as error:
            raise picklable(error) from None

    error = raised(worker)
    text = trace.text(error)
    assert trace.is_shortened(error)
    assert text.startswith("In a worker process:\nTraceback")
    assert text.endswith("NameError: name 'depths' is not defined\nThis is the code of model=failing.")
    assert text.count("  File ") == 1
    assert f'"{own}", line 5' in text


def test_bad_input_keeps_its_one_sentence(own: Path) -> None:
    own.write_text("from pflsweep.util.errors import UserError\n\ndef build():\n    raise UserError('no')\n")
    error = raised(Node("model", "failing", "failing_model.build", {}).call)
    assert isinstance(error, UserError)
    assert not getattr(error, "__notes__", [])
