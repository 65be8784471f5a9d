"""Which parts of a config are in a trial's identity, and that moved code and new keys do not change it."""

import importlib
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.config import identity, options, schema
from pflsweep.config.compose import Config, compose
from pflsweep.config.identity import config_digest, method_name, option_of, shipped_options
from pflsweep.config.keys import PLUGS, flat, under
from pflsweep.config.schema import neutral_values, typed
from pflsweep.methods.protocol import hyper
from pflsweep.records.archive import places
from pflsweep.trial.metadata import canonical, digest_of, flat_values, numerics, own_code_hashes
from pflsweep.util import files
from pflsweep.util.errors import UserError

ROOT = Path(__file__).parents[2]


def digest(*overrides: str, resumable: bool = True) -> str:
    return digest_of(compose(list(overrides)), resumable, [])


@pytest.mark.slow
def test_whole_numbers_are_floats_where_a_key_takes_floats_in_lists_too() -> None:
    words = ["dataset=mnist", "dataset.std=[2.0]"]
    whole, decimal = (digest_of(typed(compose([*words, f"dataset.mean=[{zero}]"])), True, []) for zero in ("0", "0.0"))
    assert whole == decimal


@pytest.mark.parametrize(
    "override",
    [
        "device=cpu",
        "train.chunk=3",
        "train.threads=1",
        "train.workers=3",
        "data.root=/elsewhere",
        "data.download=true",
        "paths.runs=elsewhere",
        "checkpoint.every=1",
        "tracking=none",
        "train.rounds=7",
        "data.new_epochs=7",
        "data.shuffle=2",
        "train.sampling_alpha=0.3",
        "train.precision=fp32",
        # Without momentum there are no optimiser states
        "train.optimiser_state=kept",
    ],
)
def test_identity_leaves_out_what_changes_no_number(override: str) -> None:
    assert digest(override) == digest()


@pytest.mark.parametrize("override", ["train.sampling=size", "train.sampling=dirichlet", "train.first_round=all"])
def test_how_cohorts_are_drawn_counts_unless_all_clients_train(override: str) -> None:
    everybody = "train.participation=1.0"
    assert digest(override, everybody) == digest(everybody)
    assert digest(override) != digest()


@pytest.mark.slow
@pytest.mark.parametrize(
    "override",
    [
        "seed=1",
        "train.lr=0.1",
        "train.eval_batch=8",
        "partition.alpha=1",
        "algorithm=local",
        "model=cnn",
        "data.validation=0.1",
        "ala=on",
        "attack=scaled",
        "privacy=dp_sgd",
        "metrics.subset=0.5",
        "metrics.all=true",
        "metrics.trained=true",
        "train.precision=bf16",
        "model._target_=pflsweep.models.lenet5.build",
    ],
)
def test_identity_holds_what_does(override: str) -> None:
    assert digest(override) != digest()


def test_identity_of_a_kept_optimiser_state() -> None:
    fresh, kept = (digest("train.momentum=0.9", f"train.optimiser_state={how}") for how in ("fresh", "kept"))
    assert fresh != kept


def test_no_import_path_is_hashed() -> None:
    for words in ([], ["partition=latent", "dataset=cifar10"], ["algorithm=fedpg_mix", "study=trajectory"], ["ala=on"]):
        config = compose(words)
        assert "pflsweep." not in json.dumps(flat_values(config))


def test_options_are_named_as_a_command_names_them() -> None:
    found = flat_values(compose(["algorithm=fedpg_mix", "dataset=fmnist", "partition=latent", "ala=none"]))
    shown = {
        key: found[key] for key in ("algorithm", "algorithm.form", "dataset", "partition.embedder", "model", "ala")
    }
    assert shown == {
        "algorithm": "fedpg_mix", "algorithm.form": "mix", "dataset": "fmnist", "partition.embedder": "vgg11",
        "model": "cnn", "ala": {},
    }  # fmt: skip


def test_the_name_of_what_a_target_names() -> None:
    mlp = "pflsweep.models.mlp.build"
    assert option_of(mlp, "mlp") == option_of(mlp, "mine") == option_of(mlp) == "mlp"
    assert option_of("pflsweep.models.vgg11.build", "mlp") == "vgg11"
    assert option_of("my_package.my_file.Mine", "mine") == "Mine"
    assert option_of("my_partitions.from_file", "mine") == "own.from_file", "not the shipped option of that name"
    every = [option for options in shipped_options().values() for option in options]
    assert len(every) == len(set(every)) > 60, "two groups have an option of one name"


