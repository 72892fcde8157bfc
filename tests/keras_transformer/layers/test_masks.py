import numpy as np
import tensorflow as tf

from keras_transformer.layers import Window, causal_mask, padding_mask, window_mask


def test_padding_mask_allows_exactly_the_real_tokens():
    mask = padding_mask(np.array([[5, 6, 0, 0], [7, 8, 9, 2]], "int32"))
    assert mask.dtype == tf.bool
    assert mask.shape == (2, 1, 1, 4)
    np.testing.assert_array_equal(
        mask.numpy()[:, 0, 0], [[True, True, False, False], [True, True, True, True]]
    )


def test_causal_mask_allows_positions_up_to_the_query():
    mask = causal_mask(5)
    assert mask.dtype == tf.bool
    assert mask.shape == (1, 1, 5, 5)
    np.testing.assert_array_equal(mask.numpy()[0, 0], np.tril(np.ones((5, 5), bool)))


def test_causal_mask_of_a_length_known_only_when_run():
    @tf.function(input_signature=[tf.TensorSpec((), tf.int32)])
    def mask_of(length):
        return causal_mask(length)

    for length in (0, 1, 4):
        expected = np.tril(np.ones((length, length), bool))
        np.testing.assert_array_equal(mask_of(length).numpy()[0, 0], expected)


def test_the_masks_combine_by_logical_and():
    ids = np.array([[5, 6, 0]], "int32")
    both = np.logical_and(padding_mask(ids), causal_mask(3))
    expected = [[True, False, False], [True, True, False], [True, True, False]]
    np.testing.assert_array_equal(both[0, 0], expected)


def test_window_mask_allows_a_neighborhood():
    centered = window_mask(5, Window.of(3, causal=False)).numpy()[0, 0]
    even = window_mask(5, Window.of(4, causal=False)).numpy()[0, 0]
    last = window_mask(5, Window.of(3, causal=True)).numpy()[0, 0]
    for t in range(5):
        assert np.flatnonzero(centered[t]).tolist() == [s for s in range(5) if abs(s - t) <= 1]
        assert np.flatnonzero(even[t]).tolist() == [s for s in range(5) if -2 <= s - t <= 1]
        assert np.flatnonzero(last[t]).tolist() == [s for s in range(5) if t - 3 < s <= t]
