"""Round trips through JSON and `.keras`, here and in a process that only imports the package."""

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from small_models import (
    functional,
    randomize,
    small_arguments,
    small_batch,
    small_config,
    small_model,
    weights_by_path,
)

import keras_transformer
from keras_transformer import (
    Perplexity,
    SmoothedCrossEntropy,
    TokenAccuracy,
    Transformer,
    TransformerSchedule,
)
from keras_transformer.layers import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    FeedForward,
    LearnedPositions,
    MultiHeadAttention,
    Projection,
    Residual,
    SinusoidalPositions,
    TokenEmbedding,
)

WIDE = (None, 8)

LOAD_ALL = """
import json, pathlib, sys
import keras
import numpy as np
import keras_transformer

folder = pathlib.Path(sys.argv[1])
for path in sorted(folder.glob("*.keras")):
    data = np.load(path.with_suffix(".inputs.npz"))
    names = sorted(data.files)
    values = [data[name] for name in names]
    inputs = dict(zip(names, values)) if "source" in names else values
    from_file = keras.models.load_model(path)
    from_json = keras.models.model_from_json(path.with_suffix(".json").read_text())
    from_json.set_weights(from_file.get_weights())
    outputs = [keras.tree.flatten(m(inputs))[0].numpy() for m in (from_file, from_json)]
    np.savez(
        path.with_suffix(".outputs.npz"), from_file=outputs[0], from_json=outputs[1],
        parameters=from_file.count_params(), class_name=type(from_file).__name__,
    )
"""


def functional_models() -> dict[str, keras.Model]:
    """Every layer in someone's functional model, with arguments that are not the defaults."""
    arguments = small_arguments(norm="pre", dropout=0.1, activation="gelu", attention_bias=True)
    embedding = TokenEmbedding(20, 8)
    masked_embedding = keras.layers.Embedding(20, 8, mask_zero=True)
    masked_layer = EncoderLayer(small_arguments())

    def parts(x, memory):
        x = LearnedPositions(4)(SinusoidalPositions()(x))
        x = MultiHeadAttention(2, 3, 5, 0.1, use_bias=True)(x, memory)
        x = MultiHeadAttention(2, 3, compatibility="additive", chunk=2)(x, memory)
        x = MultiHeadAttention(2, 3, window=3)(x, x, causal=True)
        return Projection(3, activation="relu")(FeedForward(12, "swish", 0.1)(x))

    return {
        "parts": functional(parts, WIDE, WIDE),
        "embedding": functional(
            lambda ids: embedding(embedding(ids), reverse=True), (None,), dtype="int32"
        ),
        "masked": functional(
            lambda ids: masked_layer(masked_embedding(ids)), (None,), dtype="int32"
        ),
        "encoder": functional(lambda x: Encoder(1, arguments)(EncoderLayer(arguments)(x)), WIDE),
        "encoder_weights": functional(
            lambda x: EncoderLayer(arguments)(x, return_attention_weights=True)[1], WIDE
        ),
        "decoder": functional(
            lambda y, memory: Decoder(1, arguments)(DecoderLayer(arguments)(y, memory), memory),
            WIDE,
            WIDE,
        ),
    }


def compiled_transformer(**changes) -> Transformer:
    model = small_model(**{"num_encoder_layers": 1, "num_decoder_layers": 1, **changes})
    model.compile(
        keras.optimizers.Adam(TransformerSchedule(16, 10), 0.9, 0.98, epsilon=1e-9),
        loss=SmoothedCrossEntropy(0.2),
        metrics=[Perplexity(), TokenAccuracy()],
    )
    model.optimizer.build(model.trainable_variables)
    return model


def save(model: keras.Model, folder: Path, name: str) -> np.ndarray:
    """Writes the model both ways beside inputs for it, and returns its output for them."""
    randomize(model)
    if isinstance(model, Transformer):
        inputs = small_batch()[0]
        np.savez(folder / f"{name}.inputs.npz", **inputs)
    else:
        random = np.random.default_rng(0)
        inputs = [
            random.integers(0, 20, (2, 5 + i)).astype("int32")
            if x.dtype == "int32"
            else random.normal(size=(2, 5 + i, 8)).astype("float32")
            for i, x in enumerate(model.inputs)
        ]
        names = [f"input_{i}" for i in range(len(inputs))]
        np.savez(folder / f"{name}.inputs.npz", **dict(zip(names, inputs, strict=True)))
    model.save(folder / f"{name}.keras")
    (folder / f"{name}.json").write_text(model.to_json())
    return model(inputs).numpy()


