"""The words of a Marian checkpoint in our order, and the rows that go with them."""

import numpy as np
import pytest
from marian_tokenizers import marian_vocabulary

from keras_transformer.errors import InputError
from keras_transformer.marian.vocabulary import NO_ROW, MarianVocabulary

WORDS = {"</s>": 0, "<unk>": 1, "▁a": 2, "b": 3, "<pad>": 4}


def test_controls_come_first_and_all_others_keep_their_order():
    vocabulary = MarianVocabulary.of(WORDS)
    assert vocabulary.words == ("<pad>", "<s>", "</s>", "<unk>", "▁a", "b")
    assert vocabulary.rows.tolist() == [4, 4, 0, 1, 2, 3]
    shuffled = dict(sorted(WORDS.items()))
    assert MarianVocabulary.of(shuffled).words == vocabulary.words
    assert MarianVocabulary.of(list(WORDS)).rows.tolist() == vocabulary.rows.tolist()


def test_the_rows_re_order_the_checkpoint():
    vocabulary = marian_vocabulary()
    assert len(vocabulary.words) == 4800
    rows = np.delete(vocabulary.rows, 1)
    assert sorted(rows) == list(range(4799))
    assert np.all(np.diff(rows[3:]) > 0)
    with pytest.raises(ValueError, match="read-only"):
        vocabulary.rows[0] = 0


def test_a_release_without_a_pad_word_lacks_two_rows():
    vocabulary = MarianVocabulary.of(["</s>", "<unk>", "▁a"], pad_word=None)
    assert vocabulary.words == ("<pad>", "<s>", "</s>", "<unk>", "▁a")
    assert vocabulary.rows.tolist() == [NO_ROW, NO_ROW, 0, 1, 2]


def test_other_names_and_another_start():
    words = ["<blank>", "<s>", "EOS", "UNK", "a"]
    vocabulary = MarianVocabulary.of(
        words, pad_word="<blank>", end_word="EOS", unknown_word="UNK", start_row=1
    )
    assert vocabulary.words == ("<blank>", "<start>", "EOS", "UNK", "<s>", "a")
    assert vocabulary.rows.tolist() == [0, 1, 2, 3, 1, 4]


@pytest.mark.parametrize(
    ("words", "options", "message"),
    [
        ({**WORDS, "c": 6}, {}, r"6 words the ids 0\.\.5.*Received: 'c': 6, where 5 was expected$"),
        ({**WORDS, "c": 3}, {}, r"each once\. Received: 'c': 3, where 4 was expected$"),
        ({**WORDS, "c": -1}, {}, r"Received: 'c': -1, where 0 was expected$"),
        ({**WORDS, "c": "5"}, {}, r"whole number .*Received: 'c': '5'$"),
        ({**WORDS, "c": 5.0}, {}, r"whole number .*Received: 'c': 5\.0$"),
        ({**WORDS, "c": True}, {}, r"whole number .*Received: 'c': True$"),
        ({**WORDS, "": 5}, {}, r"not empty\. Received: '', id 5$"),
        ([*WORDS, 5], {}, r"must be text.*Received: 5, id 5$"),
        ({**WORDS, "\ud800": 5}, {}, r"must be Unicode text\. Received: '\\ud800', id 5$"),
        ([*WORDS, "b"], {}, r"hold a word once\. Received: 'b' again, id 5$"),
        ("abc", {}, r"mapping from word to id or a list.*Received: str$"),
        ({"<unk>": 0, "<pad>": 1}, {}, r"end word '</s>'\. Received: 2 words without it$"),
        ({"</s>": 0, "<pad>": 1}, {}, r"unknown word '<unk>'"),
        ({"</s>": 0, "<unk>": 1}, {}, r"pad word '<pad>'"),
        (WORDS, {"pad_word": None}, r"use it as its pad word\. Received: pad_word=None$"),
        (WORDS, {"pad_word": "</s>"}, r"must differ\. Received: \['</s>', '</s>', '<unk>'\]$"),
        (WORDS, {"start_row": 5}, r"id in 0\.\.4\. Received: 5$"),
        (WORDS, {"start_row": -1}, r"Received: -1$"),
        ([*WORDS, "<s>", "<start>"], {}, r"leave one of <s>, <start> free"),
    ],
)
def test_what_is_no_vocabulary_is_refused(words, options, message):
    with pytest.raises(InputError, match=message):
        MarianVocabulary.of(words, **options)
