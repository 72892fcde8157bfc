"""The choices that systems make differently in beam search (section 6.1 of the paper)."""

from __future__ import annotations

import dataclasses
import math

import tensorflow as tf

from keras_transformer.errors import InputError, check_choice

CHOICES = {
    "length_penalty": ("gnmt", "power"),
    "early_stopping": ("never", "heuristic", "full_beam"),
    "ends_within": ("candidates", "beam"),
    "forced_end": ("scored", "free"),
}


@dataclasses.dataclass(frozen=True)
class SearchRules:
    """How hypotheses are scored, which ends count, and when a sentence is finished.

    The defaults are the paper's search, which gives up nothing for speed. Other values are those
    of other systems, so that a model that comes from there translates as it did there.

    Args:
        alpha: float. Strength of the length penalty, at least 0; 0 for none, the paper has 0.6.
        length_penalty: what a log-probability is divided by: `"gnmt"`, ((5 + n) / 6)^alpha, or
            `"power"`, n^alpha, for n tokens, the end token counted.
        early_stopping: when a sentence is finished: `"never"`, once no open hypothesis can still
            win, whatever comes; `"heuristic"`, once none would win if it ended now, as in Hugging
            Face; `"full_beam"`, also once as many hypotheses as the beam holds have ended.
        ends_within: an end token ends a hypothesis where it is among the best 2 K continuations,
            `"candidates"`, or only among the best K, `"beam"`, as in fairseq and Hugging Face.
        forced_end: the end token that the limit forces counts with its log-probability,
            `"scored"`, or for nothing, `"free"`, as in Hugging Face.
        suppressed_ids: tuple of int. Tokens that are never generated. They keep their share of
            the probability.

    Raises:
        InputError: where a value is not possible, naming it.

    Example:

    >>> rules = SearchRules(alpha=1.0, length_penalty="power")
    >>> float(rules.penalty(4))
    4.0

    References:
        - Wu et al., 2016, [Google's Neural Machine Translation
          System](https://arxiv.org/abs/1609.08144), section 7
        - Kasai et al., 2022, [A Call for Clarity in Beam
          Search](https://arxiv.org/abs/2204.05424)
    """

    alpha: float = 0.6
    length_penalty: str = "gnmt"
    early_stopping: str = "never"
    ends_within: str = "candidates"
    forced_end: str = "scored"
    suppressed_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.alpha < math.inf:
            raise InputError(f"alpha must be at least 0. Received: {self.alpha!r}")
        for name, choices in CHOICES.items():
            check_choice(name, getattr(self, name), choices)

    def penalty(self, length: tf.Tensor | int) -> tf.Tensor:
        """What the log-probability of a hypothesis is divided by; it never falls with the length.

        Args:
            length: number of generated tokens, the end token counted; any shape.

        Returns:
            A float32 tensor of the shape of `length`.
        """
        length = tf.cast(length, tf.float32)
        return (length if self.length_penalty == "power" else (5.0 + length) / 6.0) ** self.alpha
