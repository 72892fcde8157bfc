"""Batches by tokens: partition, budget, padding, epochs, resuming."""

import itertools
import re
import time

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.errors import InputError
from trainers.batching import TokenBatches
from trainers.corpus import read_parallel_files
from trainers.token_sequences import TokenSequences


def make_batches(lengths, **options):
    """Batches of pairs of the given lengths without begin and end; ids name row and place."""
    rows = [
        [[10 + row * 1000 + place for place in range(length[side])] for row, length in lengths]
        for side in (0, 1)
    ]
    return TokenBatches(*rows, **({"batch_tokens": 64, "seed": 7} | options))


def pairs_of(lengths):
    return list(enumerate(lengths))


def as_lists(batch):
    inputs, labels = batch
    arrays = (inputs["source"], inputs["target"], labels)
    return [np.asarray(array).tolist() for array in arrays]


def plan_as_lists(batches, epoch):
    return [rows.tolist() for rows in batches.plan(epoch)]


LENGTHS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=120)
OPTIONS = st.fixed_dictionaries(
    {
        "batch_tokens": st.integers(31, 200),
        "seed": st.integers(0, 2**40),
        "maximum_batch_sentences": st.none() | st.integers(1, 12),
        "shuffle": st.booleans(),
    }
)


@settings(deadline=None, max_examples=300)
@given(lengths=LENGTHS, options=OPTIONS, epoch=st.integers(0, 1000))
def test_every_epoch_holds_every_pair_once_within_the_budget(lengths, options, epoch):
    batches = make_batches(pairs_of(lengths), **options)
    plan = batches.plan(epoch)
    assert sorted(np.concatenate(plan).tolist()) == list(range(len(lengths))) and len(batches) == (
        len(lengths)
    )
    assert len(plan) == batches.batches_per_epoch(epoch)
    most_rows = options["maximum_batch_sentences"] or np.inf
    for rows in plan:
        inputs, labels = batches.batch(rows)
        assert 0 < len(rows) <= most_rows
        assert inputs["source"].size <= options["batch_tokens"]
        assert inputs["target"].size <= options["batch_tokens"]
        assert labels.shape == inputs["target"].shape


@settings(deadline=None, max_examples=300)
@given(lengths=LENGTHS, options=OPTIONS)
def test_batches_are_nearly_full(lengths, options):
    batches = make_batches(pairs_of(lengths), **options | {"shuffle": False})
    budget = options["batch_tokens"]
    most_rows = options["maximum_batch_sentences"] or budget
    plan = batches.plan(0)
    longer = [max(lengths[row]) + 1 for row in np.concatenate(plan)]
    assert longer == sorted(longer)
    start = 0
    for rows in plan[:-1]:
        ahead = longer[start : start + most_rows]
        full = max(n for n in range(1, len(ahead) + 1) if n * ahead[n - 1] <= budget)
        assert len(rows) > 0.8 * full - 1
        start += len(rows)


@settings(deadline=None, max_examples=200)
@given(lengths=LENGTHS, epoch=st.integers(0, 9))
def test_a_batch_holds_the_pairs_between_begin_and_end(lengths, epoch):
    batches = make_batches(pairs_of(lengths), bos_id=3, eos_id=4)
    for rows in batches.plan(epoch):
        inputs, labels = batches.batch(rows)
        for array in (inputs["source"], inputs["target"], labels):
            assert array.dtype == np.int32 and array[:, -1].any()
        for row, source, target, label in zip(
            rows, inputs["source"], inputs["target"], labels, strict=True
        ):
            ids = [[10 + row * 1000 + place for place in range(n)] for n in lengths[row]]
            assert source.tolist() == ids[0] + [4] + [0] * (len(source) - len(ids[0]) - 1)
            assert target.tolist() == [3] + ids[1] + [0] * (len(target) - len(ids[1]) - 1)
            assert label.tolist() == ids[1] + [4] + [0] * (len(label) - len(ids[1]) - 1)


def random_lengths(count, longest=30):
    lengths = np.random.default_rng(0).integers(1, longest, (count, 2))
    return pairs_of(lengths.tolist())


