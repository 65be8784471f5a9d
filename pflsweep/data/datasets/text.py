"""Convert texts to token ids, with a fixed tokeniser and a vocabulary that depends on the texts alone."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from pflsweep.util.errors import UserError

PADDING = 0  # the id of padding, and of words outside the vocabulary
_MARKS = {mark: f" {mark} " for mark in "'.,()!?"} | {'"': "", ";": " ", ":": " "}
_TABLE = str.maketrans(_MARKS)


def check(length: int, vocabulary: int) -> None:
    """Raise UserError if the numbers of tokens of a text, or of the vocabulary, are too small."""
    for option, value, least in (("length", length, 1), ("vocabulary", vocabulary, 2)):
        if value < least:
            raise UserError(f"dataset.{option} is {value}: it must be at least {least}.")


def tokens(text: str) -> list[str]:
    """Return the tokens of a text by the rules of torchtext's `basic_english`.

    Text becomes lower case, punctuation marks become tokens, and double quotes, colons, semicolons and line breaks are
    removed.
    """
    return text.lower().replace("<br />", " ").translate(_TABLE).split()


def vocabulary(texts: Sequence[list[str]], size: int) -> dict[str, int]:
    """Return the ids of the `size` - 1 most frequent words, from 1 by descending frequency, then alphabetically."""
    counts = Counter(word for text in texts for word in text)
    words = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: number for number, word in enumerate(words[: size - 1], 1)}


def encode(texts: Sequence[list[str]], ids: dict[str, int], length: int) -> np.ndarray:
    """Return the ids of each text's first `length` words, filled up with PADDING, [n, length] int32."""
    x = np.full((len(texts), length), PADDING, np.int32)
    for row, text in zip(x, texts, strict=True):
        first = text[:length]
        row[: len(first)] = [ids.get(word, PADDING) for word in first]
    return x
