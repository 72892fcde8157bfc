"""What a setting is worth: the same sentences translated and scored again with another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from keras_transformer import Transformer
from keras_transformer.translation_tokenizer import TranslationTokenizer
from keras_transformer.translator import Translator
from trainers.checkpoints import Checkpoints, load_model
from trainers.evaluation import score_translations
from trainers.recipe import Recipe
from trainers.run import translator_of

Weights = list[np.ndarray]


class Rescoring:
    """Translates a sample by a recipe's settings, and by others.

    Args:
        recipe: `Recipe`, with a target language.
        model: `Transformer`.
        tokenizer: `TranslationTokenizer`.
        sources: sentences.
        references: their translations.
    """

    def __init__(
        self,
        recipe: Recipe,
        model: Transformer,
        tokenizer: TranslationTokenizer,
        sources: Sequence[str],
        references: Sequence[str],
    ) -> None:
        self._recipe = recipe
        self._model = model
        self._tokenizer = tokenizer
        self._sources = list(sources)
        self._references = list(references)
        self._translator = translator_of(recipe, model, tokenizer)
        self._translations: list[str] | None = None

    def translations(self) -> list[str]:
        """By the recipe's own settings; made once."""
        if self._translations is None:
            self._translations = self._translate(self._translator)
        return self._translations

    def bleu(self, **decoding: float) -> float:
        """BLEU with keys of `decoding` in the place of the recipe's."""
        ours = vars(self._recipe.decoding)
        changes = {name: value for name, value in decoding.items() if ours[name] != value}
        if not changes:
            return self._score(self.translations())
        translator = translator_of(self._recipe, self._model, self._tokenizer, **changes)
        return self._score(self._translate(translator))

    def bleu_of_weights(self, weights: Weights) -> float:
        """BLEU of other trainable weights of the same model, which keeps its own afterwards."""
        self.translations()
        own = [variable.numpy() for variable in self._model.trainable_variables]
        try:
            _assign(self._model, weights)
            return self._score(self._translate(self._translator))
        finally:
            _assign(self._model, own)

    def share_at_limit(self, translations: Sequence[str]) -> float:
        """Share of translations that have as many tokens as the recipe allows."""
        decoding = self._recipe.decoding
        source, target = self._tokenizer.source, self._tokenizer.target
        lengths = [len(ids) + 1 for ids in target.encode_batch(list(translations))]
        limits = [
            min(len(ids), decoding.maximum_source_length) + 1 + decoding.maximum_extra_length
            for ids in source.encode_batch(self._sources)
        ]
        if decoding.maximum_length is not None:
            limits = [min(limit, decoding.maximum_length) for limit in limits]
        return float(np.mean(np.greater_equal(lengths, limits)))

    def _translate(self, translator: Translator) -> list[str]:
        found = translator.translate(self._sources, self._recipe.decoding.batch_sentences)
        return [hypotheses[0].text for hypotheses in found]

    def _score(self, translations: list[str]) -> float:
        language = self._recipe.data.target_language
        return score_translations(translations, self._references, language)["bleu"]


def find_mean(
    checkpoints: Checkpoints, model: Transformer, wanted: int, has_moving_average: bool
) -> tuple[int | str | None, Weights, Weights]:
    """Of how many of the last checkpoints a model is the mean.

    Args:
        checkpoints: `Checkpoints`, at least two.
        model: `Transformer`.
        wanted: int. How many are averaged, as far as there are so many; at least 2 are tried.
        has_moving_average: bool. Whether the model may be the optimizer's moving average.

    Returns:
        A tuple: the number, `"ema"` or None; the weights of the last checkpoint; the mean of the
        last `wanted`.
    """
    ours = [variable.numpy() for variable in model.trainable_variables]
    steps = checkpoints.steps()
    wanted = min(max(wanted, 2), len(steps))
    last: Weights = []
    mean: Weights = []
    sums: list[np.ndarray] = []
    mean_of: int | str | None = None
    loaded = None
    for count, step in enumerate(reversed(steps), 1):
        path = checkpoints.path(step) / "model.keras"
        if loaded is None:
            loaded = load_model(path)
        else:
            loaded.load_weights(path)
        weights = [variable.numpy().astype(np.float64) for variable in loaded.trainable_variables]
        sums = weights if not sums else [a + b for a, b in zip(sums, weights, strict=True)]
        now = [total / count for total in sums]
        if count == 1:
            last = now
        if count == wanted:
            mean = now
        if mean_of is None and _are_equal(ours, now):
            mean_of = count
        if count >= wanted and mean_of is not None:
            break
    if mean_of is None and has_moving_average:
        averages = checkpoints.exponential_average()
        if _are_equal(ours, [v.numpy() for v in averages.trainable_variables]):
            mean_of = "ema"
    return mean_of, last, mean


def _are_equal(first: Weights, second: Weights) -> bool:
    """To float32's rounding, which is far less than an update moves weights by."""
    return all(
        np.abs(a - b).max() <= 1e-6 * max(np.abs(a).max(), 1e-6)
        for a, b in zip(first, second, strict=True)
    )


def _assign(model: Transformer, weights: Weights) -> None:
    for variable, value in zip(model.trainable_variables, weights, strict=True):
        variable.assign(value)
