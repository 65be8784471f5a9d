"""AG News: tokens, vocabulary, ids, and which files are read."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from pflsweep.data.datasets import agnews, text
from pflsweep.util.errors import UserError
from tests.data.loading import from_yaml, serve


@pytest.mark.parametrize(
    ("line", "tokens"),
    [
        ("Wall St. Bears, again!", ["wall", "st", ".", "bears", ",", "again", "!"]),
        ('It\'s "so" (very) new?', ["it", "'", "s", "so", "(", "very", ")", "new", "?"]),
        ("one; two: three<br />four  five\\six", ["one", "two", "three", "four", "five\\six"]),
        ("", []),
    ],
)
def test_tokens(line, tokens):
    assert text.tokens(line) == tokens


def test_words_are_numbered_by_frequency_then_alphabet():
    texts = [["b", "a", "c"], ["c", "c", "b"], ["d", "a"]]
    assert text.vocabulary(texts, 10) == {"c": 1, "a": 2, "b": 3, "d": 4}
    ids = text.vocabulary(texts, 3)
    assert ids == {"c": 1, "a": 2}, "the most frequent ones"
    x = text.encode([["a", "d", "c"], ["c", "a", "c", "a"], []], ids, 3)
    assert x.tolist() == [[2, 0, 1], [1, 2, 1], [0, 0, 0]]
    assert x.dtype == np.int32


LINES = {
    "train.csv": '"3","Oil, up","Oil ""soars"" again"\n"1","War","No war\\n."\n"4","","Chips"\n',
    "test.csv": '"2","Cup","Again a cup"\n',
}


@pytest.fixture
def news(tmp_path, monkeypatch):
    folder = tmp_path / "ag_news_csv"
    folder.mkdir()
    lines = {**LINES, "train_subset.csv": LINES["train.csv"][: LINES["train.csv"].index('"4"')]}
    md5s = {file: (file, hashlib.md5(content.encode()).hexdigest()) for file, content in lines.items()}
    for file, content in lines.items():
        (folder / file).write_text(content)
    sources = {"agnews": "train.csv", "agnews_subset": "train_subset.csv"}
    monkeypatch.setattr(agnews, "SOURCES", {n: (md5s[file], md5s["test.csv"]) for n, file in sources.items()})
    return folder


def originals(news: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in news.iterdir()}


def test_agnews(news):
    data = from_yaml("agnews", news.parent)
    assert data.x.shape == (4, 200)
    assert data.y.tolist() == [2, 0, 3, 1]
    assert (data.train, data.classes, data.vocabulary) == (3, 4, 98635)
    # again, cup, oil come twice; then , . a chips no soars up war war\\n once
    expected = [[3, 4, 10, 3, 9, 1], [11, 8, 12, 5], [7], [2, 1, 6, 2]]
    assert [row[: len(line)].tolist() for row, line in zip(data.x, expected, strict=True)] == expected
    assert all(not row[len(line) :].any() for row, line in zip(data.x, expected, strict=True))
    short = from_yaml("agnews", news.parent, length=2, vocabulary=5)
    assert short.x.tolist() == [[3, 4], [0, 0], [0, 0], [2, 1]]
    assert short.vocabulary == 5
    for changes in ({"length": 0}, {"vocabulary": 1}):
        with pytest.raises(UserError, match=rf"dataset.{next(iter(changes))} is [01]: it must be at least"):
            from_yaml("agnews", news.parent, **changes)


def test_a_part_is_never_taken_for_the_whole(news, monkeypatch):
    part = from_yaml("agnews_subset", news.parent)
    assert (part.name, part.train, len(part.y)) == ("agnews_subset", 2, 3)
    assert part.checksum != from_yaml("agnews", news.parent).checksum
    asked = serve(monkeypatch, originals(news))
    (news / "train.csv").unlink()
    with pytest.raises(UserError, match=r"dataset=agnews: train.csv is missing. Looked in .*data.download=true"):
        from_yaml("agnews", news.parent)
    (news / "train.csv").write_bytes((news / "train_subset.csv").read_bytes())
    with pytest.raises(UserError, match=r"dataset=agnews: train.csv is damaged or of another version"):
        from_yaml("agnews", news.parent)
    assert from_yaml("agnews", news.parent, download=True).train == 3
    assert [url.rpartition("/")[2] for url in asked] == ["train.csv"], "only what is not there"


def test_the_part_cannot_be_downloaded(news, monkeypatch):
    asked = serve(monkeypatch, originals(news))
    (news / "train_subset.csv").unlink()
    with pytest.raises(UserError, match=r"dataset=agnews_subset: train_subset.csv is missing") as error:
        from_yaml("agnews_subset", news.parent, download=True)
    assert "download=true" not in str(error.value)
    assert asked == []


@pytest.mark.real
def test_the_real_part(real_data):
    data = from_yaml("agnews_subset", real_data("ag_news_csv"))
    assert data.x.shape == (25_655, 200)
    assert data.train == 18_055
    assert data.y[data.train :].bincount().tolist() == [1900] * 4
    assert 0 < data.x.max() < data.vocabulary
    lengths = (data.x != text.PADDING).sum(1)
    assert lengths.min() > 0, "a text without a word has no mean"
    assert 40 < lengths.float().mean() < 50
