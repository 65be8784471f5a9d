"""A user's own data, by config alone: a folder of images, arrays, a table."""

import io
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pflsweep.config.compose import compose
from pflsweep.config.schema import check
from pflsweep.data.datasets import images, pack
from pflsweep.data.datasets.table import _table
from pflsweep.data.loader import ClientData
from pflsweep.trial.build import build, build_federation
from pflsweep.trial.metadata import digest_of
from pflsweep.trial.tables import partition_table
from pflsweep.util.errors import UserError
from pflsweep.util.once import warn_once
from tests.data.loading import chosen, forbid, from_yaml, picture

# A folder of images


def fill(top: Path, classes: dict[str, int], size: tuple[int, int] = (10, 8)) -> Path:
    number = 0
    for one, count in classes.items():
        (top / one).mkdir(parents=True)
        for i in range(count):
            (top / one / f"{i:03}.png").write_bytes(picture(number, size, kind="PNG"))
            number += 1
    return top


def test_a_folder_without_split(tmp_path):
    top = fill(tmp_path / "mine", {"dog": 3, "cat": 2})
    (top / "cat" / "notes.txt").write_text("no image")
    (top / ".hidden").mkdir()
    data = from_yaml("folder", tmp_path, path=str(top))
    assert data.x.shape == (5, 3, 8, 10)
    assert data.y.tolist() == [0, 0, 1, 1, 1], "cat, then dog"
    assert data.x[:, 0, 0, 0].tolist() == [21, 28, 0, 7, 14]
    assert data.train == 5
    assert from_yaml("folder", tmp_path, path=str(top), size=6).shape == (3, 6, 6)
    assert from_yaml("folder", tmp_path, path=str(top), channels=1, mean=[0.2]).shape == (1, 8, 10)


def test_a_folder_with_train_and_test(tmp_path):
    top = tmp_path / "mine"
    fill(top / "train", {"a": 3, "b": 2})
    fill(top / "test", {"b": 2})
    data = from_yaml("folder", tmp_path, path=str(top))
    assert data.y.tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert (data.train, data.classes) == (5, 2)
    fill(top / "test", {"c": 1})
    with pytest.raises(UserError, match=r"test has a class 'c', of which .*train has no folder"):
        from_yaml("folder", tmp_path, path=str(top))


def test_a_class_without_images_is_refused_and_a_third_folder_is_not_read(tmp_path, caplog):
    top = fill(tmp_path / "mine", {"a": 3, "b": 2, "c/batch1": 2})
    with pytest.raises(UserError, match=r"no images in .*/mine/c\..*; folders inside a class are not read\.$"):
        from_yaml("folder", tmp_path, path=str(top))
    for split in ("Train", "Test"):
        fill(tmp_path / "upper" / split, {"a": 2, "b": 2})
    with pytest.raises(UserError, match=r"The folders of the splits are called train and test\.$"):
        from_yaml("folder", tmp_path, path=str(tmp_path / "upper"))
    for split in ("train", "val", "test"):
        fill(tmp_path / "three" / split, {"a": 2, "b": 2})
    warn_once.cache_clear()
    assert from_yaml("folder", tmp_path, path=str(tmp_path / "three")).train == 4
    assert f"{tmp_path / 'three/val'} is not read: only train/ and test/ are" in caplog.text
    # The training split has no row of it
    fill(tmp_path / "few/train", {"a": 2, "b": 2})
    fill(tmp_path / "few/test", {"a": 2})
    assert from_yaml("folder", tmp_path, path=str(tmp_path / "few")).y.tolist() == [0, 0, 1, 1, 0, 0]


