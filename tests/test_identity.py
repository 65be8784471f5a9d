"""What of a config is in a trial's identity, and that committed records keep theirs."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from pflsweep import disk
from pflsweep.compose import Config, compose
from pflsweep.config import typed
from pflsweep.identity import identity, method_name
from pflsweep.keys import PLUGS
from pflsweep.setting import own_code


def identity_of(*overrides: str, extends: bool = True, version: int = 1, checksum: str = "x") -> str:
    values = compose(list(overrides)).values
    return identity(values, data_checksum=checksum, version=version, extends=extends)


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
        "train.optimiser_state=kept",  # without momentum there is none
    ],
)
def test_identity_leaves_out_what_changes_no_number(override: str) -> None:
    assert identity_of(override) == identity_of()


@pytest.mark.parametrize(
    "override",
    [
        "seed=1",
        "train.lr=0.1",
        "train.eval_batch=8",
        "partition.alpha=1",
        "algorithm=local",
        "data.validation=0.1",
        "ala=on",
        "attack=scaled",
        "privacy=dp_sgd",
        "metrics.subset=0.5",
        "metrics.all=true",
        "metrics.trained=true",
        "train.precision=bf16",
        "train.compile=true",
    ],
)
def test_identity_holds_what_does(override: str) -> None:
    assert identity_of(override) != identity_of()


def test_identity_of_a_kept_optimiser_state() -> None:
    fresh, kept = (identity_of("train.momentum=0.9", f"train.optimiser_state={how}") for how in ("fresh", "kept"))
    older = compose(["train.momentum=0.9"]).values
    del older["train"]["optimiser_state"]
    assert identity(older, data_checksum="x", version=1, extends=True) == fresh != kept


def test_records_from_before_there_was_a_precision_are_found() -> None:
    older = compose([]).values
    del older["train"]["precision"]
    assert identity(older, data_checksum="x", version=1, extends=True) == identity_of()


def test_committed_records_are_found_by_what_they_hold() -> None:
    """Their configs, with the keys that are younger and with floats where keys are of floats."""
    references: dict[tuple[str, ...], Config] = {}
    folders = [file.parent for file in Path(__file__).parents[1].glob("reports/runs/*/meta.json")]
    for folder in folders:
        meta, values = disk.read_json(folder / "meta.json"), disk.read_yaml(folder / "config.yaml")
        groups = {"algorithm": meta["method"], "model": meta["model"].partition(".")[0]}
        groups |= {group: meta.get(group) or "none" for group in ("dataset", "partition", *PLUGS, "study")}
        options = tuple(f"{group}={option}" for group, option in groups.items())
        if options not in references:
            references[options] = compose(list(options))
        config = references[options]
        whole = OmegaConf.to_container(OmegaConf.merge(config.values, values))
        found = {
            identity(
                typed(config._replace(values=whole)).values,  # type: ignore[arg-type]
                data_checksum=meta["data_checksum"],
                version=meta["method_version"],
                extends=extends,
                plugins=meta.get("plugin_versions"),
                code=meta.get("code", ()),
            )
            for extends in (True, False)
        }
        assert folder.name in found
    assert len(folders) > 100


def test_identity_of_data_version_and_of_methods_that_do_not_extend() -> None:
    assert len({identity_of(), identity_of(version=2), identity_of(checksum="y"), identity_of(extends=False)}) == 4
    assert identity_of("train.rounds=7", extends=False) != identity_of(extends=False)
    assert len(identity_of()) == 16


def test_identity_of_plug_ins() -> None:
    """The groups that came later leave the identities of before as they were."""
    values = compose(["attack=scaled"]).values
    one, two = (identity(values, data_checksum="x", version=1, extends=True, plugins={"attack": k}) for k in (1, 2))
    assert one != two
    values = compose([]).values
    of_before = {key: value for key, value in values.items() if key not in ("attack", "privacy")}
    ids = {identity(config, data_checksum="x", version=1, extends=True) for config in (values, of_before)}
    assert ids == {identity(values, data_checksum="x", version=1, extends=True, plugins={})}


def test_a_methods_name_has_its_plug_ins() -> None:
    before = {"method": "fedavg", "ala": "none"}
    assert method_name(before) == "fedavg"
    assert method_name({**before, "ala": "on"}) == "fedavg+ala"
    assert method_name({**before, "ala": "on", "privacy": "dp_sgd", "attack": "scaled"}) == "fedavg+ala+dp_sgd+scaled"


@pytest.mark.parametrize("where", ["site-packages", "dist-packages"])
def test_what_is_installed_elsewhere_is_not_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """As with PYTHONPATH on a cluster, `pip install --user`, or a virtual environment that sees the system's."""
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
    assert len(own_code(compose(["model=wide"], tmp_path))) == 1


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
    before = own_code(config)
    assert len(before) == 3  # neither numpy nor torch
    (tmp_path / "own_number.py").write_text("WIDTH = 640\n")
    after = own_code(config)
    assert len(set(after) - set(before)) == 1
