"""Foreign records and ledgers are data: never run as code nor shown as markup; every command reports damage as an
error.
"""

import json
import os
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

import pflsweep
from pflsweep.commands.main import main
from pflsweep.commands.report import main as report
from pflsweep.config.compose import compose
from pflsweep.records import checked, readers
from pflsweep.records.content import CHECKPOINT, COPIED, MODELS, PARTS
from pflsweep.records.errors import Damaged
from pflsweep.records.record import Record, digest_of_config
from pflsweep.records.writer import RecordWriter
from pflsweep.report import html, markdown
from pflsweep.sweep import cost
from pflsweep.tracking.failures import errors_as_warnings
from pflsweep.tracking.logging import _tags
from pflsweep.trial.result import Result
from pflsweep.util import files
from pflsweep.util.errors import UserError, shortened
from tests.report.paper.fixtures import Sweep
from tests.report.records import finished

pytestmark = pytest.mark.usefixtures("elsewhere")
WORDS = ["tracking=none", "partition.clients=4", "model.hidden=[8]", "train.epochs=1", "train.rounds=2"]
# The one script that pages may have
FRAMED = (Path(html.__file__).parent / "templates/framed.html").read_text()
EVIL = "from pathlib import Path\nPath('MARKER').touch()\n\ndef build(*args, **more): ...\nclass Method: ...\n"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the record of a small trial, with each file that a record may have."""
    runs = tmp_path_factory.mktemp("trained")
    folder = pflsweep.run([*WORDS, f"paths.runs={runs}"]).record.folder
    files.write_npz(folder / "matrices.npz", {"A": np.eye(4)})
    files.write_parquet(folder / "newcomers.parquet", pd.DataFrame({"round": [2], "epoch": [0], "n": 1, "correct": 1}))
    files.write_parquet(folder / "study.parquet", pd.DataFrame({"round": [1], "loss": [0.5]}))
    files.write_parquet(folder / "ends_rounds.parquet", pd.DataFrame({"round": [1], "personal_accuracy": [0.5]}))
    clients = {"round": [1], "view": ["personal"], "client": [0], "n": [1], "correct": [1]}
    files.write_parquet(folder / "ends_clients.parquet", pd.DataFrame(clients))
    return folder


@pytest.fixture
def folder(trained: Path, elsewhere: None) -> Path:
    """Return a copy of the record in runs/."""
    return Path(shutil.copytree(trained, Path("runs", trained.name)))


@pytest.fixture
def evil(elsewhere: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Create a module that leaves a file when it is imported."""
    Path("evil.py").write_text(EVIL)
    monkeypatch.syspath_prepend(os.getcwd())
    yield
    assert not Path("MARKER").exists(), "code that a record names was run"


def changed(folder: Path, meta: dict[str, Any] | None = None, **groups: dict[str, Any]) -> None:
    """Change meta.json and config.yaml with matching digests, as an attacker would."""
    config = yaml.safe_load((folder / "config.yaml").read_text())
    for group, values in groups.items():
        config[group] = {**config[group], **values}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    for name, more in (("meta.json", meta or {}), ("status.json", {"config": [digest_of_config(config)]})):
        content = json.loads((folder / name).read_text()) | more
        (folder / name).write_text(json.dumps(content))


@pytest.mark.slow
@pytest.mark.usefixtures("evil")
@pytest.mark.parametrize(
    ("meta", "model", "said"),
    [
        ({}, {"_option_": "evil.build"}, r"the record's model was built by 'evil\.build', but model=mlp is 'mlp'"),
        ({}, {"_target_": "evil.build"}, r"Unknown config key 'model\._target_'"),
        ({}, {"hidden": {"_target_": "evil.build"}}, r"model\.hidden"),
        ({}, {"hidden": "x"}, r"model\.hidden"),
        ({}, {"own": {"_target_": "evil.build"}}, r"Unknown config key 'model\.own\._target_'"),
        ({"model": "evil"}, {"_target_": "evil.build"}, r"model=evil is none of pflsweep's options.*config_dir"),
        ({"model": "../../../runs/evil"}, {}, r"model=\.\./\.\./\.\./runs/evil is none of pflsweep's options"),
        ({"shape": ["x"]}, {}, r"meta\.json: shape \['x'\] and classes 10 are no whole numbers"),
    ],
)
def test_a_model_is_never_built_by_what_a_record_names(
    folder: Path, meta: dict[str, Any], model: dict[str, Any], said: str
) -> None:
    Path("runs/evil.yaml").write_text("_target_: evil.build\n")
    changed(folder, meta, model=model)
    for load in (Result(folder, 2).load_global, lambda: Result(folder, 2).load_personal(0)):
        with pytest.raises(UserError, match=said):
            load()


