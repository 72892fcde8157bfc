"""Thirteen classic faults of a reproduction, planted in our code as a user would have made them.

Each is active while its context is open: in training, and while the doctor looks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import keras
import tensorflow as tf
from keras import ops
from sacremoses import MosesTokenizer

from keras_transformer import SmoothedCrossEntropy, TransformerSchedule
from keras_transformer.layers import (
    Decoder,
    MultiHeadAttention,
    SinusoidalPositions,
    TokenEmbedding,
    multi_head_attention,
    padding_mask,
)
from trainers.batching import TokenBatches
from trainers.corpus import read_parallel_files
from trainers.recipe import Recipe
from trainers.run import RunDirectory

Context = contextlib.AbstractContextManager


class Fault(NamedTuple):
    """A fault, how it is planted, and what the doctor must call it."""

    name: str
    plant: Callable[[], Context]
    found: str
    detail: str
    changes: dict[str, dict[str, Any]] = {}


# Attention ----------------------------------------------------------------------------------------


def mask_filled_with_zero() -> Context:
    """The scores of hidden keys become 0, which is as good a score as any."""

    def weighted_values(scores, value, mask=None, dropout=None):
        scores = ops.cast(scores, "float32")
        if mask is not None:
            scores = ops.where(mask, scores, 0.0)
        weights = tf.nn.softmax(scores)
        dropped = weights if dropout is None else dropout(weights)
        return ops.matmul(ops.cast(dropped, value.dtype), value), weights

    return mock.patch.object(multi_head_attention, "weighted_values", weighted_values)


def future_visible() -> Context:
    """The decoder's self-attention is not causal."""
    attend = MultiHeadAttention.attend

    def see_all(self, query, keys, values, mask=None, training=None, causal=False, weights=False):
        return attend(self, query, keys, values, mask, training, False, weights)

    return mock.patch.object(MultiHeadAttention, "attend", see_all)


def times_scores(factor: Callable[[MultiHeadAttention], float]) -> Context:
    """Scores are multiplied by another factor than d_k^-0.5."""
    right = MultiHeadAttention._scores

    def wrong(self, *arguments):
        return right(self, *arguments) * (factor(self) * self.d_k**0.5)

    return mock.patch.object(MultiHeadAttention, "_scores", wrong)


def scaled_by_d_model() -> Context:
    return times_scores(lambda layer: layer._output.width**-0.5)


def not_scaled() -> Context:
    return times_scores(lambda layer: 1.0)


class _TargetMask(keras.layers.Layer):
    """The target's padding, cut or filled up to the length of the source."""

    def call(self, target, memory):
        mask = ops.cast(padding_mask(target), "int32")  # [B, 1, 1, T]
        length = tf.shape(memory)[1]
        mask = tf.pad(mask, [[0, 0], [0, 0], [0, 0], [0, length]])[..., :length]
        return ops.cast(mask, "bool")

    def compute_output_spec(self, target, memory):
        return keras.KerasTensor((target.shape[0], 1, 1, memory.shape[1]), "bool")


def masked_by_target() -> Context:
    """The functional model masks the encoder-decoder attention by the target's padding."""
    call = Decoder.__call__

    def wired_wrongly(self, inputs, memory, memory_attention_mask=None, **options):
        if isinstance(inputs, keras.KerasTensor) and hasattr(inputs, "_keras_history"):
            mask = _TargetMask(name="target_mask")(_input_of(inputs), memory)
            memory_attention_mask = mask
        return call(self, inputs, memory, memory_attention_mask=memory_attention_mask, **options)

    return mock.patch.object(Decoder, "__call__", wired_wrongly)


def _input_of(tensor: keras.KerasTensor) -> keras.KerasTensor:
    """The model's input that a symbolic tensor was made from."""
    while True:
        operation, node, _ = tensor._keras_history
        inputs = operation._inbound_nodes[node].input_tensors
        if not inputs:
            return tensor
        tensor = inputs[0]


# Embeddings and positions -------------------------------------------------------------------------


def embeddings_unscaled() -> Context:
    """sqrt(d_model) is forgotten."""
    call = TokenEmbedding.call

    def unscaled(self, inputs, reverse=False):
        result = call(self, inputs, reverse)
        return result if reverse else result / self.d_model**0.5

    return mock.patch.object(TokenEmbedding, "call", unscaled)


def positions_after_norm() -> Context:
    """Embeddings are normalized before the positions are added."""

    def after_norm(self, inputs, start_index=0):
        x = ops.cast(inputs, "float32")
        x = x - ops.mean(x, axis=-1, keepdims=True)
        x = x * ops.rsqrt(ops.mean(ops.square(x), axis=-1, keepdims=True) + 1e-6)
        encoding = self.encoding(ops.shape(inputs)[1], inputs.shape[-1], start_index)
        return ops.cast(x + encoding, inputs.dtype)

    return mock.patch.object(SinusoidalPositions, "call", after_norm)


# Training -----------------------------------------------------------------------------------------


def target_not_shifted() -> Context:
    """The decoder's input is the labels themselves."""
    right = TokenBatches.batch

    def batch(self, rows):
        inputs, labels = right(self, rows)
        return {**inputs, "target": labels}, labels

    return mock.patch.object(TokenBatches, "batch", batch)


