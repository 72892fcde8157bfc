"""Probes of a training's log and of its memory."""

import numpy as np
import pytest

from keras_transformer import TransformerConfig, TransformerSchedule
from keras_transformer.diagnosis import memory_probes, training_probes

STEPS = range(25, 2001, 25)


def lines(rates=None, **figures):
    """A log with a line at each of the steps."""
    return [
        {
            "step": step,
            "loss": 9.0 * step**-0.2,
            "gradient_norm": 1.0 + step % 3 / 10,
            "learning_rate": rates(step) if rates else 1e-3,
            **{name: of(step) for name, of in figures.items()},
        }
        for step in STEPS
    ]


def rate(d_model=128, warmup_steps=400, factor=0.5):
    schedule = TransformerSchedule(d_model, warmup_steps, factor)
    return lambda step: float(schedule(step))


def probe_rate(rates, **options):
    arguments = {"d_model": 128, "warmup_steps": 400, "factor": 0.5, "sizes": {"d_ff": 512}}
    return training_probes.learning_rate(lines(rates), **{**arguments, **options})


def test_the_rate_of_the_schedule_is_healthy():
    assert probe_rate(rate()).ok


@pytest.mark.parametrize(
    ("rates", "detail"),
    [
        (lambda step: 1e-3, "no warm-up: the rate is constant"),
        (lambda step: 0.5 * 128**-0.5 * step**-0.5, "no warm-up: the rate only falls"),
        (rate(d_model=512), "those of d_model=512 (d_ff), not of d_model=128"),
        (rate(d_model=200), "as of d_model=200 or a factor of 0.4"),
        (rate(warmup_steps=1000), "highest at step 1000"),
        (rate(factor=1.0), "2 times the recipe's"),
    ],
)
def test_another_rate_is_named(rates, detail):
    finding = probe_rate(rates)
    assert finding.ok is False
    assert detail in finding.detail
    assert finding.remedy


def test_a_recipe_with_hardly_any_warm_up_is_named():
    finding = probe_rate(rate(warmup_steps=10), warmup_steps=10)
    assert finding.ok is False
    assert "10 steps of warm-up are too short: the rate rises to 0.014" in finding.detail


def test_a_log_without_lines_tells_nothing():
    probes = (
        training_probes.learning_rate([], 128, 400, 1.0, {}),
        training_probes.loss_curve([]),
        training_probes.gradient_norms([]),
    )
    assert [finding.ok for finding in probes] == [None] * 3


def test_losses_that_rise_or_break_are_named():
    assert training_probes.loss_curve(lines()).ok
    rising = training_probes.loss_curve(lines(loss=lambda step: 3 + (step > 1500) * 4))
    assert rising.ok is False
    assert rising.detail == "the loss rose from 3.00 to 7.00 at the end"
    broken = training_probes.loss_curve(lines(loss=lambda step: None if step > 1500 else 3.0))
    assert broken.detail == "the loss is no number at step 1525"


@pytest.mark.parametrize(
    ("norms", "detail"),
    [
        (lambda step: None if step >= 500 else 1.0, "not finite at step 500"),
        (lambda step: 100.0 if step == 500 else 1.0, "at step 500 the norm is 100 times"),
        (lambda step: 1.0 if step < 1500 else 20.0, "grow to 20 times"),
    ],
)
def test_gradient_norms_that_break_spike_or_grow_are_named(norms, detail):
    finding = training_probes.gradient_norms(lines(gradient_norm=norms))
    assert finding.ok is False
    assert detail in finding.detail


def test_layers_that_get_no_gradient_or_one_that_is_not_finite_are_named():
    def norms(first):
        return lambda step: {"encoder/layer_0": first, "decoder/layer_0": 1.0}

    probe = training_probes.gradient_norms
    assert probe(lines(layer_gradient_norms=norms(0.01))).ok
    vanished = probe(lines(layer_gradient_norms=norms(1e-7)))
    assert vanished.ok is False
    assert "of encoder/layer_0 is 1e-07" in vanished.detail
    broken = probe(lines(layer_gradient_norms=norms(None)))
    assert "of encoder/layer_0 is not finite at step 25" in broken.detail


BASE = TransformerConfig.preset("base", vocabulary_size=37000)


def with_options(**changes):
    return TransformerConfig.from_dict({**BASE.to_dict(), **changes})


def test_options_lower_the_predicted_memory():
    def predicted(config=BASE, **options):
        return memory_probes.attention_bytes(config, 32768, 8192, **options)

    whole = predicted()
    # 4 sentences, 8 heads, 8192 x 8192 scores, 18 attentions, twice 4 bytes
    assert whole == 4 * 8 * 8192**2 * 18 * 8
    assert predicted(accumulate_steps=4) == whole / 4
    assert predicted(with_options(attention_chunk=64)) < whole / 500
    # The encoder-decoder attention of 6 layers stays whole.
    assert whole / 3 <= predicted(with_options(attention_window=64)) < whole / 2.9


@pytest.mark.parametrize(
    ("length", "gigabytes", "remedy"),
    [
        (512, 64, ""),
        (4096, 64, "training.accumulate_steps"),
        (32768, 64, "model.attention_chunk"),
        (32768, 0.01, "model.attention_window"),
    ],
)
def test_what_does_not_fit_gets_the_first_option_that_does(length, gigabytes, remedy):
    available = int(gigabytes * 2**30)
    finding = memory_probes.attention_memory(BASE, 32768, length, available=available)
    assert finding.ok == (not remedy)
    assert remedy in finding.remedy
    assert np.isclose(finding.measured["available_bytes"], available)
