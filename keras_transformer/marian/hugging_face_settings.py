"""What the settings of a Hugging Face Marian checkpoint mean here.

The keys are those of `MarianConfig` and `GenerationConfig` of transformers 5.24, and those that
older versions, back to 3.0, wrote into the files of the published OPUS-MT models.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from keras_transformer.config import TransformerConfig
from keras_transformer.errors import InputError
from keras_transformer.marian.checkpoint_files import config_of
from keras_transformer.marian.settings import Settings

# Hugging Face's "gelu" is the exact one, and its "swish" and "silu" are the same.
_ACTIVATIONS = (("gelu", "gelu"), ("relu", "relu"), ("silu", "swish"), ("swish", "swish"))

# What the file says of itself and of other uses of the model than translation.
_ABOUT = (
    "_attn_implementation", "_name_or_path", "_num_labels", "attn_implementation", "dtype",
    "finetuning_task", "id2label", "label2id", "name_or_path", "problem_type", "tokenizer_class",
    "torch_dtype", "transformers_version", "use_bfloat16", "torchscript",
)  # fmt: skip
# How a model was initialized, is trained, or computes the same in another way.
_TRAINING = (
    "classif_dropout", "classifier_dropout", "decoder_layerdrop", "encoder_layerdrop",
    "gradient_checkpointing", "init_std", "initializer_range", "chunk_size_feed_forward",
)  # fmt: skip
# Options of BART that no Marian model reads: add_bias_logits (the bias is always there),
# extra_pos_embeddings (of learned positions), and tokens that no Marian sentence holds.
_OF_BART = (
    "add_bias_logits", "extra_pos_embeddings", "bos_token_id", "sep_token_id", "unk_token_id",
)  # fmt: skip
# What is returned beside the translation, and caches.
_OUTPUTS = (
    "output_attentions", "output_hidden_states", "output_past", "return_dict", "use_cache",
)  # fmt: skip

_EXPECTED: dict[str, tuple] = {
    "model_type": ("marian",),
    "architectures": (["MarianMTModel"], ["TFMarianMTModel"], ["FlaxMarianMTModel"], None),
    "is_encoder_decoder": (True,),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
    "tie_encoder_decoder": (False,),
    "static_position_embeddings": (True,),
    "normalize_before": (False,),
    "normalize_embedding": (False,),
    "add_final_layer_norm": (False,),
    "do_blenderbot_90_layernorm": (False,),
    "force_bos_token_to_be_generated": (False,),
    "pruned_heads": ({}, None),
    "prefix": (None, ""),
    "task_specific_params": (None, {}),
    "quantization_config": (None,),
}

_EARLY_STOPPING = (
    (False, "heuristic"), (None, "heuristic"), (True, "full_beam"), ("never", "never"),
)  # fmt: skip

# Of the search, where sampling is off: what changes no translation.
_SEARCH_SKIPPED = (
    "_from_model_config", "bos_token_id", "transformers_version", "use_cache",
    # Of sampling, which is off.
    "temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff",
    # How many translations and what else is returned.
    "num_return_sequences", "output_attentions", "output_hidden_states", "output_scores",
    "output_logits", "return_dict_in_generate",
    # Ways to the same translation: caches, drafts, compilation, and what becomes of a NaN.
    "cache_implementation", "cache_config", "max_cache_len", "low_memory", "is_assistant",
    "num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold",
    "prompt_lookup_num_tokens", "max_matching_ngram_size", "assistant_early_exit",
    "assistant_lookbehind", "target_lookbehind", "assistant_ensemble_weight", "speculation_type",
    "use_mtp", "compile_config", "disable_compile", "continuous_batching_config",
    "prefill_chunk_size", "remove_invalid_values",
)  # fmt: skip

_SEARCH_EXPECTED: dict[str, tuple] = {
    "do_sample": (False, None),
    "num_beam_groups": (1, None),
    "diversity_penalty": (0.0, None),
    "no_repeat_ngram_size": (0, None),
    "encoder_no_repeat_ngram_size": (0, None),
    "repetition_penalty": (1.0, None),
    "encoder_repetition_penalty": (1.0, None),
    "min_length": (0, None),
    "min_new_tokens": (None, 0),
    "forced_bos_token_id": (None,),
    "exponential_decay_length_penalty": (None,),
    "suppress_tokens": (None, []),
    "begin_suppress_tokens": (None, []),
    "sequence_bias": (None, {}),
    "constraints": (None, []),
    "force_words_ids": (None, []),
    "penalty_alpha": (None, 0.0),
    "guidance_scale": (None, 1.0),
    "dola_layers": (None,),
    "token_healing": (False, None),
    "stop_strings": (None, []),
    "max_time": (None,),
    "watermarking_config": (None,),
}
_SEARCH_USED = (
    "num_beams", "length_penalty", "max_length", "max_new_tokens", "early_stopping",
    "bad_words_ids", "renormalize_logits", "forced_eos_token_id",
)  # fmt: skip
# Older versions kept the settings of the search in config.json.
_SEARCH_KEYS = (set(_SEARCH_USED) | set(_SEARCH_EXPECTED) | set(_SEARCH_SKIPPED)) - {
    "bos_token_id",
    "transformers_version",
    "use_cache",
    *_OUTPUTS,
}


@dataclasses.dataclass(frozen=True)
class Architecture:
    """What config.json says of the model, with the ids of the checkpoint.

    Attributes:
        source_size: int. Rows of the source embedding.
        target_size: int. Rows of the target embedding and outputs.
        tying: str, as in `TransformerConfig`.
        shares_embeddings: bool. Whether source and target have one embedding.
        maximum_positions: int.
        pad_id: int.
        end_id: int.
        start_id: int, the decoder's first token.
        model: dict of fields of `TransformerConfig` other than the vocabularies and `tying`.
    """

    source_size: int
    target_size: int
    tying: str
    shares_embeddings: bool
    maximum_positions: int
    pad_id: int
    end_id: int
    start_id: int
    model: dict[str, Any]

    def config(self, source_words: int | None, target_words: int) -> TransformerConfig:
        """The config for vocabularies of these sizes; None for a shared one."""
        return config_of(self.tying, source_words, target_words, self.model)


def read_architecture(settings: Settings) -> Architecture:
    """Reads config.json, from which the settings of the search have been split off.

    Raises:
        InputError: for each key that is unknown, or has a value that is not implemented.
    """
    settings.expect(_EXPECTED)
    settings.skip((*_ABOUT, *_TRAINING, *_OF_BART, *_OUTPUTS))
    d_model = settings.take("d_model", int, at_least=1)
    encoder_layers = settings.take("encoder_layers", int, at_least=1)
    heads = settings.take("encoder_attention_heads", int, at_least=1)
    d_ff = settings.take("encoder_ffn_dim", int, at_least=1)
    # The encoder and the decoder differ in nothing but their depth.
    for side, value in (("attention_heads", heads), ("ffn_dim", d_ff)):
        if settings.take(f"decoder_{side}", int) != value:
            raise settings.error(f"decoder_{side}", f"encoder_{side}, {value}")
    # Other names of the same.
    settings.expect(
        {
            "num_hidden_layers": (encoder_layers,),
            "num_attention_heads": (heads,),
            "hidden_size": (d_model,),
        }
    )
    if d_model % heads:
        raise settings.error("encoder_attention_heads", f"a divisor of d_model, {d_model}")
    source_size = settings.take("vocab_size", int, at_least=1)
    shares = settings.take("share_encoder_decoder_embeddings", bool, True)
    target_size = settings.take("decoder_vocab_size", int, source_size, at_least=1)
    if shares and target_size != source_size:
        raise settings.error("decoder_vocab_size", f"vocab_size, {source_size}")
    is_tied = settings.take("tie_word_embeddings", bool, True)
    architecture = Architecture(
        source_size=source_size,
        target_size=target_size,
        tying="none" if not is_tied else "three-way" if shares else "output",
        shares_embeddings=shares,
        maximum_positions=settings.take("max_position_embeddings", int, 1024, at_least=2),
        pad_id=_take_id(settings, "pad_token_id", target_size),
        end_id=_take_id(settings, "eos_token_id", target_size),
        start_id=_take_id(settings, "decoder_start_token_id", target_size),
        model={
            "num_encoder_layers": encoder_layers,
            "num_decoder_layers": settings.take("decoder_layers", int, at_least=1),
            "d_model": d_model,
            "d_ff": d_ff,
            "num_heads": heads,
            "dropout": settings.take("dropout", float, 0.1, at_least=0),
            "attention_dropout": settings.take("attention_dropout", float, 0.0, at_least=0),
            "activation_dropout": settings.take("activation_dropout", float, 0.0, at_least=0),
            "activation": settings.choose("activation_function", _ACTIVATIONS, "gelu"),
            "scale_embedding": settings.take("scale_embedding", bool, False),
            "norm": "post",
            "layer_norm_epsilon": 1e-5,  # the default of the LayerNorm of PyTorch
            "positions": "sinusoidal-halves",
            "attention_bias": True,
            "output_bias": True,
        },
    )
    settings.finish()
    return architecture


@dataclasses.dataclass(frozen=True)
class Search:
    """The settings of the search.

    Attributes:
        decoding: dict of keys of the recipe's section `decoding`.
        suppressed_ids: list of int, the checkpoint's ids that are never generated.
        renormalizes: bool. Whether the share of suppressed tokens is given to the others.
    """

    decoding: dict[str, Any]
    suppressed_ids: list[int]
    renormalizes: bool


def split_search(settings: Settings) -> Settings:
    """Takes the settings of the search out of config.json."""
    return settings.split(sorted(_SEARCH_KEYS))


def read_search(settings: Settings, architecture: Architecture, forced_end: int | None) -> Search:
    """Reads generation_config.json, or the settings of the search that config.json holds.

    Args:
        settings: the `Settings`.
        architecture: what config.json says otherwise.
        forced_end: the token that an absent forced_eos_token_id stands for.

    Raises:
        InputError: for each key that is unknown, or has a value that is not implemented.
    """
    settings.expect(_SEARCH_EXPECTED)
    settings.skip(_SEARCH_SKIPPED)
    end = (architecture.end_id, [architecture.end_id])
    settings.expect(
        {
            "eos_token_id": end,
            "pad_token_id": (architecture.pad_id,),
            "decoder_start_token_id": (architecture.start_id,),
        }
    )
    if settings.get("forced_eos_token_id", forced_end) not in end:
        raise settings.error("forced_eos_token_id", f"{architecture.end_id}, the end token")
    # max_length counts the decoder's start token, max_new_tokens does not. Where a checkpoint says
    # nothing, Hugging Face cuts translations after 20 tokens; we after as many as it has positions.
    length = settings.take("max_length", int, architecture.maximum_positions, at_least=2) - 1
    length = settings.take("max_new_tokens", int, length, at_least=1)
    decoding = {
        "beam_size": settings.take("num_beams", int, 1, at_least=1),
        "alpha": float(settings.take("length_penalty", float, 1.0, at_least=0)),
        "length_penalty": "power",
        "maximum_length": length,
        "maximum_extra_length": length,  # the source's length is no limit
        "early_stopping": settings.choose("early_stopping", _EARLY_STOPPING, "heuristic"),
        "ends_within": "beam",
        "forced_end": "free",
    }
    suppressed = []
    for ids in settings.take("bad_words_ids", list, []):
        if not isinstance(ids, list) or len(ids) != 1 or not _is_id(ids[0], architecture):
            raise settings.error("bad_words_ids", "lists of one id each")
        if ids[0] != architecture.end_id:  # which Hugging Face leaves out as well
            suppressed.append(ids[0])
    renormalizes = settings.take("renormalize_logits", bool, False)
    settings.finish()
    return Search(decoding, suppressed, renormalizes)


def _is_id(value: Any, architecture: Architecture) -> bool:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return is_whole and 0 <= value < architecture.target_size


def _take_id(settings: Settings, key: str, size: int) -> int:
    value = settings.take(key, int, at_least=0)
    if value >= size:
        raise InputError(
            f"{settings.file}: {key} must be below the vocabulary's size, {size}. Received: {value}"
        )
    return value
