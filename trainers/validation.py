"""Validation of a model in training: loss, perplexity, accuracy, and BLEU of a sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from keras import metrics

from keras_transformer import Perplexity, SmoothedCrossEntropy, TokenAccuracy, Transformer
from keras_transformer.errors import InputError
from keras_transformer.translation_tokenizer import TranslationTokenizer
from keras_transformer.translator import Translator
from trainers.batching import TokenBatches
from trainers.corpus import ParallelCorpus
from trainers.evaluation import bleu_for, score_translations
from trainers.pair_filter import filter_pairs
from trainers.recipe import Recipe
from trainers.run import translator_of
from trainers.splits import read_split
from trainers.token_sequences import TokenSequences

# Sentences translated between two looks at whether to break off.
_SENTENCES = 64


class Validation:
    """Measures a model on the validation set; made once a run, called as often as wanted.

    Perplexity and accuracy read logits of the whole vocabulary, which is why they are computed
    here and not at each training step.

    Args:
        model: `Transformer`, compiled with `SmoothedCrossEntropy`.
        batches: `TokenBatches` of the validation set.
        translator: `Translator` of the same model, or None for no BLEU.
        corpus: `ParallelCorpus` of the validation set.
        sample_size: int. Sentences, drawn with the seed, that are translated for BLEU.
        language: str. The target language.
        seed: int.

    Raises:
        InputError: where BLEU of the language is wanted and its tokenizer is not installed.

    Call arguments:
        break_off: callable that says, asked again and again, whether to give up.

    Call returns:
        A dict: `val_loss`, `val_perplexity`, `val_token_accuracy`, and with a translator
        `val_bleu` and `val_chrf`; None where it was broken off.
    """

    def __init__(
        self,
        model: Transformer,
        batches: TokenBatches,
        translator: Translator | None,
        corpus: ParallelCorpus,
        sample_size: int,
        language: str,
        seed: int,
    ) -> None:
        if translator is not None:
            bleu_for(language)  # What is missing shows now, and not after the first epoch.
        self.translator = translator
        self.language = language
        self._dataset = batches.evaluation_dataset()
        generator = np.random.default_rng(seed)
        rows = np.sort(generator.permutation(len(corpus))[:sample_size])
        self._sources = [corpus.sources[row] for row in rows]
        self._references = [corpus.targets[row] for row in rows]
        loss: SmoothedCrossEntropy = model.loss
        self._metrics = [
            metrics.Mean("loss"),
            Perplexity(),
            TokenAccuracy(),
        ]

        def update(inputs, labels):
            logits = model(inputs, training=False)
            mean_loss, perplexity, accuracy = self._metrics
            # Flat, since Keras first takes the mean of each row of a matrix, padding included.
            mean_loss.update_state(
                tf.reshape(loss.call(labels, logits), [-1]),
                tf.reshape(loss.token_weights(labels), [-1]),
            )
            perplexity.update_state(labels, logits)
            accuracy.update_state(labels, logits)

        self._update = tf.function(
            update, autograph=False, input_signature=self._dataset.element_spec
        )

    def __call__(self, break_off: Callable[[], bool] = lambda: False) -> dict[str, float] | None:
        for metric in self._metrics:
            metric.reset_state()
        for inputs, labels in self._dataset:
            if break_off():
                return None
            self._update(inputs, labels)
        figures = {f"val_{metric.name}": float(metric.result()) for metric in self._metrics}
        if self.translator is not None:
            translations = []
            for start in range(0, len(self._sources), _SENTENCES):
                if break_off():
                    return None
                found = self.translator.translate(self._sources[start : start + _SENTENCES])
                translations += [hypotheses[0].text for hypotheses in found]
            scores = score_translations(translations, self._references, self.language)
            figures |= {"val_bleu": scores["bleu"], "val_chrf": scores["chrf"]}
        return figures


def validation_of(
    recipe: Recipe, model: Transformer, tokenizer: TranslationTokenizer
) -> Validation:
    """The validation of a run, by its recipe.

    Empty and too long pairs do not count for loss, perplexity and accuracy.

    Args:
        recipe: `Recipe`.
        model: the run's `Transformer`, compiled.
        tokenizer: the run's `TranslationTokenizer`.

    Raises:
        InputError: where the validation split cannot be read, or has no pair left.
    """
    training = recipe.training
    corpus = read_split(recipe.data, "validation")
    source, target = (
        TokenSequences(side.encode_batch(sentences))
        for side, sentences in (
            (tokenizer.source, corpus.sources),
            (tokenizer.target, corpus.targets),
        )
    )
    # The start or end token counts for the length.
    kept, counts = filter_pairs(
        source.lengths, target.lengths, maximum_length=recipe.data.maximum_length - 1
    )
    if not len(kept):
        raise InputError(f"{corpus.name} must have pairs left to validate by. Received: {counts}")
    # Half as many tokens at a time as one device trains on at a time: perplexity and accuracy hold
    # more logits than training does.
    parts = 2 * training.accumulate_steps * model.distribute_strategy.num_replicas_in_sync
    batch_tokens = max(training.batch_tokens // parts, recipe.data.maximum_length)
    batches = TokenBatches(source, target, rows=kept, batch_tokens=batch_tokens, seed=training.seed)
    translator = None
    if training.validation_bleu_sentences:
        translator = translator_of(recipe, model, tokenizer)
    return Validation(
        model,
        batches,
        translator,
        corpus,
        training.validation_bleu_sentences,
        recipe.data.target_language,
        training.seed,
    )


def rise_of_loss(lines: Sequence[dict]) -> str | None:
    """What to say of a run whose validation loss was lower before its end; None of any other.

    Args:
        lines: the lines of the run's log.

    Example:

    >>> rise_of_loss([{"step": 5, "val_loss": 2.0}, {"step": 9, "val_loss": 2.5}])
    'val_loss was lowest at step 5, 2.000; at the end, step 9, it is 2.500'
    """
    validations = [line for line in lines if line.get("val_loss") is not None]
    best = min(validations, key=lambda line: line["val_loss"], default=None)
    if best is None or best["step"] == validations[-1]["step"]:
        return None
    return (
        f"val_loss was lowest at step {best['step']}, {best['val_loss']:.3f}; at the end, step "
        f"{validations[-1]['step']}, it is {validations[-1]['val_loss']:.3f}"
    )
