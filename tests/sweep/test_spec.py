"""Sweep files: what they mean, and what is refused before anything runs or is written."""

import re
from pathlib import Path

import pytest

from pflsweep.commands.main import main
from pflsweep.sweep.spec import KEYS, ROW_KEYS, SCALE_KEYS, Scale, read_scale, read_space, read_table
from pflsweep.util.errors import UserError
from pflsweep.util.resources import sweep_names

SMALL = """
settings: {digits: partition.clients=6 train.rounds=2}
methods: {fedavg: algorithm=fedavg, pgfed: algorithm=pgfed}
"""


pytestmark = pytest.mark.usefixtures("elsewhere")


def write(name: str, text: str) -> None:
    file = Path("sweeps", f"{name}.yaml")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_a_file_as_it_is_written() -> None:
    write(
        "mine",
        """
        settings:
          one: dataset=digits 'partition.clients=6'
          two: dataset=digits partition.alpha=0.1
        methods:
          fedavg: algorithm=fedavg
          with_ala: {run: algorithm=fedavg ala=on, only: [two]}
        seeds: [3, 1]
        search: tune=grid
        space: {all: {train.lr: null}, with_ala: null}
        """,
    )
    table = read_table("mine")
    assert table.settings["one"] == ["dataset=digits", "partition.clients=6"]
    assert table.methods["with_ala"] == ["algorithm=fedavg", "ala=on"]
    assert table.cells == [("one", "fedavg"), ("two", "fedavg"), ("two", "with_ala")]
    assert (table.seeds, table.search) == ([3, 1], ["tune=grid"])
    assert table.space == {"all": {"train.lr": None}, "with_ala": None}
    assert table.file == "sweeps/mine.yaml"


def test_what_is_included_lies_under() -> None:
    write("common/deep", "methods: {local: algorithm=local, fedavg: algorithm=fedavg}\nseeds: [5]\n")
    write("common/base", "include: common/deep\nsettings: {a: train.lr=0.1}\nseeds: [1, 2]\n")
    write("mine", "include: common/base\nmethods: {local: {run: algorithm=local, only: [a]}}\n")
    table = read_table("mine")
    assert list(table.methods) == ["local", "fedavg"]
    assert table.only == {"local": ["a"]}
    assert table.seeds == [1, 2]


def test_what_a_table_changes_at_a_scale() -> None:
    write("base", SMALL + "search: tune=grid\nspace: {all: {train.lr: {grid: [1, 2, 3]}, algorithm.mu: null}}\n")
    at_small = (
        "{space: {all: {train.lr: {grid: [1]}}}, search: tune=none, methods: {local: algorithm=local train.lr=3}}"
    )
    write("mine", f"include: base\nscales: {{small: {at_small}}}\n")
    small, whole = read_table("mine", "small"), read_table("mine")
    assert small.methods == {**whole.methods, "local": ["algorithm=local", "train.lr=3"]}
    assert small.space == {"all": {"train.lr": {"grid": [1]}, "algorithm.mu": None}}
    assert small.search == ["tune=none"]
    assert whole == read_table("mine", "smoke") == read_table("base")._replace(name="mine", file="sweeps/mine.yaml")


def test_a_scale_of_ones_own_begins_with_what_a_table_lists_for_small() -> None:
    write("scale/mine", "images: 100\n")
    write("scale/other", "images: 100\n")
    own = "mine: {methods: {pgfed: algorithm=pgfed train.lr=5}}"
    listed = "small: {methods: {fedavg: algorithm=fedavg train.lr=3, pgfed: algorithm=pgfed train.lr=3}}"
    write("table", f"{SMALL}scales: {{{listed}, {own}}}\n")
    rates = {
        scale: [words[-1] for words in read_table("table", scale).methods.values()]
        for scale in ("small", "mine", "other", "sweeps/scale/other.yaml", "smoke", "paper", "150")
    }
    whole = ["algorithm=fedavg", "algorithm=pgfed"]
    assert rates == {
        "small": ["train.lr=3", "train.lr=3"],
        "mine": ["train.lr=3", "train.lr=5"],
        "other": ["train.lr=3", "train.lr=3"],
        "sweeps/scale/other.yaml": ["train.lr=3", "train.lr=3"],
        "smoke": whole,
        "paper": whole,
        "150": whole,
    }


