"""Find the files of options, read them, and let Hydra compose them."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, Any

import yaml
from hydra import version
from hydra.core.plugins import Plugins
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from pflsweep.config.hydra_private import ConfigLoaderImpl, ConfigSearchPathImpl, get_yaml_loader
from pflsweep.config.keys import PLUGS, flat
from pflsweep.util.errors import UserError, one_line
from pflsweep.util.files import require_readable, without_duplicate_keys
from pflsweep.util.resources import shipped

GROUPS = ("algorithm", *PLUGS, "model", "dataset", "partition", "train", "metrics", "study", "tracking")
# Keys of a sweep, not of its trials
SWEEP_KEYS = ("sweep", "only", "scale", "reading", "plan", "retry", "workers", "tune")


def conf_dir() -> Path:
    """Return the folder of the config groups that come with pflsweep."""
    return shipped("conf")


def folders(config_dir: str | Path | None) -> list[Path]:
    """Return the folders of config groups: pflsweep's, and the user's.

    Raises UserError if that does not exist, cannot be read, or has an option with a shipped one's name.
    """
    if not config_dir:
        return [conf_dir()]
    own = Path(config_dir)
    if not own.is_dir():
        here = "" if own.is_absolute() else f" in {Path.cwd()}"
        raise UserError(
            f"There is no folder '{config_dir}' of config groups{here}: name one that is there by --config-dir (in "
            "Python: config_dir)."
        )
    require_readable(own)
    for group in conf_dir().iterdir():
        for file in (own / group.name).rglob("*.yaml") if group.is_dir() else ():
            if (conf_dir() / file.relative_to(own)).exists():
                raise UserError(f"{file} has the name of a shipped option, which would be used instead: rename it.")
    return [conf_dir(), own.absolute()]


def option_files(group: str, config_dir: str | Path | None = None) -> dict[str, Path]:
    """Return the files of a group's options, pflsweep's and the user's, by name, such as as_run/pgfed_pfedme.

    Files in a folder `common` are parts of other options and are left out. Raises UserError.
    """
    found = {
        file.relative_to(folder / group).with_suffix("").as_posix(): file
        for folder in folders(config_dir)
        for file in (folder / group).rglob("*.yaml")
    }
    return {name: found[name] for name in sorted(found) if not name.startswith("common/")}


def read_option(file: Path) -> dict[str, Any]:
    """Return the content of an option's YAML file, without composing it. Raises UserError."""
    try:
        with yaml_errors(), open(file, encoding="utf-8") as text:
            content = yaml_of(text) or {}
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read ({one_line(error)}).") from error
    if not isinstance(content, dict):
        raise UserError(f"{file} has to be lines of `key: value`.")
    return content


def yaml_of(text: str | IO[str]) -> Any:
    """Parse YAML as Hydra does: 1e-3 is a number, and a duplicate key is an error. Raises yaml.YAMLError."""
    return yaml.load(text, Loader=_yaml_loader())


@cache
def _yaml_loader() -> Any:
    return without_duplicate_keys(get_yaml_loader())


@contextmanager
def yaml_errors() -> Iterator[None]:
    """Turn the errors of the YAML parser into UserErrors with file and line."""
    try:
        yield
    except yaml.MarkedYAMLError as error:
        mark, said = error.problem_mark, " ".join(filter(None, [error.context, error.problem]))
        file = f"{mark.name}, line {mark.line + 1}" if mark and mark.name[:1] != "<" else ""
        where = f"{file}, column {mark.column + 1}: this" if mark and file else "This"
        tab = " YAML is indented by spaces, not by tabs." if "'\\t'" in said else ""
        raise UserError(f"{where} cannot be read as YAML ({' '.join(said.split())}).{tab}") from error
    except yaml.YAMLError as error:
        raise UserError(f"This cannot be read as YAML: {one_line(error)}") from error


def search_path(config_dir: str | Path | None) -> list[str]:
    """Return Hydra's search path. config_dir: the user's folder of config groups."""
    return ["pkg://hydra.conf", *(f"file://{folder}" for folder in folders(config_dir)), "structured://"]


def load(overrides: list[str], sources: list[str]) -> DictConfig:
    """Return what Hydra composes from overrides, of the options in its search path `sources`."""
    return _loader(sources).load_configuration("config", overrides=list(overrides), run_mode=RunMode.RUN)


def loader_of(config_dir: str | Path | None) -> ConfigLoaderImpl:
    """Return Hydra's config loader for pflsweep's groups and the user's."""
    return _loader(search_path(config_dir))


def _loader(sources: list[str]) -> ConfigLoaderImpl:
    """Return Hydra's config loader. Unlike its compose API it has no global state, so a notebook can use Hydra too."""
    Plugins.instance()  # registers the kinds of sources
    version.setbase("1.3")
    path = ConfigSearchPathImpl()
    providers = {"pkg://hydra.conf": "hydra", f"file://{conf_dir()}": "main", "structured://": "schema"}
    for source in sources:
        path.append(providers.get(source, "command-line"), source)
    return ConfigLoaderImpl(path)


def trial_part(composed: DictConfig, resolve: bool = False) -> dict[str, Any]:
    """Return the trial's config: what Hydra composed, without the nodes of Hydra and of a sweep."""
    copy = OmegaConf.masked_copy(composed, [str(key) for key in composed if key not in ("hydra", *SWEEP_KEYS)])
    return OmegaConf.to_container(copy, resolve=resolve)  # type: ignore[return-value]


def sweep_values_of(composed: DictConfig) -> dict[str, Any]:
    """Return the keys of a sweep from what Hydra composed."""
    return OmegaConf.to_container(OmegaConf.masked_copy(composed, list(SWEEP_KEYS)), resolve=True)  # type: ignore[return-value]


def sweep_defaults() -> dict[str, Any]:
    """Return the default of each key of a sweep, by full key."""
    return flat(sweep_values_of(load([], search_path(None))))
