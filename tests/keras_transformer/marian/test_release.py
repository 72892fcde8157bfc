import zipfile

import numpy as np
import pytest
import yaml
from marian_files import SHAPES, hugging_face_config, write_release
from marian_release_files import marian_options, write_decoder_options

from keras_transformer.errors import InputError
from keras_transformer.marian.checkpoint import read_marian
from keras_transformer.marian.release_settings import read_release_architecture
from keras_transformer.marian.release_vocabulary import read_release_vocabulary
from keras_transformer.marian.settings import Settings

SHAPE = SHAPES["released"]
OPTIONS = marian_options(hugging_face_config(SHAPE))
# The rest of what Marian 1.10 embeds.
NEWER = {
    "bert-train-type-embeddings": True,
    "bert-type-vocab-size": 2,
    "dec-cell": "gru",
    "dec-cell-base-depth": 2,
    "dec-cell-high-depth": 1,
    "dim-rnn": 1024,
    "enc-cell": "gru",
    "enc-cell-depth": 1,
    "enc-type": "bidirectional",
    "factors-combine": "sum",
    "factors-dim-emb": 0,
    "input-types": [],
    "layer-normalization": False,
    "lemma-dependency": "",
    "output-omit-bias": False,
    "right-left": False,
    "special-vocab": [],
    "transformer-decoder-dim-ffn": 0,
    "transformer-decoder-ffn-depth": 0,
    "transformer-depth-scaling": True,
    "transformer-pool": False,
    "transformer-postprocess-top": "",
    "ulr-dim-emb": 0,
    "ulr-trainable-transformation": False,
    "version": "v1.10.0 6f6d4846 2021-02-06 15:35:16 -0800",
}


def rewrite(directory, change):
    """Changes the arrays of a release's model."""
    path = directory / "model.npz"
    with np.load(path) as archive:
        arrays = dict(archive)
    change(arrays)
    np.savez(path, **arrays)


def test_the_search_is_that_of_marian(tmp_path):
    checkpoint = read_marian(write_release(tmp_path, SHAPE, 1))
    assert checkpoint.decoding == {
        "beam_size": 6,
        "alpha": 1.0,
        "length_penalty": "power",
        "maximum_source_length": 999,
        "early_stopping": "full_beam",
        "ends_within": "beam",
        "forced_end": "free",
        "suppressed_tokens": ["<unk>"],
    }
    names = ["opus.vocab.yml", "opus.vocab.yml"]
    write_decoder_options(
        tmp_path / "decoder.yml",
        "/elsewhere/model.npz",
        names,
        **{"allow-unk": True, "normalize": 0.6, "beam-size": 4, "max-length": 200},
    )
    decoding = read_marian(tmp_path).decoding
    assert (decoding["beam_size"], decoding["alpha"]) == (4, 0.6)
    assert (decoding["maximum_source_length"], decoding["suppressed_tokens"]) == (199, None)


def test_words_that_the_release_lacks_are_zeros_without_a_share(tmp_path):
    weights = read_marian(write_release(tmp_path, SHAPE, 1)).weights
    assert not weights["target_embedding/embeddings"][:2].any()
    assert weights["target_embedding/output_bias"][:2].tolist() == [-100, -100]
    with np.load(tmp_path / "model.npz") as arrays:
        np.testing.assert_array_equal(weights["target_embedding/embeddings"][2:], arrays["Wemb"])
        np.testing.assert_array_equal(
            weights["encoder/layer_1/self_attention/value/kernel"], arrays["encoder_l2_self_Wv"]
        )


def test_other_ties(tmp_path):
    options = {**OPTIONS, "tied-embeddings-all": False, "tied-embeddings-src": True}
    directory = write_release(tmp_path, SHAPE, 1)
    words = OPTIONS["dim-vocabs"][0]
    output = np.random.default_rng(0).normal(size=(32, words)).astype("f4")

    def untie(arrays):
        arrays["decoder_ff_logit_out_W"] = output
        arrays["special:model.yml"] = embedded(options)

    rewrite(directory, untie)
    checkpoint = read_marian(directory)
    assert checkpoint.config.tying == "none"
    weights = checkpoint.weights
    np.testing.assert_array_equal(weights["output_projection/embeddings"][2:], output.T)
    assert not weights["output_projection/embeddings"][:2].any()
    np.testing.assert_array_equal(
        weights["source_embedding/embeddings"], weights["target_embedding/embeddings"]
    )
    checkpoint.build_model()


