import copy
import json

import numpy as np
import pytest
from marian_files import SHAPES, generation_config, hugging_face_config, write_hugging_face
from safetensors.numpy import load_file, save_file

from keras_transformer.errors import InputError
from keras_transformer.marian.checkpoint import read_marian
from keras_transformer.marian.hugging_face_settings import (
    read_architecture,
    read_search,
    split_search,
)
from keras_transformer.marian.settings import Settings

SHAPE = SHAPES["swish"]

# Everything that transformers 4.9 held in the config of Helsinki-NLP/opus-mt-en-de.
OPUS_MT_EN_DE = {
    "vocab_size": 58101,
    "max_position_embeddings": 512,
    "d_model": 512,
    "encoder_ffn_dim": 2048,
    "encoder_layers": 6,
    "encoder_attention_heads": 8,
    "decoder_ffn_dim": 2048,
    "decoder_layers": 6,
    "decoder_attention_heads": 8,
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "activation_function": "swish",
    "init_std": 0.02,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
    "classifier_dropout": 0.0,
    "use_cache": True,
    "num_hidden_layers": 6,
    "scale_embedding": True,
    "return_dict": True,
    "output_hidden_states": False,
    "output_attentions": False,
    "torchscript": False,
    "torch_dtype": None,
    "use_bfloat16": False,
    "pruned_heads": {},
    "tie_word_embeddings": True,
    "is_encoder_decoder": True,
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_encoder_decoder": False,
    "max_length": 512,
    "min_length": 0,
    "do_sample": False,
    "early_stopping": False,
    "num_beams": 4,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
    "repetition_penalty": 1.0,
    "length_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "bad_words_ids": [[58100]],
    "num_return_sequences": 1,
    "chunk_size_feed_forward": 0,
    "output_scores": False,
    "return_dict_in_generate": False,
    "forced_bos_token_id": None,
    "forced_eos_token_id": 0,
    "remove_invalid_values": False,
    "architectures": ["MarianMTModel"],
    "finetuning_task": None,
    "id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"},
    "label2id": {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2},
    "tokenizer_class": None,
    "prefix": None,
    "bos_token_id": 0,
    "pad_token_id": 58100,
    "eos_token_id": 0,
    "sep_token_id": None,
    "decoder_start_token_id": 58100,
    "task_specific_params": None,
    "problem_type": None,
    "_name_or_path": "Helsinki-NLP/opus-mt-en-de",
    "transformers_version": "4.9.0.dev0",
    "_num_labels": 3,
    "add_bias_logits": False,
    "add_final_layer_norm": False,
    "classif_dropout": 0.0,
    "gradient_checkpointing": False,
    "model_type": "marian",
    "normalize_before": False,
    "normalize_embedding": False,
    "static_position_embeddings": True,
}
# What such a file holds where the settings of the search have moved to generation_config.json.
SEARCH = (
    "max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups",
    "diversity_penalty", "temperature", "top_k", "top_p", "repetition_penalty", "length_penalty",
    "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids",
    "num_return_sequences", "output_scores", "return_dict_in_generate", "forced_bos_token_id",
    "forced_eos_token_id", "remove_invalid_values",
)  # fmt: skip
WITHOUT_SEARCH = {key: value for key, value in OPUS_MT_EN_DE.items() if key not in SEARCH}


def read(config, generation=None):
    settings = Settings("config.json", config)
    search = split_search(settings)
    architecture = read_architecture(settings)
    if generation is None:
        return architecture, read_search(search, architecture, forced_end=0)
    settings = Settings("generation_config.json", generation)
    return architecture, read_search(settings, architecture, forced_end=None)


