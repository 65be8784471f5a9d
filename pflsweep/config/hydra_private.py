"""Private names of Hydra and OmegaConf that pflsweep uses. No other module imports them from there.

Tested with Hydra 1.3.2 and 1.3.8, OmegaConf 2.3.0 and 2.3.1: pyproject.toml admits no later minor version of either.
"""

from argparse import Action

from hydra._internal.callbacks import Callbacks as Callbacks
from hydra._internal.config_loader_impl import ConfigLoaderImpl as ConfigLoaderImpl
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl as ConfigSearchPathImpl
from hydra._internal.utils import get_args_parser
from hydra.plugins.launcher import Launcher
from omegaconf._utils import get_yaml_loader as get_yaml_loader


def flags() -> dict[str, Action]:
    """Return the flags of Hydra's command line, each with what argparse does with it."""
    return get_args_parser()._option_string_actions


def is_basic(launcher: Launcher) -> bool:
    """Return whether a launcher is Hydra's default one."""
    # Imported here, since Hydra's search for plug-ins loads this module anew: a class of before is another one.
    from hydra._internal.core_plugins.basic_launcher import BasicLauncher

    return isinstance(launcher, BasicLauncher)
