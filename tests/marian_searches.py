"""The searches that Hugging Face's Marian and this package must do alike."""

from __future__ import annotations

import numpy as np

# Keyword arguments of Hugging Face's `generate`. `max_length` counts the start token.
GREEDY = {"num_beams": 1, "max_length": 16}
BEAM = {"num_beams": 4, "length_penalty": 1.0, "early_stopping": False, "max_length": 16}
SEARCHES = [
    GREEDY,
    BEAM,
    {**BEAM, "length_penalty": 0.6, "early_stopping": True},
    {**BEAM, "length_penalty": 0.0, "early_stopping": "never"},
    {**BEAM, "length_penalty": 0.6, "early_stopping": "never", "max_length": 32},
    {**BEAM, "length_penalty": 0.0, "early_stopping": False},
    {**BEAM, "early_stopping": True, "max_length": 32},
    {**BEAM, "early_stopping": "never", "max_length": 3},
    {**BEAM, "num_beams": 2, "length_penalty": 0.6, "max_length": 2},
]
# The shape that is searched in all ways; the others in the first three.
SEARCHED_IN_ALL_WAYS = "swish"

_EARLY_STOPPING = {"never": "never", False: "heuristic", True: "full_beam"}


def searches_of(shape_name: str) -> list[dict]:
    return SEARCHES if shape_name == SEARCHED_IN_ALL_WAYS else SEARCHES[:3]


def golden_name(shape_name: str) -> str:
    """The stem of the shape's golden files."""
    return shape_name.replace(" ", "_")


def decoding_of(search: dict) -> dict:
    """Our keys of the section `decoding` for keyword arguments of `generate`."""
    return {
        "beam_size": search["num_beams"],
        "alpha": search.get("length_penalty", 1.0),
        "length_penalty": "power",
        "early_stopping": _EARLY_STOPPING[search.get("early_stopping", False)],
        "ends_within": "beam",
        "forced_end": "free",
        "maximum_length": search["max_length"] - 1,
    }


def our_ids(words: int, pad_id: int) -> np.ndarray:
    """Our id of each of a checkpoint's words; its end token is 0 and its unknown token 1."""
    # Ours: pad, start, end, unknown, and then the others in the checkpoint's order.
    others = [word for word in range(2, words) if word != pad_id]
    ours = np.empty(words, np.int32)
    ours[[pad_id, 0, 1, *others]] = [0, 2, 3, *range(4, words + 1)]
    return ours


def logits_at_real_positions(model, shape, sources, targets) -> np.ndarray:
    """Logits [positions, V], of one target after another, for rows of the checkpoint's ids.

    Each target begins with the checkpoint's start token, its pad.
    """
    target = padded_ids([row[1:] for row in targets], our_ids(shape.target_words, shape.pad_id))
    target = np.insert(target, 0, 1, axis=1)
    logits = model({"source": padded_sources(shape, sources), "target": target}).numpy()
    return np.concatenate([row[: len(ids)] for row, ids in zip(logits, targets, strict=True)])


def search(model, shape, sources, arguments: dict) -> tuple[list[list[list[int]]], np.ndarray]:
    """Our search by the arguments of `generate`: all outputs in the checkpoint's ids, and scores.

    Each output has the end token and no padding.
    """
    import tensorflow as tf

    from keras_transformer.search import beam_search
    from keras_transformer.search_rules import SearchRules

    decoding = decoding_of(arguments)
    beam_size, limit = decoding.pop("beam_size"), decoding.pop("maximum_length")

    # Eagerly, which takes less time for models this small than to trace a function.
    step, state = model.start_decoding(tf.constant(padded_sources(shape, sources)), beam_size)
    result = beam_search(
        step,
        state,
        beam_size=beam_size,
        maximum_lengths=tf.fill([len(sources)], limit),
        rules=SearchRules(**decoding),
    )
    words = np.empty(shape.target_words + 1, np.int32)
    words[our_ids(shape.target_words, shape.pad_id)] = np.arange(shape.target_words)
    words[1] = -1
    outputs = [
        [words[ids[:length]].tolist() for ids, length in zip(*rows, strict=True)]
        for rows in zip(result.sequences.numpy(), result.lengths.numpy(), strict=True)
    ]
    return outputs, result.scores.numpy()


def check_logits(model, shape, golden: dict) -> None:
    """Compares the logits of all words at all real positions, to 1e-4."""
    logits = logits_at_real_positions(model, shape, golden["sources"], golden["targets"])
    # The word that is no word of the checkpoint: the start token.
    ours = our_ids(shape.target_words, shape.pad_id)
    compared = np.delete(np.arange(shape.target_words), shape.pad_id)
    np.testing.assert_allclose(
        logits[:, ours[compared]], golden["logits"][:, compared], atol=1e-4, rtol=0
    )
    if shape.pad_bias > -100:
        np.testing.assert_allclose(
            logits[:, 0], golden["logits"][:, shape.pad_id], atol=1e-4, rtol=0
        )
    assert np.all(logits[:, 1] < logits.max(axis=1) - 70)


def check_searches(model, shape, golden: dict) -> None:
    """Compares all hypotheses token by token, and their scores to 1e-4."""
    for recorded in golden["searches"]:
        outputs, scores = search(model, shape, golden["sources"], recorded)
        assert outputs == recorded["outputs"], recorded
        if recorded["scores"] is not None:
            np.testing.assert_allclose(scores, recorded["scores"], atol=1e-4, rtol=0)


def padded_sources(shape, sources) -> np.ndarray:
    return padded_ids(sources, our_ids(shape.vocabulary_size, shape.pad_id))


def padded_ids(rows: list[list[int]], ours: np.ndarray) -> np.ndarray:
    """The rows in our ids, padded: int32 [B, T]."""
    padded = np.zeros((len(rows), max(map(len, rows))), np.int32)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = ours[row]
    return padded
