"""Arguments that no layer can be made with."""

import numpy as np
import pytest

from keras_transformer import layers
from keras_transformer.errors import InputError


@pytest.mark.parametrize(
    ("layer", "arguments", "message"),
    [
        (layers.MultiHeadAttention, {"num_heads": 0, "d_k": 4}, "num_heads .* Received: 0"),
        (layers.MultiHeadAttention, {"num_heads": "2", "d_k": 4}, "num_heads .* Received: '2'"),
        (layers.MultiHeadAttention, {"num_heads": 2, "d_k": 4, "d_v": -1}, "d_v .* Received: -1"),
        (layers.MultiHeadAttention, {"num_heads": 2, "d_k": 4, "window": 0}, "window .* 0"),
        (layers.MultiHeadAttention, {"num_heads": 2, "d_k": 4, "chunk": 1.5}, "chunk .* 1.5"),
        (
            layers.MultiHeadAttention,
            {"num_heads": 2, "d_k": 4, "compatibility": "dot"},
            "compatibility must be 'scaled_dot_product' or .* Received: 'dot'",
        ),
        (layers.FeedForward, {"d_ff": 0}, "d_ff .* Received: 0"),
        (layers.Projection, {"width": 1.5}, "width .* Received: 1.5"),
        (layers.TokenEmbedding, {"vocabulary_size": 0, "d_model": 4}, "vocabulary_size .* 0"),
        (layers.TokenEmbedding, {"vocabulary_size": 9, "d_model": True}, "d_model .* True"),
        (layers.LearnedPositions, {"maximum_positions": 0}, "maximum_positions .* Received: 0"),
        (layers.Residual, {"norm": "sideways"}, "norm must be .* Received: 'sideways'"),
    ],
)
def test_they_are_refused_by_name(layer, arguments, message):
    with pytest.raises(InputError, match=message):
        layer(**arguments)


def test_sinusoids_need_pairs():
    with pytest.raises(InputError, match="d_model must be even .* Received: 5"):
        layers.SinusoidalPositions()(np.zeros((1, 2, 5), "float32"))
