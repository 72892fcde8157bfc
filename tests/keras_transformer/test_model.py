import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from numpy_reference import Forward, mean_loss, multi_head_attention
from small_models import (
    padded_ids,
    rewind_dropout,
    small_batch,
    small_config,
    small_model,
    weights_by_path,
)

from keras_transformer import (
    SmoothedCrossEntropy,
    Transformer,
    TransformerSchedule,
    build_transformer,
)
from keras_transformer.layers import causal_mask, padding_mask

VARIANTS = {
    "paper": {},
    "pre-norm": {"norm": "pre"},
    "output tying": {"tying": "output"},
    "two vocabularies": {"tying": "output", "source_vocabulary_size": 31},
    "no tying": {"tying": "none", "source_vocabulary_size": 31, "norm": "pre"},
    "free d_k and d_v": {"d_k": 3, "d_v": 5},
    "learned positions": {"positions": "learned", "maximum_positions": 6},
    "attention bias": {"attention_bias": True, "norm": "pre"},
    "gelu": {"activation": "gelu", "num_encoder_layers": 1, "num_decoder_layers": 3},
    "large epsilon": {"layer_norm_epsilon": 0.1, "activation": "swish"},
    "sines before cosines": {"positions": "sinusoidal-halves", "activation": "gelu_sigmoid"},
    "dot product": {"compatibility": "dot_product"},
    "additive": {"compatibility": "additive"},
    "window": {"attention_window": 3},
    "chunks": {"attention_chunk": 2},
    "window, chunks, additive": {
        "attention_window": 2,
        "attention_chunk": 3,
        "compatibility": "additive",
    },
    "output bias": {"output_bias": True},
    "output bias, no tying": {"output_bias": True, "tying": "none", "scale_embedding": False},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_the_whole_forward_pass_is_the_papers(changes):
    model = small_model(**changes)
    inputs, labels = small_batch()
    logits = model(inputs)
    assert logits.dtype == tf.float32 and logits.shape == (*labels.shape, 20)
    reference = Forward(weights_by_path(model), model.config)
    for b, label in enumerate(labels):
        real = label != 0
        expected = reference.logits(inputs["source"][b], inputs["target"][b])
        np.testing.assert_allclose(logits[b][real], expected[real], rtol=1e-5, atol=1e-5)


def test_encode_is_the_encoder_alone():
    model = small_model()
    source = small_batch()[0]["source"]
    memory, mask = model.encode(source)
    np.testing.assert_array_equal(mask[:, 0, 0], source != 0)
    reference = Forward(weights_by_path(model), model.config)
    for b, ids in enumerate(source):
        expected = reference.encode(ids)[ids != 0]
        np.testing.assert_allclose(memory[b][ids != 0], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("tying", "matrices"),
    [
        ("three-way", ["target_embedding"]),
        ("output", ["source_embedding", "target_embedding"]),
        ("none", ["output_projection", "source_embedding", "target_embedding"]),
    ],
)
def test_tied_matrices_are_one(tying, matrices):
    model = small_model(tying=tying)
    found = [path for path in weights_by_path(model) if path.endswith("/embeddings")]
    assert sorted(found) == [f"{name}/embeddings" for name in matrices]


def test_attention_weights_of_every_attention_of_every_layer():
    model = small_model(num_decoder_layers=3)
    inputs, labels = small_batch()
    source, target = inputs["source"], inputs["target"]
    weights = model.attention_weights(source, target)
    assert [len(weights[name]) for name in ("encoder", "decoder", "cross")] == [2, 3, 3]
    real_source = (source != 0)[:, None, None, :]
    for layer in weights["encoder"]:
        assert layer.shape == (3, 4, 7, 7)
        assert np.all((layer.numpy() > 0) <= real_source)
        np.testing.assert_allclose(layer.numpy().sum(-1), 1.0, rtol=1e-5)
    for layer in weights["decoder"]:
        assert layer.shape == (3, 4, 6, 6)
        assert np.all((layer.numpy() > 0) == causal_mask(6).numpy())
    for layer in weights["cross"]:
        assert layer.shape == (3, 4, 6, 7)
        assert np.all((layer.numpy() > 0) <= real_source)
    reference = Forward(weights_by_path(model), model.config)
    x = reference.embed(source[1], "source")
    seen = np.tile(source[1] != 0, (7, 1))
    _, expected = multi_head_attention(
        x, x, reference.under("encoder/layer_0/self_attention"), 4, seen
    )
    np.testing.assert_allclose(weights["encoder"][0][1], expected, atol=1e-5)


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_later_target_tokens_move_nothing_before_them(rate, in_graph):
    model = small_model(dropout=rate, attention_dropout=rate, activation_dropout=rate)
    inputs, _ = small_batch((7, 4), (6, 6))
    source = tf.constant(inputs["source"])

    def call(target, training):
        return model({"source": source, "target": target}, training=training)

    run = tf.function(call) if in_graph else call
    for training in (False, True):
        for t in (0, 4):
            changed = inputs["target"].copy()
            changed[:, t + 1 :] = 23 - changed[:, t + 1 :]
            results = []
            for target in (inputs["target"], changed):
                rewind_dropout(model)
                results.append(run(tf.constant(target), training).numpy())
            before, after = results
            np.testing.assert_allclose(after[:, : t + 1], before[:, : t + 1], atol=1e-6)
            assert np.abs(after[:, t + 1 :] - before[:, t + 1 :]).max() > 1e-2


def test_dropout_is_active_in_training_only():
    model = small_model(dropout=0.3)
    inputs, _ = small_batch()
    np.testing.assert_array_equal(model(inputs), model(inputs, training=False))
    assert np.abs(model(inputs, training=True).numpy() - model(inputs).numpy()).max() > 0.1


def every_depth(model: Transformer, source, target) -> list[np.ndarray]:
    """Outputs of embedding and each layer of the encoder, then of the decoder, then the logits."""
    mask = padding_mask(source)
    x = model.source_positions(model.source_embedding(source))
    encoder, decoder = [x], []
    for layer in model.encoder.stack:
        x = layer(x, attention_mask=mask)
        encoder.append(x)
    y = model.target_positions(model.target_embedding(target))
    decoder.append(y)
    for layer in model.decoder.stack:
        y = layer(y, model.encoder.finish(x), memory_attention_mask=mask)
        decoder.append(y)
    decoder.append(model({"source": source, "target": target}))
    return encoder, decoder


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_ten_more_pads_move_nothing_at_any_depth(norm, side):
    model = small_model(norm=norm, num_encoder_layers=3, num_decoder_layers=3)
    inputs, labels = small_batch()
    padded = {**inputs, side: np.pad(inputs[side], [(0, 0), (0, 10)])}
    real = {"source": inputs["source"] != 0, "target": labels != 0}
    for before, after, is_real in zip(
        every_depth(model, **inputs), every_depth(model, **padded), real.values(), strict=True
    ):
        assert len(before) >= 4
        for depth, (a, b) in enumerate(zip(before, after, strict=True)):
            b = b.numpy()[:, : is_real.shape[1]][is_real]
            np.testing.assert_allclose(b, a.numpy()[is_real], atol=1e-5, err_msg=str(depth))


def test_batch_mates_move_nothing():
    model = small_model()
    inputs, labels = small_batch()
    together = model(inputs).numpy()
    for b, (source, target) in enumerate(zip(*inputs.values(), strict=True)):
        length = np.count_nonzero(labels[b])
        source = source[None, : np.count_nonzero(source)]
        alone = model({"source": source, "target": target[None, :length]})
        np.testing.assert_allclose(alone[0], together[b, :length], atol=1e-5)


def test_a_sentence_of_nothing_but_padding_is_finite_and_trains():
    model = small_model(num_encoder_layers=1, num_decoder_layers=1)
    inputs, labels = small_batch()
    for ids in (*inputs.values(), labels):
        ids[1] = 0
    assert np.all(np.isfinite(model(inputs)))
    model.compile("sgd", loss=SmoothedCrossEntropy(), run_eagerly=True)
    model.train_on_batch(inputs, labels)
    assert all(np.all(np.isfinite(w)) for w in weights_by_path(model).values())


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_forward_and_one_step_below_float32(policy):
    rates = {"dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.1}
    model = small_model(dtype=policy, num_encoder_layers=1, num_decoder_layers=1, **rates)
    inputs, labels = small_batch()
    inputs["source"][1] = 0
    logits = model(inputs)
    assert logits.dtype == tf.float32 and np.all(np.isfinite(logits))
    assert {v.dtype for v in model.trainable_variables} == {"float32"}
    compute_dtype = keras.DTypePolicy(policy).compute_dtype
    assert {layer.compute_dtype for layer in model.encoder._flatten_layers()} <= {
        compute_dtype,
        "float32",  # dropout of the attention weights, which are float32
    }
    assert model.encode(inputs["source"])[0].dtype == compute_dtype
    before = weights_by_path(model)
    model.compile(
        keras.optimizers.Adam(TransformerSchedule(16, 10), 0.9, 0.98, epsilon=1e-9),
        loss=SmoothedCrossEntropy(),
    )
    history = model.fit(inputs, labels, batch_size=3, verbose=0).history
    assert all(np.isfinite(values[0]) for values in history.values())
    after = weights_by_path(model)
    assert all(np.all(np.isfinite(w)) for w in after.values())
    assert any(np.any(before[path] != after[path]) for path in after)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_is_near_float32(policy):
    full, half = small_model(), small_model(dtype=policy)
    half.set_weights(full.get_weights())
    inputs, labels = small_batch()
    error = np.abs(half(inputs).numpy() - full(inputs).numpy())[labels != 0].max()
    assert 0 < error < {"mixed_bfloat16": 0.15, "mixed_float16": 0.02}[policy]


def test_float16_training_scales_the_loss_and_unscales_the_gradient():
    """Without scaling, small gradients vanish in float16."""
    keras.utils.set_random_seed(1)
    inputs, labels = small_batch()
    trained, start = [], None
    for policy in ("float32", "mixed_float16"):
        config = small_config(num_encoder_layers=1, num_decoder_layers=1)
        model = build_transformer(config, dtype=policy)
        start = start or model.get_weights()
        model.set_weights(start)
        model.compile(keras.optimizers.SGD(0.1), loss=SmoothedCrossEntropy())
        is_scaled = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
        assert is_scaled == (policy == "mixed_float16")
        shown = model.train_on_batch(inputs, labels, return_dict=True)["loss"]
        trained.append((float(shown), model.get_weights()))
    assert trained[1][0] == pytest.approx(trained[0][0], rel=1e-2)
    for full, half, before in zip(trained[0][1], trained[1][1], start, strict=True):
        np.testing.assert_allclose(half - before, full - before, atol=2e-3)


def test_one_word_sentences_warn_of_nothing():
    model = small_model(num_encoder_layers=1, num_decoder_layers=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model({"source": np.array([[2]]), "target": np.array([[1]])})


def batches_of_lengths(lengths) -> tf.data.Dataset:
    def generate():
        for length in lengths:
            yield small_batch((length, length - 1), (length - 1, length), seed=length)

    ids = tf.TensorSpec((None, None), tf.int32)
    return tf.data.Dataset.from_generator(
        generate, output_signature=({"source": ids, "target": ids}, ids)
    )


def test_fit_over_many_lengths_is_traced_once_and_warns_of_no_lost_mask(recwarn):
    traces = []

    class Counted(Transformer):
        def train_step(self, data):
            traces.append(data)  # runs when Python does: while a graph is traced
            return super().train_step(data)

    model = Counted(small_config(num_encoder_layers=1, num_decoder_layers=1))
    model.compile("sgd", loss=SmoothedCrossEntropy(), jit_compile=False)
    model.fit(batches_of_lengths(range(5, 61, 5)), verbose=0)
    assert len(traces) == 1
    model.fit(batches_of_lengths(range(60, 5, -5)), verbose=0)
    assert len(traces) == 1
    assert not [str(w.message) for w in recwarn if "mask" in str(w.message)]


def test_the_loss_shown_is_the_token_mean_of_all_batches():
    model = small_model(num_encoder_layers=1, num_decoder_layers=1)
    model.compile(keras.optimizers.SGD(0.0), loss=SmoothedCrossEntropy(0.1))
    lengths = (4, 30)
    total = tokens = 0
    for inputs, labels in (small_batch((n, n - 1), (n - 1, n), seed=n) for n in lengths):
        number = np.count_nonzero(labels)
        total += number * mean_loss(model(inputs).numpy(), labels, 0.1)
        tokens += number
    shown = model.fit(batches_of_lengths(lengths), verbose=0).history["loss"][0]
    assert shown == pytest.approx(total / tokens, rel=1e-5)
    assert model.evaluate(batches_of_lengths(lengths), verbose=0) == pytest.approx(shown, rel=1e-5)


def test_a_step_follows_the_gradient_of_the_token_mean():
    model = small_model(num_encoder_layers=1, num_decoder_layers=1)
    inputs, labels = small_batch()
    weights = np.repeat(np.array([[0.5], [1.0], [2.0]], "float32"), labels.shape[1], axis=1)
    variables = model.trainable_variables
    with tf.GradientTape() as tape:
        log_p = tf.nn.log_softmax(model(inputs))
        q = 0.9 * tf.one_hot(labels, 20) + 0.1 / 20
        real = weights * (labels != 0)
        loss = -tf.reduce_sum(tf.reduce_sum(q * log_p, -1) * real) / tf.reduce_sum(real)
    gradients = tape.gradient(loss, [v.value for v in variables])
    gradients = [tf.convert_to_tensor(gradient).numpy() for gradient in gradients]
    expected = [v.numpy() - 0.5 * g for v, g in zip(variables, gradients, strict=True)]
    model.compile(keras.optimizers.SGD(0.5), loss=SmoothedCrossEntropy(0.1))
    shown = model.train_on_batch(inputs, labels, sample_weight=weights, return_dict=True)
    assert float(shown["loss"]) == pytest.approx(float(loss), rel=1e-5)
    norm = np.sqrt(sum(np.sum(g.astype("float64") ** 2) for g in gradients))
    assert float(shown["gradient_norm"]) == pytest.approx(norm, rel=1e-5)
    for variable, value in zip(variables, expected, strict=True):
        np.testing.assert_allclose(variable.numpy(), value, atol=1e-5, err_msg=variable.path)


def test_another_loss_takes_keras_own_step():
    model = small_model(num_encoder_layers=1, num_decoder_layers=1)
    inputs, labels = small_batch((4, 4), (5, 5))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss=loss, run_eagerly=True)
    expected = mean_loss(model(inputs).numpy(), labels, 0.0)
    assert float(model.evaluate(inputs, labels, verbose=0)) == pytest.approx(expected, rel=1e-5)
    shown = model.train_on_batch(inputs, labels, return_dict=True)
    assert float(shown["loss"]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("changes", [{}, {"positions": "learned", "norm": "pre", "tying": "none"}])
def test_decoding_step_by_step_is_the_whole_forward_pass(changes):
    model = small_model(**changes)
    inputs, labels = small_batch((7, 4, 5), (6, 6, 6))
    expected = model(inputs).numpy()
    step, state = model.start_decoding(inputs["source"], beam_size=2)
    for t in range(6):
        tokens = np.repeat(inputs["target"][:, t, None], 2, axis=1)
        logits, state = step(tf.constant(tokens), tf.constant(t), state)
        assert logits.shape == (3, 2, 20) and logits.dtype == tf.float32
        for k in range(2):
            np.testing.assert_allclose(logits[:, k], expected[:, t], atol=1e-5)


def test_the_dtype_of_the_global_policy():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = build_transformer(small_config(num_encoder_layers=1, num_decoder_layers=1))
    finally:
        keras.config.set_dtype_policy("float32")
    assert model.encode(padded_ids([3], 4))[0].dtype == tf.bfloat16
