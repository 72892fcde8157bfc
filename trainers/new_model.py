"""A model with new weights, compiled as a recipe says."""

from __future__ import annotations

import keras

from keras_transformer import (
    SmoothedCrossEntropy,
    Transformer,
    TransformerConfig,
    TransformerSchedule,
)
from keras_transformer.translation_tokenizer import TranslationTokenizer
from trainers.recipe import Recipe


def config_of(recipe: Recipe, tokenizer: TranslationTokenizer) -> TransformerConfig:
    """The config of a recipe's model.

    Args:
        recipe: `Recipe`.
        tokenizer: `TranslationTokenizer`, which knows the sizes of the vocabularies.
    """
    source_vocabulary_size = None
    if not tokenizer.shared:
        source_vocabulary_size = tokenizer.source.vocabulary_size
    return recipe.transformer_config(tokenizer.target.vocabulary_size, source_vocabulary_size)


def new_model(recipe: Recipe, tokenizer: TranslationTokenizer) -> Transformer:
    """A model by a recipe, with Adam, the paper's schedule and the smoothed loss.

    Called in the scope of the strategy that it is to train under. Its weights are drawn from
    Keras' global seed.

    Args:
        recipe: `Recipe`, whose `training.precision` is a policy.
        tokenizer: `TranslationTokenizer`, which knows the sizes of the vocabularies.
    """
    training = recipe.training
    config = config_of(recipe, tokenizer)
    model = Transformer(config, dtype=training.precision)
    optimizer = keras.optimizers.Adam(
        TransformerSchedule(config.d_model, training.warmup_steps, training.learning_rate_factor),
        beta_1=training.adam_beta_1,
        beta_2=training.adam_beta_2,
        epsilon=training.adam_epsilon,
        global_clipnorm=training.gradient_clip_norm,
        use_ema=training.ema_decay is not None,
        ema_momentum=training.ema_decay or 0.0,
    )
    if training.precision == "mixed_float16":
        # Small gradients would be 0 in float16. It unscales them before Adam clips them.
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    model.compile(
        optimizer=optimizer,
        loss=SmoothedCrossEntropy(training.label_smoothing),
        jit_compile=training.jit_compile,
    )
    return model
