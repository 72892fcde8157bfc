"""A probe of memory: what attention scores will take, against what the machine has."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from keras_transformer import TransformerConfig
from keras_transformer.diagnosis.finding import Finding

# What the way back needs of each attention: the weights as they come from the softmax, and as they
# are multiplied with the values. They are float32 in any precision.
_COPIES = 2
_BYTES = 4
# Rows of a block of windowed attention are at least so many.
_LEAST_BLOCK = 16
# Weights, activations and the rest of the machine want room too.
LARGEST_SHARE = 0.5


def attention_bytes(
    config: TransformerConfig, batch_tokens: int, length: int, accumulate_steps: int = 1
) -> int:
    """Bytes of the attention scores of a training step with sentences of one length.

    Args:
        config: `TransformerConfig`, whose `attention_window` and `attention_chunk` count.
        batch_tokens: int. Tokens of a device's batch on one side.
        length: int. Tokens of each sentence.
        accumulate_steps: int. Parts that the batch is divided into.

    Returns:
        int. With `chunk` only one layer's chunk is held at a time; else those of all layers.

    Example:

    >>> config = TransformerConfig.preset("base", vocabulary_size=37000)
    >>> round(attention_bytes(config, 25_000, 100) / 2**20)
    2747
    """
    rows = max(1, -(-batch_tokens // accumulate_steps) // length)

    def of_one(keys: int, queries: int) -> int:
        return rows * config.num_heads * queries * keys * _BYTES * _COPIES

    whole, chunk, window = of_one(length, length), config.attention_chunk, config.attention_window
    layers = config.num_encoder_layers + config.num_decoder_layers
    held_self = layers * whole
    held_cross = config.num_decoder_layers * whole
    if chunk is not None:
        of_chunk = of_one(length, min(chunk, length))
        held_self, held_cross = of_chunk, of_chunk
    if window is not None:
        reach = max(window // 2, _LEAST_BLOCK)
        encoder = of_one(min(3 * reach, length), length)
        decoder = of_one(min(2 * max(window - 1, _LEAST_BLOCK), length), length)
        held_self = config.num_encoder_layers * encoder + config.num_decoder_layers * decoder
    return held_self + held_cross


def memory_of_machine() -> tuple[int, str]:
    """Bytes of the smallest GPU that TensorFlow sees, or of the machine; and which it is.

    Example:

    >>> memory_of_machine()[0] > 0
    True
    """
    for gpu in tf.config.list_physical_devices("GPU"):
        details = tf.config.experimental.get_device_details(gpu)
        if "memory_limit" in details:
            return int(details["memory_limit"]), gpu.name
    for line in Path("/proc/meminfo").read_text().split("\n"):
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024, "the machine"
    raise OSError("/proc/meminfo has no line MemTotal")


def attention_memory(
    config: TransformerConfig,
    batch_tokens: int,
    longest: int,
    accumulate_steps: int = 1,
    available: int | None = None,
) -> Finding:
    """Whether the attention scores of the longest batch fit into memory.

    Args:
        config: `TransformerConfig`.
        batch_tokens: int. Tokens of a device's batch on one side.
        longest: int. Tokens of the longest pair.
        accumulate_steps: int.
        available: int or None. Bytes; what this machine has by default.

    Returns:
        A `Finding`, whose remedy names the option that would do.

    Example:

    >>> config = TransformerConfig.preset("base", vocabulary_size=37000)
    >>> attention_memory(config, 32_768, 16_384, available=64 * 2**30).ok
    False
    """
    where = "the given memory"
    if available is None:
        available, where = memory_of_machine()
    needed = attention_bytes(config, batch_tokens, longest, accumulate_steps)
    ok = needed <= LARGEST_SHARE * available
    in_words = f"{needed / 2**30:.2f} GiB of the {available / 2**30:.1f} GiB of {where}"
    return Finding(
        "attention_memory",
        "memory",
        ok,
        {
            "attention_bytes": needed,
            "available_bytes": available,
            "longest": longest,
            "batch_tokens": batch_tokens,
        },
        f"at most {LARGEST_SHARE:.0%} of the memory",
        f"attention scores of {longest} tokens take {in_words}",
        "" if ok else _advice(config, batch_tokens, longest, accumulate_steps, available),
    )


def _advice(config, batch_tokens, longest, accumulate_steps, available) -> str:
    """The first option that is enough, dearest in quality last."""
    for parts in (2, 4, 8, 16):
        if batch_tokens // parts < longest:
            break
        if attention_bytes(config, batch_tokens, longest, parts) <= LARGEST_SHARE * available:
            return f"set training.accumulate_steps to {parts}: the same update"
    for chunk in (256, 64, 16):
        chunked = TransformerConfig.from_dict({**config.to_dict(), "attention_chunk": chunk})
        if attention_bytes(chunked, batch_tokens, longest, accumulate_steps) <= (
            LARGEST_SHARE * available
        ):
            return f"set model.attention_chunk to {chunk}: the same result, some slower"
    return (
        "set model.attention_window to 256 or less, model.attention_chunk to 16, and a lower "
        "data.maximum_length"
    )
