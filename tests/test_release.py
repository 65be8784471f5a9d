"""What a release says about itself is true: version, citation, changelog, licence, dependencies."""

import ast
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement

from pflsweep import __version__

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Extras whose packages are imported only where they are there, and packages that another library looks for by name.
BY_NAME = {
    "cmaes": "Optuna's CmaEsSampler",
    "psycopg": "SQLAlchemy's postgresql+psycopg",
    "hydra-joblib-launcher": "hydra/launcher=joblib",
    "hydra-submitit-launcher": "hydra/launcher=submitit_slurm",
}


def test_the_citation_has_what_its_schema_requires_and_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["cff-version"] == "1.2.0"
    assert cited["message"]
    assert cited["title"].startswith("pflsweep")
    assert all(author.get("name") or author.get("family-names") for author in cited["authors"])
    assert cited["type"] == "software"
    assert cited["license"] == PROJECT["license"]
    assert cited["version"] == __version__
    assert f"\n## {__version__} ({cited['date-released']})\n" in (ROOT / "CHANGELOG.md").read_text()


def test_the_changelog_has_a_place_for_what_comes() -> None:
    heads = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heads[0] == "Unreleased"
    assert heads[1].startswith(__version__)


def test_types_are_for_others_too() -> None:
    assert (ROOT / "pflsweep/py.typed").exists()
    assert "Typing :: Typed" in PROJECT["classifiers"]


def test_python_versions_are_said_alike() -> None:
    named = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if c.startswith("Programming Language")]
    assert PROJECT["requires-python"] == f">={named[0]}"
    assert f"Python {', '.join(named[:-1])} and {named[-1]} on Linux" in (ROOT / "docs/stability.md").read_text()


def test_what_is_imported_is_a_dependency_and_nothing_else_is() -> None:
    """A library that only another one brings along can go with its next version."""
    optional = {Requirement(text).name for name in ("privacy", "cluster", "hf") for text in _extra(name)}
    declared = {Requirement(text).name for text in PROJECT["dependencies"]} | optional
    provided = importlib.metadata.packages_distributions()
    names = {name for file in (ROOT / "pflsweep").rglob("*.py") for name in _imported(file)}
    foreign = names - sys.stdlib_module_names - {"pflsweep"}
    assert "torch" in foreign
    # a name that no installed distribution lists, such as proxsuite, is its distribution's own
    imported = {_known(provided.get(name, [name]), declared) for name in foreign}
    assert imported == declared - BY_NAME.keys()


def _extra(name: str) -> list[str]:
    return list(PROJECT["optional-dependencies"][name])


def _imported(file: Path) -> Iterator[str]:
    """Yield the top-level names that a file imports."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _known(distributions: list[str], declared: set[str]) -> str:
    """Return the declared one among the distributions that provide a name, or else the first of them."""
    names = [re.sub(r"[-_.]+", "-", name).lower() for name in distributions]
    return next((name for name in names if name in declared), names[0])
