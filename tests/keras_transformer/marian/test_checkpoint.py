import json
import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from marian_files import SHAPES, random_weights, write_hugging_face, write_release

from keras_transformer.errors import InputError
from keras_transformer.marian.checkpoint import read_marian

SHAPE = SHAPES["swish"]
IDS = {"source": np.array([[5, 9, 30, 2], [7, 2, 0, 0]]), "target": np.array([[1, 8, 6, 40]] * 2)}


@pytest.fixture(scope="module")
def hugging_face(tmp_path_factory):
    return write_hugging_face(tmp_path_factory.mktemp("hugging_face"), SHAPE, seed=1)


@pytest.mark.parametrize(
    "name, tying", [("swish", "three-way"), ("two vocabularies", "output"), ("untied", "none")]
)
def test_every_variable_has_its_tensor(tmp_path, name, tying):
    shape = SHAPES[name]
    checkpoint = read_marian(write_hugging_face(tmp_path, shape, seed=1))
    tensors = random_weights(shape, seed=1)
    model = checkpoint.build_model()
    variables = {v.path: v.numpy() for v in model.trainable_variables}

    assert checkpoint.config.tying == tying
    assert variables.keys() == checkpoint.weights.keys()
    for path, value in variables.items():
        np.testing.assert_array_equal(value, checkpoint.weights[path])
    layer = "model.decoder.layers.1"
    for path, name in {
        "decoder/layer_1/cross_attention/key": f"{layer}.encoder_attn.k_proj",
        "decoder/layer_1/feed_forward/inner": f"{layer}.fc1",
        "encoder/layer_0/self_attention/output": "model.encoder.layers.0.self_attn.out_proj",
    }.items():
        np.testing.assert_array_equal(variables[f"{path}/kernel"], tensors[f"{name}.weight"].T)
        np.testing.assert_array_equal(variables[f"{path}/bias"], tensors[f"{name}.bias"])
    np.testing.assert_array_equal(
        variables["decoder/layer_1/cross_attention_residual/normalization/gamma"],
        tensors[f"{layer}.encoder_attn_layer_norm.weight"],
    )


def test_rows_are_ours_and_the_start_row_is_the_decoder_start_token_without_a_share(hugging_face):
    checkpoint = read_marian(hugging_face)
    tensors = random_weights(SHAPE, seed=1)
    table, bias = tensors["model.shared.weight"], tensors["final_logits_bias"][0]
    order = [SHAPE.pad_id, SHAPE.pad_id, 0, 1, *range(2, SHAPE.pad_id)]

    assert checkpoint.tokenizer.target.words[:4] == ("<pad>", "<s>", "</s>", "<unk>")
    np.testing.assert_array_equal(
        checkpoint.weights["target_embedding/embeddings"], table[np.array(order)]
    )
    expected = bias[np.array(order)]
    expected[1] = -100
    np.testing.assert_array_equal(checkpoint.weights["target_embedding/output_bias"], expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_becomes_float32(tmp_path, hugging_face, dtype):
    import ml_dtypes
    from safetensors.numpy import save_file

    directory = _copy(hugging_face, tmp_path)
    kind = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}[dtype]
    halves = {name: value.astype(kind) for name, value in random_weights(SHAPE, seed=1).items()}
    save_file(halves, directory / "model.safetensors")

    weights = read_marian(directory).weights
    value = weights["encoder/layer_0/feed_forward/outer/kernel"]
    assert value.dtype == np.float32
    expected = halves["model.encoder.layers.0.fc2.weight"].astype(np.float32).T
    np.testing.assert_array_equal(value, expected)


def test_shards_are_one_checkpoint(tmp_path, hugging_face):
    from safetensors.numpy import save_file

    directory = _copy(hugging_face, tmp_path)
    (directory / "model.safetensors").unlink()
    tensors = random_weights(SHAPE, seed=1)
    homes = {name: f"model-{i % 2 + 1}.safetensors" for i, name in enumerate(tensors)}
    for file in set(homes.values()):
        save_file({n: v for n, v in tensors.items() if homes[n] == file}, directory / file)
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": homes}))

    _assert_same_weights(read_marian(directory), read_marian(hugging_face))
    (directory / "model-2.safetensors").unlink()
    with pytest.raises(InputError, match="must list files that lie beside it.*model-2.safetensors"):
        read_marian(directory)