def test_a_copied_record_has_its_models(folder: Path, trained: Path) -> None:
    state = torch.load(trained / "models.pt")["global"]
    model = Result(folder, 2).load_global()
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())
    changed(folder, model={"hidden": [9]})
    with pytest.raises(
        UserError, match=r"models\.pt does not fit the model that its config describes: .*size mismatch"
    ):
        Result(folder, 2).load_global()


def test_a_model_of_ones_own_comes_from_the_folder_that_the_caller_names(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("own_model.py").write_text(
        "from pflsweep.models.mlp import build as mlp\n\ndef build(*a, **b): return mlp(*a, **b)"
    )
    monkeypatch.syspath_prepend(os.getcwd())
    Path("conf/model").mkdir(parents=True)
    Path("conf/model/own.yaml").write_text("_target_: own_model.build\nhidden: [8]\n")
    result = pflsweep.run([*WORDS, "model=own"], config_dir="conf")
    state = result.load_global().state_dict()
    again = Result(result.record.folder, 2)
    with pytest.raises(UserError, match=r"model=own is none of pflsweep's options"):
        again.load_global()
    with pytest.raises(UserError, match=r"There is no folder 'other'"):
        again.load_global(config_dir="other")
    for model in (again.load_global(config_dir="conf"), again.load_personal(0, config_dir=Path("conf"))):
        assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())


@pytest.mark.usefixtures("evil")
def test_speeds_are_not_read_by_running_what_a_record_names(folder: Path) -> None:
    assert cost.known_speeds(Path("runs"))
    changed(folder, algorithm={"_option_": "evil.Method", "_target_": "evil.Method"})
    assert not cost.known_speeds(Path("runs"))
    changed(folder, {"dataset": "own"}, algorithm={"_option_": "fedavg"}, dataset={"_option_": "evil.build"})
    assert not cost.known_speeds(Path("runs"))


def test_a_record_that_is_removed_meanwhile_is_none_of_the_newest(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("old", "new", "gone")]
    for age, file in zip((20, 10), files, strict=False):
        file.touch()
        os.utime(file, (0, 1e9 - age))
    assert cost._newest(files, 5) == files[:2]
    assert cost._newest(files, 1) == [files[1]]


def test_speeds_of_a_method_of_ones_own_are_known_to_a_plan_that_has_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("foreign_method.py").write_text("from pflsweep.algorithms.fedavg import FedAvg as Method\n")
    monkeypatch.syspath_prepend(os.getcwd())
    changed(folder, algorithm={"_option_": "Method"})
    assert not cost.known_speeds(Path("runs"))
    own = compose(WORDS)
    own.values["algorithm"]["_target_"] = "foreign_method.Method"
    assert cost.known_speeds(Path("runs"), [own])


# Copied records


def ends(*words: str) -> int:
    return main(["record", *words, *(["--no-tracking"] if words[0] == "import" else [])])


@pytest.mark.parametrize("what", ["export", "import"])
def test_what_is_no_file_of_a_record_is_named_and_stays(folder: Path, what: str, capsys: pytest.CaptureFixture) -> None:
    (folder / "evil.sh").write_text("rm -rf /")
    (folder / "inner").mkdir()
    (folder / "passwd").symlink_to("/etc/passwd")
    words = ["export", "--out", "out"] if what == "export" else ["import", "runs", "--runs", "out"]
    assert ends(*words) == 0
    assert {file.name for file in Path("out", folder.name).iterdir()} == set(COPIED)
    said = capsys.readouterr().out
    for name in ("evil.sh", "inner", "passwd"):
        assert f"left out: {folder / name}, which is not a file of a record" in said


def linked(folder: Path) -> None:
    (folder / "study.parquet").unlink()
    (folder / "study.parquet").symlink_to("/etc/passwd")


