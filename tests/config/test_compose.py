"""What Hydra's errors become."""

from pathlib import Path

import pytest

from pflsweep.config.compose import compose, warn_without_effect
from pflsweep.config.hydra_loader import folders
from pflsweep.config.keys import key_of
from pflsweep.config.node import Node
from pflsweep.config.schema import check
from pflsweep.sweep.plan import changed
from pflsweep.util.errors import UserError
from pflsweep.util.once import warn_once


def test_an_option_in_a_folder_that_was_not_named_is_pointed_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_conf/algorithm").mkdir(parents=True)
    (tmp_path / "my_conf/algorithm/anchor.yaml").write_text("_target_: anchor.Anchor\n")
    with pytest.raises(UserError, match=r"'anchor'. my_conf/algorithm/anchor.yaml is there: add --config-dir my_conf"):
        compose(["algorithm=anchor"])


def test_a_file_that_is_not_written_as_an_option_is_pointed_at(tmp_path: Path) -> None:
    for group in ("model", "setting"):
        (tmp_path / group).mkdir()
    (tmp_path / "model/odd.yml").write_text("_target_: pflsweep.models.mlp.build\n")
    with pytest.raises(UserError, match=rf"'odd'. {tmp_path}/model/odd.yml is there: let its name end in .yaml"):
        compose(["model=odd"], tmp_path)
    (tmp_path / "setting/quick.yaml").write_text("train: {lr: 0.3}\n")
    with pytest.raises(UserError, match=r"'setting.train.lr'.*`# @package _global_`.*as train.lr is\.$"):
        check(compose(["+setting=quick"], tmp_path))
    (tmp_path / "setting/quick.yaml").write_text("# @package _global_\ntrain: {lr: 0.3}\n")
    assert compose(["+setting=quick"], tmp_path).train.lr == 0.3


def test_a_misspelt_argument_of_ones_own_function_is_named() -> None:
    node = Node("model", "odd", "pflsweep.models.mlp.build", {"hiden": [3]})
    with pytest.raises(UserError, match=r"keys do not fit .*build \(.*It takes no 'hiden'. Did you mean 'hidden'\?"):
        node.call()
    node = Node("model", "odd", "pflsweep.models.mlp.build", {})
    with pytest.raises(UserError, match=r"keys do not fit .*build \([^()]*\)\.$"):
        node.call()


@pytest.mark.parametrize(
    ("value", "link", "moved"),
    [
        ("p${seed}.json", "p${seed}.json", "p7.json"),
        ("${oc.env:PLACE}/p${seed}.json", "/place/p${seed}.json", "/place/p7.json"),
        ("hydra_parts/p${seed}.json", "hydra_parts/p${seed}.json", "hydra_parts/p7.json"),
        ("p${oc.select:seed}.json", "p${oc.select:seed}.json", "p7.json"),
        ("${oc.env:PLACE}/p.json", None, "/place/p.json"),
        ("a:b${seed}", "a:b${seed}", "a:b7"),
    ],
)
def test_a_value_that_refers_to_a_key_follows_it(
    monkeypatch: pytest.MonkeyPatch, value: str, link: str | None, moved: str
) -> None:
    """What the environment gave stays, also where it changes later, as on another machine."""
    monkeypatch.setenv("PLACE", "/place")
    config = compose(["partition=from_file", f"partition.path='{value}'", "seed=3"])
    monkeypatch.delenv("PLACE")
    assert config.interpolations.get("partition.path") == link
    assert config.flat["partition.path"] == moved.replace("7", "3")
    assert changed(config, {"seed": 7}).flat["partition.path"] == moved


def test_an_option_of_ones_own_may_not_have_a_shipped_name(tmp_path: Path) -> None:
    (tmp_path / "algorithm/as_run").mkdir(parents=True)
    (tmp_path / "config.yaml").write_text("")  # of something else, where the folder is a project's
    (tmp_path / "algorithm/mine.yaml").write_text("_target_: mine.Mine\n")
    folders(tmp_path)
    for name in ("fedprox", "as_run/pfllib_fedphp"):
        file = tmp_path / f"algorithm/{name}.yaml"
        file.write_text("_target_: mine.Mine\n")
        with pytest.raises(UserError, match=rf"{name}.yaml has the name of a shipped option, which would be used"):
            folders(tmp_path)
        file.unlink()


@pytest.mark.parametrize(
    ("words", "warning"),
    [
        ("train.epochs=3 train.steps=2", "train.epochs has no effect here: it needs train.steps=null"),
        ("metrics.all_size=own", "metrics.all_size has no effect here: it needs metrics.all=true"),
        ("train.epochs=3", ""),
        ("metrics.all_size=union", ""),  # the default, which a script may name
        ("train.lr_of=last_turn train.lr_decay=0.9 train.participation=0.5", ""),
    ],
)
def test_a_key_without_effect_is_warned_about(words: str, warning: str, caplog: pytest.LogCaptureFixture) -> None:
    warn_once.cache_clear()
    warn_without_effect(map(key_of, words.split()), [compose(words.split())])
    assert [record.getMessage() for record in caplog.records] == [warning] * bool(warning)