def test_a_published_config_is_read():
    architecture, search = read(OPUS_MT_EN_DE)

    config = architecture.config(None, 58102)
    assert (config.d_model, config.d_ff, config.num_heads) == (512, 2048, 8)
    assert (config.num_encoder_layers, config.num_decoder_layers) == (6, 6)
    assert config.tying == "three-way"
    assert config.activation == "swish"
    assert config.positions == "sinusoidal-halves"
    assert config.scale_embedding and config.attention_bias and config.output_bias
    assert config.layer_norm_epsilon == 1e-5
    assert (architecture.pad_id, architecture.end_id, architecture.start_id) == (58100, 0, 58100)
    assert search.decoding == {
        "beam_size": 4,
        "alpha": 1.0,
        "length_penalty": "power",
        "maximum_length": 511,
        "maximum_extra_length": 511,
        "early_stopping": "heuristic",
        "ends_within": "beam",
        "forced_end": "free",
    }
    assert search.suppressed_ids == [58100]
    assert not search.renormalizes


def test_a_published_generation_config_takes_the_place_of_what_config_json_says():
    generation = {
        "_from_model_config": True,
        "bad_words_ids": [[58100]],
        "bos_token_id": 0,
        "decoder_start_token_id": 58100,
        "eos_token_id": 0,
        "forced_eos_token_id": 0,
        "max_length": 512,
        "num_beams": 6,
        "pad_token_id": 58100,
        "renormalize_logits": True,
        "transformers_version": "4.32.0.dev0",
    }
    _, search = read({**OPUS_MT_EN_DE, "num_beams": 2, "do_sample": True}, generation)
    assert search.decoding["beam_size"] == 6
    assert search.renormalizes
    assert read(WITHOUT_SEARCH, generation)[1] == search


def test_every_key_of_a_new_config_is_known():
    config = {
        **hugging_face_config(SHAPE),
        "dtype": "float32",
        "init_std": 0.02,
        "is_decoder": False,
        "transformers_version": "5.24.0",
    }
    generation = {
        **generation_config(SHAPE),
        "early_stopping": True,
        "length_penalty": 0.6,
        "max_new_tokens": 20,
        "output_attentions": False,
        "temperature": 0.7,
    }
    _, search = read(config, generation)
    assert search.decoding["early_stopping"] == "full_beam"
    assert search.decoding["alpha"] == 0.6
    assert search.decoding["maximum_length"] == 20


@pytest.mark.parametrize(
    "key, value, expected",
    [
        ("normalize_embedding", True, "false"),
        ("normalize_before", True, "false"),
        ("add_final_layer_norm", True, "false"),
        ("static_position_embeddings", False, "true"),
        ("model_type", "bart", '"marian"'),
        ("architectures", ["MarianForCausalLM"], r'\["MarianMTModel"\]'),
        ("activation_function", "gelu_new", '"gelu" or "relu"'),
        ("decoder_attention_heads", 2, "encoder_attention_heads, 8"),
        ("decoder_ffn_dim", 1024, "encoder_ffn_dim, 2048"),
        ("encoder_attention_heads", 7, "a divisor of d_model, 512"),
        ("num_hidden_layers", 3, "6"),
        ("decoder_vocab_size", 100, "vocab_size, 58101"),
        ("d_model", None, "a whole number of at least 1"),
        ("encoder_layers", 0, "a whole number of at least 1"),
        ("scale_embedding", 1, "true or false"),
        ("pad_token_id", 58101, "below the vocabulary's size, 58101"),
        ("forced_bos_token_id", 5, "null"),
        ("prefix", ">>deu<< ", "null"),
        ("pruned_heads", {"0": [1]}, r"\{\}"),
    ],
)
def test_a_setting_that_is_not_implemented_is_refused_by_name(key, value, expected):
    config = {**OPUS_MT_EN_DE, key: value}
    if key == "encoder_attention_heads":
        config["decoder_attention_heads"] = value
    received = json.dumps(value).replace("[", r"\[").replace("{", r"\{")
    with pytest.raises(InputError, match=f"config.json: {key} must be {expected}.*{received}"):
        read(config)