def test_pre_norm_has_its_own_names(tmp_path):
    options = {
        **OPTIONS,
        "transformer-preprocess": "n",
        "transformer-postprocess": "da",
        "transformer-postprocess-top": "n",
    }
    directory = write_release(tmp_path, SHAPE, 1)
    scale = np.arange(32, dtype="f4")[None]

    def to_pre_norm(arrays):
        for name in [name for name in arrays if "_ln_" in name]:
            arrays[f"{name}_pre"] = arrays.pop(name)
        for side in ("encoder", "decoder"):
            arrays[f"{side}_top_ln_scale"] = scale
            arrays[f"{side}_top_ln_bias"] = -scale
        arrays["special:model.yml"] = embedded(options)

    rewrite(directory, to_pre_norm)
    checkpoint = read_marian(directory)
    assert checkpoint.config.norm == "pre"
    model = checkpoint.build_model()
    np.testing.assert_array_equal(model.decoder.final_normalization.beta, -scale[0])


def embedded(options):
    return np.frombuffer(yaml.safe_dump(options).encode() + b"\0", np.int8)


def test_every_key_of_newer_versions_is_known():
    architecture = read_release_architecture(Settings("model.npz", {**OPTIONS, **NEWER}))
    assert architecture.tying == "three-way"
    assert architecture.model["activation"] == "swish"


def test_the_gelu_of_marian_is_its_own():
    options = {**OPTIONS, "transformer-ffn-activation": "gelu"}
    architecture = read_release_architecture(Settings("model.npz", options))
    assert architecture.model["activation"] == "gelu_sigmoid"


@pytest.mark.parametrize(
    "key, value, expected",
    [
        ("type", "s2s", '"transformer"'),
        ("transformer-decoder-autoreg", "average-attention", '"self-attention"'),
        ("transformer-decoder-autoreg", "rnn", '"self-attention"'),
        ("transformer-no-projection", True, "false"),
        ("transformer-train-position-embeddings", True, "false"),
        ("transformer-tied-layers", [1, 1, 2], r"\[\]"),
        ("transformer-ffn-depth", 3, "2"),
        ("transformer-decoder-dim-ffn", 7, "0 or 64"),
        ("transformer-postprocess-emb", "nd", '"d" or ""'),
        ("transformer-ffn-activation", "tanh", '"relu" or "swish"'),
        ("lemma-dim-emb", 64, "0"),
        ("right-left", True, "false"),
        ("output-omit-bias", True, "false"),
        ("dim-vocabs", [4, 5, 6], "two whole numbers"),
        ("dim-vocabs", [159, 160], "one size twice"),
        ("enc-depth", 0, "a whole number of at least 1"),
    ],
)
def test_a_setting_that_is_not_implemented_is_refused_by_name(key, value, expected):
    with pytest.raises(InputError, match=f"model.npz: {key} must be {expected}"):
        read_release_architecture(Settings("model.npz", {**OPTIONS, **NEWER, key: value}))


@pytest.mark.parametrize("key", ["transformer-preprocess", "transformer-postprocess"])
def test_other_orders_of_normalization_are_refused(key):
    with pytest.raises(InputError, match=f"{key}.*must be '', 'dan', ''"):
        read_release_architecture(Settings("model.npz", {**OPTIONS, key: "nad"}))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"models": ["a.npz", "b.npz"]}, "models must be a list of one model: ensembles"),
        ({"vocabs": ["vocab.spm"] * 2}, "vocabs must be a list of two .yml files"),
        ({"word-penalty": 0.5}, "word-penalty must be 0. Received: 0.5"),
        ({"shortlist": ["lex.s2t.gz", 50]}, "shortlist must be "),
        ({"normalize": "much"}, "normalize must be a number of at least 0"),
        ({"beam-size": 0}, "beam-size must be a whole number of at least 1"),
        ({"lexical-magic": True}, "lexical-magic is a setting that is not known here"),
    ],
)
def test_a_search_that_is_not_implemented_is_refused_by_name(tmp_path, changes, message):
    directory = write_release(tmp_path, SHAPE, 1)
    options = yaml.safe_load((directory / "decoder.yml").read_text())
    (directory / "decoder.yml").write_text(yaml.safe_dump({**options, **changes}))
    with pytest.raises(InputError, match=f"decoder.yml: {message}"):
        read_marian(directory)


@pytest.mark.parametrize("name", ["model.npz", "opus.vocab.yml", "source.spm", "target.spm"])
def test_a_missing_file_is_named(tmp_path, name):
    directory = write_release(tmp_path, SHAPE, 1)
    (directory / name).unlink()
    with pytest.raises(InputError, match=f"A Marian release must hold {name}"):
        read_marian(directory)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda arrays: arrays.pop("Wemb"), "must hold Wemb of shape"),
        (lambda arrays: arrays.update(Wpos=np.ones((9, 32))), "Wpos is a tensor that this"),
        (lambda arrays: arrays.pop("special:model.yml"), "must hold special:model.yml"),
        (
            lambda arrays: arrays.update(decoder_l1_ffn_W1=np.ones((32, 32), "f4")),
            r"decoder_l1_ffn_W1 must have shape \[32, 64\]",
        ),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(tmp_path, change, message):
    directory = write_release(tmp_path, SHAPE, 1)
    rewrite(directory, change)
    with pytest.raises(InputError, match=f"model.npz.* {message}"):
        read_marian(directory)


