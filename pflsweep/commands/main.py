"""The command line. A first word without `=` is one of COMMANDS; everything else trains, and is parsed by Hydra.

Modules that take long to import are imported inside of functions, so that --help is quick.
"""

import errno
import importlib
import logging
import os
import re
import sys
from argparse import ArgumentError
from collections.abc import Callable
from typing import Any

from pflsweep import __version__
from pflsweep.util import signals, streams
from pflsweep.util.errors import Diverged, UserError, nearest

COMMANDS = {
    "list": "pflsweep.commands.list:main",
    "data": "pflsweep.commands.data:main",
    "report": "pflsweep.commands.report:main",
    "record": "pflsweep.commands.record:main",
    "ui": "pflsweep.commands.ui:main",
    "check": "pflsweep.commands.check:main",
    "doctor": "pflsweep.commands.doctor:main",
    "completion": "pflsweep.commands.completion:main",
}
NO_OPTIONS = ("report", "ui", "record", "completion")  # commands that accept --config-dir and do not use it
CONFIG_DIR = ("--config-dir", "-cd")


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code: 0 done, 1 bug or failed trial, 2 bad input, 130 Ctrl-C, 143 SIGTERM."""
    with signals.terminable(), streams.unbroken():
        return _main(sys.argv[1:] if argv is None else argv)


def _main(argv: list[str]) -> int:
    """Run a command, and turn errors for users and signals into messages and exit codes."""
    _show_log()
    try:
        _find_own()
        argv = _command_first(argv)
        if "--version" in argv:
            print(f"pflsweep {__version__}")
            return 0
        if argv and "=" not in argv[0] and not argv[0].startswith(("-", "+", "~")):
            return _word(argv[0], argv[1:])
        return _hydra(argv)
    except UserError as error:
        print(f"pflsweep: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(str(stop) or f"stopped{signals.AGAIN}", file=sys.stderr)
        return signals.exit_code()
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG) or error.filename is None:
            raise
        why = (error.strerror or "").lower()
        print(f"pflsweep: {error.filename} cannot be used ({why}): fix that, or name another path.", file=sys.stderr)
        return 2
    except Exception as error:
        from pflsweep.util import trace

        if not trace.is_shortened(error):
            raise
        print(trace.text(error), file=sys.stderr)
        return 1
    except SystemExit as end:
        # From argparse, and from a sweep, which has printed its failed trials itself
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0


def _command_first(argv: list[str]) -> list[str]:
    """Move a command before the options in front of it: `--config-dir DIR list models` becomes `list --config-dir DIR
    models`, and `help list` becomes `list --help`.
    """
    if argv[:1] == ["help"]:
        argv = [*argv[1:], "--help"]
    for at, word in enumerate(argv):
        option = argv[at - 1] if at else ""
        is_value = option in CONFIG_DIR or (option[:1] == "-" and "=" not in option and word not in COMMANDS)
        if word[:1] != "-" and not is_value:
            return [word, *argv[:at], *argv[at + 1 :]] if word in COMMANDS else argv
    return argv


def _without_config_dir(argv: list[str]) -> list[str]:
    """Return the arguments without --config-dir, for a command that does not use it.

    Raises UserError if its folder does not exist.
    """
    from pflsweep.config.hydra_loader import folders

    folders(config_dir_of(argv))
    kept = [word for before, word in zip(["", *argv], argv, strict=False) if before not in CONFIG_DIR]
    return [word for word in kept if word.partition("=")[0] not in CONFIG_DIR]


def _find_own() -> None:
    """Let the user's own modules be imported from the working directory. Raises UserError if that was deleted."""
    try:
        here = os.getcwd()
    except FileNotFoundError as error:
        raise UserError("The working directory was deleted: go to another one.") from error
    if here not in sys.path:
        sys.path.append(here)


def _show_log() -> None:
    """Print on stderr what pflsweep's modules log, such as the progress of an embedder's training."""
    log = logging.getLogger("pflsweep")
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)


def _word(word: str, rest: list[str]) -> int:
    """Run one of COMMANDS. Raises UserError if there is none of that name."""
    if word not in COMMANDS:
        from pflsweep.config.hydra_loader import GROUPS, conf_dir
        from pflsweep.config.options import rules, sweep_rules

        option = next((f"{g}={word}" for g in GROUPS if (conf_dir() / g / f"{word}.yaml").exists()), None)
        if option:
            raise UserError(f"Unknown command '{word}'. Did you mean {option}?")
        if word in {*rules(), *sweep_rules()} or word.partition(".")[0] in GROUPS:
            raise UserError(f"'{word}' has no value: give it one, as in {word}=VALUE (see `pflsweep list keys`).")
        raise UserError(
            f"Unknown command '{word}'.{nearest(word, list(COMMANDS))} Commands are: {', '.join(COMMANDS)}. "
            "To train, give key=value, such as `pflsweep algorithm=fedavg` (see `pflsweep --help`)."
        )
    if word in NO_OPTIONS:
        rest = _without_config_dir(rest)
    module, _, function = COMMANDS[word].partition(":")
    return getattr(importlib.import_module(module), function)(rest) or 0