@pytest.mark.parametrize(
    "key, value, expected",
    [
        ("do_sample", True, "false"),
        ("num_beam_groups", 2, "1"),
        ("no_repeat_ngram_size", 3, "0"),
        ("repetition_penalty", 1.2, "1.0"),
        ("min_length", 3, "0"),
        ("min_new_tokens", 3, "null or 0"),
        ("length_penalty", -1.0, "a number of at least 0"),
        ("num_beams", 0, "a whole number of at least 1"),
        ("num_beams", True, "a whole number of at least 1"),
        ("max_length", 1, "a whole number of at least 2"),
        ("early_stopping", "often", "false or null or true or"),
        ("bad_words_ids", [[3, 4]], "lists of one id each"),
        ("bad_words_ids", [[58101]], "lists of one id each"),
        ("forced_eos_token_id", None, "0, the end token"),
        ("forced_eos_token_id", 7, "0"),
        ("eos_token_id", 2, "0"),
        ("decoder_start_token_id", 0, "58100"),
        ("suppress_tokens", [5], "null"),
        ("sequence_bias", [[[5], 1.0]], "null"),
        ("guidance_scale", 2.0, "null"),
        ("exponential_decay_length_penalty", [3, 1.1], "null"),
        ("watermarking_config", {"bias": 2}, "null"),
    ],
)
def test_a_search_that_is_not_implemented_is_refused_by_name(key, value, expected):
    generation = {"forced_eos_token_id": 0, key: value}
    with pytest.raises(InputError, match=f"generation_config.json: {key} must be {expected}"):
        read(WITHOUT_SEARCH, generation)


def test_a_missing_forced_end_is_refused():
    message = "forced_eos_token_id must be 0, the end token. Received: none"
    with pytest.raises(InputError, match=message):
        read(WITHOUT_SEARCH, {"num_beams": 4})


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_an_unknown_key_is_refused_by_name(file):
    config, generation = copy.deepcopy(WITHOUT_SEARCH), {"forced_eos_token_id": 0}
    (config if file == "config.json" else generation)["mixture_of_experts"] = 8
    message = f"{file}: mixture_of_experts is a setting that is not known here. Received: 8"
    with pytest.raises(InputError, match=message):
        read(config, generation)


@pytest.mark.parametrize("missing", ["d_model", "vocab_size", "decoder_layers", "eos_token_id"])
def test_a_size_has_no_default(missing):
    config = {key: value for key, value in WITHOUT_SEARCH.items() if key != missing}
    with pytest.raises(InputError, match=f"config.json: {missing} must be .*Received: none"):
        read(config)


def test_languages_and_suppressed_words_are_named(tmp_path):
    unwanted = {"bad_words_ids": [[SHAPE.pad_id], [1], [0]]}
    checkpoint = read_marian(write_hugging_face(tmp_path, SHAPE, 1, decoding=unwanted))
    assert (checkpoint.source_language, checkpoint.target_language) == ("en", "de")
    assert checkpoint.decoding["suppressed_tokens"] == ["<pad>", "<unk>"]
    assert checkpoint.tokenizer.shared


def test_renormalized_scores_give_suppressed_words_no_share(tmp_path):
    decoding = {"renormalize_logits": True, "bad_words_ids": [[SHAPE.pad_id]]}
    checkpoint = read_marian(write_hugging_face(tmp_path, SHAPE, 1, decoding=decoding))
    bias = checkpoint.weights["target_embedding/output_bias"]
    assert bias[:2].tolist() == [-100, -100]
    assert bias[2:].min() > -10


