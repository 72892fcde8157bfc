"""Random Marian checkpoints, in Hugging Face's form and as Marian releases them, without torch."""

from __future__ import annotations

import dataclasses
import functools
import io
import json
from pathlib import Path

import h5py
import numpy as np
from marian_release_files import write_decoder_options, write_npz, write_vocabulary


@dataclasses.dataclass(frozen=True)
class Shape:
    """What one random checkpoint is like; the fields of `config.json` in this package's terms.

    `target_vocabulary_size` given means a vocabulary of its own for each language. `pad_row`
    "zero" is what conversion from a Marian release leaves: a row of zeros, of which decoding
    starts, and `pad_bias` -100 takes its share of the probability, as a release has no such word.
    """

    d_model: int = 32
    d_ff: int = 64
    num_heads: int = 4
    encoder_layers: int = 2
    decoder_layers: int = 2
    activation: str = "swish"
    vocabulary_size: int = 160
    target_vocabulary_size: int | None = None
    share_embeddings: bool = True
    tie_output: bool = True
    scale_embedding: bool = True
    pad_row: str = "random"
    pad_bias: float = 0.0
    end_bias: float = 3.5

    @property
    def target_words(self) -> int:
        return self.target_vocabulary_size or self.vocabulary_size

    @property
    def pad_id(self) -> int:
        """Must be the same in both vocabularies, and so is the last id of the smaller one."""
        return min(self.vocabulary_size, self.target_words) - 1


SHAPES = {
    "base": Shape(d_model=512, d_ff=2048, num_heads=8, encoder_layers=6, decoder_layers=6),
    "deep encoder": Shape(encoder_layers=4, decoder_layers=1, end_bias=4.5),
    "deep decoder": Shape(
        encoder_layers=1, decoder_layers=3, d_model=48, num_heads=2, end_bias=4.0
    ),
    "swish": Shape(),
    "gelu": Shape(activation="gelu"),
    "relu": Shape(activation="relu"),
    "released": Shape(pad_row="zero", pad_bias=-100.0),
    "released relu": Shape(pad_row="zero", pad_bias=-100.0, activation="relu", decoder_layers=1),
    "two vocabularies": Shape(
        vocabulary_size=140, target_vocabulary_size=160, share_embeddings=False
    ),
    "two embeddings": Shape(share_embeddings=False),
    "unscaled": Shape(scale_embedding=False),
    "untied": Shape(share_embeddings=False, tie_output=False),
}


def write_hugging_face(
    directory: Path,
    shape: Shape,
    seed: int,
    weights_file: str = "model.safetensors",
    decoding: dict | None = None,
) -> Path:
    """Writes all files of a random checkpoint in Hugging Face's form.

    `weights_file` is "model.safetensors", or "tf_model.h5" for shared embeddings; `decoding`
    changes or adds keys of generation_config.json.
    """
    directory.mkdir(parents=True, exist_ok=True)
    weights = random_weights(shape, seed)
    if weights_file == "tf_model.h5":
        _write_h5(directory / weights_file, weights)
    else:
        from safetensors.numpy import save_file

        save_file(weights, directory / weights_file, metadata={"format": "pt"})
    _write_json(directory / "config.json", hugging_face_config(shape))
    _write_json(
        directory / "generation_config.json", {**generation_config(shape), **(decoding or {})}
    )
    _write_json(
        directory / "tokenizer_config.json",
        {
            "source_lang": "en",
            "target_lang": "de",
            "model_max_length": 512,
            "separate_vocabs": shape.target_vocabulary_size is not None,
            "tokenizer_class": "MarianTokenizer",
        },
    )
    source_words, target_words = vocabularies(shape)
    _write_json(directory / "vocab.json", _numbered(source_words))
    if shape.target_vocabulary_size is not None:
        _write_json(directory / "target_vocab.json", _numbered(target_words))
    _write_sentencepiece(directory)
    return directory


def write_release(directory: Path, shape: Shape, seed: int) -> Path:
    """Writes the weights of `write_hugging_face` as Marian releases them, without the pad word."""
    directory.mkdir(parents=True, exist_ok=True)
    write_npz(directory / "model.npz", random_weights(shape, seed), hugging_face_config(shape))
    names = ["opus.vocab.yml"] * 2
    source_words, target_words = vocabularies(shape)
    if shape.target_vocabulary_size is not None:
        names = ["source.vocab.yml", "target.vocab.yml"]
        write_vocabulary(directory / names[1], target_words)
    write_vocabulary(directory / names[0], source_words)
    write_decoder_options(directory / "decoder.yml", "model.npz", names)
    _write_sentencepiece(directory)
    return directory