def test_nothing_pickled_is_loaded(tmp_path):
    directory = write_release(tmp_path, SHAPE, 1)
    np.savez(directory / "model.npz", Wemb=np.array([print], dtype=object))
    with pytest.raises(InputError, match="must be an npz archive: .*Wemb.* is a pickled object"):
        read_marian(directory)


@pytest.mark.parametrize("content", [b"\xff: 1\n", b"a: b\nc\n", b"[" * 10_000])
@pytest.mark.parametrize("place", ["decoder.yml", "model.npz, special:model.yml"])
def test_broken_settings_are_named_in_one_line(tmp_path, content, place):
    directory = write_release(tmp_path, SHAPE, 1)
    if place == "decoder.yml":
        (directory / place).write_bytes(content)
    else:
        settings = np.frombuffer(content, np.int8)
        rewrite(directory, lambda arrays: arrays.update({"special:model.yml": settings}))
    with pytest.raises(InputError, match=f"^{place} must be YAML: ") as caught:
        read_marian(directory)
    assert "\n" not in str(caught.value)


def test_a_damaged_tensor_is_named(tmp_path):
    directory = write_release(tmp_path, SHAPE, 1)
    content = bytearray((directory / "model.npz").read_bytes())
    content[5000:5100] = b"\xff" * 100
    (directory / "model.npz").write_bytes(content)
    with pytest.raises(InputError, match="model.npz: [A-Za-z0-9_]+ must be whole: "):
        read_marian(directory).build_model()


@pytest.mark.parametrize("content", [b"", b"no archive"])
def test_a_broken_archive_is_named(tmp_path, content):
    directory = write_release(tmp_path, SHAPE, 1)
    (directory / "model.npz").write_bytes(content)
    with pytest.raises(InputError, match="model.npz must be an npz archive"):
        read_marian(directory)
    with zipfile.ZipFile(directory / "model.npz", "w") as archive:
        archive.writestr("readme.txt", "no array")
    with pytest.raises(InputError, match="model.npz must be an npz archive"):
        read_marian(directory)


def test_words_that_yaml_reads_otherwise_are_themselves(tmp_path):
    path = tmp_path / "a.vocab.yml"
    lines = [
        '"</s>": 0',
        "<unk>: 1",
        "no: 2",
        "NO: 3",
        "1.0: 4",
        "1.00: 5",
        "~: 6",
        "'it''s': 7",
        r'"\"\\": 8',
        '"\\x85": 9',
        '"\\u2581\\U0001F600": 10',
        "a\u2028b: 11",
        '":": 12',
        "? " + "w" * 1100,
        ": 13",
        "▁zwölf: 14",
        '"#": 15',
        "a: b: 16",
        '"\\N\\_": 17',
        "\x07: 18",
        '"\\UFFFFFFFF": 19',
    ]
    path.write_bytes(("\n".join(lines) + "\n").encode())
    assert list(read_release_vocabulary(path)) == [
        "</s>", "<unk>", "no", "NO", "1.0", "1.00", "~", "it's", '"\\', "\x85", "▁😀", "a\u2028b",
        ":", "w" * 1100, "▁zwölf", "#", "a: b", "\x85\xa0", "\x07", "\ufffd",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "content, message",
    [
        (b"a: 0\nb\n", "a.vocab.yml:2 must be a word, ': ' and its id. Received: 'b'"),
        (b"a: 0\nb: x\n", "a.vocab.yml:2 must be a word"),
        (b"a: 0\na: 1\n", "a.vocab.yml:2 must hold a new word. Received: 'a' again"),
        (b"\xff: 0\n", "a.vocab.yml must be UTF-8"),
        (b"a: " + b"9" * 5000 + b"\n", "a.vocab.yml:1 must be a word"),
    ],
)
def test_a_broken_vocabulary_is_named_with_its_line(tmp_path, content, message):
    path = tmp_path / "a.vocab.yml"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_release_vocabulary(path)


def test_a_vocabulary_of_another_size_is_refused(tmp_path):
    directory = write_release(tmp_path, SHAPE, 1)
    with open(directory / "opus.vocab.yml", "a") as file:
        file.write("more: 159\n")
    with pytest.raises(InputError, match="dim-vocabs says, 159. Received: 160"):
        read_marian(directory)
