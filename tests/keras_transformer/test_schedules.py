import keras
import numpy as np
import pytest
import tensorflow as tf
from numpy_reference import learning_rate

from keras_transformer import InputError, TransformerSchedule

LARGEST = 2**63 - 1


@pytest.mark.parametrize("kind", ["int", "int32", "int64"])
@pytest.mark.parametrize("step", [0, 1, 3998, 3999, 4000, 40_000])
def test_it_is_equation_3_for_finished_steps_plus_1(step, kind):
    """`step` updates are finished, so this is the rate of update `step + 1`."""
    given = step if kind == "int" else tf.constant(step, kind)
    rate = TransformerSchedule(512, 4000)(given)
    assert rate.dtype == tf.float32
    np.testing.assert_allclose(rate, learning_rate(step + 1, 512, 4000), rtol=1e-6)


def test_the_first_update_has_a_rate_above_0_and_the_peak_is_at_the_end_of_warm_up():
    schedule = TransformerSchedule(512, 400)
    rates = np.array([float(schedule(step)) for step in range(1000)])
    assert rates[0] > 0
    assert rates.argmax() == 399
    assert rates[399] == pytest.approx((512 * 400) ** -0.5, rel=1e-6)
    assert np.all(np.diff(rates[:400]) > 0) and np.all(np.diff(rates[399:]) < 0)


@pytest.mark.parametrize("step", [LARGEST, tf.constant(LARGEST, tf.int64), 2**31 - 1])
def test_the_largest_steps_give_a_small_positive_rate(step):
    rate = float(TransformerSchedule(512, 4000)(step))
    np.testing.assert_allclose(rate, learning_rate(int(step) + 1, 512, 4000), rtol=1e-5)


def test_factor_multiplies_every_rate():
    for step in (0, 10, 100):
        np.testing.assert_allclose(
            TransformerSchedule(64, 10, factor=2.5)(step),
            learning_rate(step + 1, 64, 10, factor=2.5),
            rtol=1e-6,
        )


def test_in_a_graph():
    schedule = TransformerSchedule(512, 4000)
    rates = tf.function(lambda steps: tf.map_fn(schedule, steps, tf.float32))(
        tf.constant([0, 3999, 40_000], tf.int64)
    )
    expected = [learning_rate(step + 1, 512, 4000) for step in (0, 3999, 40_000)]
    np.testing.assert_allclose(rates, expected, rtol=1e-6)


def test_config_round_trip():
    schedule = TransformerSchedule(64, 7, factor=0.5, name="mine")
    serialized = keras.optimizers.schedules.serialize(schedule)
    again = keras.optimizers.schedules.deserialize(serialized)
    assert type(again) is TransformerSchedule
    assert again.get_config() == schedule.get_config()
    assert float(again(3)) == float(schedule(3))


def test_a_compiled_model_saved_and_loaded_goes_on_from_its_step(tmp_path):
    def rate(model):
        return float(model.optimizer.learning_rate)

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(TransformerSchedule(8, 10)), loss="mse")
    x, y = np.ones((4, 2), "float32"), np.ones((4, 1), "float32")
    model.fit(x, y, epochs=3, batch_size=4, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert int(loaded.optimizer.iterations) == 3
    assert rate(loaded) == rate(model) == pytest.approx(learning_rate(4, 8, 10), rel=1e-6)
    loaded.fit(x, y, epochs=1, batch_size=4, verbose=0)
    assert rate(loaded) == pytest.approx(learning_rate(5, 8, 10), rel=1e-6)


@pytest.mark.parametrize("value", [0, -1])
@pytest.mark.parametrize("name", ["d_model", "warmup_steps", "factor"])
def test_a_value_not_above_0_is_refused_by_name(name, value):
    arguments = {"d_model": 8, "warmup_steps": 10, "factor": 1.0, name: value}
    with pytest.raises(InputError, match=rf"^{name} must be above 0\. Received: {value}$"):
        TransformerSchedule(**arguments)