def test_every_model_and_layer_loads_in_a_process_that_only_imports_the_package(tmp_path):
    models = {
        **functional_models(),
        "transformer": compiled_transformer(dropout=0.1),
        "two_vocabularies": small_model(
            tying="output", source_vocabulary_size=31, norm="pre", positions="learned", dropout=0.1
        ),
        "bfloat16": small_model(dtype="mixed_bfloat16", num_encoder_layers=1),
    }
    expected = {name: save(model, tmp_path, name) for name, model in models.items()}
    root = str(Path(keras_transformer.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": root, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", LOAD_ALL, str(tmp_path)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for name, model in models.items():
        found = np.load(tmp_path / f"{name}.outputs.npz")
        for way in ("from_file", "from_json"):
            np.testing.assert_allclose(
                found[way], expected[name], rtol=1e-6, atol=1e-6, err_msg=f"{name} {way}"
            )
        assert found["parameters"] == model.count_params(), name
        assert found["class_name"] == type(model).__name__


def test_a_transformer_goes_through_json_with_its_config():
    model = Transformer(small_config(norm="pre", d_k=3), name="mine", dtype="mixed_bfloat16")
    again = keras.models.model_from_json(model.to_json())
    assert type(again) is Transformer
    assert (again.config, again.name) == (model.config, "mine")
    assert again.encoder.compute_dtype == "bfloat16"
    assert json.loads(model.to_json())["config"]["config"]["d_k"] == 3


def test_residual_goes_through_its_config():
    layer = Residual(norm="pre", dropout=0.3, epsilon=0.5, dtype="mixed_bfloat16", name="mine")
    again = keras.layers.deserialize(keras.layers.serialize(layer))
    assert again.get_config() == layer.get_config()
    x = np.random.default_rng(0).normal(size=(1, 2, 4)).astype("float32")
    np.testing.assert_array_equal(
        keras.ops.cast(again(x, sublayer=lambda x: x)[0], "float32"),
        keras.ops.cast(layer(x, sublayer=lambda x: x)[0], "float32"),
    )


def test_a_loaded_model_goes_on_where_it_was(tmp_path):
    model = compiled_transformer()
    model.train_on_batch(*small_batch())
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded) is Transformer
    assert int(loaded.optimizer.iterations) == 1
    assert loaded.loss.label_smoothing == 0.2
    for batch in (small_batch(seed=3), small_batch(seed=4)):
        shown = [m.train_on_batch(*batch, return_dict=True) for m in (model, loaded)]
        for name, value in shown[0].items():
            assert float(value) == pytest.approx(float(shown[1][name]), rel=1e-5), name
    for path, weight in weights_by_path(model).items():
        np.testing.assert_allclose(weights_by_path(loaded)[path], weight, atol=1e-5, err_msg=path)


def test_the_tied_matrix_is_one_before_and_after_loading_and_after_a_step(tmp_path):
    model = compiled_transformer()
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.count_params() == model.count_params()
    for _ in range(2):
        assert loaded.source_embedding is loaded.target_embedding is loaded.output_projection
        matrices = [w for p, w in weights_by_path(loaded).items() if p.endswith("embeddings")]
        assert len(matrices) == 1
        # The logits are made from the matrix that is looked up.
        embedding = loaded.target_embedding
        np.testing.assert_array_equal(embedding.output_kernel(), matrices[0].T)
        ids = np.array([[5, 6]])
        np.testing.assert_allclose(embedding(ids)[0], 4.0 * matrices[0][[5, 6]], rtol=1e-6)
        loaded.train_on_batch(*small_batch())
    assert np.any(matrices[0] != weights_by_path(model)["target_embedding/embeddings"])
