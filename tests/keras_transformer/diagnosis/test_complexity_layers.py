"""The layers of table 1: built as wide as asked for, costed and connected as their row says."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import InputError
from keras_transformer.diagnosis.complexity_layers import (
    DILATED_CONVOLUTION,
    LAYER_KINDS,
    Sizes,
    check_layers,
    compiled_layer,
)
from keras_transformer.diagnosis.complexity_paths import (
    layers_to_cross,
    maximum_path_length,
    sequential_operations,
)

SIZES = Sizes(window=8, chunk=4, kernel=5)


@pytest.mark.parametrize("name", LAYER_KINDS)
def test_a_layer_keeps_shape_for_every_length_and_reaches_all_its_weights(name):
    layer = compiled_layer(name, 128, SIZES)
    for length in (1, 7, 40):
        assert layer(tf.ones([1, length, 128])).shape == (1, length, 128)
    x = tf.random.stateless_normal([1, 9, 16], seed=[1, 2])
    of_input, *of_weights = compiled_layer(name, 16, SIZES, backward=True)(x)
    assert of_input.shape == (1, 9, 16)
    assert of_weights
    assert all(np.any(gradient.numpy()) for gradient in of_weights)


def test_operations_are_counted_as_the_paper_does_but_for_the_projections():
    d = 64
    for name, kind in LAYER_KINDS.items():
        by_length = kind.operations(2**20, d, Sizes()) / kind.operations(2**19, d, Sizes())
        assert np.log2(by_length) == pytest.approx(kind.time_exponents[0], abs=0.01), name
    # For the window of the paper's claim, r neighbours cost no more than twice r.
    window = LAYER_KINDS["restricted-self-attention"].operations(4096, d, Sizes(window=128))
    assert window - 4 * 4096 * d**2 <= 2 * (2 * 128) * 4096 * d


@pytest.mark.parametrize(
    ("name", "lengths", "expected"),
    [
        ("self-attention", (2, 30), (1, 1)),
        ("chunked-self-attention", (2, 30), (1, 1)),
        ("restricted-self-attention", (5, 6, 21), (1, 2, 5)),  # 4 to each side
        ("recurrent", (2, 9), (2, 9)),
        ("convolution", (3, 4, 13), (1, 2, 6)),  # 2 to each side
        ("separable-convolution", (3, 4, 13), (1, 2, 6)),
    ],
)
def test_path_lengths_by_gradients_are_those_of_the_formula(name, lengths, expected):
    kind = LAYER_KINDS[name]
    measured = tuple(maximum_path_length(kind, length, SIZES) for length in lengths)
    assert measured == expected
    assert tuple(kind.path_length(length, SIZES) for length in lengths) == expected


@pytest.mark.parametrize(("kernel", "length", "layers"), [(3, 9, 2), (3, 10, 3), (5, 26, 3)])
def test_a_dilated_convolution_crosses_in_the_logarithm(kernel, length, layers):
    sizes = Sizes(kernel=kernel)
    assert maximum_path_length(DILATED_CONVOLUTION, length, sizes) == layers
    assert DILATED_CONVOLUTION.path_length(length, sizes) == layers


def test_a_long_path_of_small_gradients_is_found():
    kind = LAYER_KINDS["convolution"]
    assert maximum_path_length(kind, 50, Sizes(kernel=3)) == 49


def test_layers_that_see_nothing_else_do_not_cross():
    with pytest.raises(InputError, match="see other positions"):
        layers_to_cross(lambda width, sizes, depth: tf.nn.relu, 4, SIZES)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("self-attention", [4, 4]),  # projection, scores, values, projection
        ("restricted-self-attention", [4, 4]),
        ("chunked-self-attention", [None, None]),
        ("recurrent", [6, 24]),
        ("convolution", [1, 1]),
        ("separable-convolution", [2, 2]),
    ],
)
def test_sequential_operations_are_counted_in_the_graph(name, expected):
    assert [sequential_operations(name, length, SIZES) for length in (6, 24)] == expected


def test_names_are_checked():
    assert check_layers(None) == list(LAYER_KINDS)
    assert check_layers(["recurrent", "recurrent"]) == ["recurrent"]
    with pytest.raises(InputError, match="layers must be of self-attention, .*'transformer'"):
        check_layers(["recurrent", "transformer"])
    with pytest.raises(InputError, match="at least one layer"):
        check_layers([])


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"window": 1}, "window must be at least 2. Received: 1"),
        ({"window": 2.5}, "window must be an integer"),
        ({"chunk": 0}, "chunk must be an integer of at least 1. Received: 0"),
        ({"kernel": 4}, "kernel must be odd and at least 3. Received: 4"),
        ({"kernel": 1}, "kernel must be odd"),
    ],
)
def test_constants_are_checked(sizes, message):
    with pytest.raises(InputError, match=message):
        Sizes(**sizes).check()
