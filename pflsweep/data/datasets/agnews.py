"""AG News (Zhang, Zhao and LeCun, NeurIPS 2015, https://arxiv.org/abs/1509.01626): titles and leads of news, 4 topics.

It is read from <root>/ag_news_csv/{train,test}.csv, with lines of class (1 to 4), title, description, and prepared as
in FedALA's public code: title and description joined, torchtext's basic_english tokens, words numbered over training
and test texts together, 0 for padding, the first 200 tokens. `vocabulary` (98,635, that code's number of word vectors)
is an upper bound and need not be the number of words in the texts: rarer words beyond it become 0, and ids without a
word stay unused.

`agnews_subset` is a separate dataset: the same test split and 18,055 of the 120,000 training rows, in train_subset.csv.
"""

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pflsweep.data.dataset import Dataset
from pflsweep.data.datasets import text
from pflsweep.data.datasets.cache import prepared
from pflsweep.data.datasets.files import downloads, require_files
from pflsweep.data.datasets.pack import Content, content, pack

FOLDER = "ag_news_csv"
URL = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv"
TEST = ("test.csv", "d52ea96a97a2d943681189a97654912d")
# By dataset, name and MD5 of the training file and of the test file.
SOURCES = {
    "agnews": (("train.csv", "b1a00f826fdfbd249f79597b59e1dc12"), TEST),
    "agnews_subset": (("train_subset.csv", "a1cda3ea0869f9e506e21200cd169572"), TEST),
}
BY_HAND = {"agnews": "", "agnews_subset": "unpack the part that comes with this project's development data there"}
CLASSES = 4


def load(root: Path, download: bool, name: str, length: int, vocabulary: int) -> Dataset:
    """Return AG News: x [127600, length] int32 token ids below `vocabulary`; or its subset, x [25655, length].

    name: `agnews` or `agnews_subset`. Raises UserError on missing or damaged files, and on numbers that are too small.
    """
    text.check(length, vocabulary)
    options = [1, length, vocabulary]
    rows = prepared(root, name, root / FOLDER, options, lambda: _read(root, name, download, length, vocabulary))
    data = pack(name, rows, classes=CLASSES, scale=1.0, mean=[0.0], std=[1.0])
    return data._replace(vocabulary=vocabulary)


def _read(root: Path, name: str, download: bool, length: int, vocabulary: int) -> Content:
    folder = root / FOLDER
    md5s, by_hand = dict(SOURCES[name]), BY_HAND[name]
    fetch = downloads(name, folder, md5s, {file: f"{URL}/{file}" for file in md5s})
    require_files(name, folder, md5s, fetch if download and not by_hand else None, by_hand)
    splits = [list(_lines((folder / file).read_text("utf-8"))) for file in md5s]
    texts = [text.tokens(line) for split in splits for _, line in split]
    x = text.encode(texts, text.vocabulary(texts, vocabulary), length)
    return content(x, np.array([label for split in splits for label, _ in split]), len(splits[0]))


def _lines(table: str) -> Iterator[tuple[int, str]]:
    """Yield the class (from 0) and the text (title and description) of each line."""
    for label, *parts in csv.reader(io.StringIO(table, newline="")):
        yield int(label) - 1, " ".join(parts)
