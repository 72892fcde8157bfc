"""Text to text, with a small trained model and with random ones of every kind."""

import resource
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from small_translators import (
    MODEL_KINDS,
    NUMBERS,
    SENTENCES,
    log_softmax,
    number_tokenizer,
    random_model,
)

from keras_transformer.errors import InputError
from keras_transformer.search import SearchState
from keras_transformer.text_batches import Hypothesis, hypotheses
from keras_transformer.tokenizer import BOS_ID, EOS_ID, PAD_ID
from keras_transformer.translator import Translator

BLANK = ["", "   ", "\u00a0", "\t", "\u3000\u2003 "]
MARKERS = ["<s>", "</s>", "<pad>", "<unk>", "\u2047", "<0x"]


def assert_same(found, expected, tolerance=1e-4):
    for mine, theirs in zip(found, expected, strict=True):
        assert [each.text for each in mine] == [each.text for each in theirs]
        np.testing.assert_allclose(
            [each.score for each in mine], [each.score for each in theirs], atol=tolerance
        )


# Batches ------------------------------------------------------------------------------------------


def test_it_translates(translator):
    found = dict(zip(SENTENCES, translator.translate(SENTENCES), strict=True))
    assert found["two"][0].text == "zwei"
    assert found["six five"][0].text == "sechs fünf"
    right = sum(
        found[text][0].text == " ".join(NUMBERS[word] for word in text.split())
        for text in SENTENCES
        if text and set(text.split()) <= set(NUMBERS)
    )
    assert right >= 8


@pytest.mark.parametrize("batch_sentences", [7, 20])
def test_batches_give_what_single_sentences_give(translator, batch_sentences):
    singly = [translator.translate([text])[0] for text in SENTENCES]
    assert len({found[0].text for found in singly}) > 12
    assert_same(translator.translate(SENTENCES, batch_sentences), singly)


@pytest.mark.parametrize("kind", [*MODEL_KINDS, "mixed_bfloat16"])
def test_batches_change_nothing_for_any_kind_of_model(random_translators, kind):
    translator = random_translators[kind]
    singly = translator.translate(SENTENCES, 1)
    assert len({found[0].text for found in singly}) > 12
    for batch_sentences in (7, 20):
        assert_same(translator.translate(SENTENCES, batch_sentences), singly)


def test_a_batch_of_one_word_and_forty_words(random_translators):
    translator = random_translators["paper"]
    texts = ["six", " ".join(["four two eight five"] * 10)]
    assert_same(translator.translate(texts), [translator.translate([text])[0] for text in texts])


def test_the_order_of_the_lines_is_kept(translator):
    words = [text for text in SENTENCES if text and set(text.split()) <= set(NUMBERS)]
    alone = {text: translator.translate([text])[0][0].text for text in words}
    decreasing = sorted(words, key=len, reverse=True)
    shuffled = list(np.random.default_rng(0).permutation(words))
    for texts in (decreasing, decreasing[::-1], shuffled):
        found = [best[0].text for best in translator.translate(texts, 4)]
        assert found == [alone[text] for text in texts]


def test_no_texts(translator):
    assert translator.translate([]) == []
    assert translator.score([], []) == []


# Odd texts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*MODEL_KINDS, "mixed_bfloat16"])
def test_text_without_words_has_one_empty_translation(random_translators, kind):
    translator = random_translators[kind]
    for texts in (*([text] for text in BLANK), [*BLANK, "two six", *BLANK]):
        for text, found in zip(texts, translator.translate(texts), strict=True):
            if text in BLANK:
                assert found == [Hypothesis("", 0.0)]
            else:
                assert found[0].text


def test_a_very_long_line_is_cut_and_leaves_the_others_alone(translator):
    words = np.random.default_rng(1).choice(list(NUMBERS), 20_000).tolist()
    limit = translator.maximum_source_length
    others = [text for text in SENTENCES if text.strip()][:10]
    expected = translator.translate(others)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cut: list[int] = []
    texts = [*others[:5], " ".join(words), *others[5:]]
    found = translator.translate(texts, on_cut=cut.append)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Attention between all its words would take 6.4 GB.
    assert after - before < 300_000
    assert_same(found[:5] + found[6:], expected)
    assert_same([found[5]], translator.translate([" ".join(words[:limit])]))
    assert cut == [5]


def test_what_is_cut_is_told_to_the_token(translator):
    limit = translator.maximum_source_length
    texts = [" ".join(["two"] * count) for count in (limit - 1, limit, limit + 1, 2 * limit)]
    cut: list[int] = []
    found = translator.translate(texts, batch_sentences=2, on_cut=cut.append)
    assert sorted(cut) == [2, 3]
    assert_same([found[2], found[3]], [found[1], found[1]])
    limit = translator.maximum_target_length
    assert limit == translator.maximum_source_length + translator.maximum_extra_length
    targets = [" ".join(["zwei"] * count) for count in (limit, limit + 1, 1)]
    cut.clear()
    (_, whole), (_, shortened), _ = translator.score(
        ["two", "two", texts[2]], targets, on_cut=cut.append
    )
    assert sorted(cut) == [1, 2]
    assert whole == shortened == limit + 1  # the end token counted


