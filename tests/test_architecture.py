"""Each module imports only what stands before it, and the heavy libraries stand where they belong."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import pflsweep

ROOT = Path(pflsweep.__file__).parent
# README's layout, bottom to top. What stands on one line does not know of each other.
LAYERS = (
    ("errors", "keys", "places", "signals", "vision"),
    ("disk", "history", "overrides", "patience", "rules", "sources"),
    ("engine.draws", "engine.lift", "engine.memory"),
    ("models", "engine.compiled", "engine.parallel"),
    ("engine.task",),
    ("engine.optimiser",),
    ("engine.protocol",),
    ("engine.parts", "engine.solvers"),
    ("algorithms", "data", "plugins"),
    ("engine.clients", "engine.wire"),
    ("engine.cohort", "engine.evaluate"),
    ("engine.simulation", "engine.newcomers"),
    ("engine.stack",),
    ("studies",),
    ("compose",),
    ("identity",),
    ("record",),
    ("report",),  # needs records alone, so that tracking can log the same pictures
    ("tracking",),
    ("config",),
    ("progress", "rows", "setting"),
    ("process",),
    ("trial",),
    ("sweep",),
    ("listing", "showing", "catalogue", "carry"),
    ("check",),
    ("cli",),
)
METHODS_MAY = {"errors", *(f"engine.{m}" for m in ("protocol", "parts", "lift", "task", "solvers", "draws", "memory"))}
VARIANT_OF = {"algorithms.fedfomo_ma": "algorithms.fedfomo"}  # a variant may build on the method it varies
ONLY_IN = {"mlflow": "tracking", "optuna": "sweep"}
# models have torchvision from `vision`, late, so that a model of our own does not load it
NEVER_IN = {"report": ("torch",), "check": ("mlflow", "optuna", "pytest"), "models": ("torchvision",)}


def sources() -> dict[str, str]:
    """Module name without `pflsweep.` -> its text."""
    found = {}
    for file in sorted(ROOT.rglob("*.py")):
        parts = file.relative_to(ROOT).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = file.read_text()
    return found


SOURCES = sources()
NAMES = [name for name in SOURCES if name and SOURCES[name].strip()]


def imported(source: str) -> set[str]:
    """Full names of all that a text imports, wherever it does: `from a import b` gives a.b."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def ours(source: str) -> set[str]:
    """The modules of pflsweep that a text imports, without `pflsweep.`; __version__ is everybody's."""
    found = set()
    for full in imported(source) - {"pflsweep.__version__"}:
        head, _, name = full.partition(".")
        if head == "pflsweep":
            found.add(name if name in SOURCES else name.rpartition(".")[0])
    return found


def place(name: str) -> tuple[int, str]:
    """(layer, entry) of a module."""
    for layer, entries in enumerate(LAYERS):
        for entry in entries:
            if name == entry or name.startswith(f"{entry}."):
                return layer, entry
    raise AssertionError(f"{name or 'pflsweep/__init__.py'} has no place in LAYERS: give it one")


def misplaced(name: str, source: str) -> list[str]:
    """What a module of this name must not import."""
    layer, entry = place(name)
    others = [other for other in ours(source) if other != "engine"]
    return sorted(other for other in others if place(other)[1] != entry and place(other)[0] >= layer)


def roots(source: str) -> set[str]:
    return {full.partition(".")[0] for full in imported(source)}


@pytest.mark.parametrize("name", NAMES)
def test_a_module_imports_what_stands_before_it(name: str) -> None:
    if name != "engine":
        assert misplaced(name, SOURCES[name]) == []


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(("algorithms.", "plugins."))])
def test_a_method_needs_little(name: str) -> None:
    assert ours(SOURCES[name]) - {VARIANT_OF.get(name)} <= METHODS_MAY


@pytest.mark.parametrize("name", NAMES)
def test_libraries_stand_where_they_belong(name: str) -> None:
    found = roots(SOURCES[name])
    for library, home in ONLY_IN.items():
        assert library not in found or place(name)[1] == home
    assert not found & set(NEVER_IN.get(name.partition(".")[0], ()))


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("pflsweep.trial.run, pflsweep.records.record", "mlflow optuna"),
        ("pflsweep.commands.report, pflsweep.report.page", "torch"),
    ],
)
def test_not_even_by_a_detour(modules: str, absent: str) -> None:
    program = f"import sys, {modules}; print(*sorted(set('{absent}'.split()) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT.parent)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def test_these_tests_can_fail() -> None:
    assert misplaced("engine.task", "def f():\n    from pflsweep.methods import stock") == ["engine.parts"]
    assert misplaced("data.federation", "import pflsweep.algorithms.fedavg") == ["algorithms.fedavg"]
    assert misplaced("engine.task", "from pflsweep.models.layers import context") == []
    assert misplaced("data.federation", "from pflsweep.data.dataset import Dataset") == []
    assert ours("from pflsweep.engine.cohort import select") - METHODS_MAY == {"engine.cohort"}
    assert "mlflow" in roots("def f():\n    import mlflow.entities as e")
    with pytest.raises(AssertionError, match="nowhere"):
        place("nowhere")
