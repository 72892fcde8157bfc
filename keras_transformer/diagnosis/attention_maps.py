"""Where a model looks: the attention weights of one sentence pair, with the pieces they lie on."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from keras_transformer.errors import InputError
from keras_transformer.model import Transformer
from keras_transformer.tokenizer import BOS_ID, EOS_ID
from keras_transformer.translation_tokenizer import TranslationTokenizer

# The three uses of attention of section 3.2.3, as `Transformer.attention_weights` names them.
KINDS = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross-attention",
}
# Weights go into pages as whole thousandths, which are short; this one is no number.
NOT_A_NUMBER = -1


class AttentionMaps(NamedTuple):
    """The weights of every layer and head for one source and target.

    A row is a query. In the decoder's maps row t is named by the piece that is predicted there,
    `outputs[t]`: while it is, the decoder has read the inputs up to `inputs[t]`, the piece before.

    Args:
        source: list of S str, the source's pieces, the end token too.
        inputs: list of T str, what the decoder reads: the start token, then the target's pieces.
        outputs: list of T str, what it predicts: the target's pieces, then the end token.
        weights: dict from the kind, `"encoder"`, `"decoder"` or `"cross"`, to a float32 array
            [h, rows, columns] for each layer.
    """

    source: list[str]
    inputs: list[str]
    outputs: list[str]
    weights: dict[str, list[np.ndarray]]

    def rows(self, kind: str) -> list[str]:
        """The piece of each row of the maps of a kind."""
        return self.source if kind == "encoder" else self.outputs

    def columns(self, kind: str) -> list[str]:
        """The piece of each column of the maps of a kind."""
        return self.inputs if kind == "decoder" else self.source

    def as_dict(self) -> dict[str, Any]:
        """All of it for JSON, the weights in thousandths."""
        return {
            "rows": {kind: self.rows(kind) for kind in self.weights},
            "columns": {kind: self.columns(kind) for kind in self.weights},
            "weights": {
                kind: [thousandths(layer) for layer in layers]
                for kind, layers in self.weights.items()
            },
        }


def attention_maps(
    model: Transformer, tokenizer: TranslationTokenizer, source: str, target: str
) -> AttentionMaps:
    """The attention weights of a model that is given a source and its translation.

    Args:
        model: `Transformer`.
        tokenizer: `TranslationTokenizer` of the model.
        source: str. Text with words.
        target: str. Its translation; each piece is predicted from the ones before it.

    Returns:
        `AttentionMaps`.

    Raises:
        InputError: for a source without words.

    Example:

    >>> from keras_transformer import TransformerConfig, build_transformer
    >>> tokenizer = TranslationTokenizer.train(["one two"], ["eins zwei"], vocabulary_size=275)
    >>> model = build_transformer(TransformerConfig.preset("tiny", vocabulary_size=275))
    >>> maps = attention_maps(model, tokenizer, "one", "eins")
    >>> maps.source[-1], maps.inputs[0], maps.outputs[-1], len(maps.weights["cross"])
    ('</s>', '<s>', '</s>', 3)
    """
    source_ids = [*tokenizer.source.encode(source), EOS_ID]
    if len(source_ids) == 1:
        raise InputError(f"A source must have words to look at. Received: {source!r}")
    target_ids = tokenizer.target.encode(target)
    found = model.attention_weights(np.array([source_ids]), np.array([[BOS_ID, *target_ids]]))
    return AttentionMaps(
        tokenizer.source.pieces(source_ids),
        tokenizer.target.pieces([BOS_ID, *target_ids]),
        tokenizer.target.pieces([*target_ids, EOS_ID]),
        {kind: [np.asarray(layer, np.float32)[0] for layer in found[kind]] for kind in KINDS},
    )


def thousandths(weights: np.ndarray) -> list:
    """Weights as whole thousandths, in nested lists; -1 for what is no number.

    Args:
        weights: float array of any shape.

    Example:

    >>> thousandths(np.array([0.25, 0.0004, np.nan]))
    [250, 0, -1]
    """
    is_finite = np.isfinite(weights)
    return (
        np.where(is_finite, np.rint(1000 * np.where(is_finite, weights, 0)), NOT_A_NUMBER)
        .astype(int)
        .tolist()
    )