def linked_to_a_table(folder: Path) -> None:
    shutil.copy(folder / "study.parquet", "outside.parquet")
    (folder / "study.parquet").unlink()
    (folder / "study.parquet").symlink_to(Path("outside.parquet").absolute())


def pipe(folder: Path) -> None:
    (folder / "study.parquet").unlink()
    os.mkfifo(folder / "study.parquet")


def pickled(folder: Path) -> None:
    np.savez(folder / "matrices.npz", A=np.array([{"an": "object"}], dtype=object))


def bzip2(folder: Path) -> None:
    """Compress matrices in a way that cannot be decompressed in parts."""
    with zipfile.ZipFile(folder / "matrices.npz", "w", zipfile.ZIP_BZIP2) as file:
        file.writestr("A.npy", b"x")


def inside(folder: Path) -> None:
    """Damage a file inside; its end, which is read at opening, stays whole."""
    content = (folder / "partition.parquet").read_bytes()
    (folder / "partition.parquet").write_bytes(content[:4] + bytes(60) + content[64:])


def renamed(folder: Path) -> None:
    folder.rename(folder.with_name("other"))


def foreign_identity(folder: Path) -> None:
    changed(folder, {"identity": "../../x"})


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (linked, r"study\.parquet cannot be read"),
        (linked_to_a_table, r"study\.parquet is not copied: it is a link"),
        (pipe, r"study\.parquet cannot be read: it is not a regular file"),
        (pickled, r"matrices\.npz cannot be read: it is truncated, or no file of pflsweep's \(ValueError\)"),
        (bzip2, r"matrices\.npz cannot be read"),
        (inside, r"partition\.parquet cannot be read"),
        (renamed, r"give the folder its name back"),
        (foreign_identity, r"identity '\.\./\.\./x' is not 16 hexadecimal digits"),
    ],
)
@pytest.mark.parametrize("what", ["export", "import"])
def test_a_record_with_a_file_that_cannot_be_carried_is_named_with_the_reason(
    folder: Path, spoil: Callable[[Path], None], said: str, what: str, capsys: pytest.CaptureFixture
) -> None:
    whole = finished(Path("runs"), "fedavg", [1, 2, 3, 4])
    spoil(folder)
    words = ["export", "--out", "out"] if what == "export" else ["import", "runs", "--runs", "out"]
    assert ends(*words) == 2
    told = capsys.readouterr()
    assert "1 run and 0 ledgers" in told.out
    assert re.search(f"left out: .*{said}", told.err)
    assert "delete" not in told.err.lower()
    assert [each.name for each in Path("out").iterdir()] == [whole.folder.name]
    shutil.rmtree(whole.folder)
    assert ends(*words) == 2
    assert re.search(f"There is no finished run to {what} in 'runs'\\. Left out: .*{said}", capsys.readouterr().err)


