"""The shape of a Transformer: every choice of the paper's table 3 as one frozen dataclass."""

from __future__ import annotations

import dataclasses
import difflib
import json
from typing import Any

from keras_transformer.errors import InputError, check_choice

CHOICES = {
    "norm": ("post", "pre"),
    "positions": ("sinusoidal", "sinusoidal-halves", "learned"),
    "tying": ("three-way", "output", "none"),
    "activation": ("relu", "gelu", "gelu_sigmoid", "swish"),
    "compatibility": ("scaled_dot_product", "dot_product", "additive"),
}


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """Describes an encoder-decoder Transformer, as in section 3 of the paper.

    The defaults are the paper's base model. A config is validated when it is made, never changes,
    and goes to JSON and back.

    Args:
        vocabulary_size: int. Number of target words (and source words, when shared).
        source_vocabulary_size: int or None. Number of source words where the source has a
            vocabulary of its own. `None` means one vocabulary for both languages.
        num_encoder_layers: int. N of the encoder.
        num_decoder_layers: int. N of the decoder.
        d_model: int. Width of every sub-layer's output.
        d_ff: int. Inner width of the feed-forward networks.
        num_heads: int. h, the number of attention heads.
        d_k: int or None. Width of a head's queries and keys. `None` means `d_model / num_heads`.
        d_v: int or None. Width of a head's values. `None` means `d_model / num_heads`.
        dropout: float. Rate after each sub-layer and on embedding + position (section 5.4).
        attention_dropout: float. Rate on attention weights; the paper has none.
        activation_dropout: float. Rate inside the feed-forward networks; the paper has none.
        norm: `"post"` as the paper, LayerNorm(x + Sublayer(x)), or `"pre"`, x +
            Sublayer(LayerNorm(x)) with a final LayerNorm on each stack.
        layer_norm_epsilon: float. Added to the variance in LayerNorm.
        positions: `"sinusoidal"` (section 3.5), `"sinusoidal-halves"`, which has all sines before
            all cosines as Marian does, or `"learned"` (table 3, row E).
        maximum_positions: int. Longest sequence that learned positions can tell apart.
        tying: `"three-way"`: one matrix for source, target and output (section 3.4);
            `"output"`: the target embedding is also the output projection, the source has its
            own; `"none"`: three matrices.
        activation: `"relu"` as the paper, `"gelu"`, `"gelu_sigmoid"`, x sigmoid(1.702 x), which is
            Marian's gelu, or `"swish"`.
        attention_bias: bool. Whether the projections of attention have biases. The paper's code
            has none.
        output_bias: bool. Whether the logits have a bias. The paper's code has none.
        scale_embedding: bool. Whether embeddings are multiplied by sqrt(d_model), as in section
            3.4.
        initializer_gain: float. Multiplies the standard deviation of the Glorot initializers of
            all projections; below 1 eases the training of deep post-norm stacks.
        compatibility: `"scaled_dot_product"`, or the two that section 3.2.1 compares it with:
            `"dot_product"` without the scale, and `"additive"`.
        attention_window: int or None. r of the restricted self-attention of section 4: a position
            attends to r positions centered around it (r // 2 before, (r - 1) // 2 after it), in
            the decoder to the last r, itself included. Encoder-decoder attention stays whole.
        attention_chunk: int or None. At most this many queries attend at a time: the same result
            with memory that grows linearly with the length.

    Raises:
        InputError: where a value is not possible, naming it.

    Example:

    >>> config = TransformerConfig.preset("base", vocabulary_size=37000)
    >>> config.d_model, config.num_heads, config.key_size
    (512, 8, 64)

    References:
        - Vaswani et al., 2017, [Attention Is All You Need](https://arxiv.org/abs/1706.03762)
    """

    vocabulary_size: int
    source_vocabulary_size: int | None = None
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    d_model: int = 512
    d_ff: int = 2048
    num_heads: int = 8
    d_k: int | None = None
    d_v: int | None = None
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    norm: str = "post"
    layer_norm_epsilon: float = 1e-6
    positions: str = "sinusoidal"
    maximum_positions: int = 1024
    tying: str = "three-way"
    activation: str = "relu"
    attention_bias: bool = False
    output_bias: bool = False
    scale_embedding: bool = True
    initializer_gain: float = 1.0
    compatibility: str = "scaled_dot_product"
    attention_window: int | None = None
    attention_chunk: int | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check_type(field.name, str(field.type), getattr(self, field.name))
        for name, choices in CHOICES.items():
            check_choice(name, getattr(self, name), choices)
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise InputError(
                    f"{name} must be at least 0 and below 1. Received: {getattr(self, name)!r}"
                )
        for name in ("layer_norm_epsilon", "initializer_gain"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be above 0. Received: {getattr(self, name)!r}")
        if self.d_model % self.num_heads and (self.d_k is None or self.d_v is None):
            raise InputError(
                "d_model must be divisible by num_heads unless d_k and d_v are given. "
                f"Received: d_model={self.d_model}, num_heads={self.num_heads}"
            )
        if self.positions != "learned" and self.d_model % 2:
            raise InputError(
                "d_model must be even for sinusoidal positions, which are pairs of sine and "
                f"cosine. Received: {self.d_model}"
            )
        if self.tying == "three-way" and self.source_vocabulary_size is not None:
            raise InputError(
                "tying must be 'output' or 'none' where the source has a vocabulary of its own. "
                f"Received: tying='three-way', source_vocabulary_size="
                f"{self.source_vocabulary_size}"
            )

    @property
    def key_size(self) -> int:
        """d_k, resolved."""
        return self.d_k or self.d_model // self.num_heads

    @property
    def value_size(self) -> int:
        """d_v, resolved."""
        return self.d_v or self.d_model // self.num_heads

    @classmethod
    def preset(cls, name: str, **changes: Any) -> TransformerConfig:
        """A named config: `"tiny"`, `"base"`, `"big"`, or a row of the paper's table 3.

        Args:
            name: str. A key of `PRESETS`.
            **changes: fields that differ from the preset; `vocabulary_size` is needed.

        Raises:
            InputError: for an unknown name or field.
        """
        if name not in PRESETS:
            raise InputError(
                f"preset must be one of {', '.join(PRESETS)}.{_nearest(name, PRESETS)} "
                f"Received: {name!r}"
            )
        return cls.from_dict({**PRESETS[name], **changes})

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TransformerConfig:
        """A config from a dict of fields; unknown names are refused by name."""
        names = [field.name for field in dataclasses.fields(cls)]
        for name in values:
            if name not in names:
                raise InputError(
                    f"model has no key '{name}'.{_nearest(name, names)} Received: {name!r}"
                )
        if "vocabulary_size" not in values:
            raise InputError("model needs vocabulary_size. Received: none")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """All fields, in plain Python types."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, text: str) -> TransformerConfig:
        """The inverse of `to_json`."""
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError(f"model must be a JSON object: {error}. Received: {text!r}") from None
        if not isinstance(values, dict):
            raise InputError(f"model must be a JSON object. Received: {text!r}")
        return cls.from_dict(values)

    def to_json(self) -> str:
        """All fields as a JSON object."""
        return json.dumps(self.to_dict(), indent=2)


def _check_type(name: str, annotation: str, value: Any) -> None:
    """Refuses a value that is not of the field's type, or a size below 1."""
    if value is None and "None" in annotation:
        return
    kind = annotation.split(" ")[0]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    fits = {
        "int": isinstance(value, int) and not isinstance(value, bool),
        "float": is_number,
        "bool": isinstance(value, bool),
        "str": isinstance(value, str),
    }[kind]
    if not fits:
        raise InputError(f"{name} must be of type {annotation}. Received: {value!r}")
    if kind == "int" and value < 1:
        raise InputError(f"{name} must be at least 1. Received: {value!r}")


def _nearest(name: str, names: Any) -> str:
    match = difflib.get_close_matches(name, names, n=1)
    return f" Did you mean '{match[0]}'?" if match else ""


# The paper's table 3: what each row changes against base. Row D's last two lines change the label
# smoothing, which belongs to the training and not to the model: see TABLE_3_LABEL_SMOOTHING.
TABLE_3: dict[str, dict[str, Any]] = {
    "A-1-head": {"num_heads": 1, "d_k": 512, "d_v": 512},
    "A-4-heads": {"num_heads": 4, "d_k": 128, "d_v": 128},
    "A-16-heads": {"num_heads": 16, "d_k": 32, "d_v": 32},
    "A-32-heads": {"num_heads": 32, "d_k": 16, "d_v": 16},
    "B-d_k-16": {"d_k": 16},
    "B-d_k-32": {"d_k": 32},
    "C-2-layers": {"num_encoder_layers": 2, "num_decoder_layers": 2},
    "C-4-layers": {"num_encoder_layers": 4, "num_decoder_layers": 4},
    "C-8-layers": {"num_encoder_layers": 8, "num_decoder_layers": 8},
    "C-d_model-256": {"d_model": 256, "d_k": 32, "d_v": 32},
    "C-d_model-1024": {"d_model": 1024, "d_k": 128, "d_v": 128},
    "C-d_ff-1024": {"d_ff": 1024},
    "C-d_ff-4096": {"d_ff": 4096},
    "D-dropout-0.0": {"dropout": 0.0},
    "D-dropout-0.2": {"dropout": 0.2},
    "D-label_smoothing-0.0": {},
    "D-label_smoothing-0.2": {},
    "E-learned-positions": {"positions": "learned"},
}
TABLE_3_LABEL_SMOOTHING = {"D-label_smoothing-0.0": 0.0, "D-label_smoothing-0.2": 0.2}

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {
        "num_encoder_layers": 3,
        "num_decoder_layers": 3,
        "d_model": 128,
        "d_ff": 512,
        "num_heads": 4,
    },
    "base": {},
    "big": {"d_model": 1024, "d_ff": 4096, "num_heads": 16, "dropout": 0.3},
    **TABLE_3,
}
