"""Overrides as text, before Hydra parses them: quote what its grammar needs quoted, and reject what has no effect."""

import re
import shlex
from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any

from pflsweep.config.keys import key_of, under
from pflsweep.util.errors import UserError

# How a sweep is started. Calls from Python get the same messages as the command.
WITH_M = "with -m (in Python: by pflsweep.run_sweep)"
ADD_M = "add -m (in Python: pflsweep.run_sweep)"
OF_LAUNCHERS = ("hydra.launcher", "hydra.sweep", "hydra.job")  # keys that only the jobs of a launcher read
# Keys of Hydra that have their usual effect.
OF_HYDRA = ("hydra.searchpath", "hydra.verbose", "hydra.callbacks", "hydra.job_logging", "hydra.hydra_logging")
# Keys of Hydra that would have no effect, and what to write instead.
INSTEAD = {
    "hydra.run": "records are written below paths.runs: paths.runs=FOLDER",
    "hydra.sweep": "records are written below paths.runs: paths.runs=FOLDER",
    "hydra.output_subdir": "a record has its config in config.yaml, below paths.runs",
    "hydra.job.chdir": "the working directory stays as it is; records are written below paths.runs: paths.runs=FOLDER",
    "hydra.job.env_set": "set variables in the shell: NAME=VALUE pflsweep ...",
    "hydra.sweeper": f"what is swept is written as overrides {WITH_M}, such as train.lr=0.1,0.01, or as a sweep file",
    "hydra.mode": f"a sweep is started {WITH_M}",
}
QUOTES = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'")
# A quoted text, or a run of text between brackets, commas and quotes. An interpolation is a part of such a run.
PARTS = re.compile(QUOTES.pattern + r"|(?:\$\{[^{}]*\}|\\.|[^\[\]{}(),'\"=])+")
UNQUOTED = re.compile(r"[\w/\-\\+.$%*@?|: \t]", re.ASCII)  # characters that Hydra's grammar allows without quotes
PLAIN = re.compile(r"[\w/\-+.$%*@?|: ~]*")  # text that is one value of an override without quotes


def words_of(given: str | Iterable[str] | None, keywords: Mapping[str, Any], several: bool = False) -> list[str]:
    """Return the overrides of a call in Python, from a text or a list of them and from keyword arguments.

    A text is split as by a shell. `__` in a keyword is the dot of a key: train__lr=0.1 is train.lr=0.1. several: a list
    as a keyword's value is several values of a sweep, otherwise it is one value. Raises UserError.
    """
    if isinstance(given, str):
        try:
            words = shlex.split(given)
        except ValueError as error:
            raise UserError(f"{given!r} cannot be divided into overrides as a shell would ({error}).") from error
    elif given is not None and not isinstance(given, Iterable):
        raise UserError(
            f"{given!r} is no list of overrides: each is a text of the form key=value, as in 'train.lr=0.1'."
        )
    else:
        words = list(given or [])
    if wrong := next((word for word in words if not isinstance(word, str)), None):
        raise UserError(f"{wrong!r} is not a text of the form key=value, as in 'train.lr=0.1'.")
    if flag := next((word for word in words if word.startswith("-")), None):
        raise UserError(
            f"'{flag}': flags are of the command line. In Python pflsweep.run_sweep starts a sweep, and "
            "config_dir=FOLDER names a folder of your own options: write overrides alone, as in 'train.lr=0.1'."
        )
    for name, value in keywords.items():
        key = name.replace("__", ".")
        values = _listed(value)
        text = as_text(key, value) if values is None or not several else ",".join(as_text(key, each) for each in values)
        # Hydra requires a + for `setting`, since the group has no default.
        words.append(f"{'+' * (key == 'setting')}{key}={text}")
    return words