def test_keras_weights_are_the_same_checkpoint(tmp_path, hugging_face):
    directory = write_hugging_face(tmp_path, SHAPE, seed=1, weights_file="tf_model.h5")
    _assert_same_weights(read_marian(directory), read_marian(hugging_face))


@pytest.mark.parametrize("name", ["released", "released relu"])
def test_a_release_gives_what_its_conversion_gives(tmp_path, name):
    converted = read_marian(write_hugging_face(tmp_path / "converted", SHAPES[name], seed=3))
    released = read_marian(write_release(tmp_path / "released", SHAPES[name], seed=3))

    assert released.tokenizer.source.words == converted.tokenizer.source.words
    assert released.config == replace(converted.config, dropout=released.config.dropout)
    np.testing.assert_array_equal(released.build_model()(IDS), converted.build_model()(IDS))


def test_source_and_target_words_over_one_tied_matrix(tmp_path, hugging_face):
    directory = _copy(hugging_face, tmp_path)
    vocabulary = json.loads((directory / "vocab.json").read_text())
    (directory / "target_vocab.json").write_text(json.dumps(vocabulary))
    other = {("other" if i == 5 else word): i for word, i in vocabulary.items()}
    (directory / "vocab.json").write_text(json.dumps(other))
    (directory / "tokenizer_config.json").write_text(json.dumps({"separate_vocabs": True}))

    checkpoint = read_marian(directory)
    assert checkpoint.config.tying == "output"
    assert checkpoint.config.source_vocabulary_size == len(vocabulary) + 1
    np.testing.assert_array_equal(
        checkpoint.build_model()(IDS), read_marian(hugging_face).build_model()(IDS)
    )


def test_what_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(InputError, match="must be a folder. Received: .*nowhere"):
        read_marian(tmp_path / "nowhere")
    with pytest.raises(InputError, match="must hold config.json .* or decoder.yml"):
        read_marian(tmp_path)


@pytest.mark.parametrize(
    "name, message",
    [
        ("source.spm", "must hold source.spm"),
        ("target.spm", "must hold target.spm"),
        ("vocab.json", "must hold vocab.json"),
        ("model.safetensors", "must hold its weights as model.safetensors or"),
    ],
)
def test_a_missing_file_is_named(tmp_path, hugging_face, name, message):
    directory = _copy(hugging_face, tmp_path)
    (directory / name).unlink()
    with pytest.raises(InputError, match=message):
        read_marian(directory)


def _without(name):
    return lambda tensors: tensors.pop(name)


def _cut(name):
    return lambda tensors: tensors.update({name: tensors[name][:-1].copy()})