def _hydra(argv: list[str]) -> int:
    import hydra

    from pflsweep.config.hydra_errors import hydra_errors
    from pflsweep.config.hydra_loader import conf_dir, folders
    from pflsweep.config.overrides import check_hydra, quoted

    overrides, flags = _divided(argv)
    _check_flags([*overrides, *flags])
    folders(config_dir_of(flags))
    overrides = [quoted(word) for word in overrides]
    several = bool({"-m", "--multirun"}.intersection(flags))
    check_hydra(overrides, several)
    said = overrides
    if several:
        from pflsweep.sweep.overrides import hide_from_hydra

        overrides = [hide_from_hydra(word) if "=" in word else word for word in overrides]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises then, instead of printing and leaving
    outcomes: list[Any] = []
    before, sys.argv = sys.argv, ["pflsweep", *overrides, *flags]
    try:
        with hydra_errors(said, config_dir_of(flags)):
            hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")(_task(outcomes))()
    finally:
        sys.argv = before
    for outcome in outcomes:  # of a single run; a sweep has ended with its own table
        if isinstance(outcome, Diverged):
            raise SystemExit(f"pflsweep: The trial has diverged: {outcome}.")
        if isinstance(outcome, Exception):
            raise outcome
        from pflsweep.report.terminal import table_with_legend

        print(table_with_legend([outcome.record], tracked=outcome.config["tracking"]["backend"] != "none"))
    return 0


def _divided(argv: list[str]) -> tuple[list[str], list[str]]:
    """Divide arguments into overrides and flags with their values, since argparse wants all overrides in one row."""
    from pflsweep.config.hydra_private import flags

    takes = [flag for flag, action in flags().items() if action.nargs in (None, "?")]  # a word after it
    before = ["", *argv][: len(argv)]
    taken = [flag[:1] == "-" and any(each.startswith(flag) for each in takes) for flag in before]
    of_flags = [word[:1] == "-" or value for word, value in zip(argv, taken, strict=True)]
    pairs = list(zip(argv, of_flags, strict=True))
    return [word for word, flag in pairs if not flag], [word for word, flag in pairs if flag]


def _check_flags(argv: list[str]) -> None:
    """Raise UserError if a word is not a flag of Hydra's. Argparse itself would print all flags that it knows."""
    from pflsweep.config.hydra_private import flags, get_args_parser

    parser = get_args_parser()
    parser.exit_on_error = False
    try:
        options, unknown = parser.parse_known_args(argv)
    except ArgumentError as error:
        raise UserError(f"{error}. See `pflsweep --help`.") from error
    if unknown:
        flag, known = unknown[0].partition("=")[0], list(flags())
        raise UserError(f"Unknown flag '{flag}'.{nearest(flag, known)} See `pflsweep --help`.")
    if options.config_name or options.config_path:
        raise UserError(
            f"{'--config-name' if options.config_name else '--config-path'}: there is one config. Options of your own "
            "lie in a folder that is named by --config-dir FOLDER (FOLDER/algorithm/NAME.yaml, ...)."
        )
    if options.config_dir == "":
        raise UserError("--config-dir is empty: name a folder with config groups, as in --config-dir FOLDER.")
    if options.package and not (options.cfg or options.info):
        raise UserError(f"--package={options.package} chooses what --cfg prints: add --cfg job, or leave it out.")
    asked = {"install", "uninstall", "query"}.intersection(word.partition("=")[0] for word in options.overrides)
    if options.shell_completion and len(asked) != 1:
        raise UserError(
            "--shell-completion needs one of install=SHELL, uninstall=SHELL, query=SHELL; SHELL is bash, ..."
        )
    if options.experimental_rerun is not None:
        raise UserError("--experimental-rerun is not needed: a command that is given again goes on with its trials.")
    foreign = [word for word in options.overrides if re.match(r"\+*hydra/sweeper=(?!pflsweep$)", word)]
    if foreign:
        raise UserError(f"{foreign[0]}: pflsweep runs sweeps with a sweeper of its own. Leave this override out.")


def _task(outcomes: list[Any]) -> Callable[[Any], Any]:
    """Return the function that Hydra runs for a trial, which appends its result to `outcomes`.

    An error is appended and not raised, since Hydra would print its words and a traceback.
    """

    def task(composed: Any) -> Any:
        from hydra.core.hydra_config import HydraConfig
        from omegaconf import OmegaConf

        from pflsweep.config.compose import check_single, config_of
        from pflsweep.config.hydra_errors import hydra_errors
        from pflsweep.config.keys import key_of
        from pflsweep.trial.run import run_trial

        hydra = HydraConfig.get()
        if hydra.sweeper.get("worker"):
            from pflsweep.sweep.launch.hydra_launcher import launched

            return launched(hydra.sweeper.worker)
        # Not resolved, since a reference ${...} may be wrong
        said: list[str] = OmegaConf.to_container(hydra.overrides.task)  # type: ignore[assignment]
        try:
            check_single(said)
            with hydra_errors(said):
                config = config_of(composed, hydra)  # type: ignore[arg-type]
            outcome: Any = run_trial(config, given_keys=map(key_of, said))
        except Exception as error:
            outcome = error
        outcomes.append(outcome)
        return outcome

    return task


def config_dir_of(argv: list[str]) -> str | None:
    """Return the argument of --config-dir, the user's folder of options; None without."""
    for argument, following in zip(argv, [*argv, ""][1:], strict=True):
        if argument in CONFIG_DIR:
            return following
        if argument.startswith(tuple(f"{option}=" for option in CONFIG_DIR)):
            return argument.partition("=")[2]
    return None