def test_what_is_wrong_with_a_folder_is_said(tmp_path):
    top = fill(tmp_path / "mine", {"a": 2, "b": 1})
    with pytest.raises(UserError, match=r"dataset=folder reads data of your own: .*dataset.path=FOLDER"):
        from_yaml("folder", tmp_path)
    with pytest.raises(UserError, match=r"dataset.path is /nowhere: there is no such folder in /\."):
        from_yaml("folder", tmp_path, path="/nowhere")
    (tmp_path / "a_file").touch()
    with pytest.raises(UserError, match=rf"dataset.path is {tmp_path}/a_file, which is a file: dataset=folder reads a"):
        from_yaml("folder", path=str(tmp_path / "a_file"))
    with pytest.raises(UserError, match=rf"there is no such folder in {tmp_path}\. Did you mean 'mine'"):
        from_yaml("folder", tmp_path, path=str(tmp_path / "mien"))
    with pytest.raises(UserError, match=r"a has 0 folder"):
        from_yaml("folder", tmp_path, path=str(top / "a"))
    with pytest.raises(UserError, match=r"dataset.channels is 4"):
        from_yaml("folder", tmp_path, path=str(top), channels=4)
    (top / "b/x.png").write_bytes(picture(1, (4, 4), kind="PNG"))
    with pytest.raises(UserError, match=r"b/x.png has 4x4 pixels, the first image 10x8.*dataset.size=32"):
        from_yaml("folder", tmp_path, path=str(top))
    (top / "b/x.png").write_bytes(b"no picture")
    with pytest.raises(UserError, match=r"b/x.png is damaged, or no image"):
        from_yaml("folder", tmp_path, path=str(top))
    for file in top.rglob("*.png"):
        file.rename(file.with_suffix(".txt"))
    with pytest.raises(UserError, match=r"there are no images in the folders of .*end in .bmp"):
        from_yaml("folder", tmp_path, path=str(top))


def test_a_folder_with_half_a_split(tmp_path):
    top = tmp_path / "mine"
    fill(top / "train", {"a": 3, "b": 2})
    fill(top / "val", {"a": 1, "b": 1})
    with pytest.raises(UserError, match=r"has train/ with classes in it and no test/. Its folders are train, val: ren"):
        from_yaml("folder", tmp_path, path=str(top))
    (top / "train").rename(top / "test")
    with pytest.raises(UserError, match=r"has test/ with classes in it and no train/"):
        from_yaml("folder", tmp_path, path=str(top))
    vehicles = fill(tmp_path / "vehicles", {"train": 2, "car": 1})
    assert from_yaml("folder", tmp_path, path=str(vehicles)).classes == 2, "a class of that name"


def test_a_folder_named_like_an_image_is_none(tmp_path):
    top = fill(tmp_path / "mine", {"a": 2, "b": 1})
    (top / "a/x.png").mkdir()
    assert len(from_yaml("folder", tmp_path, path=str(top)).x) == 3


def test_an_image_that_may_not_be_read_is_said(tmp_path, monkeypatch):
    top = fill(tmp_path / "mine", {"a": 2, "b": 1})
    for place in (top / "a/000.png", top / "b", top):
        with monkeypatch.context() as patch:
            forbid(patch, place)
            with pytest.raises(UserError, match=rf"^dataset=folder: {place} cannot be read \(Permission denied\)"):
                chosen("folder", tmp_path, f"dataset.path={top}")
    assert len(from_yaml("folder", tmp_path, path=str(top)).x) == 3


# Arrays


def arrays(**changes) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (7, 3, 6, 5), np.uint8), np.array([0, 1, 2, 0, 1, 2, 0])
    return {"x_train": x[:5], "y_train": y[:5], "x_test": x[5:], "y_test": y[5:], **changes}


def saved(folder: Path, content: dict[str, np.ndarray]) -> str:
    np.savez(folder / "mine.npz", **content)
    return str(folder / "mine.npz")


