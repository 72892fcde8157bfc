"""The training step on one device: parts of a batch, clipping, loss scale, metrics."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import POLICIES, small_batch, small_config, small_model

from keras_transformer import InputError, Perplexity, SmoothedCrossEntropy, build_transformer
from keras_transformer.training_step import gradients_in_parts, layer_names

SOURCE, TARGET = (7, 4, 5, 3, 6, 2, 1), (9, 8, 1, 2, 7, 3, 5)


def compiled(dtype=None, optimizer=None, accumulate_steps=1, **config):
    keras.utils.set_random_seed(3)
    model = build_transformer(
        small_config(num_encoder_layers=1, num_decoder_layers=1, **config), dtype=dtype
    )
    model.compile(
        optimizer or keras.optimizers.SGD(0.5),
        SmoothedCrossEntropy(0.1),
        weighted_metrics=[Perplexity()],
    )
    model.accumulate_steps = accumulate_steps
    return model


def fitted(model, sample_weight=None):
    inputs, labels = small_batch(SOURCE, TARGET)
    data = (inputs, labels) if sample_weight is None else (inputs, labels, sample_weight)
    dataset = tf.data.Dataset.from_tensors(data)
    history = model.fit(dataset, shuffle=False, verbose=0).history
    return {name: values[0] for name, values in history.items()}


def flat(model):
    return np.concatenate([v.numpy().ravel() for v in model.trainable_variables])


@pytest.mark.parametrize("accumulate_steps", [2, 5, 7, 20])
def test_parts_make_the_update_of_the_whole_batch(accumulate_steps):
    whole, parts = compiled(), compiled(accumulate_steps=accumulate_steps)
    start = flat(whole)
    expected, shown = fitted(whole), fitted(parts)
    assert np.abs(flat(whole) - start).max() > 1e-3
    np.testing.assert_allclose(flat(parts), flat(whole), atol=1e-6)
    assert shown.keys() == expected.keys() == {"loss", "perplexity", "gradient_norm"}
    for name, value in expected.items():
        assert shown[name] == pytest.approx(value, rel=1e-5), name


@pytest.mark.parametrize("per_token", [False, True])
def test_parts_take_their_rows_of_the_sample_weights(per_token):
    weights = np.linspace(0.0, 2.0, len(SOURCE)).astype("float32")
    if per_token:
        weights = weights[:, None] * np.ones((1, max(TARGET)), "float32")
    whole, parts = compiled(), compiled(accumulate_steps=3)
    expected, shown = fitted(whole, weights), fitted(parts, weights)
    np.testing.assert_allclose(flat(parts), flat(whole), atol=1e-6)
    assert shown["loss"] == pytest.approx(expected["loss"], rel=1e-5)


@pytest.mark.parametrize("accumulate_steps", [1, 3])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_whole_gradient_is_clipped_after_it_is_unscaled(policy, accumulate_steps):
    optimizer = keras.optimizers.SGD(1.0, global_clipnorm=0.01)
    if policy == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    model = compiled(policy, optimizer, accumulate_steps)
    start = flat(model)
    assert fitted(model)["gradient_norm"] > 0.1
    assert np.linalg.norm(flat(model) - start) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("accumulate_steps", [1, 3])
def test_an_overflow_halves_the_loss_scale_and_updates_nothing(accumulate_steps):
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(1.0), initial_scale=2.0**40
    )
    model = compiled("mixed_float16", optimizer, accumulate_steps)
    start = flat(model)
    assert np.isfinite(fitted(model)["loss"])
    np.testing.assert_array_equal(flat(model), start)
    assert float(optimizer.dynamic_scale) == 2.0**39
    assert int(optimizer.iterations) == 0


def test_dropout_differs_from_part_to_part_and_from_step_to_step():
    model = compiled(accumulate_steps=4, dropout=0.5)
    seeds = [v for v in model.non_trainable_variables if v.name == "seed_generator_state"]
    before = [seed.numpy().tolist() for seed in seeds]
    fitted(model)
    # Each part draws once from each dropout.
    for seed, (state, draws) in zip(seeds, before, strict=True):
        assert seed.numpy().tolist() == [state, draws + 4]


def test_parts_draw_other_dropouts():
    dropout = keras.layers.Dropout(0.5, seed=1)
    layer = keras.Sequential([keras.Input((50,)), dropout, keras.layers.Dense(1)])
    seen = []

    def forward(x):
        kept = layer.layers[0](x, training=True)
        seen.append(kept)
        return tf.reduce_sum(layer.layers[1](kept) ** 2), tf.reduce_sum(kept * tf.range(50.0))

    @tf.function(autograph=False)
    def total(parts):
        _, summed = gradients_in_parts(layer, (tf.ones((parts, 50)),), parts, forward)
        return summed

    # Were the parts alike, the sum of two would be twice that of the first.
    dropout.seed_generator.state.assign([1, 0])
    one = float(total(1))
    dropout.seed_generator.state.assign([1, 0])
    assert float(total(2)) != pytest.approx(2 * one)


@pytest.mark.parametrize("steps", [0, -1, 1.5, "2"])
def test_other_numbers_of_parts_are_refused(steps):
    with pytest.raises(InputError, match="accumulate_steps must be at least 1. Received"):
        compiled().accumulate_steps = steps


def test_another_loss_cannot_be_accumulated():
    model = compiled()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.accumulate_steps = 2
    with pytest.raises(InputError, match="accumulate_steps needs the loss SmoothedCrossEntropy"):
        fitted(model)


def test_a_new_number_of_parts_is_used_after_a_fit():
    model, whole = compiled(), compiled()
    fitted(model)
    fitted(whole)
    model.accumulate_steps = 3
    fitted(model)
    fitted(whole)
    np.testing.assert_allclose(flat(model), flat(whole), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"attention_chunk": 2}, {"attention_window": 3}])
def test_xla_trains_chunks_and_windows_too(changes):
    losses = []
    for jit_compile in (False, True):
        keras.utils.set_random_seed(1)
        model = small_model(**changes)
        model.compile("sgd", SmoothedCrossEntropy(0.1), jit_compile=jit_compile)
        batch = small_batch(SOURCE, TARGET)
        losses.append([model.train_on_batch(*batch)[0] for _ in range(3)])
    np.testing.assert_allclose(*losses, rtol=1e-5)


@pytest.mark.parametrize("accumulate_steps", [1, 3])
@pytest.mark.parametrize("policy", POLICIES)
def test_gradient_norms_by_layer_make_up_the_whole_norm(policy, accumulate_steps):
    optimizer = keras.optimizers.SGD(0.1)
    if policy == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    model = compiled(policy, optimizer, accumulate_steps)
    model.logs_layer_gradients = True
    seen = []
    watch = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(logs))
    shown = model.fit(
        tf.data.Dataset.from_tensors(small_batch(SOURCE, TARGET)),
        shuffle=False,
        verbose=0,
        callbacks=[watch],
    )
    assert "layer_gradient_norms" not in shown.history
    norms = np.asarray(seen[0]["layer_gradient_norms"])
    names = layer_names(model.trainable_variables)
    assert names == ["target_embedding", "encoder/layer_0", "decoder/layer_0"]
    assert norms.shape == (3,) and np.all(norms > 0)
    assert np.linalg.norm(norms) == pytest.approx(float(seen[0]["gradient_norm"]), rel=1e-3)
