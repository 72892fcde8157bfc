import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.top_k import top_k_of_many


@pytest.mark.parametrize("size", [9, 4093, 4096, 8000, 37000])
def test_it_is_top_k(size):
    rng = np.random.default_rng(size)
    for values in (rng.normal(size=(2, 3, size)), rng.integers(0, size, (2, 3, size))):
        values = tf.constant(values, tf.float32)
        for k in (1, 4, 9):
            expected, actual = tf.math.top_k(values, k), top_k_of_many(values, k)
            np.testing.assert_array_equal(actual[0], expected.values)
            np.testing.assert_array_equal(actual[1], expected.indices)