def test_arrays(tmp_path):
    content = arrays(group=np.array(["b", "b", "a", "a", "a", "b", "a"]))
    data = from_yaml("npz", path=saved(tmp_path, content))
    assert np.array_equal(data.x.numpy(), np.concatenate([content["x_train"], content["x_test"]]))
    assert data.y.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert (data.train, data.classes, data.scale) == (5, 3, 1 / 255)
    assert data.owner.tolist() == [1, 1, 0, 0, 0, 1, 0]
    assert data.owners == ("a", "b")
    last = arrays(x_train=content["x_train"].transpose(0, 2, 3, 1), x_test=content["x_test"].transpose(0, 2, 3, 1))
    assert from_yaml("npz", path=saved(tmp_path, last)).x.equal(data.x), "channels last are put first"
    # Four channels are RGB and alpha
    four = arrays(x_train=np.zeros((5, 6, 5, 4), np.uint8), x_test=np.zeros((2, 6, 5, 4), np.uint8))
    assert from_yaml("npz", path=saved(tmp_path, four)).shape == (4, 6, 5)
    features = arrays(x_train=np.zeros((5, 13, 8, 8), np.uint8), x_test=np.zeros((2, 13, 8, 8), np.uint8))
    assert from_yaml("npz", path=saved(tmp_path, features)).shape == (13, 8, 8)
    more = arrays(group=np.arange(7) % 2, groups=np.zeros(3), names=np.array(["cat", "dog", "eel"]))
    assert from_yaml("npz", path=saved(tmp_path, more)).owners == ("0", "1"), "other arrays do not matter"
    grey = {key: content[key][:, 0] if key[0] == "x" else content[key] for key in ("x_train", "y_train")}
    data = from_yaml("npz", path=saved(tmp_path, grey))
    assert (data.shape, data.train, data.owner) == ((1, 6, 5), 5, None)
    features = {"x_train": np.linspace(-1, 1, 10).reshape(5, 2), "y_train": content["y_train"]}
    data = from_yaml("npz", path=saved(tmp_path, features), mean=[1.0, 2.0], std=[1.0, 3.0])
    assert (data.shape, data.scale, data.x.numpy().dtype) == ((2,), 1.0, np.float32)
    assert data.mean.tolist() == [1.0, 2.0]


def test_where_the_split_lies_is_part_of_the_checksum(tmp_path):
    content = arrays()
    whole = {axis: np.concatenate([content[f"{axis}_train"], content[f"{axis}_test"]]) for axis in "xy"}
    moved = {f"{axis}_{part}": whole[axis][cut] for axis in "xy" for part, cut in CUTS.items()}
    one, other = (from_yaml("npz", path=saved(tmp_path, each)) for each in (content, moved))
    assert one.x.equal(other.x)
    assert one.checksum != other.checksum


CUTS = {"train": slice(0, 4), "test": slice(4, None)}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x_train": None}, "has no x_train; it has x_test, y_test, y_train. It should have x_train"),
        ({"y_test": None}, "has no y_test"),
        ({"y_train": np.array([0, 1])}, r"y_train has shape \(2,\).*whole numbers"),
        ({"y_train": np.arange(5) / 2}, "type float64"),
        ({"y_train": np.arange(5) - 1}, "from 0"),
        ({"x_test": np.zeros((2, 3, 6, 6), np.uint8)}, "they must be the same"),
        ({"x_test": np.zeros((2, 3, 6, 5))}, "they must be the same"),
        ({"x_train": np.full((5, 4), np.nan), "x_test": np.zeros((2, 4))}, "no finite numbers.* such as in row 0"),
        ({"x_train": np.zeros(5)}, r"x_train has shape \(5,\)"),
        ({"x_train": np.full((5, 4), 1e39), "x_test": np.zeros((2, 4))}, "no finite numbers of type float32"),
        ({"y_train": np.array([0, 1, 2, 0, 10**9])}, "largest class in y_train and y_test is 1000000000.*7 rows"),
        ({"y_train": np.ones(5, int), "y_test": np.ones(2, int)}, "one class only, 1; two are needed"),
        ({"y_train": np.array(1)}, r"y_train has shape \(\)"),
        ({"group": np.array([0, 1, np.nan, 0, 0, 0, 0])}, "group is NaN in row 2"),
        ({"group": np.zeros(5)}, r"group has shape \(5,\), and there are 7 rows"),
        ({"X_test": np.zeros(2), "x_test": None, "y_test": None}, "array X_test would not .* mean 'x_test'"),
        ({"train_x": np.zeros(5), "x_train": None}, "array train_x would not be read. Did you mean 'x_train'"),
        ({"groups": np.zeros(7)}, "groups would not be read. Did you mean 'group'"),
        ({"y_train": np.array([0, 1, 2, 3, None], dtype=object)}, "cannot be read as a .npz file of numbers"),
    ],
)
def test_what_is_wrong_with_arrays_is_said(tmp_path, changes, words):
    content = {key: value for key, value in arrays(**changes).items() if value is not None}
    with pytest.raises(UserError, match=words) as error:
        from_yaml("npz", path=saved(tmp_path, content))
    assert "mine.npz" in str(error.value)


