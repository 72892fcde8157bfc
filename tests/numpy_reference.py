"""The formulas of "Attention Is All You Need" in NumPy, float64, as the paper writes them.

Nothing here is fast or shared with the package: sums are written out, heads are separate matrices,
hidden keys are left out of a sum rather than given a large negative score. Section numbers are the
paper's (Vaswani et al., 2017).
"""

from __future__ import annotations

import math

import numpy as np


def softmax(x: np.ndarray) -> np.ndarray:
    """exp(x_i) / sum_j exp(x_j) over the last axis."""
    exponentials = np.exp(x - x.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def attention(
    queries: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    allowed: np.ndarray | None = None,
    compatibility: str = "scaled_dot_product",
    vector: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Equation 1 for one head of one sentence: softmax(Q K^T / sqrt(d_k)) V.

    Args:
        queries: [T, d_k].
        keys: [S, d_k].
        values: [S, d_v].
        allowed: boolean [T, S]. A query's softmax runs over its allowed keys alone, and a query
            with none gets zeros.
        compatibility: which of the functions of section 3.2.1 compares a query with a key.
        vector: [d_k], the additive one's.

    Returns:
        The result [T, d_v] and the weights [T, S].
    """
    queries, keys, values = (np.asarray(x, "float64") for x in (queries, keys, values))
    length, memory_length, d_k = len(queries), len(keys), queries.shape[-1]
    if allowed is None:
        allowed = np.ones((length, memory_length), bool)
    scores = {
        "scaled_dot_product": lambda q, k: k @ q / math.sqrt(d_k),
        "dot_product": lambda q, k: k @ q,
        "additive": lambda q, k: np.tanh(q + k) @ vector,
    }[compatibility]
    weights = np.zeros((length, memory_length))
    for t in range(length):
        seen = np.flatnonzero(allowed[t])
        if len(seen):
            weights[t, seen] = softmax(scores(queries[t], keys[seen]))
    return weights @ values, weights


def multi_head_attention(
    queries: np.ndarray,
    memory: np.ndarray,
    weights: dict[str, np.ndarray],
    num_heads: int,
    allowed: np.ndarray | None = None,
    compatibility: str = "scaled_dot_product",
) -> tuple[np.ndarray, np.ndarray]:
    """Section 3.2.2: Concat(head_1, ..., head_h) W^O, head_i = Attention(Q W_i, K W_i, V W_i).

    Args:
        queries: [T, d_model].
        memory: [S, d_model], keys and values.
        weights: `query/kernel`, `key/kernel`, `value/kernel` [d_model, h * d], whose columns are
            head after head, `output/kernel` [h * d_v, d_model], the biases where there are, and
            `compatibility` [h, d_k] where it is additive.
        num_heads: h.
        allowed: boolean [T, S].
        compatibility: as for `attention`.

    Returns:
        The result [T, d_model] and the weights [h, T, S].
    """
    heads, all_weights = [], []
    for i in range(num_heads):

        def project(x, name, i=i):
            kernel = np.split(np.asarray(weights[f"{name}/kernel"], "float64"), num_heads, 1)[i]
            bias = weights.get(f"{name}/bias")
            projected = np.asarray(x, "float64") @ kernel
            return projected if bias is None else projected + np.split(bias, num_heads)[i]

        vectors = weights.get("compatibility")
        head, head_weights = attention(
            project(queries, "query"),
            project(memory, "key"),
            project(memory, "value"),
            allowed,
            compatibility,
            None if vectors is None else np.asarray(vectors[i], "float64"),
        )
        heads.append(head)
        all_weights.append(head_weights)
    result = np.concatenate(heads, axis=-1) @ np.asarray(weights["output/kernel"], "float64")
    return result + weights.get("output/bias", 0.0), np.stack(all_weights)


def positional_encoding(position: int, d_model: int) -> np.ndarray:
    """Section 3.5: PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos(same)."""
    row = np.zeros(d_model)
    for i in range(d_model // 2):
        angle = position / 10000 ** (2 * i / d_model)
        row[2 * i] = math.sin(angle)
        row[2 * i + 1] = math.cos(angle)
    return row


ACTIVATIONS = {
    "relu": lambda x: np.maximum(0.0, x),
    "gelu": lambda x: x * 0.5 * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0))),
    "gelu_sigmoid": lambda x: x / (1.0 + np.exp(-1.702 * x)),
    "swish": lambda x: x / (1.0 + np.exp(-x)),
}


def feed_forward(
    x: np.ndarray, weights: dict[str, np.ndarray], activation: str = "relu"
) -> np.ndarray:
    """Equation 2: FFN(x) = max(0, x W1 + b1) W2 + b2."""
    w = {name: np.asarray(value, "float64") for name, value in weights.items()}
    inner = ACTIVATIONS[activation](x @ w["inner/kernel"] + w["inner/bias"])
    return inner @ w["outer/kernel"] + w["outer/bias"]


def layer_norm(x: np.ndarray, weights: dict[str, np.ndarray], epsilon: float) -> np.ndarray:
    """Ba et al., 2016: zero mean and unit variance over the last axis, then gain and bias."""
    mean = x.mean(axis=-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * weights["gamma"] + weights["beta"]


def smoothed_cross_entropy(logits: np.ndarray, label: int, smoothing: float) -> float:
    """Section 5.4, one token: -sum_k q_k log p_k, q = 1 - e on the label plus e/V on each class."""
    logits = np.asarray(logits, "float64")
    classes = len(logits)
    log_p = np.log(softmax(logits))
    total = 0.0
    for k in range(classes):
        q = smoothing / classes + (1.0 - smoothing if k == label else 0.0)
        total -= q * log_p[k]
    return total


def mean_loss(logits: np.ndarray, labels: np.ndarray, smoothing: float, weights=None) -> float:
    """Mean of the token losses over the labels that are not padding (0)."""
    total = number = 0.0
    for b, t in zip(*np.nonzero(labels), strict=True):
        weight = 1.0 if weights is None else weights[b, t]
        total += weight * smoothed_cross_entropy(logits[b, t], labels[b, t], smoothing)
        number += weight
    return total / number


def learning_rate(step: int, d_model: int, warmup_steps: int, factor: float = 1.0) -> float:
    """Equation 3, for step 1, 2, ..."""
    return factor * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


class Forward:
    """The whole model of figure 1 for one sentence pair, from a dict of weights by path.

    Args:
        weights: path -> array, without the model's name.
        config: has the fields of `TransformerConfig`.
    """

    def __init__(self, weights: dict[str, np.ndarray], config) -> None:
        self.weights = {path: np.asarray(value, "float64") for path, value in weights.items()}
        self.config = config

    def under(self, prefix: str) -> dict[str, np.ndarray]:
        found = {
            path.removeprefix(f"{prefix}/"): value
            for path, value in self.weights.items()
            if path.startswith(f"{prefix}/")
        }
        assert found, f"no weights under {prefix}"
        return found

    def embed(self, ids: np.ndarray, side: str) -> np.ndarray:
        """Section 3.4 and 3.5: embedding * sqrt(d_model) + position; padding is no word."""
        c = self.config
        scale = math.sqrt(c.d_model) if c.scale_embedding else 1.0
        name = "target_embedding" if c.tying == "three-way" else f"{side}_embedding"
        matrix = self.weights[f"{name}/embeddings"]
        rows = []
        for position, word in enumerate(ids):
            vector = matrix[word] * scale if word else np.zeros(c.d_model)
            if c.positions == "learned":
                last = c.maximum_positions - 1
                rows.append(vector + self.weights[f"{side}_positions/vectors"][min(position, last)])
                continue
            encoding = positional_encoding(position, c.d_model)
            if c.positions == "sinusoidal-halves":
                encoding = np.concatenate([encoding[0::2], encoding[1::2]])
            rows.append(vector + encoding)
        return np.stack(rows)

    def residual(self, x: np.ndarray, prefix: str, sublayer) -> np.ndarray:
        """LayerNorm(x + Sublayer(x)) of section 3.1, or x + Sublayer(LayerNorm(x))."""
        norm, epsilon = (
            self.under(f"{prefix}_residual/normalization"),
            self.config.layer_norm_epsilon,
        )
        if self.config.norm == "post":
            return layer_norm(x + sublayer(x), norm, epsilon)
        return x + sublayer(layer_norm(x, norm, epsilon))

    def attend(self, x: np.ndarray, prefix: str, memory, allowed: np.ndarray) -> np.ndarray:
        def sublayer(x):
            keys_and_values = x if memory is None else memory
            return multi_head_attention(
                x,
                keys_and_values,
                self.under(prefix),
                self.config.num_heads,
                allowed,
                self.config.compatibility,
            )[0]

        return self.residual(x, prefix, sublayer)

    def near(self, length: int, is_decoder: bool) -> np.ndarray:
        """Restricted self-attention of section 4: boolean [T, T], True = in the window."""
        r = self.config.attention_window
        if r is None:
            return np.ones((length, length), bool)
        ahead = np.arange(length)[None, :] - np.arange(length)[:, None]
        if is_decoder:
            return (ahead > -r) & (ahead <= 0)
        return (ahead >= -(r // 2)) & (ahead < r - r // 2)

    def feed_forward(self, x: np.ndarray, prefix: str) -> np.ndarray:
        weights = self.under(prefix)
        return self.residual(x, prefix, lambda x: feed_forward(x, weights, self.config.activation))

    def finish(self, x: np.ndarray, stack: str) -> np.ndarray:
        if self.config.norm == "post":
            return x
        norm = self.under(f"{stack}/final_normalization")
        return layer_norm(x, norm, self.config.layer_norm_epsilon)

    def encode(self, source: np.ndarray) -> np.ndarray:
        """[S] ids -> [S, d_model]."""
        x = self.embed(source, "source")
        allowed = np.tile(source != 0, (len(source), 1)) & self.near(len(source), False)
        for i in range(self.config.num_encoder_layers):
            x = self.attend(x, f"encoder/layer_{i}/self_attention", None, allowed)
            x = self.feed_forward(x, f"encoder/layer_{i}/feed_forward")
        return self.finish(x, "encoder")

    def logits(self, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        """[S] and [T] ids -> [T, V]."""
        memory = self.encode(source)
        y = self.embed(target, "target")
        earlier = np.tril(np.ones((len(target), len(target)), bool)) & self.near(len(target), True)
        real_source = np.tile(source != 0, (len(target), 1))
        for i in range(self.config.num_decoder_layers):
            y = self.attend(y, f"decoder/layer_{i}/self_attention", None, earlier)
            y = self.attend(y, f"decoder/layer_{i}/cross_attention", memory, real_source)
            y = self.feed_forward(y, f"decoder/layer_{i}/feed_forward")
        name = "output_projection" if self.config.tying == "none" else "target_embedding"
        logits = self.finish(y, "decoder") @ self.weights[f"{name}/embeddings"].T
        return logits + self.weights.get(f"{name}/output_bias", 0.0)


def parameter_count(config) -> int:
    """Number of weights of figure 1's model, counted from the sizes of sections 3.1 to 3.5."""
    d, h = config.d_model, config.num_heads
    d_k, d_v = config.d_k or d // h, config.d_v or d // h
    attention_weights = h * (d * d_k + d * d_k + d * d_v) + h * d_v * d
    if config.attention_bias:
        attention_weights += h * (d_k + d_k + d_v) + d
    if config.compatibility == "additive":
        attention_weights += h * d_k
    feed_forward_weights = d * config.d_ff + config.d_ff + config.d_ff * d + d
    norm = 2 * d
    encoder = config.num_encoder_layers * (attention_weights + feed_forward_weights + 2 * norm)
    decoder = config.num_decoder_layers * (2 * attention_weights + feed_forward_weights + 3 * norm)
    final_norms = 2 * norm if config.norm == "pre" else 0
    source_words = config.source_vocabulary_size or config.vocabulary_size
    words = {
        "three-way": config.vocabulary_size,
        "output": config.vocabulary_size + source_words,
        "none": 2 * config.vocabulary_size + source_words,
    }[config.tying]
    positions = 2 * config.maximum_positions * d if config.positions == "learned" else 0
    output_bias = config.vocabulary_size if config.output_bias else 0
    return encoder + decoder + final_norms + words * d + positions + output_bias