def test_a_number_of_rounds_is_a_scale() -> None:
    assert read_scale("150") == Scale("150", None, None, None, {}, rounds=150)
    with pytest.raises(UserError, match=r"^tune\.scale=0: a number of rounds has to be at least 1, as in tune\.scale="):
        read_scale("0", "tune.scale")
    with pytest.raises(UserError, match=r"^scale: No scale 'smal'.* Did you mean 'small'\? .* as in scale=150\.$"):
        read_scale("smal")


def test_ones_own_folder_comes_before_the_packages(tmp_path: Path) -> None:
    assert len(read_table("pgfed/table1").methods) == 14
    write("pgfed/table1", SMALL)
    assert list(read_table("pgfed/table1").settings) == ["digits"]
    assert read_table(str(tmp_path / "sweeps/pgfed/table1.yaml")).methods == read_table("pgfed/table1").methods
    assert len(sweep_names()) == 33
    # The shipped file
    write("lab/mine", "include: pgfed/table2\nseeds: [9]\n")
    assert len(read_table("lab/mine").methods) == 6
    assert "lab/mine" in sweep_names()
    write("scale/tiny", "images: 100\n")
    assert read_scale("tiny").images == 100
    write("space/fedprox", "algorithm.mu: {grid: [7.0]}\n")
    assert list(read_space("fedprox", [], "")) == ["algorithm.mu"]


def test_a_method_without_a_space_is_told_how_it_gets_one() -> None:
    with pytest.raises(UserError, match=r"no search space for 'slowmo'\. A file sweeps/space/slowmo\.yaml") as told:
        read_space("slowmo", [], "")
    assert "Did you mean" not in str(told.value)
    example = re.search("`(.*)`", str(told.value))
    assert example
    write("space/slowmo", example[1])
    assert read_space("slowmo", [], "")["train.lr"].grid == [0.1, 0.01]


def test_a_tables_own_space_is_enough() -> None:
    axes = {"algorithm.beta": {"grid": [1, 2]}}
    assert read_space("slowmo", [axes], "t")["algorithm.beta"].grid == [1, 2]
    assert read_space("slowmo", [None], "t") == {}, "it searches nothing"
    with pytest.raises(UserError, match="no search space for 'slowmo'"):
        read_space("slowmo", [{}, {"tracking": None}], "t")


def test_a_space_changed_by_a_table() -> None:
    whole = read_space("pgfedmo", [], "")
    assert set(whole) == {"train.lr", "algorithm.mu", "algorithm.beta"}
    fewer = read_space("pgfedmo", [{"algorithm.beta": None, "algorithm.mu": {"grid": [1, 2]}}], "t")
    assert set(fewer) == {"train.lr", "algorithm.mu"}
    assert (fewer["algorithm.mu"].grid, fewer["algorithm.mu"].source) == ([1, 2], whole["algorithm.mu"].source)
    assert read_space("pgfedmo", [{"train.lr": None}, None], "t") == {}
    with pytest.raises(UserError, match=r"^t: algorithm\.mu\.grid is \[\]"):
        read_space("pgfedmo", [{"algorithm.mu": {"grid": []}}], "t")


