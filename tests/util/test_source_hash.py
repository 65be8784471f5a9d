"""The digest of the code that trained a record: which changes it notices, and how they are reported."""

import ast
import importlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pflsweep
from pflsweep.config.compose import compose
from pflsweep.records.provenance import code_versions
from pflsweep.records.record import Record
from pflsweep.trial.metadata import own_code_hashes, shipped_code
from pflsweep.trial.progress import quietly
from pflsweep.trial.result import Result
from pflsweep.util import source_hash
from pflsweep.util.errors import UserError
from pflsweep.util.source_hash import code_digests, edited_components, own_source_hashes
from tests.test_golden import recorded

SMALL = ["tracking=none", "partition.clients=6", "model.hidden=[16]", "train.epochs=1", "train.threads=1"]
CONSTANT = "\nRATE = 0.1\n"
TRIAL = {
    "algorithm": "algorithms.fedfomo_ma",
    "attack": "plugins.attack",
    "model": "models.mlp",
    "dataset": "data.datasets.mnist",
    "partition": "data.partition.dirichlet",
}
Edit = Callable[[str, str, str], None]
AVERAGE = ("methods/stock.py", "w=turn.share @ up.w", "w=1.5 * turn.share @ up.w")


def forget() -> None:
    """Clear the caches, as in a new process."""
    for function in (source_hash._shared, source_hash._reached, source_hash._shipped, source_hash.equivalent):
        function.cache_clear()


@pytest.fixture
def edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Edit]:
    """Return a function that replaces a text in a file of a copied package ("": the file's end), whose digests are used
    from here on.
    """
    copy = tmp_path / "copy"
    shutil.copytree(source_hash.ROOT, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(source_hash, "ROOT", copy)
    monkeypatch.chdir(tmp_path)
    forget()

    def replace(file: str, old: str, new: str) -> None:
        text = (copy / file).read_text() if (copy / file).exists() else ""
        assert old in text
        (copy / file).write_text(text.replace(old, new) if old else text + new)
        forget()

    yield replace
    monkeypatch.undo()
    forget()


def digests() -> dict[str, str]:
    return code_digests({component: [f"pflsweep.{module}"] for component, module in TRIAL.items()})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("edited", "components"),
    [
        (AVERAGE, ["engine"]),
        (("engine/added.py", "", CONSTANT), ["engine"]),
        (("algorithms/fedfomo.py", "", CONSTANT), ["algorithm"]),
        (("algorithms/pgfed.py", "", CONSTANT), []),
        (("models/mlp.py", "", CONSTANT), ["model"]),
        (("data/datasets/files.py", "", CONSTANT), ["dataset"]),
        (("data/partition/common.py", "", CONSTANT), ["partition"]),
        (("plugins/attack.py", "", CONSTANT), ["attack"]),
    ],
)
def test_a_digest_is_of_what_a_trial_imports(edit: Edit, edited: tuple[str, str, str], components: list[str]) -> None:
    """fedfomo_ma is a variant in its own file, which imports fedfomo's."""
    before = digests()
    edit(*edited)
    assert edited_components(before, digests()) == components


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("methods/stock.py", '"""Average the clients', '"""Mean of the clients'),
        ("methods/stock.py", "# Client\n", "# What a client does\n"),
        ("methods/stock.py", "(self: Method, server: Any, turn: Turn) -> Down:", "(self, server, turn: object):"),
        ("methods/stock.py", "import torch\n", "import string\n\nimport torch\n"),
        ("methods/stock.py", "    return Server(w)\n", "    made: Server = Server(w)\n    return made\n"),
        ("report/stats.py", "", CONSTANT),
        ("trial/run.py", "SMALL = 250_000", "SMALL = 1"),
    ],
)
def test_what_changes_no_number_changes_no_digest(edit: Edit, file: str, old: str, new: str) -> None:
    # Without the annotation the statements would be the same
    if "made: Server" in new:
        edit(file, old, new.replace(": Server", ""))
        old, new = new.replace(": Server", ""), new
    before = digests()
    edit(file, old, new)
    assert edited_components(before, digests()) == []


@pytest.mark.slow
def test_a_module_that_is_only_moved_changes_no_digest(edit: Edit) -> None:
    before = digests()
    (source_hash.ROOT / "engine/communication.py").rename(source_hash.ROOT / "engine/messages.py")
    for file in ("engine/simulation.py", "engine/cohort.py"):
        edit(file, "from pflsweep.engine.communication import", "from pflsweep.engine.messages import")
    assert digests() == before