def test_a_file_that_holds_no_arrays_is_refused(tmp_path):
    (tmp_path / "mine.npz").write_bytes(b"PK no")
    np.save(tmp_path / "one.npy", np.zeros(3))
    for file in ("mine.npz", "one.npy"):
        with pytest.raises(UserError, match=f"{file} cannot be read as a .npz file"):
            from_yaml("npz", path=str(tmp_path / file))
    (tmp_path / "one.npy").rename(tmp_path / "mine.npz")
    with pytest.raises(UserError, match=r"mine.npz cannot .* \(it is a .npy file, of one array"):
        from_yaml("npz", path=str(tmp_path / "mine.npz"))


def test_an_archive_that_cannot_be_unpacked_is_refused(tmp_path):
    np.savez_compressed(tmp_path / "mine.npz", **arrays())
    good = (tmp_path / "mine.npz").read_bytes()
    # The beginning of the first file's content
    start = 30 + int.from_bytes(good[26:28], "little") + int.from_bytes(good[28:30], "little")
    garbled = good[:start] + b"\xff" * 20 + good[start + 20 :]
    (entry,) = [m.start() for m in re.finditer(b"PK\x01\x02", good)][:1]
    # A compression that zipfile does not know
    unknown = good[: entry + 10] + b"\x63\x00" + good[entry + 12 :]
    for content in (garbled, unknown):
        (tmp_path / "mine.npz").write_bytes(content)
        with pytest.raises(UserError, match=r"mine.npz cannot be read as a .npz file"):
            from_yaml("npz", path=str(tmp_path / "mine.npz"))


# A table

TABLE = """age,income,site,kind
30,1.5,east,no
40,2.5,west,yes
50,-1,east,no
20,0,west,maybe
"""


def table(folder: Path, text: str = TABLE) -> str:
    (folder / "mine.csv").write_text(text)
    return str(folder / "mine.csv")


def test_a_table(tmp_path):
    data = from_yaml("csv", path=table(tmp_path), label="kind", client="site", mean=[35.0, 1.0], std=[10.0, 2.0])
    assert data.x.tolist() == [[30.0, 1.5], [40.0, 2.5], [50.0, -1.0], [20.0, 0.0]]
    assert data.y.tolist() == [1, 2, 1, 0], "maybe, no, yes"
    assert (data.owner.tolist(), data.owners) == ([0, 1, 0, 1], ("east", "west"))
    assert (data.train, data.classes) == (4, 3)
    numbers = TABLE.replace("east", "10").replace("west", "9")
    assert from_yaml("csv", path=table(tmp_path, numbers), label="kind", client="site").owners == ("9", "10")