def _listed(value: Any) -> list[Any] | None:
    """Return the values of a list, tuple, range, array or series; None for anything else."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    return list(value) if isinstance(value, list | tuple | range) else None


def as_text(key: str, value: Any) -> str:
    """Return one value as text in an override. Raises UserError if its type has no such text."""
    values = _listed(value)
    if values is not None:
        return f"[{','.join(as_text(key, each) for each in values)}]"
    if hasattr(value, "tolist"):  # a NumPy number
        value = value.tolist()
    if value is None or isinstance(value, bool | int | float):
        return "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    if not isinstance(value, str | PathLike):
        raise UserError(f"{key} is {value!r}, a {type(value).__name__}: it has to be a number, a text, a list or None.")
    text = str(value)
    return text if PLAIN.fullmatch(text) else "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def check_hydra(overrides: list[str], several: bool) -> None:
    """Raise UserError if an override sets a key of Hydra that would have no effect. several: a sweep, with -m."""
    launched = several and any(re.match(r"\+*hydra/launcher=(?!basic$)", word) for word in overrides)
    for word in overrides:
        key = key_of(word).partition("@")[0].replace("/", ".")
        if key.partition(".")[0] != "hydra" or under(key, OF_HYDRA) or re.match(r"\+*hydra/sweeper=pflsweep$", word):
            continue
        if key == "hydra.launcher" or (launched and under(key, OF_LAUNCHERS) and key != "hydra.job.chdir"):
            if several:
                continue
            raise UserError(f"{word}: a launcher starts the workers of a sweep: {ADD_M}, or leave it out.")
        if under(key, ("hydra.launcher",)):
            raise UserError(f"{word} is an option of a launcher: name one {WITH_M}, such as hydra/launcher=joblib.")
        why = next((why for head, why in INSTEAD.items() if under(key, (head,))), "it has no effect here: leave it out")
        raise UserError(f"{word} is a key of Hydra that pflsweep does not use: {why}.")


def quoted(word: str) -> str:
    """Return an override with quotes around those parts of its value that Hydra's grammar needs quoted, such as `路径`.

    Raises UserError if quotes do not help: for such characters in keys, and for what is not UTF-8.
    """
    key, equals, value = word.partition("=")
    try:
        word.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{word.encode(errors='replace').decode()!r} is not text in UTF-8.") from error
    if not key.lstrip("+~") and equals:
        raise UserError(f"'{word}' has no key: an override is key=value, such as train.lr=0.1.")
    if not key.isascii():
        raise UserError(
            f"'{word}': keys on the command line are of ASCII letters, digits, _ and dots. A key with other letters is "
            "set in its option's YAML file, in a folder of your own (--config-dir FOLDER)."
        )
    return f"{key}{equals}{PARTS.sub(_in_quotes, value)}"


def _in_quotes(match: re.Match[str]) -> str:
    """Return a part of a value, quoted if necessary. Within braces a part may be a key and its value."""
    part, text = match[0], re.sub(r"\$\{[^{}]*\}", "", match[0])
    if part[0] in "'\"" or not UNQUOTED.sub("", text).strip():
        return part
    before, colon, after = part.partition(":")
    if colon and match.start() and match.string[match.start() - 1] in "{,":
        open_braces = match.string[: match.start()]
        if open_braces.count("{") > open_braces.count("}"):
            return f"{before}:{_quote(after)}"
    return _quote(part)


def _quote(text: str) -> str:
    """Return a text in quotes; one that ends with a backslash, which would escape the quote, as it is."""
    inner = re.sub(r"\\([()\[\]{}:=, \t])", r"\1", text.strip())  # quotes make these escapes needless
    return f"'{inner}'" if not inner.endswith("\\") else text


def no_interval(override: str) -> str:
    """Return the message for interval(a,b), which names no values that could be trained one by one."""
    key = override.partition("=")[0]
    return (
        f"{override}: an interval has no values of its own. Name some, as in -m {key}=0.1,0.01 or {key}=range(1,5); or "
        f"let a sampler draw them: -m tune=random, with a line `{key}: {{grid: [..], range: [low, high]}}` in "
        "sweeps/space/ALGORITHM.yaml."
    )


def unreadable(override: str, said: str) -> str:
    """Return the message for an override that Hydra's grammar rejects. said: the message of its parser."""
    key, equals, value = override.partition("=")
    if not equals:
        why = "there is no '='"
    elif not re.fullmatch(r"[+~]*[\w$][\w$-]*([./@][\w$-]+)*", key, re.ASCII):
        why = f"'{key}' is not a key: a key is names with dots between them"
    else:
        rest = QUOTES.sub("", value)
        mark = next((mark for mark in "'\"" if mark in rest), None)
        unpaired = next((pair for pair in ("[]", "{}", "()") if rest.count(pair[0]) != rest.count(pair[1])), None)
        if mark:
            why = f"the quote {mark} has no partner"
        elif unpaired:
            why = f"'{unpaired[0]}' and '{unpaired[1]}' do not pair"
        elif re.search(r"(^|[,\[(])\s*(,|$)", rest) and "," in rest:
            why = "there is nothing beside a comma"
        elif "=" in rest:
            why = "there is a second '='"
        else:
            why = re.sub(r"LexerNoViableAltException: |\s*See https://hydra.cc\S* for details", "", said)
    text = f"'{key or 'key'}=\"{value}\"'" if equals and "'" not in value and '"' not in value else "'key=\"a=b\"'"
    return (
        f"'{override}' cannot be read as key=value: {why}. A list is key=[1,2]; text with special characters is "
        f"quoted twice, for the shell and within: {text}."
    )