# Lines that are added to the file, or a whole file, with words of the message
BAD = [
    ("methods: {fedavg: algorithm=fedavgg}", ["sweeps/mine.yaml: fedavg in digits", "Did you mean 'fedavg'"]),
    ("methods: {a: algorithm=fedprox algorithm.mo=1}", ["a in digits", "Did you mean 'algorithm.mu'"]),
    ("settings: {digits: train.raunds=2}", ["fedavg in digits", "Did you mean 'train.rounds'"]),
    ("settings: {digits: 'train.rounds=1,2'}", ["fedavg in digits: 'train.rounds=1,2'", "a row or a column"]),
    ("settings: {digits: 'train.rounds=[1'}", ["fedavg in digits: 'train.rounds=[1' cannot be read as key=value"]),
    ("settings: {digits: train.rounds=0}", ["train.rounds is 0", "fedavg digits"]),
    ("settings: {digits: dataset=digit}", ["dataset=digit", "Did you mean 'digits'"]),
    ("settings: {}", ["mine.yaml: 'settings' has to name at least one"]),
    ("methods: []", ["mine.yaml: 'methods' has to name at least one"]),
    ("methods: {a: [algorithm=fedavg]}", ["mine.yaml: methods.a is ['algorithm=fedavg']", "text of overrides"]),
    ("methods: {a: algorithm}", ["methods.a: 'algorithm' is not an override", "key=value"]),
    ("methods: {a: 'algorithm=\"x'}", ["methods.a", "cannot be divided"]),
    ("methods: {a: algorithm=fedavg seed=3}", ["methods.a: seed=3: seeds are the whole sweep's", "`seeds: [...]`"]),
    (
        "methods: {a: {run: algorithm=fedavg workers.count=2}}",
        ["methods.a.run: workers.count=2 applies to the whole sweep"],
    ),
    ("settings: {digits: tune=grid}", ["settings.digits: tune=grid applies to the whole sweep"]),
    ("methods: {a: {ran: algorithm=local}}", ["methods.a: unknown key 'ran'", "Did you mean 'run'"]),
    ("methods: {a: {only: [digits]}}", ["methods.a.run is None", "algorithm=pgfed"]),
    ("methods: {a: {run: algorithm=local, only: [digit]}}", ["methods.a.only: 'digit'", "Did you mean 'digits'"]),
    ("methods: {a: {run: algorithm=local, only: digits}}", ["methods.a.only is 'digits'", "a list"]),
    ("methods: {a: {run: algorithm=local, only: []}}", ["methods.a.only is []", "a list"]),
    ("methods: {a: {run: algorithm=local, only: [on]}}", ["methods.a.only is [True]", "a list"]),
    ("metods: {}", ["mine.yaml: unknown key 'metods'", "Did you mean 'methods'"]),
    ("inclde: common/fedpg", ["unknown key 'inclde'", "Did you mean 'include'"]),
    ("scales: [small]", ["mine.yaml: 'scales' has to name some"]),
    ("scales: {smal: {}}", ["mine.yaml: scales.smal is not a scale", "Did you mean 'small'"]),
    ("scales: {small: 3}", ["scales.small is 3", "methods, search, space"]),
    ("scales: {small: {seeds: [1]}}", ["scales.small: unknown key 'seeds'"]),
    ("seeds: 3", ["mine.yaml: 'seeds' is 3", "[0, 1, 2]"]),
    ("seeds: []", ["'seeds' is []"]),
    ("seeds: [0, -1]", ["'seeds' is [0, -1]"]),
    ("seeds: [0, 1.5]", ["'seeds' is [0, 1.5]"]),
    ("seeds: [yes]", ["'seeds' is [True]"]),
    ("seeds: [1, 1]", ["'seeds' is [1, 1]"]),
    ("search: tune=gird", ["tune=gird", "Did you mean 'grid'"]),
    ("search: tune=grid tune.splitt=test", ["tune.splitt", "Did you mean 'tune.split'"]),
    ("search: tune=grid train.lr=1", ["mine.yaml: search: 'train.lr=1'", "group tune"]),
    ("search: on", ["mine.yaml: search is True", "text of overrides"]),
    ("search: tune=grid tune.seeds=2", ["tune.seeds is 2", "1: [0]"]),
    ("search: tune=tpe tune.points=null", ["tune.points is null", "tpe"]),
    ("search: tune=grid\nspace: {fedagv: {}}", ["mine.yaml: space.fedagv", "Did you mean 'fedavg'"]),
    ("search: tune=grid\nspace: [1]", ["mine.yaml: 'space' has to be"]),
    ("search: tune=grid\nspace: {fedavg: 3}", ["mine.yaml: space.fedavg is 3"]),
    ("search: tune=grid\nspace: {fedavg: {train.lr: {grid: []}}}", ["mine.yaml: train.lr.grid is []"]),
    ("search: tune=grid\nspace: {fedavg: {train.lr: [1, 2]}}", ["mine.yaml: train.lr", "grid: [values]"]),
    ("search: tune=grid\nspace: {fedavg: {train.lr: {range: [1, 2]}}}", ["mine.yaml: train.lr.range", "whole grid"]),
    ("search: tune=grid\nspace: {fedavg: {train.lr: {range: [0, 2]}}}", ["train.lr.log is true", "above 0"]),
    ("search: tune=grid\nspace: {fedavg: {train.lr: {range: [2, 1]}}}", ["train.lr.range is [2, 1]", "two numbers"]),
    ("search: tune=grid\nspace: {fedavg: {train.lr: {log: 1}}}", ["train.lr.log is 1", "true or false"]),
    ("search: tune=grid\nspace: {fedavg: {train.lr: {grid: [1, 1]}}}", ["train.lr.grid names a value twice"]),
    ("search: tune=grid\nspace: {fedavg: {train.lr: {grd: [1]}}}", ["train.lr.grd", "Did you mean 'grid'"]),
    ("search: tune=grid\nspace: {all: {train.ler: {grid: [1]}}}", ["mine.yaml", "Did you mean 'train.lr'"]),
    (
        "search: tune=grid\nspace: {fedavg: {algorithm.mu: {grid: [1]}}}",
        ["search space of fedavg", "mine.yaml", "'algorithm.mu'", "no keys to set"],
    ),
    ("search: tune=grid\nspace: {all: {on: {grid: [1]}}}", ["mine.yaml: True is not a key", "quote it"]),
    ("search: tune=grid\nspace: {all: {train.lr: {grid: [0.1, -1], log: false}}}", ["train.lr is -1", "fedavg digits"]),
    (
        "search: tune=random tune.points=2\nspace: {all: {train.lr: {range: [-1, 1], log: false}}}",
        ["train.lr is -", "fedavg digits"],
    ),
    ("methods: {on: algorithm=fedavg}", ["mine.yaml: methods has the name True", "quote it"]),
    ("settings: {null: train.lr=1}", ["mine.yaml: settings has the name None", "quote it"]),
    ("include: common/nothing", ["sweeps/mine.yaml: include: No file 'common/nothing'", "common/pgfed"]),
    ("include: common/pgfde", ["sweeps/mine.yaml: include", "Did you mean 'common/pgfed'"]),
    ("include: mine", ["sweeps/mine.yaml: its includes run in a circle: sweeps/mine.yaml -> sweeps/mine.yaml"]),
    ("include: 3", ["sweeps/mine.yaml: include is 3"]),
    ("include: [{a: b}]", ["sweeps/mine.yaml: include is [{'a': 'b'}]"]),
    ("include: [", ["cannot be read as YAML", "mine.yaml"]),
    ("- a\n- b", ["mine.yaml", "lines of `key: value`"]),
    ("methods:\n\ta: b", ["cannot be read as YAML", "mine.yaml", "line 4"]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("text", "words"), BAD, ids=[text for text, _ in BAD])
def test_a_bad_file_is_refused(text: str, words: list[str], capsys: pytest.CaptureFixture) -> None:
    key = text.partition(":")[0]
    rest = [line for line in SMALL.splitlines() if not line.startswith(f"{key}:")]
    write("mine", text if text.startswith("- ") else "\n".join([*rest, text]))
    refused(["sweep=mine"], words, capsys)


def refused(arguments: list[str], words: list[str], capsys: pytest.CaptureFixture) -> None:
    """Assert that a command ends with one paragraph and exit code 2, and writes nothing."""
    before = sorted(Path().rglob("*"))
    assert main(["-m", *arguments]) == 2
    out, err = capsys.readouterr()
    assert [word for word in words if word not in err] == []
    assert err.count("\n") == 1, err
    assert out == ""
    assert sorted(Path().rglob("*")) == before


def test_a_circle_of_three_is_named(capsys: pytest.CaptureFixture) -> None:
    for name, other in (("a", "b"), ("b", "c"), ("c", "b")):
        write(name, f"include: {other}\n")
    refused(["sweep=a"], ["a circle: sweeps/a.yaml -> sweeps/b.yaml -> sweeps/c.yaml -> sweeps/b.yaml"], capsys)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("images: 0", ["sweeps/scale/mine.yaml: 'images' is 0", "at least 1"]),
        ("images: many", ["'images' is 'many'"]),
        ("imagse: 5", ["unknown key 'imagse'", "Did you mean 'images'"]),
        ("seeds: [1]", ["'seeds' is [1]"]),
        ("points: true", ["'points' is True"]),
        ("set: 3", ["'set' has to be lines"]),
        ("set: {train.rounds: 0}", ["train.rounds is 0"]),
        ("include: scale/mine", ["scale/mine.yaml: its includes run in a circle"]),
    ],
)
def test_a_bad_scale_is_refused(text: str, words: list[str], capsys: pytest.CaptureFixture) -> None:
    write("scale/mine", text)
    refused(["scale=mine", "algorithm=fedavg"], words, capsys)