@pytest.mark.parametrize(
    "tokenizer, message",
    [
        ({"eos_token": "<end>"}, "tokenizer_config.json: eos_token must be '</s>'"),
        ({"sp_model_kwargs": {"enable_sampling": True}}, "tokenizer_config.json: sp_model_kwargs"),
        ({"clean_up_tokenization_spaces": 1}, "clean_up_tokenization_spaces must be true or fa"),
        ({"additional_special_tokens": ["<eop>"]}, "additional_special_tokens must be"),
        ({"extra_special_tokens": {"x": "<x>"}}, "extra_special_tokens must be"),
        ({"added_tokens_decoder": {"7": {"content": "Tom"}}}, "added_tokens_decoder must be of"),
        ({"unk_token": "<none>"}, "vocab.json: .*unknown word '<none>'"),
        ({"separate_vocabs": True}, "must hold target_vocab.json"),
        ({"pad_token": {"content": "<padding>"}}, "pad_token must be '<pad>'"),
    ],
)
def test_a_tokenizer_that_does_not_fit_is_refused(tmp_path, tokenizer, message):
    directory = write_hugging_face(tmp_path, SHAPE, 1)
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    with pytest.raises(InputError, match=message):
        read_marian(directory)


@pytest.mark.parametrize(
    "settings, expected",
    [({"model_max_length": 128}, 127), ({"model_max_length": 1e30}, 1023), ({}, 511)],
)
def test_a_source_is_as_long_as_tokenizer_and_model_allow(tmp_path, settings, expected):
    directory = write_hugging_face(tmp_path, SHAPE, 1)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 1024}))
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    assert read_marian(directory).decoding["maximum_source_length"] == expected


def test_without_suppressed_words_the_key_is_null(tmp_path):
    directory = write_hugging_face(tmp_path, SHAPE, 1, decoding={"bad_words_ids": None})
    assert read_marian(directory).decoding["suppressed_tokens"] is None


@pytest.mark.parametrize(
    "value, place",
    [
        (np.nan, "final_logits_bias"),
        (np.inf, "model.shared.weight"),
        (1e300, "model.shared.weight"),
    ],
)
def test_weights_that_are_no_float32_numbers_are_refused(tmp_path, value, place):
    directory = write_hugging_face(tmp_path, SHAPE, 1)
    weights = load_file(directory / "model.safetensors")
    weights[place] = weights[place].astype(np.float64)
    weights[place][0, 5] = value
    save_file(weights, directory / "model.safetensors")
    message = f"model.safetensors: {place} must be of finite float32 numbers"
    with pytest.raises(InputError, match=message):
        read_marian(directory).build_model()


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_broken_sentencepiece_model_is_named(tmp_path, side):
    directory = write_hugging_face(tmp_path, SHAPE, 1)
    (directory / f"{side}.spm").write_bytes(b"")
    with pytest.raises(InputError, match=f"{side}.spm: A tokenizer needs .* 0 bytes"):
        read_marian(directory)


def test_an_index_of_shards_without_names_is_refused(tmp_path):
    directory = write_hugging_face(tmp_path, SHAPE, 1)
    (directory / "model.safetensors").unlink()
    index = {"weight_map": {"a": 1, "b": "c"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match="must list files that lie beside it. Received: 1, which"):
        read_marian(directory)


@pytest.mark.parametrize(
    "text, message",
    [
        ("{", "config.json must be JSON"),
        ("[]", "config.json must be a JSON object"),
        ("[" * 100_000, "config.json must be JSON: maximum recursion"),
        ('{"d_model": ' + "9" * 5000 + "}", "config.json must be JSON: Exceeds the limit"),
    ],
)
def test_a_broken_file_is_named(tmp_path, text, message):
    directory = write_hugging_face(tmp_path, SHAPE, 1)
    (directory / "config.json").write_text(text)
    with pytest.raises(InputError, match=message):
        read_marian(directory)


def test_a_vocabulary_of_another_size_is_refused(tmp_path):
    directory = write_hugging_face(tmp_path, SHAPE, 1)
    vocabulary = json.loads((directory / "vocab.json").read_text())
    (directory / "vocab.json").write_text(json.dumps({**vocabulary, "new": len(vocabulary)}))
    with pytest.raises(InputError, match="vocab.json must hold as many words .*160. Received: 161"):
        read_marian(directory)
