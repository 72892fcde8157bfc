"""Validation of a model in training: loss, perplexity, accuracy, and BLEU of a sample."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from keras import metrics

from keras_transformer import Perplexity, SmoothedCrossEntropy, TokenAccuracy, Transformer
from keras_transformer.translator import Translator
from trainers.batching import TokenBatches
from trainers.corpus import ParallelCorpus
from trainers.evaluation import bleu_for, evaluate


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

    Call returns:
        A dict: `val_loss`, `val_perplexity`, `val_token_accuracy`, and with a translator
        `val_bleu` and `val_chrf`.
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

    def __call__(self) -> dict[str, float]:
        for metric in self._metrics:
            metric.reset_state()
        for inputs, labels in self._dataset:
            self._update(inputs, labels)
        figures = {f"val_{metric.name}": float(metric.result()) for metric in self._metrics}
        if self.translator is not None:
            scores = evaluate(self.translator, self._sources, self._references, self.language)
            figures |= {"val_bleu": scores["bleu"], "val_chrf": scores["chrf"]}
        return figures