def hugging_face_config(shape: Shape) -> dict:
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        "vocab_size": shape.vocabulary_size,
        "decoder_vocab_size": shape.target_words,
        "d_model": shape.d_model,
        "encoder_layers": shape.encoder_layers,
        "decoder_layers": shape.decoder_layers,
        "encoder_ffn_dim": shape.d_ff,
        "decoder_ffn_dim": shape.d_ff,
        "encoder_attention_heads": shape.num_heads,
        "decoder_attention_heads": shape.num_heads,
        "activation_function": shape.activation,
        "max_position_embeddings": 512,
        "dropout": 0.1,
        "scale_embedding": shape.scale_embedding,
        "share_encoder_decoder_embeddings": shape.share_embeddings,
        "tie_word_embeddings": shape.tie_output,
        "pad_token_id": shape.pad_id,
        "decoder_start_token_id": shape.pad_id,
        "eos_token_id": 0,
        "forced_eos_token_id": 0,
        "bos_token_id": None,
        "use_cache": True,
    }


def generation_config(shape: Shape) -> dict:
    """What a published checkpoint has: beams, limit, forced end, pad suppressed."""
    return {
        "bad_words_ids": [[shape.pad_id]],
        "decoder_start_token_id": shape.pad_id,
        "eos_token_id": 0,
        "forced_eos_token_id": 0,
        "max_length": 40,
        "num_beams": 4,
        "pad_token_id": shape.pad_id,
    }


def random_weights(shape: Shape, seed: int) -> dict[str, np.ndarray]:
    """Float32 weights by Hugging Face's names, large enough that the outputs vary.

    The order of the draws is fixed, so that the golden files hold for this module alone.
    """
    random = np.random.default_rng(seed)
    d_model, d_ff = shape.d_model, shape.d_ff
    weights: dict[str, np.ndarray] = {}

    def draw(name: str, dimensions, deviation: float, mean: float = 0.0) -> None:
        values = random.standard_normal(dimensions, dtype=np.float32)
        weights[name] = values * np.float32(deviation) + np.float32(mean)

    # Logits of a deviation of about 2, which the last layer's gain makes up for.
    deviation = d_model**-0.5 if shape.scale_embedding else 1.0
    last_gain = 2 / (deviation * d_model**0.5)

    def linear(name: str, inputs: int, outputs: int) -> None:
        # Sharp attention that looks elsewhere for each word.
        gain = 2.5 if name.endswith(("q_proj", "k_proj")) else 1.0
        draw(f"{name}.weight", (outputs, inputs), gain * inputs**-0.5)
        draw(f"{name}.bias", (outputs,), 0.1)

    def layer_norm(name: str, gain: float = 1.0) -> None:
        # Gains of both signs: what comes in is not like what goes out, else the newest word
        # would repeat itself for ever.
        draw(f"{name}.weight", (d_model,), 1.0)
        weights[f"{name}.weight"] = np.sign(weights[f"{name}.weight"]) * np.float32(gain)
        weights[f"{name}.weight"] += np.float32(0.2) * random.standard_normal(d_model, "float32")
        draw(f"{name}.bias", (d_model,), 0.1)

    def embedding(name: str, words: int) -> None:
        draw(name, (words, d_model), deviation)
        if shape.pad_row == "zero":
            weights[name][shape.pad_id] = 0

    if shape.share_embeddings:
        embedding("model.shared.weight", shape.vocabulary_size)
    else:
        embedding("model.encoder.embed_tokens.weight", shape.vocabulary_size)
        embedding("model.decoder.embed_tokens.weight", shape.target_words)
    if not shape.tie_output:
        draw("lm_head.weight", (shape.target_words, d_model), deviation)
    draw("final_logits_bias", (1, shape.target_words), 0.5)
    weights["final_logits_bias"][0, shape.pad_id] = shape.pad_bias
    weights["final_logits_bias"][0, 0] = shape.end_bias
    for side, layers, attentions in (
        ("encoder", shape.encoder_layers, ("self_attn",)),
        ("decoder", shape.decoder_layers, ("self_attn", "encoder_attn")),
    ):
        for layer in range(layers):
            scope = f"model.{side}.layers.{layer}"
            for attention in attentions:
                for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    linear(f"{scope}.{attention}.{projection}", d_model, d_model)
                layer_norm(f"{scope}.{attention}_layer_norm")
            linear(f"{scope}.fc1", d_model, d_ff)
            linear(f"{scope}.fc2", d_ff, d_model)
            is_last = side == "decoder" and layer == layers - 1
            layer_norm(f"{scope}.final_layer_norm", last_gain if is_last else 1.0)
    return weights