def test_the_type_of_a_field_is_part_of_it(edit: Edit) -> None:
    """The types of a message's fields decide how its traffic is counted."""
    before = digests()
    edit("methods/stock.py", 'each client\'s model."""\n\n    w: Vector', 'each client\'s model."""\n\n    w: Scalars')
    assert edited_components(before, digests()) == ["engine"]


def test_what_own_code_imports_of_pflsweep_counts(edit: Edit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's own code is itself a part of the identity."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_ditto.py").write_text(
        "from pflsweep.algorithms.ditto import Ditto\n\n\nclass OwnDitto(Ditto):\n    pass\n"
    )
    (tmp_path / "algorithm").mkdir()
    (tmp_path / "algorithm/own.yaml").write_text("_target_: own_ditto.OwnDitto\nlam: 1.0\n")
    config = compose(["algorithm=own"], tmp_path)
    assert len(own_code_hashes(config)) == 1
    before = shipped_code(config)
    assert before == shipped_code(compose(["algorithm=ditto"]))
    assert set(before) == {"engine", "algorithm", "model", "dataset", "partition"}
    edit("algorithms/ditto.py", "", CONSTANT)
    assert edited_components(before, shipped_code(config)) == ["algorithm"]


def test_a_module_that_a_function_imports_counts_before_it_has_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "lazy_one.py").write_text(
        "class Mine:\n    def run(self):\n        import json, numpy.linalg, no_such_module\n"
        "        from lazy_parts import rate\n        from lazy_parts.deep import ETA\n        return ETA"
    )
    (tmp_path / "lazy_parts").mkdir()
    (tmp_path / "lazy_parts/__init__.py").write_text("rate = 1\n")
    (tmp_path / "lazy_parts/deep.py").write_text("from . import rate\nETA = 0.5")
    module = importlib.import_module("lazy_one")
    before = own_source_hashes({f"{module.__name__}.Mine": module.Mine})
    assert len(before) == 3
    (tmp_path / "lazy_parts/deep.py").write_text("from . import rate\nETA = 1.5")
    edited = own_source_hashes({f"{module.__name__}.Mine": module.Mine})
    assert edited != before
    importlib.import_module("lazy_parts.deep")
    assert own_source_hashes({f"{module.__name__}.Mine": module.Mine}) == edited, (
        "whether it is imported changes nothing"
    )


MADE = """from functools import partial
from torch import nn
from {helper} import build
WIDTH = {width}
small = partial(build, width=WIDTH)
def factory(width):
    def net(shape, classes):
        return build(shape, classes, width)
    return net
closed = factory(WIDTH)
class Net(nn.Sequential):
    pass
class Call:
    def __call__(self, shape, classes):
        return build(shape, classes, WIDTH)
called = Call()
"""


