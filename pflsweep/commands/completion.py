"""`pflsweep completion --install bash|zsh|fish`: let Tab complete commands, config groups, their options and keys."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from pflsweep.commands.main import COMMANDS, config_dir_of
from pflsweep.commands.parser import Parser
from pflsweep.config import options
from pflsweep.config.compose import is_of_sweep
from pflsweep.config.hydra_errors import known_keys
from pflsweep.config.hydra_loader import GROUPS, option_files
from pflsweep.config.keys import key_of
from pflsweep.util import files
from pflsweep.util.errors import UserError
from pflsweep.util.resources import sweep_names, yaml_names

# Bash splits words at `=` and `:` and replaces the last part alone, so the parts before are cut off the candidates
BASH = """_pflsweep() {
    local line=${COMP_LINE:0:COMP_POINT} IFS=$'\\n'
    local word=${line##*[[:space:]]}
    COMPREPLY=($("${COMP_WORDS[0]}" completion --query "$line" 2>/dev/null))
    [[ ${#COMPREPLY[@]} -eq 1 && $word != *=* && ${COMPREPLY[0]} != *[=.] ]] && compopt +o nospace
    case $COMP_WORDBREAKS in *=*) COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*[=:]}"}"}") ;; esac
}
complete -o default -o nospace -F _pflsweep pflsweep
"""
ZSH = """(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
_pflsweep() {
    local -a found
    found=("${(@f)$("${words[1]}" completion --query "${(j: :)words[1,CURRENT-1]} $PREFIX" 2>/dev/null)}")
    [[ -n $found ]] && compadd -S '' -- $found || _files
}
compdef _pflsweep pflsweep
"""
FISH = """complete -c pflsweep -a '(pflsweep completion --query (commandline -cp) 2>/dev/null)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
FLAGS = ["--cfg", "--config-dir", "--help", "--multirun", "--version"]
WORDS = {"data": ["show", "prepare"], "record": ["export", "import", "migrate"], "doctor": ["--gpu", "--out"]}


def main(argv: list[str]) -> int:
    """Install the completion of a shell, or print its script. Raises UserError if a file cannot be written."""
    parser = Parser(prog="pflsweep completion", description="Let Tab complete commands, config groups and keys.")
    parser.add_argument("shell", nargs="?", choices=sorted(SCRIPTS), help="print the script of this shell")
    parser.add_argument("--install", choices=sorted(SCRIPTS), metavar="SHELL", help="install it: bash, zsh or fish")
    parser.add_argument("--query", metavar="LINE", help="print what may follow this beginning of a command")
    asked = parser.parse_args(argv or ["--help"])
    if asked.query is not None:
        print("\n".join(candidates(asked.query)))
    elif asked.install:
        print(_install(asked.install))
    else:
        print(SCRIPTS[asked.shell or "bash"], end="")
    return 0


def _install(shell: str) -> str:
    """Write the script of a shell, and the line that loads it in the shell's own file. Return what was done."""
    home = Path.home()
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local/share") / "pflsweep"
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    startup = {"bash": home / ".bashrc", "zsh": Path(os.environ.get("ZDOTDIR") or home) / ".zshrc"}.get(shell)
    # fish finds files in its own folder; other shells need a line in their startup file
    script = data / f"completion.{shell}" if startup else config / "fish/completions/pflsweep.fish"
    line = f'[ -f "{script}" ] && . "{script}"  # pflsweep completion'
    try:
        script.parent.mkdir(parents=True, exist_ok=True)
        files.write_text(script, SCRIPTS[shell])
        if startup is not None and line not in (startup.read_text() if startup.exists() else ""):
            with startup.open("a") as file:
                file.write(f"\n{line}\n")
    except OSError as error:
        raise UserError(
            f"completion: {error.filename or script} cannot be written ({error.strerror}). `pflsweep completion "
            f"{shell}` prints the script: put it where {shell} reads it."
        ) from error
    where = f", loaded by {startup}" if startup else ""
    return f"{script}{where}. It works in new shells; in this one after: source {script}"


def candidates(line: str) -> list[str]:
    """Return the whole words that may complete the last word of a line. line: a command up to the cursor."""
    *before, word = [part.strip("'\"") for part in line.split(" ")]
    given = [part for part in before[1:] if part]
    own = config_dir_of(given)
    if given and given[-1] in ("--config-dir", "-cd", "--out", "--runs"):
        # The shell completes names of files
        return []
    # Nothing is offered where a folder is missing or an option cannot be read
    with suppress(UserError):
        return sorted({each for each in _offered(given, word, own) if each.startswith(word)})
    return []


def _offered(given: list[str], word: str, own: str | None) -> Iterable[str]:
    """Return all candidates for `word` after the words `given`. own: the user's folder of options."""
    command = next((each for each in given if each in COMMANDS), None)
    if command is None or (command == "data" and {"show", "prepare"} & {*given}):
        of_sweep = command is None  # `data` is of the data of one trial, and refuses a sweep's keys
        if word.startswith("-"):
            return FLAGS if of_sweep else ["--config-dir", "--help", *(["--out"] if "show" in given else [])]
        if "=" in word:
            return _values(word, own)
        keys = known_keys([each for each in given if "=" in each], own)
        keys = [key for key in keys if of_sweep or not is_of_sweep(key)]
        # Keys of a group are offered after its name, as there are many
        if "." not in word:
            groups = [*GROUPS, "+setting", *(["tune"] if of_sweep else [])]
            keys = [*groups, *(f"{k.partition('.')[0]}." if "." in k else k for k in keys)]
        commands = COMMANDS if of_sweep and not any("=" in each for each in given) else []
        return [*commands, *(key if key.endswith(".") else f"{key}=" for key in keys)]
    if command == "list":
        from pflsweep.commands.list import KNOWN

        return [*KNOWN, "--config-dir"]
    if command == "report":
        return [] if {"runs", "all", "site"} & {*given} else ["runs", "all", "site", *yaml_names("reports/layouts")]
    if command == "check":
        return option_files("algorithm", own)
    if command == "completion":
        return [*SCRIPTS, "--install"]
    return [each for each in WORDS.get(command, ["--help"]) if each not in given]


def _values(word: str, own: str | None) -> list[str]:
    """Return an override completed by each value that its key may have; values before a comma stay."""
    key, _, value = word.partition("=")
    head = f"{key}={value[: value.rindex(',') + 1] if ',' in value else ''}"
    name = key_of(word)
    if name in ("sweep", "scale"):
        found: Iterable[str] = yaml_names("sweeps/scale") if name == "scale" else sweep_names()
    elif name in (*GROUPS, "setting", "tune"):
        found = option_files(name, own)
    elif name in (rules := {**options.rules(), **options.sweep_rules()}):
        rule = rules[name]
        found = [*map(str, rule.choices), *(["true", "false"] if bool in rule.kinds else [])]
    else:
        found = []
    return [f"{head}{each}" for each in found]