@pytest.mark.parametrize(
    ("written", "owners", "owner"),
    [
        (("1", "01", "2", "1"), ("01", "1", "2"), [1, 0, 2, 1]),
        (("1.0", "1", "2", "2"), ("1", "1.0", "2"), [1, 0, 2, 2]),
        (("NA", "US", "None", "nan"), ("NA", "None", "US", "nan"), [0, 2, 1, 3]),
        ((" 10", "9", "10", "9 "), ("9", "10"), [1, 0, 1, 0]),
        (("True", "False", "True", "False"), ("False", "True"), [1, 0, 1, 0]),
    ],
)
def test_clients_and_classes_have_the_names_that_are_written(tmp_path, written, owners, owner):
    lines = [f"{k},{name},{name}" for k, name in enumerate(written)]
    data = from_yaml("csv", path=table(tmp_path, "\n".join(["a,who,kind", *lines])), label="kind", client="who")
    assert (data.owners, data.owner.tolist(), data.y.tolist()) == (owners, owner, owner)
    assert data.classes == len(owners)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        (TABLE, {}, "dataset.label is not set. Its columns are age, income, site, kind"),
        (TABLE, {"label": "kinds"}, "no such column. Did you mean 'kind'"),
        (TABLE, {"label": "kind", "client": "town"}, "dataset.client is 'town'"),
        (TABLE, {"label": "kind"}, r"column 'site' is not numeric in line 2 \('east'\).* named by dataset\.client"),
        (",a,b\n0,1,2\n1,3,4\n", {"label": "b"}, "column 1 has no name in the header.* to_csv is given index=False"),
        ("1,1,0\n3,4,1\n", {"label": "0"}, "two columns '1'.* If its first line is not a header, give it one"),
        ("kind,site\na,1\nb,2\n", {"label": "kind", "client": "site"}, "no column beside 'kind' and 'site'"),
        ("a,y\n1,0\n2,1\n", {"label": "y", "drop": ["a"]}, "no column beside 'y' and those of dataset.drop"),
        (
            "age,name,home town,y\n1,ann,ulm,0\n2,bob,bonn,1\n",
            {"label": "y"},
            r"'name' is not numeric in line 2 \('ann'\), nor 'home town' in line 2 \('ulm'\)\. .*"
            r"""'dataset\.drop=\[name,"home town"\]'""",
        ),
        (
            "a,b,c,y\n1,,2,0\n,,3,1\n4,5,6,0\n",
            {"label": "y"},
            r"'a' has no finite number in line 3, nor 'b' in line 2 \(2 lines in all\)\..* 'dataset\.drop=\[a,b\]'",
        ),
        (TABLE, {"label": "kind", "drop": ["sit"]}, "dataset.drop has 'sit', which is not in the table. Did .*'site'"),
        (TABLE, {"label": "kind", "drop": ["kind"]}, "dataset.drop has 'kind', which is dataset.label"),
        (TABLE, {"label": "kind", "client": "site", "drop": ["age", "income"]}, "no column beside .*dataset.drop"),
        (TABLE, {"label": "kind", "client": "site", "mean": [1.0, 2.0, 3.0]}, "1 value or 2, one a feature"),
        (TABLE, {"label": "kind", "standardise": True, "mean": [2.0]}, "dataset.standardise is true, which computes"),
        (TABLE.replace("1.5", ""), {"label": "kind", "client": "site"}, "'income' has no finite number in line 2"),
        (TABLE.replace("maybe", ""), {"label": "kind", "client": "site"}, "'kind' is empty in line 5"),
        ("a,b\n1,2\n3,2\n", {"label": "b"}, "one value only, 2"),
        ("a,b\n1,0\n2,1\n3,nan\n", {"label": "b"}, "'b' is empty in line 4"),
        ("a,b,c\n1,0,2\n2,1\n3,1,1\n", {"label": "c"}, "'c' is empty in line 3"),
        (
            "height (cm),y\ntall,0\nsmall,1\n",
            {"label": "y"},
            r"""out by 'dataset\.drop=\["height \(cm\)"\]'\. The column""",
        ),
        ("a,b\n", {"label": "b"}, "0 rows and 2 columns"),
        ("", {"label": "b"}, "cannot be read as csv"),
        ("a,b\n1,2\n3,4,5\n", {"label": "b"}, "cannot be read as csv"),
        ("a,b\n0,2,3\n1,5,6\n", {"label": "b"}, "Expected 2 fields in line 2, saw 3"),
        ("a,b\nx,2,3\ny,5,6\n", {"label": "b"}, "Expected 2 fields in line 2, saw 3"),
        ("a,b\n1,2,\n3,4,\n", {"label": "b"}, "Expected 2 fields in line 2, saw 3"),
        ("a,b\n1,2\n1e39,3\n", {"label": "b"}, "'a' has no finite number in line 3. Numbers must fit float32"),
    ],
)
def test_what_is_wrong_with_a_table_is_said(tmp_path, text, options, words):
    with pytest.raises(UserError, match=words) as error:
        from_yaml("csv", path=table(tmp_path, text), **options)
    assert "\n" not in str(error.value)


def test_columns_that_are_far_from_standard_are_warned_about(tmp_path, caplog):
    head, rows = (
        "age,flag,year,a,b,y",
        [f"{20 + k % 71},{k % 2},{1990 + k % 30},{40 * k},{-k - 99},{k % 2}" for k in range(99)],
    )
    path = table(tmp_path, "\n".join([head, *rows]))
    from_yaml("csv", path=path, label="y", standardise=True)
    from_yaml("csv", path=path, label="y", drop=["age", "year", "a", "b"])
    from_yaml("csv", path=path, label="y", drop=["year", "a", "b"], mean=[55.0, 0.0], std=[20.0, 1.0])
    assert caplog.text == ""
    from_yaml("csv", path=path, label="y")
    assert "mine.csv: 'age' (mean 48.92, std 20.33), " in caplog.text
    assert "'year' (mean 2004, std 8.822)" in caplog.text
    assert "'a' (mean 1960, std 1143) and 1 more" in caplog.text
    assert "dataset.standardise=true" in caplog.text
    assert "flag" not in caplog.text