LAUGHS = "\n".join(["a0: &a0 [x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 30))])


@pytest.mark.parametrize(
    "config",
    ["a: &a {b: *a}", "{1: a, b: c}", "2001-01-01: x", LAUGHS, "a: " + "[" * 10**5, "[a]"],
    ids=["recursive", "mixed keys", "a date", "many aliases", "deep", "a list"],
)
def test_a_record_with_an_odd_config_is_damaged_and_others_are_used(
    folder: Path, config: str, capsys: pytest.CaptureFixture
) -> None:
    """The whole command ended in a traceback, went on for ever or was killed."""
    finished(Path("runs"), "fedavg", [1, 2, 3, 4])
    (folder / "config.yaml").write_text(config)
    assert ends("import", "runs", "--runs", "out") == 2
    said = capsys.readouterr()
    assert "1 run and 0 ledgers" in said.out
    assert f"left out: {folder / 'config.yaml'} cannot be read" in said.err
    assert report(["runs"]) == 2
    assert f"{folder / 'config.yaml'} cannot be read" in capsys.readouterr().err
    assert not cost.known_speeds(Path("runs"))


@pytest.mark.parametrize(
    ("meta", "config", "said"),
    [
        ({"created": "yesterday"}, {}, r"meta\.json is not copied: created .*Invalid isoformat string: 'yesterday'"),
        ({"sessions": [{"from": 2}]}, {}, r"meta\.json is not copied: created or sessions .*KeyError: 'begun'"),
        ({"dataset": None}, {}, r"meta\.json is not copied: dataset is None"),
        ({"partition": 3}, {}, r"meta\.json is not copied: partition is 3"),
        ({"model": None}, {}, r"meta\.json is not copied: model is None"),
        ({}, {"tracking": None}, r"config\.yaml is not copied: tracking is None"),
        ({}, {"tracking": {"experiment": [1]}}, r"config\.yaml is not copied: tracking is \{'experiment': \[1\]\}"),
    ],
)
@pytest.mark.filterwarnings("ignore")  # MLflow's and SQLAlchemy's own
def test_a_foreign_record_that_could_not_be_sent_to_mlflow_is_left_out(
    folder: Path, meta: dict[str, Any], config: dict[str, Any], said: str, capsys: pytest.CaptureFixture
) -> None:
    finished(Path("runs"), "fedavg", [1, 2, 3, 4])
    content = files.read_yaml(folder / "config.yaml") | config
    (folder / "config.yaml").write_text(yaml.safe_dump(content))
    changed(folder, meta)
    assert main(["record", "import", "runs", "--runs", "out", "--no-tracking"]) == 2
    told = capsys.readouterr()
    assert "1 run and 0 ledgers" in told.out
    assert re.search(f"left out: {folder}/{said}", told.err)


def test_a_trial_that_goes_on_while_it_is_read_is_left_out(
    folder: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its copy was not finished, or its tables were of several moments."""
    finished(Path("runs"), "fedavg", [1, 2, 3, 4])
    in_folder = checked._in_folder

    def late(place: Path, *more: Any) -> dict[str, bytes]:
        if place == folder:
            RecordWriter(folder).set_status(status="running")
        return in_folder(place, *more)

    monkeypatch.setattr(checked, "_in_folder", late)
    assert ends("export", "--out", "out") == 0
    said = capsys.readouterr().out
    assert "1 run and 0 ledgers" in said
    assert re.search(r"left out: fedavg-\S+ \(trained further just now\)", said)
    assert not Path("out", folder.name).exists()


def test_a_linked_folder_is_ones_own_to_export_and_is_not_imported(folder: Path, capsys: pytest.CaptureFixture) -> None:
    shutil.move(folder, "disk")
    folder.symlink_to(Path("disk").absolute())
    assert ends("import", "runs", "--runs", "out") == 2
    assert "is not read: it is a link" in capsys.readouterr().err
    assert not Path("out").exists()
    assert ends("export", "--out", "out") == 0
    assert Record(Path("out", folder.name)).done == 2


def test_a_file_that_is_too_large_is_not_read(
    folder: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checked, "LARGEST", (folder / "rounds.parquet").stat().st_size - 1)
    assert ends("import", "runs", "--runs", "out") == 2
    assert re.search(r"rounds\.parquet is not copied: it has [\d,]+ bytes, and at most", capsys.readouterr().err)


def test_matrices_that_decompress_to_too_much_are_not_read(
    folder: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """3 MB became 3 GB."""
    matrices, bound = {"A": np.zeros((100, 100)), "B": np.zeros((100, 100))}, 150_000
    monkeypatch.setattr(readers, "LARGEST", bound)
    files.write_npz(folder / "matrices.npz", matrices)
    assert Record(folder).matrices.keys() == matrices.keys()
    np.savez_compressed(folder / "matrices.npz", **matrices)
    assert (folder / "matrices.npz").stat().st_size < bound
    assert ends("import", "runs", "--runs", "out") == 2
    assert (
        "matrices.npz cannot be read: it is truncated, or no file of pflsweep's (ValueError)" in capsys.readouterr().err
    )


def _changed(content: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """Return a ledger with other values; those of `groups` are merged into its only group."""
    groups = [content["groups"][0] | each for each in change["groups"]] if change.get("groups") else None
    return content | change | ({"groups": groups} if groups else {})


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("plan", {}, "are named by 16 hexadecimal digits each"),
        ("0123456789abcdef", {"seeds": ["<b>"]}, "TypeError: seeds is '<b>'"),
        ("0123456789abcdef", {"groups": {}}, "TypeError: groups is"),
        ("0123456789abcdef", {"command": ["x"]}, "TypeError: command is"),
        ("0123456789abcdef", {"tune": {"split": "all"}}, "ValueError: split is 'all'"),
        ("0123456789abcdef", {"groups": [{"points": 1}], "tune": {}}, "KeyError: 'split'"),
        ("0123456789abcdef", {"groups": [{"space": {"train.lr": 3}}]}, "TypeError: train.lr is 3"),
        ("0123456789abcdef", {"groups": [{"tried": [1]}]}, "TypeError: "),
        ("0123456789abcdef", {"groups": [{"tried": [{"point": {}}]}]}, "KeyError: 'value'"),
        ("0123456789abcdef", "[", "is not JSON"),
        ("0123456789abcdef", "link", "is not copied: it is a link"),
    ],
)
def test_a_ledger_that_is_none_is_named_and_the_records_are_copied(
    name: str, change: Any, said: str, capsys: pytest.CaptureFixture
) -> None:
    sweep = Sweep(Path("runs"))
    sweep.add("cifar10/clients25", "fedavg", {0: [1, 2, 3, 4]})
    path = sweep.write(name)
    if change == "link":
        path.rename("elsewhere.json")
        path.symlink_to(Path("elsewhere.json").absolute())
    else:
        path.write_text(
            change if isinstance(change, str) else json.dumps(_changed(json.loads(path.read_text()), change))
        )
    assert ends("import", "runs", "--runs", "out") == 2
    told = capsys.readouterr()
    assert "1 run and 0 ledgers" in told.out
    assert re.search(f"left out: {path}.*({said})", told.err)
    assert not Path("out/sweeps").exists()


def test_the_ledger_of_somebody_else_names_no_other_folder() -> None:
    sweep = Sweep(Path("runs"))
    sweep.add("cifar10/clients25", "fedavg", {0: [1, 2, 3, 4]})
    sweep.group("cifar10/clients25", "fedavg")["trials"]["0"] = "../elsewhere"
    sweep.write()
    with pytest.raises(UserError, match=r"'\.\./elsewhere' names no trial\. Move it away"):
        report(["pgfed/table1"])


# Pages

BAD = "<script>alert(1)</script>|`code`[x](javascript:alert(1))*b*<img src=x onerror=alert(1)>"


class Tags(HTMLParser):
    """The elements of a page, and the addresses that they name."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.addresses: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.addresses += [value or "" for key, value in attrs if key in ("href", "src") or key.startswith("on")]


def require_harmless(text: str, folder: Path) -> None:
    """Assert that markdown gives a page without scripts and with whole tables, also where a viewer lets HTML pass."""
    from markdown_it import MarkdownIt

    assert "alert(1)" in text, "what is to be escaped is not there"
    for page in (html.page(text, folder), MarkdownIt("commonmark", {"html": True}).enable("table").render(text)):
        tags = Tags(page.replace(FRAMED, ""))
        assert "script" not in tags.names
        assert not any("alert" in address for address in tags.addresses), tags.addresses
    for block in text.split("\n\n"):
        rows = [line for line in block.splitlines() if line.startswith("|")]
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in rows}) <= 1, "a row of another number of cells"


def test_text_of_a_record_is_markup_in_no_page(capsys: pytest.CaptureFixture) -> None:
    named = {key: f"{key} {BAD}" for key in ("name", "method", "commit", "dataset", "partition", "model", "version")}
    for method, seed in (("fedavg", 0), ("pgfed", 0), ("pgfed", 1)):
        record = finished(Path("runs"), method, [1, 2, 3, 4], seed, train__note=BAD, algorithm__tag=f"{BAD} {method}")
        meta = {**named, "method": f"{method} {BAD}", "reconstruction": BAD, "study": BAD}
        changed(record.folder, {**meta, "environment": {**record.meta["environment"], "processor": BAD}})
    failed = finished(Path("runs"), "local", [1, 2, 3, 4], 5)
    failed.set_status(status="failed", error=BAD)
    assert report(["runs"]) == 0
    capsys.readouterr()
    text = Path("reports/comparison/runs.md").read_text()
    require_harmless(text, Path("reports/comparison"))
    page = Path("reports/comparison/runs.html").read_text()
    assert "script" not in Tags(page.replace(FRAMED, "")).names
    assert "&lt;script&gt;alert(1)" in page


def test_text_of_a_record_is_markup_on_no_page_of_a_paper() -> None:
    sweep = Sweep(Path("runs"))
    setting = "cifar10/clients25"
    for method in ("fedavg", "pgfed"):
        for record in sweep.add(setting, method, {0: [1, 2, 3, 4], 1: [2, 3, 4, 5]}, algorithm__tag=BAD):
            meta = {"name": BAD, "commit": BAD, "version": BAD, "reconstruction": BAD}
            changed(record.folder, {**meta, "environment": {"device": BAD, "torch": BAD}}, tracking={"experiment": BAD})
    method = BAD.partition("|")[0]  # all of it would leave no room in the pictures
    own = {"algorithm___option_": "fedavg", "algorithm__tag": BAD, "train__epochs": 7, "train__precision": "bf16"}
    sweep.add(setting, method, {0: [1, 2, 3, 4]}, **own)
    sweep.group(setting, method).update(winner={"train.lr": 0.05}, failed={"1": BAD}, failed_points=[BAD])
    sweep.group(setting, "local")["failed"] = {"0": BAD}
    group = sweep.group(setting, "pgfed")
    group |= {"points": 2, "winner": {}, "winner_value": 0.5, "failed_points": [BAD]}
    group["tried"] = [{"point": {"algorithm.tag": f"{BAD}{k}"}, "value": 0.5} for k in range(2)]
    sweep.group(setting, "fedavg")["winner"] = {"algorithm.tag": BAD}
    sweep.write(command=f"pflsweep -m sweep=pgfed/table1 {BAD.replace('`', '')}")
    assert report(["pgfed/table1"]) == 0
    out = Path("reports/pgfed/table1")
    text = (out / "README.md").read_text()
    require_harmless(text, out)
    assert "script" not in Tags((out / "page.html").read_text().replace(FRAMED, "")).names


def test_mlflows_description_of_a_run_has_no_markup_of_the_record() -> None:
    from pflsweep.tracking.lookup import NOTE

    record = finished(Path("runs"), "fedavg", [1, 2, 3, 4])
    record.meta["name"] = BAD
    require_harmless(_tags(record)[NOTE], Path())


def test_a_page_shows_pictures_of_its_folder_alone(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(b"secret")
    (tmp_path / "page").mkdir()
    for name in ("../secret.png", "/etc/passwd", "none.png", "https://example.org/x.png"):
        with pytest.raises(UserError, match="shows the picture"):
            html.page(f"# A\n\n![it]({name})\n", tmp_path / "page")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("fedavg (hidden=[8])", "fedavg (hidden=[8])"),
        ("[1.00, 2.00] over seeds", "[1.00, 2.00] over seeds"),
        ("lr_decay=0.1", "lr_decay=0.1"),
        ("_x_ *y*", r"\_x\_ \*y\*"),
        ("[x](y)", r"[x\](y)"),
        ("[x]", r"\[x]"),
        ("a\n\n# b | c", r"a # b \| c"),
        ("a < b & c", "a &lt; b &amp; c"),
        ("<lambda>", "&lt;lambda&gt;"),
        (r"C:\x|", r"C:\\x\|"),
    ],
)
def test_text_is_escaped_where_markdown_would_read_it(text: str, shown: str) -> None:
    from markdown_it import MarkdownIt

    assert markdown.inline(text) == shown
    page = MarkdownIt("commonmark").enable("table").render(f"| a |\n|---|\n| {markdown.inline(text)} |\n")
    assert "<td>" + " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") in page


