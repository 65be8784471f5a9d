"""Each package imports only from packages above it in one list, and heavy libraries are imported only where allowed."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import pflsweep

ROOT = Path(pflsweep.__file__).parent
# docs/design.md describes each of them
PACKAGES = (
    "util",
    "config",
    "ops",
    "models",
    "methods",
    "plugins",
    "algorithms",
    "data",
    "engine",
    "studies",
    "conformance",
    "records",
    # It needs records alone, so that tracking can log the same pictures
    "report",
    "tracking",
    "trial",
    "sweep",
    "commands",
    # The only module beside the packages: `python -m pflsweep`
    "__main__",
)
METHODS_NEED = {"util", "ops", "methods", "plugins"}  # and methods that they vary
ONLY_IN = {"mlflow": "tracking", "optuna": "sweep"}
NEVER_IN = {
    "util": ("torch", "hydra", "omegaconf"),
    "config": ("torch",),
    # Imported late, in ops/torchvision_compat.py, so that a model of our own does not load it
    "models": ("torchvision",),
    "report": ("torch",),
    "conformance": ("mlflow", "optuna", "pytest"),
}


def sources() -> dict[str, str]:
    """Return the text of each module by its name without `pflsweep.`; the package itself is ''."""
    found = {}
    for file in sorted(ROOT.rglob("*.py")):
        parts = file.relative_to(ROOT).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = file.read_text()
    return found


SOURCES = sources()
NAMES = [name for name in SOURCES if name and SOURCES[name].strip()]


def imported(source: str) -> set[str]:
    """Return the full names of all that a text imports, anywhere in it: `from a import b` gives a.b."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def packages(source: str) -> set[str]:
    """Return the packages of pflsweep that a text imports from. __version__ may be imported everywhere."""
    names = imported(source) - {"pflsweep.__version__"}
    return {name.split(".")[1] for name in names if name.startswith("pflsweep.")}


def libraries(source: str) -> set[str]:
    return {name.partition(".")[0] for name in imported(source)}


def misplaced(package: str, source: str) -> list[str]:
    """Return the packages that a module of this package must not import from, but does."""
    return sorted(other for other in packages(source) if PACKAGES.index(other) > PACKAGES.index(package))


def test_every_module_lies_in_a_package() -> None:
    assert sorted({name.partition(".")[0] for name in SOURCES if name}) == sorted(PACKAGES)
    assert sorted(file.name for file in ROOT.glob("*.py")) == ["__init__.py", "__main__.py"]


@pytest.mark.parametrize("name", NAMES)
def test_a_module_imports_from_packages_above_its_own(name: str) -> None:
    assert misplaced(name.partition(".")[0], SOURCES[name]) == []


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(("algorithms.", "plugins."))])
def test_a_method_needs_little(name: str) -> None:
    assert packages(SOURCES[name]) - {name.partition(".")[0]} <= METHODS_NEED


@pytest.mark.parametrize("name", NAMES)
def test_libraries_stay_where_they_belong(name: str) -> None:
    package, found = name.partition(".")[0], libraries(SOURCES[name])
    for library, home in ONLY_IN.items():
        assert library not in found or package == home
    assert not found & set(NEVER_IN.get(package, ()))


def private_of_optuna(source: str) -> list[str]:
    """Return the attributes and imports from Optuna with a leading underscore, by their names."""
    names = {"_trial_id", "_study_id", "_storage", "_CachedStorage", "_cached_frozen_trial", "_fixed_params"}
    used = {node.attr for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)}
    parts = {part for name in imported(source) if name.startswith("optuna.") for part in name.split(".")}
    return sorted((used & names) | {part for part in parts if part.startswith("_")})


@pytest.mark.parametrize("name", [name for name in NAMES if "optuna" in libraries(SOURCES[name])])
def test_optuna_is_used_by_its_public_names(name: str) -> None:
    assert private_of_optuna(SOURCES[name]) == []


def private_of_hydra(source: str) -> list[str]:
    """Return the private modules and attributes of Hydra, OmegaConf, argparse and joblib that a text uses."""
    attributes = {node.attr for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)}
    libraries = ("hydra.", "omegaconf.", "argparse.", "joblib.")
    used = {name for name in imported(source) if name.startswith(libraries) and "._" in name}
    of_argparse = {"_actions", "_option_string_actions", "_SubParsersAction"}
    return sorted(used | (attributes & of_argparse) | {name for name in imported(source) if "joblib.externals" in name})


@pytest.mark.parametrize("name", [name for name in NAMES if name != "config.hydra_private"])
def test_private_names_of_hydra_are_in_one_file(name: str) -> None:
    assert private_of_hydra(SOURCES[name]) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        (", ".join(f"pflsweep.{name}" for name in NAMES if name.startswith("util.")), "torch hydra omegaconf"),
        (", ".join(f"pflsweep.{name}" for name in NAMES if name.startswith("config.")), "torch"),
        ("pflsweep.trial.run, pflsweep.records.record", "mlflow optuna"),
        ("pflsweep.commands.report, pflsweep.report.page", "torch"),
    ],
)
def test_no_indirect_import_of_heavy_libraries(modules: str, absent: str) -> None:
    program = f"import sys, {modules}; print(*sorted(set('{absent}'.split()) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT.parent)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def test_these_tests_can_fail() -> None:
    assert misplaced("methods", "def f():\n    from pflsweep.engine import cohort") == ["engine"]
    assert misplaced("data", "import pflsweep.engine.simulation") == ["engine"]
    assert misplaced("methods", "from pflsweep.models.layers import context") == []
    assert misplaced("data", "from pflsweep.data.dataset import Dataset") == []
    assert private_of_optuna("from optuna.storages import _CachedStorage\nx.trial._trial_id") == [
        "_CachedStorage",
        "_trial_id",
    ]
    assert private_of_hydra("from hydra._internal.utils import a\nx._actions\nimport joblib.externals.loky") == [
        "_actions",
        "hydra._internal.utils.a",
        "joblib.externals.loky",
    ]
    assert private_of_hydra(SOURCES["config.hydra_private"])
    assert packages("from pflsweep.engine.cohort import ChunkSize") - METHODS_NEED == {"engine"}
    assert "mlflow" in libraries("def f():\n    import mlflow.entities as e")
    with pytest.raises(ValueError, match="not in tuple"):
        misplaced("data", "import pflsweep.nowhere")
