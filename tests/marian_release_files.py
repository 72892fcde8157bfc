"""The files of an original Marian release, made of weights by Hugging Face's names."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import yaml


def write_npz(path: Path, weights: dict[str, np.ndarray], config: dict) -> None:
    """Writes Hugging Face's weights under Marian's names, the matrices [inputs, outputs]."""
    pad_id = config["pad_token_id"]

    def without_pad(name: str) -> np.ndarray:
        return np.delete(weights[name], pad_id, axis=0)

    shared = "model.shared.weight" in weights
    arrays = {"decoder_ff_logit_out_b": np.delete(weights["final_logits_bias"], pad_id, axis=1)}
    if shared:
        arrays["Wemb"] = without_pad("model.shared.weight")
    else:
        arrays["encoder_Wemb"] = without_pad("model.encoder.embed_tokens.weight")
        arrays["decoder_Wemb"] = without_pad("model.decoder.embed_tokens.weight")
    if "lm_head.weight" in weights:
        arrays["decoder_ff_logit_out_W"] = without_pad("lm_head.weight").T

    def linear(name: str, marian_name: str, suffix: str) -> None:
        arrays[f"{marian_name}_W{suffix}"] = weights[f"{name}.weight"].T
        arrays[f"{marian_name}_b{suffix}"] = weights[f"{name}.bias"][np.newaxis]

    def layer_norm(name: str, marian_name: str) -> None:
        arrays[f"{marian_name}_ln_scale"] = weights[f"{name}.weight"][np.newaxis]
        arrays[f"{marian_name}_ln_bias"] = weights[f"{name}.bias"][np.newaxis]

    for side, attentions in (
        ("encoder", {"self_attn": "self"}),
        ("decoder", {"self_attn": "self", "encoder_attn": "context"}),
    ):
        for layer in range(config[f"{side}_layers"]):
            scope, marian_scope = f"model.{side}.layers.{layer}", f"{side}_l{layer + 1}"
            for attention, marian_attention in attentions.items():
                marian_name = f"{marian_scope}_{marian_attention}"
                for projection in ("q", "k", "v"):
                    linear(f"{scope}.{attention}.{projection}_proj", marian_name, projection)
                linear(f"{scope}.{attention}.out_proj", marian_name, "o")
                layer_norm(f"{scope}.{attention}_layer_norm", f"{marian_name}_Wo")
            linear(f"{scope}.fc1", f"{marian_scope}_ffn", "1")
            linear(f"{scope}.fc2", f"{marian_scope}_ffn", "2")
            layer_norm(f"{scope}.final_layer_norm", f"{marian_scope}_ffn_ffn")
    options = yaml.safe_dump(marian_options(config)).encode() + b"\0"
    arrays["special:model.yml"] = np.frombuffer(options, dtype=np.int8)
    np.savez(path, **arrays)


def marian_options(config: dict) -> dict:
    """The options that Marian embeds in its model files, for a config.json."""
    shared = config["share_encoder_decoder_embeddings"]
    return {
        "version": "v1.7.6 02f4af4e 2018-12-12 18:51:10 -0800",
        "type": "transformer",
        "dim-emb": config["d_model"],
        "dim-vocabs": [config["vocab_size"] - 1, config["decoder_vocab_size"] - 1],
        "enc-depth": config["encoder_layers"],
        "dec-depth": config["decoder_layers"],
        "transformer-dim-ffn": config["encoder_ffn_dim"],
        "transformer-heads": config["encoder_attention_heads"],
        "transformer-ffn-activation": config["activation_function"],
        "transformer-ffn-depth": 2,
        "transformer-aan-activation": "swish",
        "transformer-aan-depth": 2,
        "transformer-aan-nogate": False,
        "transformer-decoder-autoreg": "self-attention",
        "transformer-dim-aan": 2048,
        "transformer-guided-alignment-layer": "last",
        "transformer-no-projection": False,
        "transformer-postprocess": "dan",
        "transformer-postprocess-emb": "d",
        "transformer-preprocess": "",
        "transformer-tied-layers": [],
        "transformer-train-position-embeddings": False,
        "tied-embeddings": not shared and config["tie_word_embeddings"],
        "tied-embeddings-all": shared,
        "tied-embeddings-src": False,
        "lemma-dim-emb": 0,
        "skip": False,
        "ulr": False,
    }


def write_decoder_options(path: Path, model: str, vocabularies: list[str], **changes) -> None:
    """Writes decoder.yml as OPUS-MT releases have it."""
    options = {
        "relative-paths": True,
        "models": [model],
        "vocabs": vocabularies,
        "beam-size": 6,
        "normalize": 1,
        "word-penalty": 0,
        "mini-batch": 1,
        "maxi-batch": 1,
        "maxi-batch-sort": "none",
        **changes,
    }
    path.write_text(yaml.safe_dump(options, sort_keys=False), encoding="utf-8")


def write_vocabulary(path: Path, words: list[str]) -> None:
    """Writes a `.vocab.yml` as Marian does: one quoted word a line, no pad word."""
    words = [word for word in words if word != "<pad>"]
    lines = [f"{json.dumps(word, ensure_ascii=False)}: {id}\n" for id, word in enumerate(words)]
    path.write_text("".join(lines), encoding="utf-8")