def test_features_of_an_npz_file_that_are_far_from_standard_are_warned_about(tmp_path, caplog):
    x = np.stack([np.arange(99) * 10.0, np.arange(99) % 3], 1)
    file = saved(tmp_path, {"x_train": x, "y_train": np.arange(99) % 2})
    from_yaml("npz", path=file, mean=[490.0, 0.0], std=[286.0, 1.0])
    assert caplog.text == ""
    from_yaml("npz", path=file)
    assert "mine.npz: feature 0 (mean 490, std 285.8): a mean beyond 10" in caplog.text
    assert "Set dataset.mean and dataset.std" in caplog.text


def test_features_are_standardised_by_the_training_rows_that_train(tmp_path):
    """Test rows, validation rows and new clients' rows take no part."""
    lines = [f"{k},7,{100 * k % 37},{k % 2},{k % 6}" for k in range(120)]
    path = table(tmp_path, "\n".join(["a,same,b,y,site", *lines]))
    own = [f"dataset.path={path}", "dataset.label=y", "dataset.client=site", "partition=natural", "partition.least=5"]
    config = compose(["dataset=csv", *own, "dataset.standardise=true", "data.validation=0.2", "data.new=2"])
    check(config)
    federation, new = build_federation(config)
    rows = np.concatenate(federation.rows["train"])
    assert len(rows) < 4 * 20
    x = federation.gather(torch.from_numpy(rows))[0]
    torch.testing.assert_close(x.mean(0), torch.zeros(3), atol=1e-6, rtol=0)
    torch.testing.assert_close(x.std(0, correction=0), torch.tensor([1.0, 0.0, 1.0]))
    raw = federation.dataset.x[torch.from_numpy(rows)]
    first = torch.from_numpy(new.rows["test"][0])
    wanted = (federation.dataset.x[first, 0] - raw[:, 0].mean()) / raw[:, 0].std(correction=0)
    torch.testing.assert_close(new.gather(first)[0][:, 0], wanted)
    plain = compose(["dataset=csv", *own])
    older = compose(["dataset=csv", *own])
    del older.values["dataset"]["standardise"], older.values["dataset"]["drop"]
    assert digest_of(plain, False, []) == digest_of(older, False, []) != digest_of(config, False, [])


def test_trials_that_are_standardised_by_other_rows_do_not_train_at_once(tmp_path):
    """A stack would normalise the rows of all its trials as the first one's."""
    path = table(tmp_path, "\n".join(["a,y", *(f"{k * k},{k % 2}" for k in range(120))]))
    own = ["dataset=csv", f"dataset.path={path}", "dataset.label=y", "partition.clients=4", "partition.least=5"]
    words = [
        [*own, "partition.alpha=1", f"dataset.standardise={on}", f"seed={seed}"]
        for on in (True, False)
        for seed in (0, 1)
    ]
    federations = [build_federation(compose(each))[0] for each in words]
    parts = [ClientData.of(of, [0, 1], 1, batch=4, large=8) for of in federations]
    with pytest.raises(ValueError, match="standardise normalises the trials"), ClientData.joined(parts[:2]):
        pass
    for joined in (parts[2:], [parts[0], parts[0]]):
        with ClientData.joined(joined) as data:
            assert len(data.sizes) == 4


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (np.full((20, 1, 8, 8), 200.0, np.float32), "a model would see pixels of mean 200"),
        (np.random.default_rng(0).integers(0, 255, (20, 1, 8, 8)).astype(np.float32), "standard deviation 7"),
        (np.zeros((20, 8, 8, 3), np.float32), r"images have 8 channels of 8 x 3 pixels.*transpose\(0, 3, 1, 2\)"),
        (np.zeros((20, 3, 8, 8), np.float32), None),
        (np.zeros((20, 8), np.float32), None),
    ],
)
def test_images_that_a_model_would_hardly_learn_are_warned_about(x, said, caplog):
    warn_once.cache_clear()
    rows = pack.content(x, np.arange(20) % 2, 10)
    pack.pack("mine", rows, classes=2, scale=1.0, mean=[0.0], std=[1.0])
    found = " ".join(record.getMessage() for record in caplog.records)
    assert re.search(said, found) if said else not found


