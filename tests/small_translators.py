"""A run directory of a model that translates numbers, trained within seconds, and what reads it."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
import yaml

from keras_transformer import (
    SmoothedCrossEntropy,
    Transformer,
    TransformerConfig,
    build_transformer,
)
from keras_transformer.tokenizer import BOS_ID, EOS_ID
from keras_transformer.translation_tokenizer import TranslationTokenizer
from trainers.checkpoints import save_model
from trainers.recipe import Recipe
from trainers.run import RunDirectory

NUMBERS = {
    "one": "eins",
    "two": "zwei",
    "three": "drei",
    "four": "vier",
    "five": "fünf",
    "six": "sechs",
    "seven": "sieben",
    "eight": "acht",
}
SENTENCES = [
    "one two three",
    "eight",
    "",
    "seven six five four three two one",
    "four four",
    "   ",
    "two eight six one",
    "three three five eight one two",
    "\u00a0",
    "six",
    "five seven",
    "one one one one one",
    'Tom said: "Let\'s go!"',
    "seven two",
    "eight six four two",
    "two",
    "🙂 </s> ß",
    "three seven one five",
    "six five",
    "four one three two eight seven six five",
]
# The paper's model and others that decode in ways of their own.
MODEL_KINDS = {
    "paper": {},
    "pre-norm": {"norm": "pre"},
    # Shorter than most sentences.
    "learned positions": {"positions": "learned", "maximum_positions": 6},
    "two vocabularies": {"tying": "none"},
    "free d_k and d_v": {"d_k": 5, "d_v": 3},
    "additive": {"compatibility": "additive"},
    "window": {"attention_window": 3},
    "chunks": {"attention_chunk": 2},
}

RECIPE = """
data:
  source_language: en
  target_language: de
  train: {{source: {folder}/train.en, target: {folder}/train.de}}
  validation: {{source: {folder}/valid.en, target: {folder}/valid.de}}
  test: {{source: {folder}/valid.en, target: {folder}/valid.de}}
tokenizer: {{vocabulary_size: {vocabulary_size}}}
model:
  preset: tiny
  num_encoder_layers: 1
  num_decoder_layers: 1
  d_model: 32
  d_ff: 64
  dropout: 0
training:
  steps: 3
  batch_tokens: 400
  warmup_steps: 5
  precision: float32
  log_every_steps: 1
  validate_every_steps: 2
  validation_bleu_sentences: 4
  checkpoint_every_steps: 1
  average_checkpoints: 2
decoding: {{beam_size: 3, maximum_extra_length: 6, maximum_source_length: 40, batch_sentences: 8}}
"""
VOCABULARY_SIZE = 340


def numbers(count: int, seed: int) -> tuple[list[str], list[str]]:
    """Sentences of 1 to 8 numbers, in English and in German."""
    random = np.random.default_rng(seed)
    rows = [random.choice(list(NUMBERS), random.integers(1, 9)) for _ in range(count)]
    return (
        [" ".join(row) for row in rows],
        [" ".join(NUMBERS[word] for word in row) for row in rows],
    )


def number_tokenizer(**options) -> TranslationTokenizer:
    """In which each number is one token, as its English and German letters are others."""
    options = {"vocabulary_size": VOCABULARY_SIZE, **options}
    return TranslationTokenizer.train(*numbers(300, seed=1), **options)


def trained_model(tokenizer: TranslationTokenizer) -> Transformer:
    """A model that has seen numbers for a second or two, and translates most of them."""
    # No global seed is set: tests that share this process keep their random numbers.
    config = load_numbers_recipe(Path()).transformer_config(tokenizer.target.vocabulary_size)
    model = build_transformer(config)
    random = np.random.default_rng(2)
    for variable in model.trainable_variables:
        if len(variable.shape) > 1:
            variable.assign(random.normal(0, variable.shape[-1] ** -0.5, variable.shape))
    model.compile(keras.optimizers.Adam(0.01), loss=SmoothedCrossEntropy(0.1), jit_compile=False)
    model.fit(training_dataset(tokenizer), epochs=6, shuffle=False, verbose=0)
    return model


def training_dataset(tokenizer: TranslationTokenizer) -> tf.data.Dataset:
    """20 batches of 50 sentences for `fit`."""
    sources, targets = numbers(1000, seed=2)
    source = padded([[*tokenizer.source.encode(text), EOS_ID] for text in sources])
    labels = padded([[*tokenizer.target.encode(text), EOS_ID] for text in targets])
    target = np.concatenate([np.full((len(labels), 1), BOS_ID), labels[:, :-1]], axis=1)
    dataset = tf.data.Dataset.from_tensor_slices(({"source": source, "target": target}, labels))
    return dataset.batch(50)


def write_numbers_run(folder: Path) -> RunDirectory:
    """Corpus, recipe, tokenizer, two checkpoints and model of a run that trained by itself."""
    corpus = folder / "corpus"
    corpus.mkdir()
    for split, count, seed in (("train", 100, 5), ("valid", 9, 6)):
        for language, lines in zip(("en", "de"), numbers(count, seed), strict=True):
            (corpus / f"{split}.{language}").write_text("".join(f"{line}\n" for line in lines))
    run = RunDirectory(folder / "run")
    run.path.mkdir()
    load_numbers_recipe(corpus).save(run.recipe_path)
    tokenizer = number_tokenizer()
    tokenizer.save(run.tokenizer_path)
    model = trained_model(tokenizer)
    for step in (200, 300):
        run.checkpoints().save(model, step, {"step": step})
    save_model(model, run.model_path)
    return run


def random_model(tokenizer: TranslationTokenizer, dtype=None, seed=4, **changes) -> Transformer:
    """A model of large random weights, whose translations are all unlike."""
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 2, "d_model": 16, "d_ff": 32}
    source_vocabulary_size = None if tokenizer.shared else tokenizer.source.vocabulary_size
    config = TransformerConfig(
        tokenizer.target.vocabulary_size,
        source_vocabulary_size,
        **{**sizes, "num_heads": 2, "dropout": 0.0, **changes},
    )
    model = build_transformer(config, dtype=dtype)
    random = np.random.default_rng(seed)
    for variable in model.trainable_variables:
        shape = variable.shape
        if len(shape) == 1:
            variable.assign(variable.numpy() + random.normal(0, 0.3, shape))
        else:
            variable.assign(random.normal(0, 2 * shape[-1] ** -0.5, shape))
    return model


def log_softmax(logits) -> np.ndarray:
    return tf.nn.log_softmax(tf.cast(logits, tf.float32)).numpy()


def padded(rows: list[list[int]]) -> np.ndarray:
    return tf.ragged.constant(rows, dtype=tf.int32).to_tensor(0).numpy()


def numbers_recipe_text(corpus: Path) -> str:
    return RECIPE.format(folder=corpus, vocabulary_size=VOCABULARY_SIZE)


def load_numbers_recipe(corpus: Path) -> Recipe:
    return Recipe.from_dict(yaml.safe_load(numbers_recipe_text(corpus)))
