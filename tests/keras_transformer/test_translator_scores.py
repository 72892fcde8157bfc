"""What a translator makes of translations that are given: log-probabilities and alignments."""

import numpy as np
import pytest
import tensorflow as tf
from small_translators import NUMBERS, SENTENCES, log_softmax

from keras_transformer.errors import InputError
from keras_transformer.tokenizer import BOS_ID, EOS_ID


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_the_score_of_a_translation_is_the_search_s(translator, numbers_run, alpha):
    if alpha != translator.rules.alpha:
        translator = numbers_run.load_translator(alpha=alpha)
    tokenizer = translator.tokenizer.target
    compared = 0
    for text, found in zip(SENTENCES, translator.translate(SENTENCES), strict=True):
        if not text.strip():
            continue
        results = translator.score([text] * len(found), [each.text for each in found])
        for each, (log_probability, tokens) in zip(found, results, strict=True):
            assert tokens == len(tokenizer.encode(each.text)) + 1
            undone = each.score * ((5 + tokens) / 6) ** alpha
            # A search may spell a word otherwise than the tokenizer does ("dr" + "ei").
            if set(each.text.split()) <= set(NUMBERS.values()):
                assert log_probability == pytest.approx(undone, abs=1e-4)
                compared += 1
    assert compared > 30


def test_scores_are_the_models_log_probabilities(translator):
    source, target = "three two", "drei zwei eins"
    words = translator.tokenizer.source.encode(source), translator.tokenizer.target.encode(target)
    inputs = {"source": [[*words[0], EOS_ID]], "target": [[BOS_ID, *words[1]]]}
    logits = translator.model({name: np.array(ids) for name, ids in inputs.items()})
    labels = [*words[1], EOS_ID]
    expected = log_softmax(logits)[0, range(len(labels)), labels].sum()
    ((log_probability, tokens),) = translator.score([source], [target])
    assert tokens == len(labels)
    assert log_probability == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("kind", ["pre-norm", "two vocabularies", "mixed_bfloat16"])
def test_batches_change_no_score(random_translators, kind):
    translator = random_translators[kind]
    targets = [*SENTENCES[3:], *SENTENCES[:3]]
    singly = translator.score(SENTENCES, targets, 1)
    assert np.all(np.isfinite([value for value, _ in singly]))
    assert len({round(value, 3) for value, _ in singly}) > 15
    for batch_sentences in (7, 20):
        together = translator.score(SENTENCES, targets, batch_sentences)
        assert [count for _, count in together] == [count for _, count in singly]
        np.testing.assert_allclose(
            [value for value, _ in together], [value for value, _ in singly], rtol=1e-5, atol=1e-4
        )


def test_a_very_long_target_is_cut(translator):
    limit = translator.maximum_target_length
    long, cut = (" ".join(["zwei"] * count) for count in (20_000, limit))
    found = translator.score(["two", "two", "six"], [long, cut, "sechs"])
    assert found[0][1] == found[1][1] == limit + 1
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-4)
    alone = translator.score(["six"], ["sechs"])[0]
    assert found[2] == (pytest.approx(alone[0], abs=1e-4), alone[1])


def test_unlike_numbers_of_sources_and_targets_are_refused(translator):
    with pytest.raises(InputError, match=r"as many\. Received: 2 and 1"):
        translator.score(["one", "two"], ["eins"])


@pytest.mark.parametrize("rows", [(2, 1), (1, 2), (0, 1)])
def test_each_source_of_the_graph_needs_one_translation(translator, rows):
    source, target = (tf.constant(["two"] * count, tf.string, [count]) for count in rows)
    for function in (translator.score_tensor, translator.align_tensor):
        compiled = tf.function(function, [tf.TensorSpec([None], tf.string)] * 2, autograph=False)
        with pytest.raises(tf.errors.InvalidArgumentError, match="Each source must have one"):
            compiled(source, target)


def test_alignments_are_of_the_pieces(translator):
    sources, targets = ["two six", "", "three"], ["zwei sechs", "", "drei vier"]
    found = translator.align_tensor(tf.constant(sources), tf.constant(targets))
    attention = found.attention.numpy()
    for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
        for tokenizer, text, pieces, lengths in (
            (translator.tokenizer.source, source, found.source_pieces, found.source_lengths),
            (translator.tokenizer.target, target, found.target_pieces, found.target_lengths),
        ):
            expected = tokenizer.pieces([*tokenizer.encode(text), EOS_ID])
            length = int(lengths[row])
            assert [piece.decode() for piece in pieces[row].numpy()[:length]] == expected
            assert set(pieces[row].numpy()[length:]) <= {b""}
        length, width = int(found.target_lengths[row]), int(found.source_lengths[row])
        np.testing.assert_allclose(attention[row, :length, :width].sum(axis=1), 1.0, atol=1e-5)
        assert np.all(attention[row, length:] == 0) and np.all(attention[row, :, width:] == 0)
    assert not found.truncated.numpy().any()
    # A trained model looks at the word that it translates.
    assert attention[0, :2].argmax(axis=1).tolist() == [0, 1]


def test_alignments_of_long_texts_are_cut(translator):
    limit = translator.maximum_source_length
    texts = tf.constant([" ".join(["two"] * (limit + extra)) for extra in (0, 1)])
    found = translator.align_tensor(texts, tf.constant(["zwei", "zwei"]))
    assert found.truncated.numpy().tolist() == [False, True]
    assert found.source_lengths.numpy().tolist() == [limit + 1, limit + 1]
