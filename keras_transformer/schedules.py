"""The paper's learning rate: linear warm-up, then the inverse square root of the step."""

from __future__ import annotations

import keras
from keras import ops

from keras_transformer.errors import InputError


@keras.saving.register_keras_serializable(package="keras_transformer")
class TransformerSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Learning rate schedule with warm-up, from section 5.3 (equation 3) of the paper.

    `rate = factor * d_model^-0.5 * min(s^-0.5, s * warmup_steps^-1.5)` with `s = step + 1`, where
    `step` is the optimizer's count of finished updates: the first update already has a rate
    above 0, and the rate is finite for every step.

    Args:
        d_model: int. Width of the model.
        warmup_steps: int. Steps of linear growth; the rate is highest at its end.
        factor: float. Multiplies the whole schedule.

    Call arguments:
        step: int or integer tensor, the number of finished updates.

    Returns:
        A float32 scalar tensor.

    Raises:
        InputError: where an argument is not above 0.

    Example:

    >>> schedule = TransformerSchedule(d_model=512, warmup_steps=4000)
    >>> print(f"{float(schedule(3999)):.6f}")
    0.000699

    References:
        - Vaswani et al., 2017, [Attention Is All You Need](https://arxiv.org/abs/1706.03762)
    """

    def __init__(
        self,
        d_model: int,
        warmup_steps: int = 4000,
        factor: float = 1.0,
        name: str = "transformer_schedule",
    ) -> None:
        super().__init__()
        for key, value in {
            "d_model": d_model,
            "warmup_steps": warmup_steps,
            "factor": factor,
        }.items():
            if not value > 0:
                raise InputError(f"{key} must be above 0. Received: {value!r}")
        self.d_model = d_model
        self.warmup_steps = warmup_steps
        self.factor = factor
        self.name = name

    def __call__(self, step):
        # One is added as a float: the largest int64 step must not wrap round.
        s = ops.cast(step, "float32") + 1.0
        warming = s * self.warmup_steps**-1.5
        return self.factor * self.d_model**-0.5 * ops.minimum(ops.rsqrt(s), warming)

    def get_config(self) -> dict:
        return {
            "d_model": self.d_model,
            "warmup_steps": self.warmup_steps,
            "factor": self.factor,
            "name": self.name,
        }