@pytest.mark.parametrize(
    "change, message",
    [
        (_without("model.decoder.layers.0.fc1.bias"), "must hold model.decoder.layers.0.fc1.bias"),
        (_without("model.shared.weight"), "must hold model.shared.weight of shape"),
        (
            _cut("model.encoder.layers.1.self_attn.q_proj.weight"),
            r"q_proj.weight must have shape \[32, 32\]. Received: \[31, 32\]",
        ),
        (
            lambda tensors: tensors.update({"model.encoder.layer_norm.weight": np.ones(32, "f4")}),
            "model.encoder.layer_norm.weight is a tensor that this architecture does not have",
        ),
        (
            lambda tensors: tensors.update({"lm_head.weight": tensors["model.shared.weight"] + 1}),
            "lm_head.weight must equal model.shared.weight",
        ),
        (
            lambda tensors: tensors.update(
                {"model.encoder.embed_positions.weight": np.ones((512, 32), "f4")}
            ),
            "embed_positions.weight must be the table of sinusoids",
        ),
        (
            lambda tensors: tensors.update(
                {"model.encoder.layers.0.fc2.bias": np.ones(32, np.int8)}
            ),
            "fc2.bias must be of type float16, .*Received: int8",
        ),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(tmp_path, hugging_face, change, message):
    from safetensors.numpy import save_file

    directory = _copy(hugging_face, tmp_path)
    tensors = random_weights(SHAPE, seed=1)
    change(tensors)
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(InputError, match=message):
        dict(read_marian(directory).weights)


def test_copies_and_tables_of_sinusoids_are_known(tmp_path, hugging_face):
    from safetensors.numpy import save_file

    directory = _copy(hugging_face, tmp_path)
    tensors = random_weights(SHAPE, seed=1)
    angles = np.arange(512)[:, None] * 1e4 ** (-np.arange(0, 32, 2) / 32)
    table = np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float16)
    for side in ("encoder", "decoder"):
        tensors[f"model.{side}.embed_tokens.weight"] = tensors["model.shared.weight"].copy()
        tensors[f"model.{side}.embed_positions.weight"] = table.copy()
    tensors["lm_head.weight"] = tensors["model.shared.weight"].copy()
    del tensors["final_logits_bias"]
    save_file(tensors, directory / "model.safetensors")

    checkpoint = read_marian(directory)
    bias = checkpoint.weights["target_embedding/output_bias"]
    np.testing.assert_array_equal(bias, np.where(np.arange(len(bias)) == 1, -100, 0))


def test_a_pickle_needs_torch_and_says_so(tmp_path, hugging_face, monkeypatch):
    directory = _copy(hugging_face, tmp_path)
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match="only PyTorch reads. Install torch, or save.*safetensors"):
        read_marian(directory)


class _Tensor:
    """As much of a tensor of PyTorch as is asked for."""

    def __init__(self, array):
        self.array = array
        self.shape = array.shape

    def __getitem__(self, rows):
        return _Tensor(self.array[rows])

    def dim(self):
        return self.array.ndim

    def is_floating_point(self):
        return True

    def float(self):
        return _Tensor(self.array.astype(np.float32))

    def numpy(self):
        return self.array


def test_a_pickle_is_read_by_torch_without_running_it(tmp_path, hugging_face, monkeypatch):
    directory = _copy(hugging_face, tmp_path)
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")

    def load(path, *, map_location, weights_only, mmap):
        assert path == directory / "pytorch_model.bin"
        assert weights_only is True
        assert mmap is False  # the file is no zip archive
        return {name: _Tensor(value) for name, value in random_weights(SHAPE, seed=1).items()}

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(load=load))
    _assert_same_weights(read_marian(directory), read_marian(hugging_face))

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(load=lambda *_, **__: ["no", "dict"]))
    with pytest.raises(InputError, match="pytorch_model.bin must be a dict of tensors"):
        read_marian(directory)


@pytest.mark.parametrize("name", ["model.safetensors", "tf_model.h5"])
def test_a_broken_weight_file_is_named(tmp_path, hugging_face, name):
    directory = _copy(hugging_face, tmp_path)
    (directory / "model.safetensors").unlink()
    (directory / name).write_bytes(b"no such thing")
    with pytest.raises(InputError, match=f"{name} must be a"):
        read_marian(directory)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["hugging_face", "keras", "release"])
def test_a_base_model_is_built_in_less_than_twice_its_size(tmp_path, form):
    shape = replace(SHAPES["base"], vocabulary_size=58_101)
    if form == "release":
        write_release(tmp_path, shape, seed=1)
    else:
        file = {"hugging_face": "model.safetensors", "keras": "tf_model.h5"}[form]
        write_hugging_face(tmp_path, shape, 1, weights_file=file)
    script = """
        import resource, sys, time
        import tensorflow_text
        from keras_transformer.marian.checkpoint import read_marian

        def peak():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

        before, start = peak(), time.process_time()
        model = read_marian(sys.argv[1]).build_model()
        print(peak() - before, 4 * model.count_params(), time.process_time() - start)
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), tmp_path],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    growth, size, seconds = map(float, result.stdout.split())
    assert size > 295e6
    assert growth < 2 * size
    assert seconds < 10


def _copy(directory, target):
    for path in directory.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return target


def _assert_same_weights(checkpoint, other):
    assert checkpoint.weights.keys() == other.weights.keys()
    for path, value in checkpoint.weights.items():
        np.testing.assert_array_equal(value, other.weights[path])
