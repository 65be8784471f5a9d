"""docs/design.md and docs/glossary.md are true: the method in the example runs, and names exist where pages say."""

import ast
import doctest
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from pflsweep.methods import protocol
from tools import round_picture, sweep_picture

ROOT = Path(__file__).parents[1]
DESIGN = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
PLACES = re.findall(r"^\| ([^|]+?) \|.*\| `([\w/]+\.py)` `([\w.]+)` \|$", GLOSSARY, flags=re.MULTILINE)
# Types of a config and its parts. A file is on a config's way where a function takes or returns one of them, until the
# first round. Functions are counted until the simulation is made: those that take the config, as Hydra composed it or
# checked, or a group of it.
FOLLOW = """
import sys
from pathlib import Path
from omegaconf import DictConfig
import pflsweep
from pflsweep.commands import main
from pflsweep.config.compose import Config
from pflsweep.config.node import Node
from pflsweep.config.options import Keys
from pflsweep.engine.simulation import Simulation

ROOT, KINDS, found, ended = Path(pflsweep.__file__).parent, (Config, Node, Keys), set(), []
functions, made = set(), []

def follow(frame, event, value):
    code = frame.f_code
    if code is Simulation._next.__code__:
        ended.append(True)
        sys.setprofile(None)
    elif str(ROOT) in code.co_filename and event in ("call", "return"):
        count = code.co_argcount + code.co_kwonlyargcount
        given = [frame.f_locals.get(name) for name in code.co_varnames[:count]] if event == "call" else [value]
        if any(isinstance(each, KINDS) for each in given):
            found.add(Path(code.co_filename).relative_to(ROOT).as_posix())
        if event == "call" and not made and any(isinstance(each, (DictConfig, Config, Keys)) for each in given):
            functions.add((code.co_filename, code.co_qualname))
            if code is Simulation.__init__.__code__:
                made.append(True)

sys.setprofile(follow)
assert main.main(sys.argv[1:]) == 0 and ended
assert made
print("functions:", len(functions))
print("files:", *sorted(found))
"""


def source() -> str:
    """Return the code of the protocol's example, without prompts."""
    return "".join(example.source for example in doctest.DocTestParser().get_examples(protocol.__doc__ or ""))


def test_the_protocols_example_runs() -> None:
    done = doctest.testmod(protocol)
    assert done.attempted > 10
    assert done.failed == 0


def test_the_page_shows_the_example() -> None:
    (shown,) = re.findall(r"^```python\n(.*?)^```", DESIGN, flags=re.MULTILINE | re.DOTALL)
    # A page has blank lines between classes, a docstring's prompts have none
    assert list(filter(None, shown.splitlines())) == list(filter(None, source().splitlines()))


@pytest.mark.parametrize("tool", [round_picture, sweep_picture], ids=["round", "sweep"])
def test_the_pictures_are_current(tool: ModuleType) -> None:
    assert f"]({tool.PICTURE.name})" in DESIGN
    current = tool.PICTURE.read_text(encoding="utf-8") == tool.picture()
    assert current, f"`python -m {tool.__name__}` draws the picture anew"


def require_defined(file: str, name: str) -> None:
    """Fail unless a module of the package defines a name, such as `Class.method`."""
    scope = ast.parse((ROOT / "pflsweep" / file).read_text(encoding="utf-8")).body
    for part in name.split("."):
        (found,) = [
            node
            for node in scope
            if part in (getattr(node, "name", None), *map(ast.unparse, getattr(node, "targets", ())))
        ]
        scope = getattr(found, "body", [])


@pytest.mark.parametrize(("word", "file", "name"), PLACES, ids=[word for word, _, _ in PLACES])
def test_a_word_stands_where_the_glossary_says(word: str, file: str, name: str) -> None:
    require_defined(file, name)


def test_names_stand_where_the_page_says() -> None:
    named = re.findall(r"`([\w.]+)` (?:of|in) `([\w/]+\.py)`", DESIGN)
    assert len(named) >= 4
    for name, file in named:
        require_defined(file, name)


def test_each_line_of_the_glossary_says_where() -> None:
    lines = [line for line in GLOSSARY.splitlines() if line.startswith("| ") and not line.startswith("| word |")]
    assert len(lines) == len(PLACES) > 40


@pytest.mark.slow
def test_a_config_passes_the_files_that_the_page_lists(tmp_path: Path) -> None:
    way = DESIGN.partition("## From the command to the engine")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `([\w/]+\.py)` \|", way, flags=re.MULTILINE)
    command = [sys.executable, "-c", FOLLOW, "algorithm=fedavg", "train.rounds=1", "tracking=none"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    # The command's own file composes the config and passes it on
    passed = {"commands/main.py", *done.stdout.rpartition("files: ")[2].split()}
    assert sorted(listed) == sorted(passed)
    assert len(passed) <= 12
    assert int(re.search(r"^functions: (\d+)$", done.stdout, flags=re.MULTILINE)[1]) <= 30