def test_learned_positions_read_sentences_longer_than_they_are(random_translators):
    found = random_translators["learned positions"].translate([" ".join(["two", "six"] * 30)])
    assert np.isfinite(found[0][0].score)


def test_half_a_character_is_translated_as_the_replacement_character(translator):
    assert_same(translator.translate(["two \ud83d six"]), translator.translate(["two \ufffd six"]))


@pytest.mark.parametrize("texts", ["two six", b"two six"])
def test_one_text_in_the_place_of_a_list_is_refused(translator, texts):
    with pytest.raises(InputError, match=r"must be a list of str\. Received: .*two six"):
        translator.translate(texts)
    with pytest.raises(InputError, match="must be a list of str"):
        translator.score(["zwei"], texts)


# Hypotheses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*MODEL_KINDS, "mixed_bfloat16", "trained"])
def test_hypotheses_differ_are_best_first_and_hold_no_marker(translator, random_translators, kind):
    translator = {**random_translators, "trained": translator}[kind]
    for text, found in zip(SENTENCES, translator.translate(SENTENCES), strict=True):
        # Bytes that are no characters all read the same, so a random model has fewer of them.
        assert len(found) == 3 or kind != "trained" or not text.strip()
        assert len({each.text for each in found}) == len(found)
        scores = [each.score for each in found]
        assert np.all(np.isfinite(scores)) and scores == sorted(scores, reverse=True)
        for each in found:
            assert not any(marker in each.text for marker in MARKERS)
            assert each.text == each.text.strip() and "\n" not in each.text


def planted(tokenizer, *steps: dict[int, float], beam_size=3, **settings) -> Translator:
    """A translator whose model gives the same logits to every sentence: a dict for each step."""
    size = tokenizer.target.vocabulary_size
    table = np.full((len(steps), size), -30.0, "float32")
    for row, logits in zip(table, steps, strict=True):
        for token, logit in logits.items():
            row[token] = logit
    table = tf.constant(table)

    def step(tokens, index, state):
        logits = table[tf.minimum(index, len(steps) - 1)]
        return tf.zeros([tf.shape(tokens)[0], beam_size, 1]) + logits, state

    model = SimpleNamespace(
        config=SimpleNamespace(vocabulary_size=size, source_vocabulary_size=None),
        start_decoding=lambda source, beam_size: (step, SearchState((), ())),
    )
    settings = {"alpha": 0.0, "maximum_extra_length": 3, **settings}
    return Translator(model, tokenizer, beam_size, **settings)


def test_one_sentence_spelled_by_several_rows_of_tokens_comes_once():
    tokenizer = number_tokenizer()
    (two,), (six,) = tokenizer.target.encode("zwei"), tokenizer.target.encode("sechs")
    # <unk> and a lone space have no text: "zwei" and "zwei <unk>" read the same.
    translator = planted(
        tokenizer,
        {two: np.log(0.9), six: np.log(0.1)},
        {EOS_ID: np.log(0.6), 3: np.log(0.4)},
        {EOS_ID: 0.0},
    )
    best, second = translator.translate(["one"])[0]
    assert (best.text, second.text) == ("zwei", "sechs")
    np.testing.assert_allclose([best.score, second.score], np.log([0.9 * 0.6, 0.1 * 0.6]), 1e-4)
    texts, scores, _ = translator.translate_tensor(tf.constant(["one", ""]))
    assert texts.numpy().tolist() == [[b"zwei", b"sechs", b""], [b"", b"", b""]]
    assert scores.numpy()[0, 2] == np.float32(-1e9) and scores.numpy()[1].tolist()[0] == 0.0


def test_nothing_comes_after_the_end_token():
    tokenizer = number_tokenizer()
    (two,), (six,) = tokenizer.target.encode("zwei"), tokenizer.target.encode("sechs")
    translator = planted(
        tokenizer, {two: 0.0}, {EOS_ID: 0.0, six: -9.0}, {six: 0.0}, {six: 0.0}, {six: 0.0}
    )
    assert translator.translate(["one two three"])[0][0].text == "zwei"


def test_a_translation_without_text_is_a_translation():
    """The model may answer words with nothing; that is no empty slot."""
    translator = planted(number_tokenizer(), {EOS_ID: 0.0})
    assert translator.translate(["one"])[0] == [Hypothesis("", pytest.approx(0.0, abs=1e-5))]


def test_a_model_whose_weights_are_no_numbers_still_gives_a_line_a_text():
    tokenizer = number_tokenizer()
    model = random_model(tokenizer)
    embeddings = model.target_embedding.embeddings
    embeddings.assign(np.full(embeddings.shape, np.nan))
    translator = Translator(model, tokenizer, 2, 0.6, 3)
    found = translator.translate_tensor(tf.constant(["two", "", "six"]))
    rows = zip(found.texts.numpy(), found.scores.numpy(), strict=True)
    found = [hypotheses(*row) for row in rows]
    assert [len(each) for each in found] == [1, 1, 1]
    assert all(each[0].text == "" and np.isfinite(each[0].score) for each in found)
    assert translator.score(["two"], ["zwei"]) == [(-1e9, 2)]
    attention = translator.align_tensor(tf.constant(["two"]), tf.constant(["zwei"])).attention
    assert np.all(attention.numpy() == 0.0)