def test_own_data_make_a_federation_by_config_alone(tmp_path):
    rng = np.random.default_rng(0)
    lines = [f"{rng.random()},{rng.random()},{k % 3},{'ab'[k % 2]}" for k in range(60)]
    path = table(tmp_path, "u,v,client,label\n" + "\n".join(lines))
    own = [f"dataset.path={path}", "dataset.label=label", "dataset.client=client", "partition.least=5"]
    config = compose(["dataset=csv", "partition=natural", *own])
    check(config)
    parts = build(config)
    assert parts.federation.clients == 3
    fill(tmp_path / "images", {"a": 20, "b": 20}, (28, 28))
    own = [f"dataset.path={tmp_path / 'images'}", f"data.root={tmp_path}", "partition=iid", "partition.clients=4"]
    config = compose(["dataset=folder", *own])
    check(config)
    assert build(config).federation.dataset.shape == (3, 28, 28)


def test_clients_of_a_column_keep_their_names_and_small_ones_are_left_out_aloud(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = [f"{k},{k % 2},{'north' if k < 12 else 'south' if k < 24 else 'tiny'}" for k in range(25)]
    path = table(tmp_path, "u,label,site\n" + "\n".join(lines))
    own = [f"dataset.path={path}", "dataset.label=label", "dataset.client=site", "partition.least=11"]
    config = compose(["dataset=csv", "partition=natural", *own])
    check(config)
    federation = build(config).federation
    assert federation.group.tolist() == ["north", "south"]
    assert partition_table(federation)["group"].unique().tolist() == ["north", "south"]
    assert "partition.least=11: 1 of 3 clients have fewer rows, and are left out" in caplog.text


def test_a_class_without_rows_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    np.savez(tmp_path / "own.npz", x_train=np.zeros((9, 2), np.float32), y_train=np.arange(9) % 3 * 2)
    assert from_yaml("npz", path=tmp_path / "own.npz").classes == 5
    assert "no row of y_train and y_test is of class 1" in caplog.text


def test_natural_clients_may_have_the_datasets_own_split(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {f"x_{split}": rng.random((40, 5), np.float32) for split in ("train", "test")}
    arrays |= {f"y_{split}": np.arange(40) % 3 for split in ("train", "test")}
    np.savez(tmp_path / "own.npz", **arrays, group=np.arange(80) % 2)
    own = [f"dataset.path={tmp_path / 'own.npz'}", "partition=natural", "partition.test_fraction=null"]
    config = compose(["dataset=npz", *own])
    check(config)
    federation = build(config).federation
    assert [rows.tolist() for rows in federation.rows["test"]] == [[*range(40, 80, 2)], [*range(41, 80, 2)]]
    with pytest.raises(UserError, match=r"partition\.least is null"):
        check(compose(["dataset=npz", *own, "partition.least=null"]))


def test_where_own_data_lie_is_no_part_of_a_trials_identity():
    def of(*overrides: str) -> str:
        return digest_of(compose(["dataset=npz", *overrides]), False, [])

    assert of("dataset.path=here") == of("dataset.path=there")
    assert of("dataset.path=here") != of("dataset.path=here", "dataset.augment=crop_flip")


def test_a_trial_without_augmentation_keeps_the_identity_it_had_before_there_was_one():
    config, before = compose(["dataset=cifar10"]), compose(["dataset=cifar10"])
    del before.values["dataset"]["augment"]
    assert digest_of(config, False, []) == digest_of(before, False, [])


def test_a_column_has_one_type_in_a_large_table(tmp_path: Path) -> None:
    """pandas reads large files in parts: most client ids are digits, and one near the end has letters."""
    lines = [f"{k % 50},0.5,{k % 3}" for k in range(300_000)]
    (tmp_path / "rows.csv").write_text("\n".join(["client,a,label", *lines, "B12,0.5,1"]) + "\n")
    assert _table(tmp_path / "rows.csv", ["label", "client"])["client"].map(type).unique().tolist() == [str]


@pytest.mark.parametrize(("mode", "kind"), [("I;16", np.uint16), ("F", np.float32)])
def test_an_image_of_more_than_8_bits_is_refused(mode: str, kind: type) -> None:
    file = io.BytesIO()
    Image.fromarray(np.ones((4, 4), dtype=kind)).save(file, "TIFF")
    with pytest.raises(UserError, match=rf"x\.tif has pixels of mode {mode}, .* dataset=npz"):
        images._decoded("x.tif", file.getvalue(), "folder", 1, None)
