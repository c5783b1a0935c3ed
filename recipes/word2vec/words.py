"""Words as numbers: which number each has, sequences of them of one length, and how often each occurs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

PADDING, UNKNOWN = 0, 1
UNKNOWN_WORD = "<OOV>"
_BETWEEN_WORDS = str.maketrans(dict.fromkeys('!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\t\n', " "))


def split_words(text: str) -> list[str]:
    """Return the words of *text* in small letters, without punctuation."""
    return text.lower().translate(_BETWEEN_WORDS).split()


class Tokenizer:
    """Numbers the words of texts from 2 on: the most frequent first, of equals the one that came first."""

    def __init__(self, words: Iterable[str], *, fewest: int = 1) -> None:
        known = (word for word, count in Counter(words).most_common() if count >= fewest)
        self.index = {UNKNOWN_WORD: UNKNOWN}
        self.index.update({word: number for number, word in enumerate(known, start=UNKNOWN + 1)})

    def __len__(self) -> int:
        return len(self.index) + 1  # and the padding

    def numbers(self, words: Iterable[str]) -> list[int]:
        """Return the number of each of *words*; those never seen, or too rarely, are all the same one."""
        return [self.index.get(word, UNKNOWN) for word in words]

    def counts(self, numbers: Iterable[int]) -> list[int]:
        """Return how often each number occurs: a bag of words, which has forgotten their order."""
        found = Counter(numbers)
        return [found[number] for number in range(len(self))]


def pad(sequences: Iterable[Sequence[int]], length: int) -> list[list[int]]:
    """Return *sequences* of one *length*: zeros in front of the short ones, and the ends of the long ones."""
    return [[PADDING] * (length - len(numbers)) + list(numbers)[-length:] for numbers in sequences]