def random_sources(shape: Shape, seed: int, lengths=(5, 1, 9, 3, 7)) -> list[list[int]]:
    """Sentences in the checkpoint's own ids, each with the end token."""
    random = np.random.default_rng(seed)
    ordinary = [word for word in range(2, shape.vocabulary_size) if word != shape.pad_id]
    return [[*map(int, random.choice(ordinary, length)), 0] for length in lengths]


def vocabularies(shape: Shape) -> tuple[list[str], list[str]]:
    """The words of the source and of the target, the same list where there is one vocabulary."""
    source, target = sentencepiece_models()
    if shape.target_vocabulary_size is None:
        words = _vocabulary([*_pieces(source), *_pieces(target)], shape.vocabulary_size, shape)
        return words, words
    return (
        _vocabulary(_pieces(source), shape.vocabulary_size, shape),
        _vocabulary(_pieces(target), shape.target_vocabulary_size, shape),
    )


@functools.cache
def sentencepiece_models() -> tuple[bytes, bytes]:
    """Two serialized unigram models, of a made-up source and a made-up target language."""
    import sentencepiece

    models = []
    for letters, seed in (("abdeilmnorst", 1), ("abdeghiknoruwzß", 2)):
        random = np.random.default_rng(seed)
        words = ["".join(random.choice(list(letters), random.integers(2, 7))) for _ in range(30)]
        lines = [" ".join(random.choice(words, random.integers(3, 9))) for _ in range(300)]
        written = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=written,
            model_type="unigram",
            vocab_size=60,
            hard_vocab_limit=False,
            character_coverage=1.0,
            num_threads=1,
            minloglevel=2,
        )
        models.append(written.getvalue())
    return models[0], models[1]


def _pieces(model: bytes) -> list[str]:
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = [processor.id_to_piece(piece) for piece in range(processor.get_piece_size())]
    return [piece for piece in pieces if piece not in ("<unk>", "<s>", "</s>")]


def _vocabulary(pieces: list[str], size: int, shape: Shape) -> list[str]:
    """`size` words: the end and unknown tokens, the pieces, others, and pad at its place."""
    fillers = [f"▁filler{number}" for number in range(size)]
    words = ["</s>", "<unk>", *dict.fromkeys([*pieces, *fillers])][: size - 1]
    return [*words[: shape.pad_id], "<pad>", *words[shape.pad_id :]]


def _write_sentencepiece(directory: Path) -> None:
    source, target = sentencepiece_models()
    (directory / "source.spm").write_bytes(source)
    (directory / "target.spm").write_bytes(target)


def _write_h5(path: Path, weights: dict[str, np.ndarray]) -> None:
    """Writes what Hugging Face's TensorFlow classes saved: Keras' HDF5 of a subclassed model.

    Those classes had one embedding for both languages, and saved the sinusoids too.
    """
    root = "tf_marian_mt_model/model"
    model = {"model.shared/model.shared/embeddings:0": weights["model.shared.weight"]}
    for side in ("encoder", "decoder"):
        positions = _sinusoids(weights["model.shared.weight"].shape[1])
        model[f"{root}/{side}/embed_positions/embeddings:0"] = positions
    for name, value in weights.items():
        if ".layers." in name:
            _, side, _, layer, *module, leaf = name.split(".")
            is_norm = module[-1].endswith("layer_norm")
            if leaf == "weight":
                leaf, value = ("gamma", value) if is_norm else ("kernel", value.T)
            elif is_norm:
                leaf = "beta"
            model["/".join([root, side, f"layers.{layer}", *module, f"{leaf}:0"])] = value
    layers = {
        "model": model,
        "final_logits_bias": {"final_logits_bias:0": weights["final_logits_bias"]},
    }
    with h5py.File(path, "w") as file:
        file.attrs["layer_names"] = [name.encode() for name in layers]
        file.attrs["backend"] = b"tensorflow"
        file.attrs["keras_version"] = b"2.15.0"
        for layer, values in {**layers, "top_level_model_weights": {}}.items():
            group = file.create_group(layer)
            group.attrs["weight_names"] = [name.encode() for name in values]
            for name, value in values.items():
                group.create_dataset(name, data=value)


def _sinusoids(d_model: int, positions: int = 512) -> np.ndarray:
    """Sines in the first half and cosines in the second: float32 [positions, d_model]."""
    rates = 10000 ** -(np.arange(0, d_model, 2) / d_model)
    angles = np.arange(positions)[:, np.newaxis] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def _numbered(words: list[str]) -> dict[str, int]:
    return {word: id for id, word in enumerate(words)}


def _write_json(path: Path, values: dict) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False), encoding="utf-8")