def test_epochs_differ_and_repeat_with_the_seed():
    lengths = random_lengths(500)
    plans = [plan_as_lists(make_batches(lengths, seed=3), epoch) for epoch in range(4)]
    batches = make_batches(lengths, seed=3)
    assert [plan_as_lists(batches, epoch) for epoch in (3, 2, 1, 0)] == plans[::-1]
    assert plan_as_lists(make_batches(lengths, seed=4), 0) != plans[0]
    for one, other in itertools.combinations(plans, 2):
        contents = [{frozenset(rows) for rows in plan} for plan in (one, other)]
        assert contents[0] != contents[1]  # not only another order of the same batches
        widths = [[max(max(lengths[row][1]) for row in rows) for rows in plan] for plan in plans]
        assert widths[0] != widths[1]


def test_pairs_of_equal_lengths_meet_others_in_every_epoch():
    batches = make_batches(pairs_of([(3, 3)] * 400))
    mates = [
        {
            tuple(sorted(pair))
            for rows in batches.plan(epoch)
            for pair in itertools.combinations(rows, 2)
        }
        for epoch in (0, 1)
    ]
    assert len(mates[0] & mates[1]) < 0.15 * len(mates[0])


def test_lengths_do_not_come_sorted():
    lengths = random_lengths(3000)
    batches = make_batches(lengths, batch_tokens=256)
    widths = [batches.batch(rows)[1].shape[1] for rows in batches.plan(0)]
    assert len(widths) > 100
    assert abs(np.corrcoef(widths, np.arange(len(widths)))[0, 1]) < 0.3


def test_without_shuffling_every_epoch_is_the_same_and_ties_keep_their_order():
    batches = make_batches(random_lengths(300), shuffle=False)
    assert plan_as_lists(batches, 0) == plan_as_lists(batches, 5)
    equal = make_batches(pairs_of([(4, 4)] * 100), shuffle=False)
    assert np.concatenate(equal.plan(1)).tolist() == list(range(100))


@settings(deadline=None, max_examples=10)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=40),
    seed=st.integers(0, 99),
    start=st.integers(0, 40),
)
def test_resuming_gives_what_an_unbroken_run_sees(lengths, seed, start):
    batches = make_batches(pairs_of(lengths), seed=seed, batch_tokens=20)
    unbroken = list(itertools.islice(batches.dataset().as_numpy_iterator(), start + 6))
    again = make_batches(pairs_of(lengths), seed=seed, batch_tokens=20)
    resumed = list(again.dataset(start).take(6).as_numpy_iterator())
    assert list(map(as_lists, resumed)) == list(map(as_lists, unbroken[start:]))
    epoch, number = batches.position(start)
    assert as_lists(batches.batch(batches.plan(epoch)[number])) == as_lists(resumed[0])


def test_steps_count_through_the_epochs():
    batches = make_batches(random_lengths(100))
    steps = batches.batches_per_epoch()
    assert batches.position(0) == (0, 0)
    assert batches.position(steps - 1) == (0, steps - 1)
    assert batches.position(steps) == (1, 0)
    assert batches.position(7 * steps + 3) == (7, 3)


def test_datasets_are_what_keras_takes():
    batches = make_batches(random_lengths(100))
    ids = tf.TensorSpec([None, None], tf.int32)
    evaluation = batches.evaluation_dataset()
    assert batches.dataset().element_spec == evaluation.element_spec
    assert evaluation.element_spec == ({"source": ids, "target": ids}, ids)
    assert batches.dataset().cardinality() == tf.data.INFINITE_CARDINALITY
    assert evaluation.cardinality() == batches.batches_per_epoch()


