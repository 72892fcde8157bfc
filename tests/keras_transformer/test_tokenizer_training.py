"""Training learns from every sentence, always the same, and says what is impossible."""

import hashlib

import pytest
from small_tokenizers import CORPUS, OTHERS, SIZE, trained

from keras_transformer import tokenizer_training
from keras_transformer.errors import InputError
from keras_transformer.tokenizer import KINDS, UNK_ID, SubwordTokenizer
from keras_transformer.tokenizer_training import parse_model_proto


def test_unigram_scores_sum_exactly():
    model = parse_model_proto(trained("unigram").model_proto)
    assert all(piece.score * 16 == int(piece.score * 16) for piece in model.pieces)
    assert len({piece.score for piece in model.pieces}) > 20


def test_markers_in_the_training_text_stay_text():
    marked = ["say </s> or <pad> and <0x41> <unk> <s>"] * 50
    tokenizer = SubwordTokenizer.train(marked, vocabulary_size=280)
    ids = tokenizer.encode(marked[0])
    assert min(ids) > UNK_ID
    assert 0x41 + UNK_ID + 1 not in ids
    assert tokenizer.decode(ids) == marked[0]


@pytest.mark.parametrize("kind", KINDS)
def test_training_is_deterministic_silent_and_fills_the_vocabulary(kind, capfd):
    models = [
        SubwordTokenizer.train(iter(CORPUS), vocabulary_size=SIZE, kind=kind) for _ in range(2)
    ]
    assert capfd.readouterr() == ("", "")
    assert models[0].model_proto == models[1].model_proto
    assert models[0].vocabulary_size == SIZE
    assert models[0].fingerprint == hashlib.sha256(models[0].model_proto).hexdigest()
    other = SubwordTokenizer.train(CORPUS[1:], vocabulary_size=SIZE, kind=kind)
    assert other.fingerprint != models[0].fingerprint


def test_options_are_read_from_the_model():
    tokenizer = SubwordTokenizer.train(
        CORPUS, vocabulary_size=SIZE, kind="unigram", normalization="nfkc", character_coverage=0.99
    )
    assert tokenizer.options == {
        "kind": "unigram",
        "normalization": "nfkc",
        "character_coverage": 0.99,
        "vocabulary_size": SIZE,
    }


def test_a_sample_is_uniform_bounded_and_always_the_same():
    assert tokenizer_training._sample(iter("abc"), 3) == list("abc")
    numbers = [str(i) for i in range(2000)]
    kept = tokenizer_training._sample(iter(numbers), 500)
    assert kept == tokenizer_training._sample(iter(numbers), 500)
    assert len(set(kept)) == 500
    assert 200 < sum(int(n) >= 1000 for n in kept) < 300
    learned = SubwordTokenizer.train(["ab ab"] * 9, vocabulary_size=264, maximum_sentences=1)
    assert learned.encode("ab ab") == SubwordTokenizer.train(["ab ab"], vocabulary_size=264).encode(
        "ab ab"
    )


def test_no_more_than_the_sample_is_kept_and_prepared(monkeypatch):
    prepared, prepare = [], tokenizer_training.prepare
    monkeypatch.setattr(
        tokenizer_training, "prepare", lambda text: prepared.append(text) or prepare(text)
    )
    sentences = (text for _ in range(100) for text in (*CORPUS, "", " \u2028"))
    SubwordTokenizer.train(sentences, vocabulary_size=SIZE, maximum_sentences=70)
    assert len(prepared) == 70 and all(map(str.strip, prepared))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("space", [" ", ""])
def test_a_very_long_sentence_is_learned_from(kind, space):
    # Uncut, the one without spaces keeps the unigram trainer busy for many minutes.
    long = space.join(["zyxwvu"] * 100_000)
    tokenizer = SubwordTokenizer.train([*CORPUS, long], vocabulary_size=SIZE, kind=kind)
    assert len(tokenizer.encode(long)) < len(long) / 3


def test_long_sentences_are_cut_at_spaces_and_nothing_is_lost():
    limit = tokenizer_training._MAXIMUM_CHARACTERS
    spaced, solid = " ".join(["word"] * 1000), "x" * (2 * limit + 1)
    for text in (spaced, solid, "short", ""):
        parts = list(tokenizer_training._training_texts([text]))
        assert "".join(parts) == text
        assert max(map(len, parts)) <= limit
    words = [word for part in tokenizer_training._training_texts([spaced]) for word in part.split()]
    assert words == spaced.split()


def test_a_sentence_with_the_trainers_reserved_character_is_not_lost():
    tokenizer = SubwordTokenizer.train(["brücke ▅ brücke"], vocabulary_size=270)
    assert len(tokenizer.encode("brücke")) < len("brücke")


@pytest.mark.parametrize("kind", KINDS)
def test_impossible_sizes_tell_the_possible_ones(kind):
    def train(size):
        return SubwordTokenizer.train(CORPUS, vocabulary_size=size, kind=kind)

    with pytest.raises(InputError, match=r"at most \d+.*Received: vocabulary_size=9000$") as error:
        train(9000)
    most = int(str(error.value).split("at most ")[1].split(":")[0])
    assert train(most).vocabulary_size == most
    with pytest.raises(InputError, match=r"at least \d+.*Received: vocabulary_size=10$") as error:
        train(10)
    least = int(str(error.value).split("at least ")[1].split(":")[0])
    assert 260 < least < most
    with pytest.raises(InputError, match=f"at least {least}"):
        train(least - 1)


@pytest.mark.parametrize("sentences", [[], ["", " \t", "\u2028", "\u00a0"]])
def test_an_empty_corpus_is_refused(sentences):
    with pytest.raises(InputError, match=r"Received: an empty corpus$"):
        SubwordTokenizer.train(sentences, vocabulary_size=300)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocabulary_size": 0}, r"vocabulary_size must be a positive .*Received: 0$"),
        ({"vocabulary_size": "8k"}, r"vocabulary_size must be a positive .*Received: '8k'$"),
        ({"maximum_sentences": True}, r"maximum_sentences must be .*Received: True$"),
        ({"kind": "bpf"}, r"kind must be one of bpe, unigram\. Received: 'bpf'$"),
        ({"normalization": "nfc"}, r"normalization must be one of .*Received: 'nfc'$"),
        ({"character_coverage": 0.5}, r"character_coverage must be in .*Received: 0\.5$"),
        ({"vocabulary_size": True}, r"vocabulary_size must be a positive .*Received: True$"),
        ({"character_coverage": 1.1}, r"character_coverage must be in .*Received: 1\.1$"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(InputError, match=message):
        SubwordTokenizer.train(CORPUS, **{"vocabulary_size": SIZE, **options})


@pytest.mark.parametrize("coverage", [0.98, 1, 1.0])
def test_the_whole_range_of_character_coverage_trains(coverage):
    tokenizer = SubwordTokenizer.train(CORPUS, vocabulary_size=350, character_coverage=coverage)
    assert tokenizer.decode(tokenizer.encode(OTHERS[1])) == OTHERS[1]