def no_warm_up() -> Context:
    """The rate starts at its peak."""

    def rate(self, step):
        s = ops.cast(step, "float32") + 1.0
        peak = self.warmup_steps**-0.5
        return self.factor * self.d_model**-0.5 * ops.minimum(ops.rsqrt(s), peak)

    return mock.patch.object(TransformerSchedule, "__call__", rate)


@contextlib.contextmanager
def smoothing_on_padding() -> Iterator[None]:
    """Padding has the loss of a label that is all smoothing."""
    right = SmoothedCrossEntropy.call

    def call(self, y_true, y_pred):
        logits = ops.cast(y_pred, "float32")
        smoothing = tf.reduce_logsumexp(logits, axis=-1) - tf.reduce_mean(logits, axis=-1)
        is_padding = ops.cast(ops.equal(y_true, 0), "float32")
        return right(self, y_true, y_pred) + self.label_smoothing * smoothing * is_padding

    def token_weights(self, y_true, sample_weight=None):
        return ops.ones_like(y_true, dtype="float32")

    with (
        mock.patch.object(SmoothedCrossEntropy, "call", call),
        mock.patch.object(SmoothedCrossEntropy, "token_weights", token_weights),
    ):
        yield


def averaging_forgotten() -> Context:
    """model.keras is the last checkpoint."""
    average = RunDirectory.average
    return mock.patch.object(RunDirectory, "average", lambda self, last=None: average(self, 1))


def tokenized_references(folder: Path) -> dict[str, dict[str, str]]:
    """Files of a short recipe's validation and test, the German ones by Moses' tokenizer."""
    moses = MosesTokenizer(lang="de")
    changes = {}
    for split in ("validation", "test"):
        source, target = (folder / f"{split}.{language}" for language in ("en", "de"))
        lines = read_parallel_files(source, target).targets
        tokenized = folder / f"{split}.tok.de"
        write_lines(tokenized, [moses.tokenize(text, return_str=True) for text in lines])
        changes[split] = {"source": str(source), "target": str(tokenized)}
    return changes


def write_lines(path: Path, lines: list[str]) -> None:
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())


FAULTS = (
    Fault("mask filled with 0", mask_filled_with_zero, "mask_fill", "scores are filled with 0"),
    Fault("future visible", future_visible, "causality", "sees the words that it is to predict"),
    Fault("target not shifted", target_not_shifted, "target_shift", "just given"),
    Fault(
        "cross-attention masked by the target's padding",
        masked_by_target,
        "cross_attention_mask",
        "cannot be attended to",
    ),
    Fault("scale by d_model", scaled_by_d_model, "attention_scale", "(d_model^-0.5)"),
    Fault("no scale", not_scaled, "attention_scale", "(1, which is no scale)"),
    Fault("embeddings unscaled", embeddings_unscaled, "embedding_magnitude", "drown them"),
    Fault("positions added after the norm", positions_after_norm, "position_place", "after a norm"),
    Fault("no warm-up", no_warm_up, "learning_rate", "there is no warm-up"),
    Fault("smoothing applied to padding", smoothing_on_padding, "padding_loss", "padding has a"),
    Fault("averaging forgotten", averaging_forgotten, "averaging", "last checkpoint alone"),
    Fault("beam 1", contextlib.nullcontext, "beam", "greedy", {"decoding": {"beam_size": 1}}),
    # Its data are written by `tokenized_references`.
    Fault("tokenised references", contextlib.nullcontext, "tokenized_text", "punctuation cut off"),
)

# The shipped demo's corpus, cut: some ten seconds of training with one thread.
_RECIPE: dict[str, dict[str, Any]] = {
    "tokenizer": {"vocabulary_size": 1000},
    "model": {
        "preset": "tiny",
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "d_model": 64,
        "d_ff": 128,
        "num_heads": 4,
        "dropout": 0.1,
        "initializer_gain": 0.5,
    },
    "training": {
        "seed": 1,
        "steps": 80,
        "batch_tokens": 800,
        "warmup_steps": 40,
        "learning_rate_factor": 0.25,
        "precision": "float32",
        "checkpoint_every_steps": 20,
        "average_checkpoints": 3,
        "keep_checkpoints": 4,
        "validate_every_steps": 80,
        "validation_bleu_sentences": 0,
        "log_every_steps": 5,
    },
    "decoding": {"beam_size": 4, "maximum_extra_length": 20},
}
_PAIRS = {"train": 4000, "validation": 200, "test": 200}


def short_recipe(folder: Path, **changes: dict[str, Any]) -> Recipe:
    """A recipe of a real short training, with changes by section.

    Args:
        folder: path where the corpus, cut, is written, and its tokens are prepared.
        **changes: keys of a section in the place of those here.
    """
    data: dict[str, Any] = {"source_language": "en", "target_language": "de"}
    for split, pairs in _PAIRS.items():
        name = "valid" if split == "validation" else split
        paths = [folder / f"{split}.{language}" for language in ("en", "de")]
        if not paths[1].exists():
            shipped = f"shipped:tatoeba-deu-eng-demo.{name}"
            corpus = read_parallel_files(f"{shipped}.en.xz", f"{shipped}.de.xz")
            for path, lines in zip(paths, (corpus.sources, corpus.targets), strict=True):
                write_lines(path, lines[:pairs])
        data[split] = {"source": str(paths[0]), "target": str(paths[1])}
    data["prepared_dir"] = str(folder / "prepared")
    sections = {"data": data, **_RECIPE}
    return Recipe.from_dict(
        {name: {**section, **changes.get(name, {})} for name, section in sections.items()}
    )
