"""Writes a translator as a SavedModel that TF Serving and any other TensorFlow host loads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from export.model_card import model_card, write_model_card
from export.publish import publish
from export.session import ExportSession
from export.signatures import INPUTS, check_signatures, signature_functions
from export.warm_up import run_warm_up_requests, warm_up_columns, write_warm_up_requests
from keras_transformer.translator import Translator

# Beside the model, for whoever checks the export: sentences and what Python makes of them.
EXPECTED_TRANSLATIONS = "assets.extra/expected_translations.json"

_SAMPLE = (
    "This is a test.",
    "",
    "   ",
    "Tom & Mary said: \"Let's go, it's 7 o'clock!\"",
    "🙂 </s> ß",
)


def export_translator(
    translator: Translator,
    base: str | Path,
    version: int | None = None,
    sample: Sequence[str] = (),
    signatures: Sequence[str] | None = None,
    keep: int | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Path:
    """Writes `base/version/saved_model.pb` with tokenizer, model and beam search in the graph.

    All inputs are string [N], all outputs have N rows, and no row depends on another:

    - `serving_default`: `text` to `translation` string [N], `score` float32 [N];
    - `n_best`: `text` to `translations` string [N, beam], best first, `scores` float32 [N, beam];
    - `score`: `source`, `target` to `log_probability` float32 [N], `tokens` int32 [N];
    - `align`: `text`, `translation` to `source_pieces` string [N, S], `target_pieces` string
      [N, T], `source_lengths` and `target_lengths` int32 [N], `attention` float32 [N, T, S];
    - and each `truncated` bool [N], whether a text was longer than the model reads.

    Beside the model lie requests that warm up a server, a model card, and what Python translates
    some sentences to. The version is written under another name, loaded as a server loads it, sent
    the warm-up requests, and renamed: a server that watches `base` sees no other.

    Args:
        translator: `Translator`; its beam size, alpha, limits and precision become the export's.
        base: path of the folder of versions.
        version: int or None. `None` means one more than the highest in `base`, or 1.
        sample: texts like those to be served, for the warm-up and `check_export`; odd ones are
            added.
        signatures: names of the signatures to write, `serving_default` among them; all by default.
        keep: int or None. Older versions are removed until `base` holds this many.
        facts: what the model card cannot know from the translator: `recipe`, a dict; `weights`, a
            str; `bleu`, a dict of scores with their signature.

    Returns:
        The path of the version.

    Raises:
        InputError: where the version is not above 0, or exists; where `base` cannot be written to;
            where a signature is unknown; where the written version does not answer.

    Example:

    >>> import tempfile
    >>> from keras_transformer import TransformerConfig, build_transformer
    >>> from keras_transformer.translation_tokenizer import TranslationTokenizer
    >>> tokenizer = TranslationTokenizer.train(["one"], ["eins"], vocabulary_size=270)
    >>> model = build_transformer(TransformerConfig.preset("tiny", vocabulary_size=270))
    >>> translator = Translator(model, tokenizer, beam_size=2, maximum_extra_length=3)
    >>> export_translator(translator, tempfile.mkdtemp()).name
    '1'

    References:
        - TensorFlow Serving, [RESTful API](https://www.tensorflow.org/tfx/serving/api_rest)
    """
    names = check_signatures(signatures)
    texts = [*sample, *_SAMPLE]
    with publish(base, version, keep) as publication:
        path = publication.partial
        described = _write(translator, names, path)
        write_model_card(path, model_card(translator, described, facts or {}))
        _write_expected(translator, texts, path)
        inputs = {name: INPUTS[name] for name in names}
        write_warm_up_requests(path, warm_up_columns(translator, texts, inputs))
        session = ExportSession(path)
        run_warm_up_requests(path, session)
        session.close()
    return publication.path


def _write(translator: Translator, names: Sequence[str], path: Path) -> dict[str, Any]:
    """Writes the SavedModel; returns the traced functions."""
    functions = signature_functions(translator, names)
    module = tf.Module()
    # The TensorFlow variables themselves, and nothing that holds them: under a Keras object each
    # gets a second handle, which the functions do not use, and TF Serving restores that alone.
    # Others than these, such as the states of dropout, no signature reads.
    module.weights = [variable.value for variable in translator.model.trainable_variables]
    module.tokenizers = [
        translator.tokenizer.source.resource,
        translator.tokenizer.target.resource,
    ]
    described = {name: function.get_concrete_function() for name, function in functions.items()}
    # Gradients of its own that an operation has, as chunked attention does, serve no translation.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    try:
        tf.saved_model.save(module, str(path), signatures=described, options=options)
    except tf.errors.OpError as error:  # TensorFlow's own, for a full disk and the like
        raise OSError(error.message.split("\n")[0]) from error
    return described


def _write_expected(translator: Translator, texts: Sequence[str], path: Path) -> None:
    best = [found[0] for found in translator.translate(texts)]
    scores = translator.score(texts, [hypothesis.text for hypothesis in best])
    tolerance = 1e-4 if translator.model.policy.compute_dtype == "float32" else 0.05
    entries = []
    for text, hypothesis, (log_probability, tokens) in zip(texts, best, scores, strict=True):
        score = log_probability / float(translator.rules.penalty(tokens))
        entries.append(
            {
                "text": text,
                "translation": hypothesis.text,
                "score": hypothesis.score,
                "log_probability": log_probability,
                "tokens": tokens,
                # The search may spell a text by other tokens than the tokenizer, less likely ones.
                "same_tokens": abs(score - hypothesis.score) <= tolerance,
            }
        )
    (path / EXPECTED_TRANSLATIONS).write_text(
        json.dumps({"translations": entries}, indent=2, ensure_ascii=False) + "\n",
        encoding="utf-8",
    )
