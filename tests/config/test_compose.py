"""What Hydra's errors become."""

from pathlib import Path

import pytest

from pflsweep.config.compose import compose
from pflsweep.util.errors import UserError


def test_an_option_in_a_folder_that_was_not_named_is_pointed_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_conf/algorithm").mkdir(parents=True)
    (tmp_path / "my_conf/algorithm/anchor.yaml").write_text("_target_: anchor.Anchor\n")
    with pytest.raises(UserError, match=r"'anchor'. my_conf/algorithm/anchor.yaml is there: add --config-dir my_conf"):
        compose(["algorithm=anchor"])
