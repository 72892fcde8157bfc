"""Probes of a training's log: the learning rate it had, gradient norms, and where the loss went."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_transformer.diagnosis.finding import Finding

HIGHEST_RATE = 5e-3
LARGEST_SPIKE = 30.0
LARGEST_GROWTH = 10.0
LARGEST_RATIO = 1e4
LARGEST_RISE = 0.5
Lines = list[dict[str, Any]]


def learning_rate(
    lines: Lines, d_model: int, warmup_steps: int, factor: float, sizes: dict[str, int]
) -> Finding:
    """Whether the logged rates are those of the paper's schedule (section 5.3).

    Args:
        lines: list of dicts with `step` and `learning_rate`, others are passed over.
        d_model: int. Of the model.
        warmup_steps: int. That the recipe asks for.
        factor: float. That the recipe multiplies the schedule by.
        sizes: dict of other sizes that may stand where d_model should, such as `{"d_ff": 2048}`.

    Returns:
        A `Finding`.

    Example:

    >>> lines = [{"step": step, "learning_rate": 512**-0.5 * step * 4000**-1.5}
    ...          for step in (1000, 2000, 3000)]
    >>> learning_rate(lines, 512, 4000, 1.0, {}).ok
    True
    >>> learning_rate(lines, 128, 4000, 1.0, {"d_ff": 512}).detail
    'the learning rates are those of d_model=512 (d_ff), not of d_model=128'
    """
    bound = "the schedule's rate to 1 %, and a peak of at most " + format(HIGHEST_RATE, "g")
    logged = [line for line in lines if line.get("learning_rate")]
    if not logged:
        return Finding(
            "learning_rate", "divergence", None, {}, bound, "there are no logged learning rates"
        )
    steps = np.array([line["step"] for line in logged], np.float64)
    rates = np.array([line["learning_rate"] for line in logged], np.float64)
    # What Keras tells after an update is the rate of the next, or of this one.
    expected = np.stack([_schedule(steps + add, d_model, warmup_steps, factor) for add in (0, 1)])
    ratios = rates / expected
    best = ratios[np.abs(np.log(ratios)).max(axis=1).argmin()]
    ratio, spread = float(np.median(best)), float(np.abs(np.log(best / np.median(best))).max())
    peak = factor * (d_model * warmup_steps) ** -0.5
    measured = {
        "first": float(rates[0]),
        "highest": float(rates.max()),
        "times_schedule": ratio,
        "spread": spread,
        "expected_peak": peak,
    }
    detail = _rate_fault(steps, rates, ratio, spread, d_model, warmup_steps, factor, sizes)
    if detail is None and peak > HIGHEST_RATE and steps[-1] > warmup_steps:
        detail = (
            f"the recipe's {warmup_steps} steps of warm-up are too short: the rate rises to "
            f"{peak:.2g}"
        )
    return Finding(
        "learning_rate",
        "divergence",
        detail is None,
        measured,
        bound,
        detail or f"the rate follows the schedule, up to {rates.max():.2g}",
        ""
        if detail is None
        else "train anew with TransformerSchedule(d_model, warmup_steps), where d_model is the "
        "model's and training.warmup_steps is 4000, or some 4 % of a shorter run",
    )


def loss_curve(lines: Lines) -> Finding:
    """Whether the loss stayed finite and did not rise again.

    Args:
        lines: list of dicts with `step` and `loss`, None for what was no number.

    Returns:
        A `Finding`.

    Example:

    >>> loss_curve([{"step": 1, "loss": 9.0}, {"step": 2, "loss": None}]).detail
    'the loss is no number at step 2'
    """
    bound = f"finite, and at the end at most {LARGEST_RISE} above the lowest"
    logged = [line for line in lines if "loss" in line]
    if not logged:
        return Finding("loss", "divergence", None, {}, bound, "there are no logged losses")
    broken = next((line["step"] for line in logged if line["loss"] is None), None)
    losses = np.array([line["loss"] for line in logged if line["loss"] is not None])
    measured: dict[str, Any] = {"first_not_finite": broken}
    detail = None
    if broken is not None:
        detail = f"the loss is no number at step {broken}"
    elif len(losses) >= 4:
        end, lowest = float(np.median(losses[-3:])), float(losses.min())
        measured |= {"first": float(losses[0]), "lowest": lowest, "end": end}
        if end - lowest > LARGEST_RISE:
            detail = f"the loss rose from {lowest:.2f} to {end:.2f} at the end"
    return Finding(
        "loss",
        "divergence",
        detail is None,
        measured,
        bound,
        detail or f"the loss fell from {losses[0]:.2f} to {losses[-1]:.2f}",
        ""
        if detail is None
        else "train anew with a longer training.warmup_steps or a lower "
        "training.learning_rate_factor; see the other findings of divergence first",
    )


def gradient_norms(lines: Lines) -> Finding:
    """Whether gradients stay finite, without spikes, and of like size in all layers.

    Args:
        lines: list of dicts with `step`, `gradient_norm` and, in newer logs,
            `layer_gradient_norms`, a dict by layer.

    Returns:
        A `Finding`.

    Example:

    >>> gradient_norms([{"step": n, "gradient_norm": 1.0} for n in range(9)]).ok
    True
    """
    bound = (
        f"finite, no norm over {LARGEST_SPIKE:g} times the median of those around it, none "
        f"{LARGEST_GROWTH:g} times as large at the end as before, layers within {LARGEST_RATIO:g}"
    )
    logged = [line for line in lines if "gradient_norm" in line]
    if len(logged) < 4:
        return Finding(
            "gradient_norms", "divergence", None, {}, bound, "there are too few logged norms"
        )
    norms = np.array(
        [np.nan if line["gradient_norm"] is None else line["gradient_norm"] for line in logged]
    )
    by_layer, layer_fault = _layer_norms(logged)
    measured: dict[str, Any] = {"by_layer": by_layer or None}
    detail, broken = None, ~np.isfinite(norms)
    if broken.any():
        detail = f"the gradient is not finite at step {logged[int(broken.argmax())]['step']}"
    else:
        around = np.array([np.median(norms[max(0, i - 5) : i + 6]) for i in range(len(norms))])
        spikes = norms / np.maximum(around, 1e-30)
        start = norms[len(norms) // 4 : len(norms) // 2]
        growth = np.median(norms[-max(1, len(norms) // 4) :]) / max(np.median(start), 1e-30)
        measured |= {
            "median": float(np.median(norms)),
            "largest_spike": float(spikes.max()),
            "growth": float(growth),
        }
        if spikes.max() > LARGEST_SPIKE:
            step = logged[int(spikes.argmax())]["step"]
            detail = f"at step {step} the norm is {spikes.max():.0f} times that around it"
        elif growth > LARGEST_GROWTH:
            detail = f"the norms grow to {growth:.0f} times what they were"
    detail = detail or layer_fault
    return Finding(
        "gradient_norms",
        "divergence",
        detail is None,
        measured,
        bound,
        detail or f"gradient norms stay around {np.median(norms):.2g}",
        ""
        if detail is None
        else "set training.gradient_clip_norm, a longer training.warmup_steps, model.norm: pre, or "
        "a lower model.initializer_gain",
    )


def _layer_norms(logged: Lines) -> tuple[dict[str, float], str | None]:
    """The median norm of each layer over the later half of the run, and what is wrong with them."""
    with_layers = [line for line in logged if line.get("layer_gradient_norms")]
    for line in with_layers:
        for name, norm in line["layer_gradient_norms"].items():
            if norm is None or not np.isfinite(norm):
                return {}, f"the gradient of {name} is not finite at step {line['step']}"
    later = [line["layer_gradient_norms"] for line in with_layers[len(with_layers) // 2 :]]
    if not later:
        return {}, None
    medians = {name: float(np.median([norms[name] for norms in later])) for name in later[0]}
    low, high = min(medians, key=medians.__getitem__), max(medians, key=medians.__getitem__)
    if medians[high] > LARGEST_RATIO * max(medians[low], 1e-30):
        return medians, (
            f"the gradient of {low} is {medians[low]:.2g} where that of {high} is "
            f"{medians[high]:.2g}: it does not reach all layers"
        )
    return medians, None


def _schedule(steps: np.ndarray, d_model: int, warmup_steps: int, factor: float) -> np.ndarray:
    """Equation 3 of the paper."""
    return factor * d_model**-0.5 * np.minimum(steps**-0.5, steps * warmup_steps**-1.5)


def _rate_fault(steps, rates, ratio, spread, d_model, warmup_steps, factor, sizes) -> str | None:
    if spread <= 0.01 and abs(ratio - 1) <= 0.01:
        return None
    if spread <= 0.01:
        implied = d_model / ratio**2
        for name, size in sizes.items():
            if size != d_model and abs(implied / size - 1) <= 0.03:
                return (
                    f"the learning rates are those of d_model={size} ({name}), not of "
                    f"d_model={d_model}"
                )
        return (
            f"the learning rates are {ratio:.3g} times the recipe's, as of d_model={implied:.0f} "
            f"or a factor of {factor * ratio:.3g}"
        )
    grew = rates.max() > 1.05 * rates[0]
    if not grew and steps[0] < warmup_steps:
        how = "is constant" if np.ptp(rates) <= 0.01 * rates[0] else "only falls"
        return (
            f"there is no warm-up: the rate {how} from {rates[0]:.2g} at step {steps[0]:.0f} on, "
            f"where the recipe has {warmup_steps} steps of growth"
        )
    top = int(rates.argmax())
    return (
        f"the rate does not follow the recipe's schedule: it is highest at step {steps[top]:.0f}, "
        f"{rates[top]:.2g}, where the recipe has {warmup_steps} steps of warm-up"
    )
