"""Validation: figures over all real tokens of the set, and BLEU of a sample of it."""

import keras
import numpy as np
import pytest
import sacrebleu
from numpy_reference import mean_loss
from small_models import small_model

from keras_transformer import SmoothedCrossEntropy
from keras_transformer.errors import InputError
from keras_transformer.translation_tokenizer import TranslationTokenizer
from keras_transformer.translator import Translator
from trainers.batching import TokenBatches
from trainers.corpus import ParallelCorpus
from trainers.evaluation import score_translations
from trainers.validation import Validation

SOURCES = ["ein Haus", "ein", "das Haus ist klein", "das", "klein ist das Haus ein Haus"]
TARGETS = ["a house", "a", "the house is small", "the", "small is the house a house"]


@pytest.fixture(scope="module")
def parts():
    tokenizer = TranslationTokenizer.train(SOURCES, TARGETS, vocabulary_size=290)
    model = small_model(
        vocabulary_size=290, num_encoder_layers=1, num_decoder_layers=1, dropout=0.3
    )
    model.compile(keras.optimizers.SGD(), loss=SmoothedCrossEntropy(0.1))
    batches = TokenBatches(
        tokenizer.source.encode_batch(SOURCES),
        tokenizer.target.encode_batch(TARGETS),
        batch_tokens=40,
        seed=1,
    )
    translator = Translator(model, tokenizer, beam_size=2, maximum_extra_length=3)
    return model, batches, translator, ParallelCorpus(SOURCES, TARGETS, "five pairs")


def validation(parts, sample_size=3, language="en", seed=1, has_translator=True):
    model, batches, translator, corpus = parts
    return Validation(
        model, batches, translator if has_translator else None, corpus, sample_size, language, seed
    )


def test_loss_perplexity_and_accuracy_are_over_all_real_tokens(parts):
    model, batches, *_ = parts
    assert batches.batches_per_epoch() > 1
    loss = plain = right = tokens = padding = 0
    for inputs, labels in batches.evaluation_dataset():
        logits, labels = model(inputs, training=False).numpy(), labels.numpy()
        real = labels != 0
        number = np.count_nonzero(real)
        padding += np.count_nonzero(~real)
        loss += number * mean_loss(logits, labels, 0.1)
        plain += number * mean_loss(logits, labels, 0.0)
        right += np.count_nonzero((logits.argmax(-1) == labels) & real)
        tokens += number
    assert padding > 0
    figures = validation(parts, has_translator=False)()
    assert figures == pytest.approx(
        {
            "val_loss": loss / tokens,
            "val_perplexity": np.exp(plain / tokens),
            "val_token_accuracy": right / tokens,
        },
        rel=1e-5,
    )


def test_each_call_measures_anew_the_weights_of_that_moment(parts):
    model = parts[0]
    measure = validation(parts, has_translator=False)
    first = measure()
    assert measure() == first
    weight = model.trainable_weights[0]
    before = weight.numpy()
    weight.assign(before * 1.5)
    changed = measure()
    weight.assign(before)
    assert abs(changed["val_loss"] - first["val_loss"]) > 1e-3
    assert measure() == first


@pytest.fixture
def translated(parts, monkeypatch):
    """The sentences that are translated; their translations come out as they went in."""
    seen = []
    translate = Translator.translate

    def remember(self, texts, *options):
        found = translate(self, texts, *options)
        seen.append((list(texts), [best[0].text for best in found]))
        return found

    monkeypatch.setattr(Translator, "translate", remember)
    return seen


def test_bleu_and_chrf_are_those_of_a_sample_and_its_references(parts, translated):
    measure = validation(parts, sample_size=3)
    figures = measure()
    ((sources, translations),) = translated
    assert len(set(sources)) == 3
    references = [TARGETS[SOURCES.index(source)] for source in sources]
    expected = score_translations(translations, references, "en")
    assert (figures["val_bleu"], figures["val_chrf"]) == (expected["bleu"], expected["chrf"])
    assert list(figures) == [
        "val_loss",
        "val_perplexity",
        "val_token_accuracy",
        "val_bleu",
        "val_chrf",
    ]
    # The same sentences at each call, so that figures of one run can be compared.
    measure()
    assert translated[1][0] == sources


def test_the_sample_depends_on_the_seed_and_is_never_larger_than_the_set(parts):
    samples = {tuple(validation(parts, 2, seed=seed)._sources) for seed in range(8)}
    assert len(samples) > 1
    assert validation(parts, 100)._sources == SOURCES
    assert validation(parts, 100)._references == TARGETS


def test_a_language_that_cannot_be_scored_is_refused_when_it_is_made(parts, monkeypatch):
    def bleu(tokenize):
        raise RuntimeError("extra dependencies are missing")

    monkeypatch.setattr(sacrebleu, "BLEU", bleu)
    with pytest.raises(InputError, match=r"sacrebleu\[ja\]"):
        validation(parts, language="ja")
    validation(parts, language="ja", has_translator=False)