def test_empty_slots_are_no_hypotheses():
    rows = [b"a", b"b", b""], [-1.0, -2.0, -1e9]
    assert hypotheses(*rows) == [Hypothesis("a", -1.0), Hypothesis("b", -2.0)]


# Greedy search ------------------------------------------------------------------------------------


def greedy(translator: Translator, text: str) -> tuple[str, float, int]:
    """Greedy search by whole forward passes: text, log-probability and number of tokens."""
    words = translator.tokenizer.source.encode(text)
    source, target, total = np.array([[*words, EOS_ID]]), [BOS_ID], 0.0
    limit = len(words) + translator.maximum_extra_length
    while target[-1] != EOS_ID:
        logits = translator.model({"source": source, "target": np.array([target])})
        log_probabilities = log_softmax(logits)[0, -1]
        allowed = log_probabilities.copy()
        allowed[[PAD_ID, BOS_ID]] = -np.inf
        token = EOS_ID if len(target) == limit else int(np.argmax(allowed))
        total += log_probabilities[token]
        target.append(token)
    return translator.tokenizer.target.decode(target[1:]), total, len(target) - 1


def test_beam_size_one_is_greedy_search(numbers_run):
    translator = numbers_run.load_translator(beam_size=1)
    texts = ["two", "six five", "three seven one five", "🙂 </s> ß"]
    for text, found in zip(texts, translator.translate(texts), strict=True):
        expected, log_probability, length = greedy(translator, text)
        score = log_probability / ((5 + length) / 6) ** 0.6
        assert found == [Hypothesis(expected, pytest.approx(score, abs=1e-4))]


# Arguments ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("beam_size", 0),
        ("alpha", -0.1),
        ("alpha", float("nan")),
        ("alpha", float("inf")),
        ("maximum_extra_length", -1),
        ("maximum_source_length", 0),
        ("maximum_length", 0),
    ],
)
def test_impossible_options_are_refused_at_once(random_translators, name, value):
    paper = random_translators["paper"]
    with pytest.raises(InputError, match=rf"{name} must be at least \d\. Received: {value}"):
        Translator(paper.model, paper.tokenizer, **{name: value})


@pytest.mark.parametrize("token", ["</s>", "no such word", ""])
def test_words_that_cannot_be_suppressed_are_named(random_translators, token):
    paper = random_translators["paper"]
    with pytest.raises(InputError, match=f"suppressed_tokens must be .* Received: '{token}'"):
        Translator(paper.model, paper.tokenizer, suppressed_tokens=[token])


def test_suppressed_words_are_never_generated():
    tokenizer = number_tokenizer()
    (two,), (six,) = tokenizer.target.encode("zwei"), tokenizer.target.encode("sechs")
    steps = ({two: 0.0, six: -1.0}, {EOS_ID: 0.0})
    (piece,) = tokenizer.target.pieces([two])
    assert planted(tokenizer, *steps).translate(["one"])[0][0].text == "zwei"
    translator = planted(tokenizer, *steps, suppressed_tokens=[piece])
    found = translator.translate(["one"])[0]
    assert found[0].text == "sechs" and "zwei" not in [each.text for each in found]


@pytest.mark.parametrize("source", ["six", "one two six"])
def test_no_translation_is_longer_than_the_maximum_length(source):
    tokenizer = number_tokenizer()
    (two,) = tokenizer.target.encode("zwei")
    translator = planted(tokenizer, {two: 0.0}, beam_size=1, maximum_length=3)
    assert translator.translate([source])[0][0].text == "zwei zwei"
    assert translator.maximum_target_length == 2


@pytest.mark.parametrize("extra", [0, 1, 5])
@pytest.mark.parametrize("source", ["six", "one two six"])
def test_a_translation_has_so_many_tokens_more_than_its_source_at_most(extra, source):
    """The end token of neither is counted; a recipe's decoding.maximum_extra_length may be 0."""
    tokenizer = number_tokenizer()
    (two,) = tokenizer.target.encode("zwei")
    # Greedy search of a model that never ends by itself.
    translator = planted(tokenizer, {two: 0.0}, beam_size=1)
    translator.maximum_extra_length = extra
    most = len(tokenizer.source.encode(source)) + extra
    assert translator.translate([source])[0][0].text == " ".join(["zwei"] * most)


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_tokenizer_of_another_size_is_refused(random_translators, side):
    two = random_translators["two vocabularies"]
    sizes = {"source_vocabulary_size": 300, "vocabulary_size": 300}
    sizes["source_vocabulary_size" if side == "source" else "vocabulary_size"] = 299
    other = number_tokenizer(shared=False, **sizes)
    with pytest.raises(InputError, match=rf"The {side} vocabulary .* 300 words\. Received: 299"):
        Translator(two.model, other)
