"""A batch is the same on any number of replicas; each gets its part of it."""

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainers.batching import TokenBatches
from trainers.length_order import order_and_cuts

PADDING = [[[0]], [[0]], [[0]]]


def make_batches(lengths, **options):
    """Batches of pairs of the given lengths; ids name row and place."""
    sides = [
        [[10 + row * 100 + place for place in range(length[side])] for row, length in lengths]
        for side in (0, 1)
    ]
    return TokenBatches(*sides, **({"batch_tokens": 48, "seed": 7} | options))


def as_lists(batch):
    inputs, labels = batch
    return [np.asarray(array).tolist() for array in (inputs["source"], inputs["target"], labels)]


def first(dataset, count):
    return list(map(as_lists, dataset.take(count).as_numpy_iterator()))


LENGTHS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=40)


@settings(deadline=None, max_examples=15)
@given(lengths=LENGTHS, replicas=st.integers(1, 5), start=st.integers(0, 30), data=st.data())
def test_parts_are_every_rth_row_on_whichever_host(lengths, replicas, start, data):
    batches = make_batches(list(enumerate(lengths)))
    parts = first(batches.dataset(start, replicas), 3 * replicas)
    for number in range(3):
        epoch, place = batches.position(start + number)
        rows = batches.plan(epoch)[place]
        counts = batches.replica_counts(start + number, replicas)
        for replica in range(replicas):
            mine = rows[replica::replicas]
            part = parts[number * replicas + replica]
            assert part == (as_lists(batches.batch(mine)) if len(mine) else PADDING)
            source, _, labels = map(np.array, part)
            assert counts["source_tokens"][replica] == np.count_nonzero(source)
            assert counts["target_tokens"][replica] == np.count_nonzero(labels)
            assert counts["cells"][replica] == source.size + labels.size
    local = data.draw(st.lists(st.integers(0, replicas - 1), min_size=1, unique=True))
    expected = [parts[number * replicas + replica] for number in range(3) for replica in local]
    assert first(batches.dataset(start, replicas, local), 3 * len(local)) == expected


def test_counts_do_not_forget_an_epoch_that_the_data_has_left():
    batches = make_batches([(row, (row % 7, row % 5)) for row in range(60)])
    steps = batches.batches_per_epoch()
    asked = [0, steps, 2 * steps - 1, 2 * steps, 5 * steps, 0, 1]
    found = [batches.replica_counts(step, 2)["target_tokens"].tolist() for step in asked]
    again = make_batches([(row, (row % 7, row % 5)) for row in range(60)])
    assert found[::-1] == [
        again.replica_counts(step, 2)["target_tokens"].tolist() for step in asked[::-1]
    ]
    assert found[0] == found[5] and len(batches._plans) == 2


def test_some_rows_are_taken_without_copying():
    lengths = [(row, (row % 7, row % 5)) for row in range(60)]
    rows = np.arange(3, 60, 4)
    some = make_batches(lengths, rows=rows, shuffle=False)
    assert sorted(np.concatenate(some.plan(0)).tolist()) == rows.tolist()
    assert len(some) == len(rows)
    alone = make_batches([lengths[row] for row in rows], shuffle=False)
    parts = [first(batches.evaluation_dataset(), 99) for batches in (some, alone)]
    assert parts[0] == parts[1] and len(parts[0]) == some.batches_per_epoch()
    assert some.plan(0)[0].dtype == np.int64


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, 48 // 10), ({"maximum_batch_sentences": 3}, 3), ({"rows": [0, 1]}, 48 // 5)],
)
def test_the_smallest_full_batch(options, expected):
    lengths = list(enumerate([(1, 1), (4, 2), (3, 9)] + [(2, 2)] * 20))
    assert make_batches(lengths, **options).smallest_batch() == expected


def test_the_cut_of_a_large_corpus_takes_seconds():
    generator = np.random.default_rng(0)
    lengths = generator.gamma(4.0, 6.0, 200_000).astype(np.int32) + 1
    others = np.maximum(1, lengths + generator.integers(-3, 4, len(lengths))).astype(np.int32)

    start = time.process_time()
    place, cuts = order_and_cuts(lengths, others, 25_000, 25_000)
    assert time.process_time() - start < 3
    order = np.argsort(place, kind="stable")
    sizes = [
        (end - begin) * max(lengths[order[begin:end]].max(), others[order[begin:end]].max())
        for begin, end in itertools.pairwise(cuts.tolist())
    ]
    assert max(sizes) <= 25_000 and np.mean(sizes) > 0.9 * 25_000
