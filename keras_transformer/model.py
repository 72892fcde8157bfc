"""The Transformer: a functional Keras model, its exact training step, and its decoding step."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.errors import InputError
from keras_transformer.layers import (
    Decoder,
    Dropout,
    Encoder,
    LearnedPositions,
    SinusoidalPositions,
    StackArguments,
    TokenEmbedding,
    padding_mask,
)
from keras_transformer.losses import SmoothedCrossEntropy
from keras_transformer.search import SearchState, Step
from keras_transformer.training_step import (
    gradient_norms,
    gradients_in_parts,
    in_multi_worker_mode,
    sum_over_replicas,
    summed_gradients,
)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Transformer(keras.Model):
    """The encoder-decoder Transformer of section 3 of the paper, as a functional model.

    It maps `{"source": ids, "target": ids shifted right}` to the logits of the next target word at
    each position. `fit`, `save`, `summary` and all else of a Keras model work. What this class
    adds: a training step whose loss and gradient are the exact mean over the real tokens of all
    replicas, step-by-step decoding from cached keys and values, and all attention weights.

    Args:
        config: `TransformerConfig`, or the dict of one.
        name: str. Name of the model.

    Call arguments:
        inputs: dict of int tensors: `source` [B, S] (words, end id, 0 = padding) and `target`
            [B, T] (start id, words, 0 = padding).
        training: bool. Whether dropout is active.

    Returns:
        Float32 logits [B, T, vocabulary_size].

    Example:

    >>> import numpy as np
    >>> model = Transformer(TransformerConfig.preset("tiny", vocabulary_size=100))
    >>> logits = model({"source": np.array([[5, 6, 2]]), "target": np.array([[1, 7]])})
    >>> tuple(logits.shape)
    (1, 2, 100)

    References:
        - Vaswani et al., 2017, [Attention Is All You Need](https://arxiv.org/abs/1706.03762)
    """

    def __init__(self, config: TransformerConfig | dict, name: str = "transformer", **kwargs):
        if not isinstance(config, TransformerConfig):
            config = TransformerConfig.from_dict(config)
        policy = keras.dtype_policies.get(kwargs.pop("dtype", None))
        arguments = StackArguments.of(config)

        def embedding(vocabulary_size: int | None, name: str, output=False) -> TokenEmbedding:
            return TokenEmbedding(
                vocabulary_size or config.vocabulary_size,
                config.d_model,
                scale=config.scale_embedding,
                output_bias=output and config.output_bias,
                dtype=policy,
                name=name,
            )

        def positions(side: str):
            if config.positions == "learned":
                return LearnedPositions(
                    config.maximum_positions, dtype=policy, name=f"{side}_positions"
                )
            layout = "halves" if config.positions == "sinusoidal-halves" else "interleaved"
            return SinusoidalPositions(layout, dtype=policy, name=f"{side}_positions")

        is_tied = config.tying != "none"
        target_embedding = embedding(None, "target_embedding", output=is_tied)
        source_embedding = output_projection = target_embedding
        if config.tying != "three-way":
            source_embedding = embedding(config.source_vocabulary_size, "source_embedding")
        if not is_tied:
            output_projection = embedding(None, "output_projection", output=True)
        source_positions, target_positions = positions("source"), positions("target")
        source_dropout = Dropout(config.dropout, dtype=policy, name="source_dropout")
        target_dropout = Dropout(config.dropout, dtype=policy, name="target_dropout")
        encoder = Encoder(config.num_encoder_layers, arguments, dtype=policy, name="encoder")
        decoder = Decoder(config.num_decoder_layers, arguments, dtype=policy, name="decoder")

        source = keras.Input((None,), dtype="int32", name="source")
        target = keras.Input((None,), dtype="int32", name="target")
        memory_mask = padding_mask(source)
        x = source_dropout(source_positions(source_embedding(source)))
        memory = encoder(x, attention_mask=memory_mask)
        y = target_dropout(target_positions(target_embedding(target)))
        y = decoder(y, memory, memory_attention_mask=memory_mask)
        logits = output_projection(y, reverse=True)
        super().__init__(
            inputs={"source": source, "target": target}, outputs=logits, name=name, **kwargs
        )

        self.config = config
        self.source_embedding = source_embedding
        self.target_embedding = target_embedding
        self.output_projection = output_projection
        self.source_positions = source_positions
        self.target_positions = target_positions
        self.encoder = encoder
        self.decoder = decoder
        self.policy = policy
        # Makes `compile` scale the loss where the policy is mixed_float16.
        self.dtype_policy = policy
        self._accumulate_steps = 1
        self._logs_layer_gradients = False

    @property
    def accumulate_steps(self) -> int:
        """Parts that a replica's batch is divided into, one after the other, by `train_step`.

        The update is that of the whole batch, and the memory for activations that of a part. Set
        it before `fit`; it is not saved with the model.
        """
        return self._accumulate_steps

    @accumulate_steps.setter
    def accumulate_steps(self, steps: int) -> None:
        if not isinstance(steps, int) or steps < 1:
            raise InputError(f"accumulate_steps must be at least 1. Received: {steps!r}")
        self._accumulate_steps = steps
        self.train_function = None  # a traced step has the old number in it

    @property
    def logs_layer_gradients(self) -> bool:
        """Whether the logs of `train_step` have `layer_gradient_norms`, by `layer_names`.

        Set it before `fit`; it is not saved with the model.
        """
        return self._logs_layer_gradients

    @logs_layer_gradients.setter
    def logs_layer_gradients(self, value: bool) -> None:
        self._logs_layer_gradients = value
        self.train_function = None

    def encode(self, source) -> tuple[Any, Any]:
        """Encodes source ids, without dropout.

        Args:
            source: int tensor [N, S], 0 = padding.

        Returns:
            A tuple: the memory [N, S, d_model], and its mask [N, 1, 1, S].
        """
        mask = padding_mask(source)
        x = self.source_positions(self.source_embedding(source))
        return self.encoder(x, attention_mask=mask), mask

    def start_decoding(self, source, beam_size: int) -> tuple[Step, SearchState]:
        """Encodes source ids and prepares the search for their translations.

        Args:
            source: int tensor [N, S], 0 = padding.
            beam_size: int. K, hypotheses a sentence.

        Returns:
            A tuple: the step function that `beam_search` calls, and its state before the first
            step. Keys and values of the memory, and the softmax projection, are computed here,
            once.
        """
        memory, mask = self.encode(source)
        sentences = ops.shape(source)[0]
        state = SearchState(
            hypotheses=ops.zeros((sentences, beam_size, 0), dtype="int32"),
            sentences=(
                self.decoder.empty_cache(sentences),
                self.decoder.project_memory(memory),
                mask,
            ),
        )
        output_kernel = self.output_projection.output_kernel()

        def step(tokens, index, state: SearchState):
            return self.decode_step(tokens, index, state, output_kernel)

        return step, state

    def decode_step(self, tokens, index, state: SearchState, output_kernel):
        """Logits of the word after `tokens`, from cached keys and values.

        Args:
            tokens: int tensor [N, K], the newest word of each hypothesis.
            index: scalar int tensor, its position.
            state: `SearchState`: its hypotheses are the ancestors of `Decoder.step`, its sentences
                each layer's cache, each layer's keys and values of the memory, and the memory's
                mask.
            output_kernel: the softmax projection [d_model, vocabulary_size].

        Returns:
            A tuple: float32 logits [N, K, vocabulary_size], and the new state.
        """
        caches, memories, memory_mask = state.sentences
        x = self.target_embedding(tokens)  # [N, K, d_model]
        # All hypotheses are at the same position: each is a sequence of length 1.
        x = ops.reshape(x, (-1, 1, self.config.d_model))
        x = self.target_positions(x, start_index=index)
        x = ops.reshape(x, (-1, tokens.shape[1], self.config.d_model))
        x, caches, ancestors = self.decoder.step(x, caches, state.hypotheses, memories, memory_mask)
        state = SearchState(ancestors, (caches, memories, memory_mask))
        return self.output_projection.logits(x, output_kernel), state

    def decoder_output(self, source, target):
        """What the softmax projection turns into logits, without dropout.

        Args:
            source: int tensor [B, S], 0 = padding.
            target: int tensor [B, T], the target shifted right.

        Returns:
            Float tensor [B, T, d_model].
        """
        memory, mask = self.encode(source)
        y = self.target_positions(self.target_embedding(target))
        return self.decoder(y, memory, memory_attention_mask=mask)

    def attention_weights(self, source, target) -> dict[str, list]:
        """The weights of every attention of every layer, without dropout.

        Args:
            source: int tensor [B, S], 0 = padding.
            target: int tensor [B, T], the target shifted right.

        Returns:
            A dict of lists with a float32 tensor a layer: `encoder` [B, h, S, S], `decoder`
            [B, h, T, T] and `cross` [B, h, T, S].
        """
        source, target = ops.convert_to_tensor(source), ops.convert_to_tensor(target)
        mask = padding_mask(source)
        x = self.source_positions(self.source_embedding(source))
        memory, encoder_weights = self.encoder.with_attention_weights(x, mask)
        y = self.target_positions(self.target_embedding(target))
        _, decoder_weights, cross_weights = self.decoder.with_attention_weights(y, memory, mask)
        return {"encoder": encoder_weights, "decoder": decoder_weights, "cross": cross_weights}

    def train_step(self, data):
        """One update with the gradient of the mean loss over the real tokens of all replicas.

        The default step of Keras averages each replica's own mean, so that a replica with few
        tokens weighs as much as one with many. Losses other than `SmoothedCrossEntropy` take it.
        """
        if not isinstance(self.loss, SmoothedCrossEntropy):
            if self.accumulate_steps > 1:
                raise InputError(
                    "accumulate_steps needs the loss SmoothedCrossEntropy. "
                    f"Received: {self.accumulate_steps} with {self.loss!r}"
                )
            return super().train_step(data)
        inputs, labels, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        weights = self.loss.token_weights(labels, sample_weight)
        tokens = sum_over_replicas(tf.reduce_sum(weights))

        def forward(source, target, labels, weights):
            part = {"source": source, "target": target}
            logits = self(part, training=True)
            loss = tf.reduce_sum(self.loss.call(labels, logits) * weights)
            self.compute_metrics(part, labels, logits, None if sample_weight is None else weights)
            # The gradients of the parts and replicas add up to the gradient of the mean.
            return self.optimizer.scale_loss(tf.math.divide_no_nan(loss, tokens)), loss

        gradients, loss = gradients_in_parts(
            self,
            (inputs["source"], inputs["target"], labels, weights),
            self.accumulate_steps,
            forward,
        )
        gradients = sum_over_replicas(gradients)
        scale = self.optimizer.scale_loss(1.0)
        norms = {"gradient_norm": tf.linalg.global_norm(gradients) / scale}
        if self.logs_layer_gradients:
            by_layer = gradient_norms(gradients, self.trainable_variables)
            norms["layer_gradient_norms"] = by_layer / scale
        with summed_gradients(self.optimizer):
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        # Each replica tracks the mean over all, so that what is shown after a batch is right too.
        self._loss_tracker.update_state(
            tf.math.divide_no_nan(sum_over_replicas(loss), tokens),
            tokens / tf.distribute.get_replica_context().num_replicas_in_sync,
        )
        logs = {**self.get_metrics_result(), **norms}
        if in_multi_worker_mode():
            # Keras takes the mean over the workers along the first axis, which a scalar has not.
            logs = {name: value[None] for name, value in logs.items()}
        return logs

    def test_step(self, data):
        """Evaluates one batch; the loss shown is the mean over the real tokens of all batches."""
        if not isinstance(self.loss, SmoothedCrossEntropy):
            return super().test_step(data)
        inputs, labels, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        logits = self(inputs, training=False)
        loss, tokens = self._replica_loss(labels, logits, sample_weight)
        self._loss_tracker.update_state(tf.math.divide_no_nan(loss, tokens), tokens)
        return self.compute_metrics(inputs, labels, logits, sample_weight)

    def _replica_loss(self, labels, logits, sample_weight):
        """This replica's sum of the token losses, and its number of real tokens."""
        weights = self.loss.token_weights(labels, sample_weight)
        return ops.sum(self.loss.call(labels, logits) * weights), ops.sum(weights)

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        """Builds optimizer and metrics from the shapes of any batch.

        Keras takes the mean of the replicas' parts of the first batch, which fails where they
        differ in size, and which uses up that batch.
        """
        if self._distribute_strategy is None and self.accumulate_steps == 1:
            return  # Keras builds them as it traces the step.
        ids = keras.KerasTensor((None, None), "int32")
        with self.distribute_strategy.scope():
            self._symbolic_build(data_batch=({"source": ids, "target": ids}, ids))

    def _get_metrics_result_or_logs(self, logs):
        # Keras would show the logs of the last batch, a mean over replicas, as they hold more than
        # its metrics do. Its progress bar shows numbers, and no list of them.
        logs = {name: value for name, value in logs.items() if name != "layer_gradient_norms"}
        if in_multi_worker_mode():
            return logs  # Each replica's metrics hold the loss of all.
        return {**logs, **self.get_metrics_result()}

    def get_config(self) -> dict:
        return {
            "config": self.config.to_dict(),
            "name": self.name,
            "dtype": keras.dtype_policies.serialize(self.policy),
        }

    @classmethod
    def from_config(cls, config: dict, custom_objects=None) -> Transformer:
        return cls(**config)


def build_transformer(config: TransformerConfig, dtype=None) -> Transformer:
    """Builds the functional Keras model of a config.

    Args:
        config: `TransformerConfig`.
        dtype: dtype policy: `"float32"`, `"mixed_bfloat16"` or `"mixed_float16"`. Defaults to the
            global policy.

    Returns:
        A `Transformer`.

    Example:

    >>> model = build_transformer(TransformerConfig.preset("tiny", vocabulary_size=100))
    >>> model.count_params() > 0
    True
    """
    return Transformer(config, dtype=dtype)