def test_evaluation_sees_every_pair_once_in_length_order():
    lengths = random_lengths(200)
    batches = make_batches(lengths)
    passes = [list(map(as_lists, batches.evaluation_dataset())) for _ in range(2)]
    assert passes[0] == passes[1]
    rows = [[(row[0] - 10) // 1000 for row in batch[0]] for batch in passes[0]]
    assert sorted(itertools.chain(*rows)) == list(range(200))
    longest = [max(max(lengths[row][1]) for row in batch) for batch in rows]
    assert longest == sorted(longest)


@pytest.fixture(scope="module")
def shipped():
    """The shipped training pairs in words and marks, as ids."""
    paths = [f"shipped:tatoeba-deu-eng-demo.train.{language}.xz" for language in ("en", "de")]
    corpus = read_parallel_files(*paths)
    words = {}
    return [
        TokenSequences(
            [words.setdefault(word, len(words) + 4) for word in re.findall(r"\w+|[^\w\s]", line)]
            for line in side
        )
        for side in (corpus.sources, corpus.targets)
    ]


@pytest.mark.parametrize(("batch_tokens", "most"), [(2048, 0.02), (4096, 0.03), (25000, 0.08)])
def test_little_of_the_shipped_corpus_is_padding(shipped, batch_tokens, most):
    batches = TokenBatches(*shipped, batch_tokens=batch_tokens, seed=1)
    cells = tokens = 0
    sizes = []
    for rows in batches.plan(2):
        inputs, labels = batches.batch(rows)
        arrays = (inputs["source"], labels)
        tokens += sum(np.count_nonzero(array) for array in arrays)
        cells += sum(array.size for array in arrays)
        sizes.append(max(array.size for array in arrays))
    assert batches.padding_fraction(2) == pytest.approx(1 - tokens / cells)
    assert 0 < batches.padding_fraction(2) < most
    assert np.mean(sizes) > 0.9 * batch_tokens
    assert sorted(sizes)[1] > 0.7 * batch_tokens  # but for one at the end


def test_subwords_of_the_shipped_corpus_are_hardly_padded_either(tmp_path):
    import sentencepiece

    paths = [f"shipped:tatoeba-deu-eng-demo.train.{language}.xz" for language in ("en", "de")]
    corpus = read_parallel_files(*paths)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus.sources + corpus.targets),
        model_prefix=str(tmp_path / "pieces"),
        model_type="bpe",
        vocab_size=4000,
        pad_id=0,
        bos_id=1,
        eos_id=2,
        unk_id=3,
        minloglevel=2,
    )
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "pieces.model"))
    sides = [TokenSequences(pieces.encode(side)) for side in (corpus.sources, corpus.targets)]
    assert TokenBatches(*sides, batch_tokens=4096, seed=1).padding_fraction() < 0.04


def test_the_pipeline_is_not_what_training_waits_for(shipped):
    dataset = TokenBatches(*shipped, batch_tokens=4096, seed=1).dataset()
    start, tokens = time.process_time(), 0
    for inputs, labels in dataset.take(300):
        tokens += np.count_nonzero(inputs["source"]) + np.count_nonzero(labels)
    # Processor time, so that a busy machine does not count.
    assert tokens / (time.process_time() - start) > 1_000_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source_ids": [], "target_ids": []}, "0 source rows and 0 target rows"),
        ({"source_ids": [[5]]}, "1 source rows and 2 target rows"),
        ({"source_ids": [[5], [5] * 8]}, "Pair 1: .* 8 tokens .*9 source and 2 target tokens"),
        ({"target_ids": [[5] * 9, [5]]}, "Pair 0: .* 8 tokens .*2 source and 10 target tokens"),
        ({"source_ids": [[5], [5, 2]]}, r"Pair 1: .*source ids .*\(0, 1, 2\).*Received: 2"),
        ({"target_ids": [[1, 5], [5]]}, "Pair 0: .*target ids .*Received: 1"),
        ({"target_ids": [[5, 0], [5]]}, "Pair 0: .*target ids .*Received: 0"),
        ({"source_ids": [[], [-3]]}, "Pair 1: .*source ids .*Received: -3"),
        ({"seed": -1}, "seed must be at least 0. Received: -1"),
        ({"rows": []}, "at least one row. Received: rows without a number"),
        ({"maximum_batch_sentences": 0}, "maximum_batch_sentences must .*Received: 0"),
        ({"batch_tokens": 0}, "Pair 0: expected at most 0 tokens"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    right = {"source_ids": [[5], [6]], "target_ids": [[7], [8]], "batch_tokens": 8, "seed": 1}
    TokenBatches(**right)
    with pytest.raises(InputError, match=message) as error:
        TokenBatches(**right | arguments)
    assert "\n" not in str(error.value)


def test_a_pair_that_just_fits_is_a_batch_of_its_own():
    batches = make_batches(pairs_of([(1, 7), (7, 7), (7, 2)]), batch_tokens=8)
    assert sorted(len(rows) for rows in batches.plan(0)) == [1, 1, 1]
