"""Each probe of a model names its fault where it is planted, and nothing where it is not."""

import contextlib
from unittest import mock

import keras
import numpy as np
import planted_faults
import pytest
from small_models import small_model

from keras_transformer import SmoothedCrossEntropy
from keras_transformer import model as model_module
from keras_transformer.diagnosis import target_probes
from keras_transformer.diagnosis.doctor import diagnose_model, settle
from keras_transformer.diagnosis.finding import faults
from keras_transformer.layers import EncoderLayer, SinusoidalPositions

HEALTHY = {
    "the paper": {},
    "pre-norm": {"norm": "pre"},
    "learned positions": {"positions": "learned"},
    "few learned positions": {"positions": "learned", "maximum_positions": 4},
    "sinusoidal halves": {"positions": "sinusoidal-halves"},
    "additive": {"compatibility": "additive"},
    "dot product": {"compatibility": "dot_product"},
    "window": {"attention_window": 3},
    "chunk": {"attention_chunk": 2},
    "free d_k and d_v": {"d_k": 5, "d_v": 3},
    "three matrices": {"tying": "none", "source_vocabulary_size": 20},
    "biases": {"attention_bias": True, "output_bias": True},
    "dropout everywhere": {
        "dropout": 0.3,
        "attention_dropout": 0.2,
        "activation_dropout": 0.2,
    },
}


def findings_of(sample, model=None, loss=None, **options):
    return settle(
        diagnose_model(model or small_model(), sample, loss or SmoothedCrossEntropy(0.1), **options)
    )


def detail_of(findings, name):
    return next(finding.detail for finding in findings if finding.name == name)


@pytest.mark.parametrize("changes", HEALTHY.values(), ids=HEALTHY.keys())
def test_healthy_models_have_no_fault(changes, sample):
    findings = findings_of(sample, small_model(**changes))
    assert faults(findings) == [], findings


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_healthy_models_in_half_precision_have_no_fault(policy, sample):
    findings = findings_of(sample, small_model(policy))
    assert faults(findings) == [], findings


@pytest.mark.parametrize(
    "fault",
    [
        fault
        for fault in planted_faults.FAULTS
        # The others show in what a run learns from, logs or decodes.
        if fault.found
        in (
            *("mask_fill", "causality", "cross_attention_mask", "attention_scale"),
            *("embedding_magnitude", "position_place", "padding_loss"),
        )
    ],
    ids=lambda fault: fault.name,
)
def test_a_planted_fault_is_named_and_nothing_else_is(fault, sample):
    with fault.plant():
        # Wide enough that d_model^-0.5 is far from d_k^-0.5, and an unscaled embedding small.
        findings = findings_of(sample, small_model(d_model=64))
    assert faults(findings) == [fault.found], findings
    assert fault.detail in detail_of(findings, fault.found)


@contextlib.contextmanager
def positions(places):
    """Has the positions added some number of times."""

    def call(self, inputs, start_index=0):
        encoding = self.encoding(keras.ops.shape(inputs)[1], inputs.shape[-1], start_index)
        return inputs + places * keras.ops.cast(encoding, inputs.dtype)

    with mock.patch.object(SinusoidalPositions, "call", call):
        yield


@pytest.mark.parametrize("times", [0, 2])
def test_positions_that_are_missing_or_doubled_are_named(times, sample):
    with positions(times):
        findings = findings_of(sample)
    assert faults(findings) == ["position_place"], findings
    assert (
        f"positions {times:g} times"
        in detail_of(findings, "position_place").replace(f"{1e-9:.2g}", "0")
        or times == 0
    )


def test_positions_added_after_the_first_layer_are_named(sample):
    call = EncoderLayer.call
    encoding = SinusoidalPositions()

    def late(self, inputs, *arguments, **options):
        result = call(self, inputs, *arguments, **options)
        return encoding(result) if self.name == "layer_0" else result

    with positions(0), mock.patch.object(EncoderLayer, "call", late):
        findings = findings_of(sample)
    assert faults(findings) == ["position_place"], findings


def test_words_decoded_at_the_wrong_position_are_named(sample):
    call = SinusoidalPositions.call

    def without_start(self, inputs, start_index=0):
        return call(self, inputs, 0)

    with mock.patch.object(SinusoidalPositions, "call", without_start):
        findings = findings_of(sample)
    assert faults(findings) == ["position_place"], findings
    assert "decoded alone" in detail_of(findings, "position_place")


def test_a_source_mask_that_is_missing_is_named(sample):
    def see_all(ids):
        return keras.ops.ones_like(keras.ops.expand_dims(ids, (1, 2)), dtype="bool")

    with mock.patch.object(model_module, "padding_mask", see_all):
        findings = findings_of(sample)
    assert faults(findings) == ["source_padding", "cross_attention_mask"], findings
    assert "their own scores" in detail_of(findings, "mask_fill")


def test_a_model_that_copies_its_input_is_named(sample):
    model = small_model()

    def copying(inputs, training=False):
        return 9.0 * np.eye(20, dtype="float32")[inputs["target"]]

    finding = target_probes.target_shift(copying, sample, None)
    assert finding.ok is False
    assert "at 100% of the positions" in finding.detail
    assert target_probes.target_shift(model, sample, None).ok


def test_a_batch_that_is_not_shifted_is_named(sample):
    batch = ({"source": sample.source, "target": sample.labels}, sample.labels)
    assert faults(findings_of(sample, batch=batch)) == ["target_shift"]
    shifted = (sample.inputs, sample.labels)
    assert faults(findings_of(sample, batch=shifted)) == []


@pytest.mark.parametrize("name", ["encoder/layer_1/feed_forward", "source_embedding"])
def test_the_layer_that_breaks_first_is_named(name, sample):
    model = small_model(tying="none", source_vocabulary_size=20)
    variable = next(
        v for v in model.trainable_variables if name.replace("/", "") in v.path.replace("/", "")
    )
    value = variable.numpy()
    value[5] = np.nan
    variable.assign(value)
    findings = findings_of(sample, model)
    assert faults(findings) == ["finite_numbers"], findings
    assert variable.path in detail_of(findings, "finite_numbers")


def test_an_overflow_names_the_layer_whose_output_it_is(sample):
    model = small_model("mixed_float16")
    kernel = model.encoder.stack[1].feed_forward._inner.kernel
    kernel.assign(kernel.numpy() * 1e6)
    findings = findings_of(sample, model)
    assert "finite_numbers" in faults(findings)
    assert "encoder/layer_1/feed_forward" in detail_of(findings, "finite_numbers")


def test_saturated_heads_are_named(sample):
    model = small_model()
    for layer in (*model.encoder.stack, *model.decoder.stack):
        for attention in vars(layer).values():
            if hasattr(attention, "_query"):
                attention._query.kernel.assign(attention._query.kernel * 300)
    findings = findings_of(sample, model)
    assert "softmax_saturation" in faults(findings)