@pytest.mark.slow
def test_what_is_no_file(capsys: pytest.CaptureFixture) -> None:
    refused(["sweep=pgfed/tabel1"], ["No sweep 'pgfed/tabel1'", "Did you mean 'pgfed/table1'"], capsys)
    refused(["sweep=nowhere.yaml"], ["No sweep 'nowhere.yaml'"], capsys)
    refused(
        ["sweep=table1"], ["No sweep 'table1'", "There are: benchmark, fedala/*, fedfomo/*, fedpg/*, pgfed/*."], capsys
    )
    refused(["sweep=common/pgfed"], ["sweeps/common/pgfed.yaml: 'settings' has to name"], capsys)
    refused(["scale=smal"], ["No scale 'smal'", "Did you mean 'small'"], capsys)
    write("binary", SMALL)
    Path("sweeps/binary.yaml").write_bytes(b"\x89PNG\xff\xfe")
    refused(["sweep=binary"], ["binary.yaml cannot be read"], capsys)


def test_the_list_of_sweeps(capsys: pytest.CaptureFixture) -> None:
    write("mine", f"# two methods on digits,\n# briefly{SMALL}")
    write("broken", "settings: [")
    assert main(["list", "sweeps"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert list(lines) == sweep_names()
    assert lines["mine"] == "two methods on digits  [2 methods x 1 setting x 1 seed, not searched]"
    assert lines["broken"].startswith("cannot be read: ")
    assert "mean personalised accuracy" in lines["pgfed/table1"]
    ends = {
        "pgfed/table1": "[14 methods x 6 settings x 3 seeds, searched: tune=grid tune.split=validation]",
        "fedala/table4": "[23 methods x 7 settings x 5 seeds (106 of 161 cells), not searched]",
    }
    for name, end in ends.items():
        assert lines[name].endswith(end)


def test_the_documentation_has_all_keys_of_a_table_and_of_a_scale() -> None:
    page = (Path(__file__).parents[2] / "docs" / "sweeps.md").read_text(encoding="utf-8")
    table = page.partition("A table's file has these keys:")[2].partition("\n\nKeys of the command")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)) == {*KEYS, "include"}
    assert all(f"{key}: " in table for key in ROW_KEYS)
    scale = page.partition("Such a file has any of")[2].partition("```")[0]
    assert all(f"`{key}`" in scale for key in SCALE_KEYS)
