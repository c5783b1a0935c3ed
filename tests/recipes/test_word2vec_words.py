from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from language_runs import load

pytestmark = pytest.mark.torch
words = load("word2vec", "words")
models = load("word2vec", "models")

# The course that hpcml began with prints the numbers and the padded sequences; the sentences follow from them.
SENTENCES = ["I love my dog", "I love my cat", "You love my dog!", "Do you think my dog is amazing?"]
NEW = ["I really love my dog", "my dog loves my manatee"]
INDEX = {
    "<OOV>": 1,
    "my": 2,
    "love": 3,
    "dog": 4,
    "i": 5,
    "you": 6,
    "cat": 7,
    "do": 8,
    "think": 9,
    "is": 10,
    "amazing": 11,
}


def numbered(sentences: list[str]) -> list[list[int]]:
    tokenizer = words.Tokenizer(word for sentence in SENTENCES for word in words.split_words(sentence))
    assert tokenizer.index == INDEX
    return [tokenizer.numbers(words.split_words(sentence)) for sentence in sentences]


def test_sentences_become_the_printed_numbers() -> None:
    assert numbered(SENTENCES) == [[5, 3, 2, 4], [5, 3, 2, 7], [6, 3, 2, 4], [8, 6, 9, 2, 4, 10, 11]]
    assert numbered(NEW) == [[5, 1, 3, 2, 4], [2, 4, 1, 2, 1]]


def test_padding_is_in_front_and_what_is_too_long_loses_its_beginning() -> None:
    padded = [[0, 5, 3, 2, 4], [0, 5, 3, 2, 7], [0, 6, 3, 2, 4], [9, 2, 4, 10, 11]]

    assert words.pad(numbered(SENTENCES), 5) == padded
    assert words.pad(numbered(NEW), 9) == [[0, 0, 0, 0, 5, 1, 3, 2, 4], [0, 0, 0, 0, 2, 4, 1, 2, 1]]


def test_a_bag_of_words_knows_which_occur() -> None:
    # three reviews of the course. Its table has no "service" for the third, which has it: an erratum.
    reviews = [
        "Great Restaurant and great service !",
        "They can do better to provide better service",
        "Only two thumbs up, worst service ever",
    ]
    split = [words.split_words(review) for review in reviews]
    tokenizer = words.Tokenizer(word for review in split for word in review)
    bags = [tokenizer.counts(tokenizer.numbers(review)) for review in split]

    presence = {
        word: "".join("1" if bag[number] else "0" for bag in bags)
        for word, number in tokenizer.index.items()
        if number > words.UNKNOWN
    }
    first, second, third = "great restaurant and", "they can do better to provide", "only two thumbs up worst ever"
    expected = dict.fromkeys(first.split(), "100") | dict.fromkeys(second.split(), "010")
    assert presence == expected | dict.fromkeys(third.split(), "001") | {"service": "111"}
    assert bags[0][tokenizer.index["great"]] == 2


def test_rare_words_are_unknown() -> None:
    tokenizer = words.Tokenizer(["a", "b", "a", "b", "c"], fewest=2)

    assert tokenizer.numbers(["a", "b", "c", "d"]) == [2, 3, 1, 1]
    assert len(tokenizer) == 4


def test_the_nearest_are_those_in_the_same_direction() -> None:
    vectors = torch.tensor([[9.0, 0.1], [1.0, 0.0], [2.0, 0.0], [3.0, 3.0], [0.0, 5.0], [-1.0, 0.0]])

    found = models.nearest(vectors, 2, 2, first=2)

    assert [row for row, _ in found] == [3, 4]  # rows 0 and 1 are nearer, and no words
    assert [cosine for _, cosine in found] == pytest.approx([0.5**0.5, 0.0], abs=1e-6)
    assert len(models.nearest(vectors, 2, 99, first=2)) == 3