@pytest.mark.parametrize("text", ["a`b", "``", "`a`", "a", "<b>|c", "a|b"])
def test_code_is_shown_as_it_is(text: str) -> None:
    from markdown_it import MarkdownIt

    said = text.replace("<", "&lt;").replace(">", "&gt;")
    reader = MarkdownIt("commonmark").enable("table")
    assert f"<code>{said}</code>" in reader.render(f"- {markdown.code(text)}\n")
    assert f"<code>{said}</code>" in reader.render(f"| a |\n|---|\n| {markdown.cell(markdown.code(text))} |\n")


# Damage


def test_no_message_cuts_a_path() -> None:
    path = "/data/" + "a long folder/" * 30 + "x.parquet"
    assert shortened(UserError(f"{path} is damaged")) == f"{path} is damaged"
    assert path in shortened(OSError(f"'{path}' is not there, " + "and so on " * 50))
    said = shortened(ValueError("word " * 200), 50)
    assert said == "word " * 11 + "..."


def test_damage_is_not_forgiven_as_a_store_that_is_away_is() -> None:
    with pytest.raises(Damaged), errors_as_warnings("a run"):
        raise Damaged("partition.parquet cannot be read")


def truncated(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def another_type(file: Path) -> None:
    if file.suffix == ".parquet":
        pd.DataFrame({"else": [1]}).to_parquet(file)
    elif file.suffix == ".npz":
        file.write_bytes(b"\x93NUMPY" + bytes(20))
    elif file.suffix == ".pt":
        torch.save([1], file)
    else:
        file.write_text('["a list"]')


DAMAGES: dict[str, Callable[[Path], object]] = {
    "truncated": truncated,
    "empty": lambda file: file.write_bytes(b""),
    "garbage": lambda file: file.write_bytes(bytes(range(256)) * 4),
    "another type": another_type,
    "missing": lambda file: file.unlink(),
}
MAY_BE_MISSING = tuple(name for name, part in PARTS.items() if part.written == "some")


def ends_with(command: str, folder: Path) -> int | UserError:
    """Return the exit code of a command, 2 for a UserError."""
    try:
        if command == "train":
            pflsweep.run(WORDS)
        elif command == "train on":
            pflsweep.run([*WORDS, "train.rounds=3"])
        elif command == "report":
            return report(["runs"])
        elif command == "Result":
            Result(folder, 2).load_global()
        elif command == "export":
            return ends("export", "--out", "out")
        else:
            return ends("import", "runs", "--runs", "more")
    except UserError as error:
        return error
    return 0


COMMANDS = ("report", "export", "import", "Result", "train", "train on")


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", [*COPIED, CHECKPOINT, MODELS])
def test_damage_of_any_file_is_an_error_of_every_command_that_has_to_do_with_it(
    folder: Path, name: str, damage: str, capsys: pytest.CaptureFixture
) -> None:
    # A record that can be reported and copied
    finished(Path("runs"), "fedprox", [1, 2, 3, 4])
    DAMAGES[damage](folder / name)
    # The study's table may have any columns
    of_another_type = damage == "another type" and name in ("study.parquet",)
    for command in COMMANDS:
        if damage == "missing" and name in ("meta.json", *MAY_BE_MISSING):
            # No record, or one without this file: a command may refuse it, and nothing else is raised
            ends_with(command, folder)
            continue
        concerned = {CHECKPOINT: ("train on",), MODELS: ("Result", "train")}.get(name, COMMANDS)
        if command not in concerned or of_another_type:
            continue
        code = ends_with(command, folder)
        said = str(code) + capsys.readouterr().err
        assert code == 2 or isinstance(code, UserError), (command, said)
        assert f"{folder.name}/{name}" in said, command
        assert "delete" not in said.lower()
        assert (f"move the folder {folder}" in said or f"move the folder {folder.absolute()}" in said) == (
            name != "meta.json"
        ), (command, said)


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", COPIED)
def test_damage_is_an_error_of_a_papers_report(name: str, damage: str) -> None:
    sweep = Sweep(Path("runs"))
    (record,) = sweep.add("cifar10/clients25", "fedavg", {0: [1, 2, 3, 4]})
    sweep.write()
    for file, table in (
        ("newcomers.parquet", {"round": [2], "epoch": [0], "n": 1, "correct": 1}),
        ("study.parquet", {"a": [1]}),
        ("ends_rounds.parquet", {"round": [1], "personal_accuracy": [0.5]}),
        ("ends_clients.parquet", {"round": [1], "view": ["personal"], "client": [0], "n": [1], "correct": [1]}),
    ):
        pd.DataFrame(table).to_parquet(record.folder / file)
    if damage == "another type" and name == "study.parquet":
        # It may have any columns
        return
    DAMAGES[damage](record.folder / name)
    if damage == "missing" and name in ("meta.json", *MAY_BE_MISSING):
        assert name == "meta.json" or report(["pgfed/table1"]) == 0
        return
    with pytest.raises(UserError, match=f"{record.folder.name}/{name} cannot be read"):
        report(["pgfed/table1"])
