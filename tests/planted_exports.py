"""SavedModels of a graph of few ops, made within a second: good ones, and ones with a fault."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from export.checking.checks import GATES, check_export
from export.checking.gates_static import shape_of
from export.model_card import MODEL_CARD, write_model_card
from export.saved_model import EXPECTED_TRANSLATIONS
from export.signatures import INPUTS
from export.warm_up import write_warm_up_requests

TEXTS = ("two", "three six", "", "  ", "🙂 ß")
LIMITS = {"maximum_source_length": 600, "maximum_target_length": 650}
# For what takes less time with one signature than with four.
ONE = {"serving_default": INPUTS["serving_default"]}
READ_FILES_ONLY = {
    *("signatures", "operations", "no_xla", "self_contained", "one_device", "model_card"),
}
Tensors = dict[str, tf.Tensor]
Change = Callable[[Tensors], Tensors]


def trimmed(text: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """A translator that breaks no rule: the text without white space around it, and its length."""
    text = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8")
    text = tf.strings.regex_replace(text, r"[\s\x{a0}]+", " ")
    text = tf.strings.substr(text, 0, LIMITS["maximum_source_length"], unit="UTF8_CHAR")
    text = tf.strings.regex_replace(text, "^ | $", "")
    return text, -tf.cast(tf.strings.length(text), tf.float32)


def save(
    path: Path,
    translate: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]] = trimmed,
    *,
    change: Mapping[str, Change] | None = None,
    shape: tuple[int | None, ...] | None = (None,),
    names: Mapping[str, tuple[str, ...]] = INPUTS,
    module: tf.Module | None = None,
) -> Path:
    """Writes an export whose translating signatures call `translate`.

    Args:
        path: path of the version.
        translate: from texts to translations and scores.
        change: for a signature what is done to the outputs that are right.
        shape: shape of the inputs.
        names: for each signature the names of its inputs.
        module: tf.Module that tracks what `translate` uses.
    """
    module = module or tf.Module()
    functions = {"serving_default": _one(translate), "n_best": _two(translate)}
    functions |= {"score": _score, "align": _align}
    for name, inputs in names.items():
        specs = [tf.TensorSpec(shape, tf.string, name=each) for each in inputs]
        function = _flat(functions[name], (change or {}).get(name))
        setattr(module, name, tf.function(function, specs, autograph=False))
    tf.saved_model.save(module, str(path), {name: getattr(module, name) for name in names})
    write_card(path)
    write_expected(path, expected_entries(TEXTS))
    write_warm_up(path, names)
    return path


def expected_entries(texts: Iterable[str]) -> list[dict[str, Any]]:
    """What `trimmed` makes of texts, as an export records it."""
    entries = []
    for text in texts:
        translation, score = (each.numpy() for each in trimmed(tf.constant([text])))
        entries.append(
            {
                "text": text,
                "translation": translation[0].decode(),
                "score": float(score[0]),
                "log_probability": float(score[0]),
                "tokens": 1 - int(score[0]),
                "same_tokens": True,
            }
        )
    return entries


def write_expected(path: Path, entries: Any) -> None:
    text = entries if isinstance(entries, str) else json.dumps({"translations": entries})
    (path / EXPECTED_TRANSLATIONS).parent.mkdir(exist_ok=True)
    (path / EXPECTED_TRANSLATIONS).write_text(text)


def write_card(path: Path, **changes: Any) -> None:
    """A model card that agrees with the graph, but for the changes; None takes a key away."""
    card = {
        "recipe": None,
        "bleu": None,
        "languages": {"source": "en", "target": "de"},
        "versions": {"tensorflow": tf.__version__},
        "precision": "float32",
        "decoding": {"beam_size": 2, "alpha": 0.0},
        "limits": LIMITS,
        "signatures": {
            name: {
                side: {
                    key: f"{dtype} [{', '.join(sizes)}]"
                    for key, tensor in getattr(definition, side).items()
                    for dtype, *sizes in [shape_of(tensor)]
                }
                for side in ("inputs", "outputs")
            }
            for name, definition in read_graph(path).signature_def.items()
            if not name.startswith("__")
        },
    }
    write_model_card(path, {**card, **changes})


def write_warm_up(path: Path, names: Mapping[str, Sequence[str]] = INPUTS) -> None:
    texts = (["two"], ["three six " * 20], [""], ["two", "three six"])
    write_warm_up_requests(
        path,
        [(name, {key: each for key in inputs}) for name, inputs in names.items() for each in texts],
    )


def read_graph(path: Path) -> Any:
    """The MetaGraphDef of an export."""
    return _read(path).meta_graphs[0]


def edit_graph(path: Path, edit: Callable[[Any], None]) -> Path:
    """Changes the MetaGraphDef of an export."""
    model = _read(path)
    edit(model.meta_graphs[0])
    (path / "saved_model.pb").write_bytes(model.SerializeToString())
    return path


def edit_card(path: Path, edit: Callable[[dict[str, Any]], Any]) -> Path:
    """Changes the model card of an export."""
    card = json.loads((path / MODEL_CARD).read_text())
    edit(card)
    (path / MODEL_CARD).write_text(json.dumps(card))
    return path


def _read(path: Path) -> Any:
    return saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())


# The four signatures ------------------------------------------------------------------------------


def _flat(function: Callable[..., Tensors], change: Change | None) -> Callable[..., Tensors]:
    """A function of rows, whatever the shape of the inputs, and a change of its outputs."""

    def signature(*inputs: tf.Tensor) -> Tensors:
        outputs = function(*(tf.reshape(each, [-1]) for each in inputs))
        return change(outputs) if change else outputs

    return signature


def _one(translate: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]) -> Callable[..., Tensors]:
    def serving_default(text: tf.Tensor) -> Tensors:
        translation, score = translate(text)
        return {"translation": translation, "score": score, "truncated": _is_long(text)}

    return serving_default


def _two(translate: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]) -> Callable[..., Tensors]:
    def n_best(text: tf.Tensor) -> Tensors:
        translation, score = translate(text)
        return {
            "translations": tf.stack([translation, tf.zeros_like(translation)], axis=-1),
            "scores": tf.stack([score, tf.fill(tf.shape(score), -1e9)], axis=-1),
            "truncated": _is_long(text),
        }

    return n_best


def _score(source: tf.Tensor, target: tf.Tensor) -> Tensors:
    """Agrees with the scores of `trimmed` at a length penalty of 0."""
    target_text, log_probability = trimmed(target)
    return {
        "log_probability": log_probability,
        "tokens": 1 + tf.strings.length(target_text),
        "truncated": _is_long(source) | _is_long(target),
    }


def _align(text: tf.Tensor, translation: tf.Tensor) -> Tensors:
    """Each word looks at all words alike."""
    (source, source_lengths), (target, target_lengths) = _words(text), _words(translation)
    source_mask = tf.sequence_mask(source_lengths, dtype=tf.float32)  # [N, S]
    target_mask = tf.sequence_mask(target_lengths, dtype=tf.float32)  # [N, T]
    attention = target_mask[:, :, None] * source_mask[:, None]  # [N, T, S]
    return {
        "source_pieces": source,
        "target_pieces": target,
        "source_lengths": source_lengths,
        "target_lengths": target_lengths,
        "attention": attention / tf.cast(source_lengths, tf.float32)[:, None, None],
        "truncated": _is_long(text) | _is_long(translation),
    }


def _words(text: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    words = tf.strings.split(trimmed(text)[0], " ")
    words = tf.ragged.boolean_mask(words, words != "")
    words = tf.concat([words, tf.fill([words.nrows(), 1], "</s>")], axis=1)
    return words.to_tensor(""), tf.cast(words.row_lengths(), tf.int32)


def _is_long(text: tf.Tensor) -> tf.Tensor:
    return tf.strings.length(text) > 2 * LIMITS["maximum_source_length"]


# What is found ------------------------------------------------------------------------------------


def failures(path: Path, *names: str) -> dict[str, str]:
    """The gates that an export does not pass, and what they found.

    Args:
        path: path of the export.
        names: names of the gates to run, and the session loader where they need it; all by default.
    """
    needed = [] if names and set(names) <= READ_FILES_ONLY else ["session_loader"]
    gates = {name: GATES[name] for name in (*needed, *names)} if names else GATES.copy()
    with mock.patch.dict(GATES, gates, clear=True):
        result = check_export(path)
    assert list(result) == ["ok", *gates]
    for name in gates:
        assert result[name]["detail"] and "\n" not in result[name]["detail"]
    json.dumps(result)
    found = {name: result[name]["detail"] for name in gates if not result[name]["ok"]}
    assert result["ok"] == (not found)
    return found