MOVED = """
import json, sys
from pflsweep.config.compose import compose
from pflsweep.trial.metadata import digest_of
from pflsweep import __file__ as here
words = json.loads(sys.argv[1])
print(json.dumps([here, [digest_of(compose(each), True, []) for each in words]]))
"""


@pytest.mark.slow
def test_moved_modules_and_renamed_classes_change_no_identity(tmp_path: Path) -> None:
    words = [[], ["algorithm=fedprox"], ["model=cnn"], ["dataset=mnist"], ["partition=iid"], ["ala=on"]]
    before = [digest(*each) for each in words]
    for name in ("pflsweep", "conf"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))

    def move(old: str, new: str, *classes: str) -> None:
        """Move a module of the copied package, and rename its classes."""
        moved = tmp_path.joinpath(*new.split(".")).with_suffix(".py")
        moved.parent.mkdir(exist_ok=True)
        tmp_path.joinpath(*old.split(".")).with_suffix(".py").rename(moved)
        for file in [*tmp_path.rglob("*.py"), *tmp_path.rglob("*.yaml")]:
            text = file.read_text().replace(f"{old}.", f"{new}.").replace(f"{old} ", f"{new} ")
            for name in classes:
                text = text.replace(name, f"Renamed{name}")
            file.write_text(text)

    move("pflsweep.algorithms.fedavg", "pflsweep.algorithms.averaging", "FedAvg")
    move("pflsweep.algorithms.fedprox", "pflsweep.baselines.proximal", "FedProx")
    move("pflsweep.models.mlp", "pflsweep.models.perceptron")
    move("pflsweep.data.datasets.mnist", "pflsweep.sets.digits_28")
    move("pflsweep.data.partition.iid", "pflsweep.data.partition.alike")
    move("pflsweep.plugins.ala", "pflsweep.plugins.adaptive", "Ala")
    done = subprocess.run(
        [sys.executable, "-c", MOVED, json.dumps(words)], cwd=tmp_path, capture_output=True, text=True,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    where, after = json.loads(done.stdout)
    assert where == str(tmp_path / "pflsweep/__init__.py")
    assert after == before


def test_a_new_key_with_its_neutral_value_changes_no_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_key(value: Any) -> str:
        config = compose([])
        config.values["train"]["new_key"] = value
        return digest_of(config, True, [])

    before = digest()
    monkeypatch.setitem(options.KEY_GROUPS, "train", Longer)
    options.rules.cache_clear()
    monkeypatch.setattr(schema, "NEUTRAL", {**identity.NEUTRAL, **options.neutral()})
    assert with_key(3) == digest() == before != with_key(4)
    assert Longer.of(compose([]).values["train"]).new_key == 3, "a config without the key has its neutral value"
    options.rules.cache_clear()


@dataclass(frozen=True, kw_only=True)
class Longer(options.Train):
    """The keys of `train` with one that is newer than all records."""

    new_key: int = hyper("a new key", neutral=3)


@dataclass(frozen=True, kw_only=True)
class Extended(FedAvg):
    """FedAvg with a key that is newer than its records."""

    paper = "test"
    power: float = hyper("a power", neutral=1.0)


def extended(shape: Any, classes: int, hidden: Any, slope: float = 0.0, sizes: tuple[int, ...] = (3, 5)) -> Any:
    """A function with parameters that are newer than its records."""


def test_methods_and_functions_declare_neutral_values() -> None:
    config = compose([])
    config.values["algorithm"] = {"_target_": f"{__name__}.Extended", "power": 1.0}
    config.values["model"] |= {"_target_": f"{__name__}.extended", "slope": 0.0, "sizes": [3, 5]}
    assert {key: neutral_values(config)[key] for key in ("algorithm.power", "model.slope", "model.sizes")} == {
        "algorithm.power": 1.0,
        "model.slope": 0.0,
        "model.sizes": [3, 5],
    }
    assert not {"algorithm.power", "model.slope", "model.sizes"} & canonical(config).keys()
    config.values["algorithm"]["power"] = 2.0
    assert canonical(config)["algorithm.power"] == 2.0


@pytest.mark.parametrize(
    ("key", "acts", "idle"),
    [
        ("train.lr_of=last_turn", ["train.lr_decay=0.9"], ["train.lr_decay=0.9", "train.participation=1"]),
        # Without decay all rates are the same
        ("train.lr_of=last_turn", ["train.lr_decay=0.9"], []),
        ("train.first_round=all", [], ["train.participation=1"]),
    ],
)
def test_keys_that_act_on_nothing_are_no_part_of_the_identity(key: str, acts: list[str], idle: list[str]) -> None:
    assert digest(*acts, key) != digest(*acts)
    assert digest(*idle, key) == digest(*idle)


def test_neutral_values_are_for_ever() -> None:
    """Changing a neutral value changes the identity of every record that has it."""
    found = neutral_values(compose(["algorithm=fedala", "dataset=digits"]))
    assert {key: value for key, value in found.items() if "." in key} == {
        "algorithm.draw": "random",
        "algorithm.idle": 0.0,
        "data.limit": None,
        "data.new": 0,
        "data.new_epochs": 20,
        "data.prescribed": None,
        "data.shuffle": 0,
        "data.targets": "own",
        "dataset.augment": "none",
        "train.compile": False,
        "train.steps": None,
        "train.shuffle": "epoch",
        "train.last_batch": "keep",
        "partition.seed": None,
        "metrics.all_size": "union",
        "train.lr_of": "round",
        "train.first_round": "cohort",
        "metrics.clients": "all",
        "metrics.personal": "current",
        "metrics.rows": "test",
        "train.optimiser_state": "fresh",
        "train.precision": "fp32",
        "train.sampling": "uniform",
        "train.sampling_alpha": 1.0,
        "tracking.backend": "mlflow",
        "tracking.every": 5.0,
        "tracking.experiment": "pflsweep",
        "tracking.required": True,
        "tracking.uri": None,
    }


def test_identities_are_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Golden identities under the first numerics: a change of them orphans every record."""
    monkeypatch.setattr("pflsweep.trial.metadata.NUMERICS", dict.fromkeys(identity.NUMERICS, 1))
    assert identity.identity("0" * 16, "x") == "2dcb4054b6118517"
    assert digest() == "0e312f7e73597237"
    assert (
        digest("algorithm=pgfed", "dataset=mnist", "partition=pathological", "train.momentum=0.9") == "cff190d670bb566d"
    )


@pytest.mark.slow
def test_committed_records_are_found_by_what_they_hold() -> None:
    """The command that would train a committed record again has the record's identity."""
    references: dict[tuple[str, ...], Config] = {}
    folders = [file.parent for place in places(ROOT / "reports/runs") for file in place.glob("*/meta.json")]
    for folder in folders:
        meta, values = files.read_json(folder / "meta.json"), files.read_yaml(folder / "config.yaml")
        groups = {"algorithm": meta["method"], "model": meta["model"].partition(".")[0]}
        groups |= {group: meta[group] for group in ("dataset", "partition", *PLUGS, "study")}
        options = tuple(f"{group}={option}" for group, option in groups.items())
        if options not in references:
            references[options] = compose(list(options))
        config = references[options]
        again = typed(replace(config, values=_merged(config.values, values)))
        versions = {"algorithm": meta["method_version"], **meta["plugin_versions"]}
        found = {
            identity.identity(
                config_digest(
                    canonical(again),
                    versions=versions,
                    numerics=meta["numerics"],
                    resumable=resumable,
                    code=meta["code"],
                ),
                meta["data_checksum"],
            )
            for resumable in (True, False)
        }
        assert folder.name == meta["identity"]
        assert folder.name in found
        counted = {key for key in flat(values) if not under(key, identity.RUNTIME)}
        assert {key for key in meta["neutral"] if key in counted} == counted - canonical(again).keys()
    assert len(folders) >= 32


def _merged(config: dict[str, Any], recorded: dict[str, Any]) -> dict[str, Any]:
    """Return a config with a record's values."""
    merged = dict(config)
    for key, value in recorded.items():
        if key != "_option_":
            merged[key] = _merged(config.get(key, {}), value) if isinstance(value, dict) else value
    return merged


def test_what_is_hashed_beside_the_config() -> None:
    config = canonical(compose([]))
    same: dict[str, Any] = {"versions": {"algorithm": 1}, "numerics": {"engine": 1}, "resumable": True, "code": []}
    others = [
        {},
        {"versions": {"algorithm": 2}},
        {"versions": {"algorithm": 1, "ala": 1}},
        {"numerics": {"engine": 2}},
        {"numerics": {"engine": 1, "dense": 2}},
        {"resumable": False},
        {"code": ["ab"]},
    ]
    assert len({config_digest(config, **{**same, **other}) for other in others}) == len(others)
    assert config_digest(config, **{**same, "numerics": {"engine": 1, "new": 1}}) == config_digest(config, **same)
    assert len({identity.identity("a", "x"), identity.identity("a", "y"), identity.identity("b", "x")}) == 3
    assert digest("train.rounds=7", resumable=False) != digest(resumable=False)


@pytest.mark.slow
def test_a_raised_family_changes_the_identities_of_its_models_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    words = {"dense": ["model=mlp"], "convolutional": ["model=cnn"], "text": ["model=fasttext"]}
    words["recurrent"] = ["model=char_lstm"]
    before = {family: digest(*each) for family, each in words.items()}
    for family in words:
        monkeypatch.setattr(
            "pflsweep.trial.metadata.NUMERICS", {**identity.NUMERICS, family: identity.NUMERICS[family] + 1}
        )
        assert [each for each in words if digest(*words[each]) != before[each]] == [family]
    monkeypatch.setattr("pflsweep.trial.metadata.NUMERICS", {**identity.NUMERICS, "engine": 2})
    assert all(digest(*each) != before[family] for family, each in words.items())


def test_a_model_of_ones_own_may_use_layers_of_any_family() -> None:
    config = compose([])
    assert numerics(config) == {family: identity.NUMERICS[family] for family in ("engine", "dense")}
    config.values["model"]["_target_"] = f"{__name__}.extended"
    of_models = {family: version for family, version in identity.NUMERICS.items() if "_" not in family}
    assert numerics(config) == of_models
    assert numerics(compose(["data.new=2"])).keys() == {"engine", "dense", "new_clients"}
    stale = ["metrics.personal=stale", "algorithm=splitgp"]
    assert numerics(compose(stale)).keys() == {"engine", "dense", "stale_rows"}
    assert "stale_rows" not in numerics(compose([stale[0], "algorithm=fedrod"])) | numerics(compose(stale[1:]))


def test_a_methods_name_has_its_plug_ins() -> None:
    before = {"method": "fedavg", "ala": "none"}
    assert method_name(before) == "fedavg"
    assert method_name({**before, "ala": "on"}) == "fedavg+ala"
    assert method_name({**before, "ala": "on", "privacy": "dp_sgd", "attack": "scaled"}) == "fedavg+ala+dp_sgd+scaled"


@pytest.mark.parametrize("where", ["site-packages", "dist-packages"])
def test_what_is_installed_elsewhere_is_not_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Code in PYTHONPATH on a cluster, from `pip install --user` or of the system is not a user's own code."""
    installed = tmp_path / where
    installed.mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(installed)
    library, own = f"library_of_{where[:4]}", f"own_of_{where[:4]}"
    (installed / f"{library}.py").write_text("WIDTH = 16\n")
    (tmp_path / f"{own}.py").write_text(
        f"import {library}\nfrom torch import nn\n\n\ndef net(shape, classes):\n"
        f"    return nn.Sequential(nn.Flatten(), nn.Linear(64, {library}.WIDTH), nn.Linear({library}.WIDTH, classes))\n"
    )
    (tmp_path / "model").mkdir()
    (tmp_path / "model/wide.yaml").write_text(f"_target_: {own}.net\n")
    assert len(own_code_hashes(compose(["model=wide"], tmp_path))) == 1


def test_what_own_code_imports_is_part_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model/wide.yaml").write_text("_target_: own_wide.net\n")
    (tmp_path / "own_wide.py").write_text(
        "import numpy\nfrom torch import nn\nimport own_widths as w\n\n\ndef net(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, w.WIDTH), nn.Linear(w.WIDTH, classes))\n"
    )
    (tmp_path / "own_widths.py").write_text("from own_number import WIDTH\n")
    (tmp_path / "own_number.py").write_text("WIDTH = 16\n")
    config = compose(["model=wide"], tmp_path)
    before = own_code_hashes(config)
    # numpy and torch are not counted
    assert len(before) == 3
    (tmp_path / "own_number.py").write_text("WIDTH = 640\n")
    with pytest.raises(UserError, match=r"own_number.py was edited after"):
        own_code_hashes(config)
    importlib.reload(sys.modules["own_number"])
    after = own_code_hashes(config)
    assert len(set(after) - set(before)) == 1