@pytest.mark.parametrize(("name", "count"), [("small", 2), ("closed", 2), ("called", 2), ("Net", 2), ("build", 1)])
def test_what_a_call_has_made_is_written_where_its_path_says(
    name: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edit of the arguments of functools.partial is an edit; PyTorch's own classes are not the user's."""
    monkeypatch.syspath_prepend(tmp_path)
    hashes = []
    for width in (8, 32):
        module, helper = (f"{part}_{name}_{width}" for part in ("made", "helper"))
        (tmp_path / f"{helper}.py").write_text("def build(shape, classes, width):\n    return width\n")
        (tmp_path / f"{module}.py").write_text(MADE.format(helper=helper, width=width))
        path = f"{module}.{name}"
        hashes.append(own_source_hashes({path: getattr(importlib.import_module(module), name)}))
    assert [len(each) for each in hashes] == [count, count]
    assert len(set(hashes[0]) & set(hashes[1])) == 1, "the helper's, which is the same"


def test_a_module_that_was_edited_after_its_import_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "edited_later.py"
    file.write_text("class Mine:\n    size = 1\n")
    module = importlib.import_module("edited_later")
    before = own_source_hashes({f"{module.__name__}.Mine": module.Mine})
    file.write_text("class Mine:\n    size = 20\n")
    with pytest.raises(UserError, match=r"edited_later.py was edited after this process had imported it"):
        own_source_hashes({f"{module.__name__}.Mine": module.Mine})
    importlib.reload(module)
    assert own_source_hashes({f"{module.__name__}.Mine": module.Mine}) != before


def test_every_version_of_python_gives_the_same_digest() -> None:
    """The digests were computed with 3.11, 3.12 and 3.13."""
    text = r'''
"""Doc."""
from __future__ import annotations
import numpy as np
from typing import Generic, TypeVar
T = TypeVar("T")
class A(Generic[T]):
    """Doc."""
    x: int = 1_000
    y: "list[T] | None"
    @property
    def z(self, /, a: int, *b: int, c=1e-3, **d) -> int:
        "doc"
        return f"{a!r:>{self.x}} 'q' {np.pi:.2f}\n" "b" if (n := a) else {**d, "k": [*b]}
async def f(x, y=...):
    with open(x) as g, open(y): ...
    try:
        async for i in x: yield i
    except* (OSError, ValueError) as e: raise RuntimeError(f"{e=}") from e
    finally: del x[1:2, ...], y
    match x:
        case {"a": 1, **rest} | [1, *_] if rest: return
        case A(x=-0.0 | 2j) as q: assert q, b"\0"
    lambda *, k: (k, not k, k @ k, k if k else k, 1 < k <= 2, u"u", True, None)
'''
    assert source_hash._Code(ast.parse(text)).digest() == "80789729c4de6756"


def run(*overrides: str) -> Result:
    return pflsweep.run([*SMALL, *overrides])


@pytest.mark.slow
def test_going_on_with_edited_code_is_said_and_marked(edit: Edit, capsys: pytest.CaptureFixture) -> None:
    assert code_versions(run("train.rounds=2").record) == 1
    edit(*AVERAGE)
    run("train.rounds=2")
    assert "was edited" not in capsys.readouterr().err, "a finished trial is reused silently"
    # As in the worker processes of a sweep
    with quietly(mute=True):
        record = run("train.rounds=3").record
    said = [line for line in capsys.readouterr().err.splitlines() if "was edited" in line]
    assert len(said) == 1
    assert re.search(r"depend on \(engine\) was edited since it trained round 2.*paths\.runs", said[0])
    assert code_versions(record) == 2
    assert Record(record.folder).meta["sessions"][0]["digests"]["engine"] != record.meta["digests"]["engine"]
    assert code_versions(run("train.rounds=2").record) == 1, "as of round 2 it is not mixed"
    run("train.rounds=4")
    assert "was edited" not in capsys.readouterr().err, "it is the code of round 3"


def test_code_with_the_same_golden_trajectories_goes_on_silently(edit: Edit, capsys: pytest.CaptureFixture) -> None:
    run("train.rounds=2")
    before = digests()
    edit(*AVERAGE)
    now = digests()
    golden, bits = {"fedavg v1": [1.0, 2.0]}, dict[str, Any]()
    _, golden, bits, classes = recorded(golden, {}, before, {}, {}, {}, "here")
    *_, classes = recorded(golden, {}, now, golden, bits, classes, "here")
    (source_hash.ROOT / source_hash.EQUIVALENT).write_text(json.dumps(classes))
    forget()
    assert code_versions(run("train.rounds=3").record) == 1
    assert "was edited" not in capsys.readouterr().err


def test_only_bitwise_equal_trajectories_make_code_equivalent() -> None:
    old, new = {"engine": "a", "algorithm=x": "c"}, {"engine": "b", "algorithm=x": "c", "algorithm=y": "d"}
    numbers = {"x v1": [1.0, 2.0]}
    _, golden, bits, classes = recorded(numbers, {}, old, {}, {}, {}, "here")
    assert classes == {"engine": [["a"]], "algorithm=x": [["c"]]}
    more = {**numbers, "y v1": [3.0]}
    _, grown, _, found = recorded(more, {}, new, golden, bits, classes, "here")
    assert grown == more
    assert found == {"engine": [["a", "b"]], "algorithm=x": [["c"]], "algorithm=y": [["d"]]}
    rounded = {"x v1": [1.0, 2.0 + 1e-15]}
    said, kept, _, found = recorded(rounded, {}, new, golden, bits, classes, "here")
    assert found["engine"] == [["a"], ["b"]]
    assert "not bitwise: x v1" in said
    assert kept == golden, "recorded numbers stay"
    with pytest.raises(ValueError, match="Moved: x v1"):
        recorded({"x v1": [1.0, 2.1]}, {}, new, golden, bits, classes, "here")
    with pytest.raises(ValueError, match=r"Edited: engine.*code before the edit"):
        recorded(numbers, {}, new, golden, bits, classes, "elsewhere")
    *_, found = recorded({"x v2": [5.0]}, {}, new, golden, bits, classes, "here")
    assert found["engine"] == [["a", "b"]], "a raised version is another trial"
