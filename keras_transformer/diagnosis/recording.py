"""What the layers of a model really get and give when it is called, and what if it were other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_transformer.layers import (
    Decoder,
    Encoder,
    LearnedPositions,
    MultiHeadAttention,
    SinusoidalPositions,
    TokenEmbedding,
)

_RECORDED = (TokenEmbedding, SinusoidalPositions, LearnedPositions, Encoder, Decoder)
Change = Callable[[Any], Any]


class Call(NamedTuple):
    """One call of a layer: what it got and what it gave."""

    layer: keras.layers.Layer
    arguments: tuple
    options: dict[str, Any]
    output: Any


class Attending(NamedTuple):
    """One attention at work.

    Attributes:
        name: str, such as `"encoder/layer_0"`, `"decoder/layer_0"` or `"cross/layer_0"`.
        layer: `MultiHeadAttention`.
        query: float tensor [B, T, d_model], before its projection.
        keys: float tensor [B, h, S, d_k], projected.
        weights: float32 array [B, h, T, S], or None where the layer does not give them.
    """

    name: str
    layer: MultiHeadAttention
    query: Any
    keys: Any
    weights: np.ndarray | None


class Recording:
    """The calls of a model's layers, in their order.

    Attributes:
        calls: list of `Call` of embeddings, positions, stacks and their layers.
        attentions: list of `Attending`.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.attentions: list[Attending] = []

    def of(self, kind: type | tuple[type, ...]) -> list[Call]:
        """The calls of layers of a class."""
        return [call for call in self.calls if isinstance(call.layer, kind)]

    def embedding_of(self, ids: Any) -> np.ndarray | None:
        """What a `TokenEmbedding` made of exactly these ids, [B, T, d_model]; None if none did."""
        for call in self.of(TokenEmbedding):
            inputs = np.asarray(call.arguments[0])
            if np.issubdtype(inputs.dtype, np.integer) and np.array_equal(inputs, ids):
                return to_numpy(call.output)
        return None

    def stack_input(self, kind: type) -> np.ndarray | None:
        """What the first stack of a class, `Encoder` or `Decoder`, got: [B, T, d_model]."""
        calls = self.of(kind)
        return to_numpy(calls[0].arguments[0]) if calls else None


def attention_names(model: keras.Model) -> dict[int, str]:
    """The names of a model's attentions by the id of the layer.

    Args:
        model: `keras.Model` that has an `Encoder` and a `Decoder`.

    Example:

    >>> from keras_transformer import TransformerConfig, build_transformer
    >>> model = build_transformer(
    ...     TransformerConfig.preset("tiny", vocabulary_size=100, num_encoder_layers=1,
    ...                              num_decoder_layers=1))
    >>> sorted(attention_names(model).values())
    ['cross/layer_0', 'decoder/layer_0', 'encoder/layer_0']
    """
    names = {}
    for stack in model._flatten_layers():
        if isinstance(stack, Encoder):
            for number, layer in enumerate(stack.stack):
                names[id(layer.attention)] = f"encoder/layer_{number}"
        elif isinstance(stack, Decoder):
            for number, layer in enumerate(stack.stack):
                names[id(layer.self_attention)] = f"decoder/layer_{number}"
                names[id(layer.cross_attention)] = f"cross/layer_{number}"
    return names


@contextlib.contextmanager
def recorded(model: keras.Model, changes: dict[str, Change] | None = None) -> Iterator[Recording]:
    """Records what a model's layers get and give while it is called eagerly.

    It is each layer's own method that runs, whatever it is: what is recorded is what happens, and
    not what the code is meant to do.

    Args:
        model: `keras.Model`.
        changes: dict of callables that change a value on its way: `"encoder"` and `"decoder"` what
            enters a stack, `"memory"` what the decoder gets from the encoder.

    Returns:
        A context manager of a `Recording`, which fills as the model is called.

    Example:

    >>> import numpy as np
    >>> from keras_transformer import TransformerConfig, build_transformer
    >>> model = build_transformer(TransformerConfig.preset("tiny", vocabulary_size=100))
    >>> with recorded(model) as recording:
    ...     logits = model({"source": np.array([[5, 2]]), "target": np.array([[1, 7, 8]])})
    >>> [each.name for each in recording.attentions][-1], recording.attentions[-1].weights.shape
    ('cross/layer_2', (1, 4, 3, 2))
    """
    recording, changes = Recording(), changes or {}
    names = attention_names(model)
    wrapped = []
    for layer in model._flatten_layers():
        if isinstance(layer, MultiHeadAttention):
            wrapped.append((layer, "attend", _attend(layer, names, recording)))
        elif isinstance(layer, _RECORDED):
            wrapped.append((layer, "call", _call(layer, recording, changes)))
    for layer, method, function in wrapped:
        # Not by setattr: Keras looks into what layers are given.
        vars(layer)[method] = function
    try:
        yield recording
    finally:
        for layer, method, _ in wrapped:
            vars(layer).pop(method, None)


def to_numpy(tensor: Any) -> np.ndarray:
    """A float tensor of any precision as a float32 array."""
    return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32")))


def _attend(layer: MultiHeadAttention, names: dict[int, str], recording: Recording) -> Callable:
    attend = layer.attend

    def recording_attend(query, keys, values, mask=None, training=None, causal=False, *more):
        result = attend(query, keys, values, mask, training, causal, *more)
        weights = result[1]
        if weights is None and not training:
            # A window or chunks need no whole weights; asked for, the layer gives them.
            weights = attend(query, keys, values, mask, training, causal, True)[1]
        recording.attentions.append(
            Attending(
                names.get(id(layer), layer.name),
                layer,
                query,
                keys,
                None if weights is None else to_numpy(weights),
            )
        )
        return result

    return recording_attend


def _call(layer: keras.layers.Layer, recording: Recording, changes: dict[str, Change]) -> Callable:
    call = layer.call

    def recording_call(*arguments, **options):
        arguments = list(arguments)
        if isinstance(layer, Encoder) and "encoder" in changes:
            arguments[0] = changes["encoder"](arguments[0])
        if isinstance(layer, Decoder):
            if "decoder" in changes:
                arguments[0] = changes["decoder"](arguments[0])
            if "memory" in changes:
                if len(arguments) > 1:
                    arguments[1] = changes["memory"](arguments[1])
                else:
                    options = {**options, "memory": changes["memory"](options["memory"])}
        output = call(*arguments, **options)
        recording.calls.append(Call(layer, tuple(arguments), options, output))
        return output

    return recording_call
