"""Rows of ids in flat arrays: in memory or in shards, they come out as they went in."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainers.prepared import ShardedRows
from trainers.token_sequences import TokenSequences


def test_token_sequences_take_rows_of_any_kind():
    rows = [[5, 6], [], np.array([7, 2**31 - 1]), (8,), np.array([9], np.int16)]
    sequences = TokenSequences(iter(rows))
    assert [row.tolist() for row in sequences] == [list(row) for row in rows]
    assert sequences.flat.dtype == sequences[0].dtype == np.int32
    assert sequences.lengths.tolist() == [2, 0, 2, 1, 1]
    assert sequences.padded(np.array([3, 0, 1])).tolist() == [[8, 0], [5, 6], [0, 0]]
    assert sequences.padded(np.array([1]), first_id=1, last_id=2).tolist() == [[1, 2]]
    assert len(TokenSequences([])) == 0
    for wrong in ([1.5], np.array([1.5]), [2**31]):
        with pytest.raises((TypeError, OverflowError)):
            TokenSequences([wrong])


ROWS = st.lists(st.lists(st.integers(4, 60_000), max_size=6), min_size=1, max_size=30)


@settings(deadline=None, max_examples=200)
@given(rows=ROWS, shard_rows=st.integers(1, 8), data=st.data())
def test_shards_give_what_one_array_gives(rows, shard_rows, data):
    shards = [rows[start : start + shard_rows] for start in range(0, len(rows), shard_rows)]
    sharded = ShardedRows(
        [np.array([i for row in shard for i in row], np.uint16) for shard in shards],
        [np.array([len(row) for row in shard], np.int32) for shard in shards],
    )
    whole = TokenSequences(rows)
    assert len(sharded) == len(rows) and sharded.lengths.tolist() == whole.lengths.tolist()
    assert [row.tolist() for row in sharded] == rows
    assert sharded[-1].tolist() == rows[-1] and sharded[0].dtype == np.int32
    chosen = np.array(data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1)))
    assert sharded.flat_rows(chosen).tolist() == [i for row in chosen for i in rows[row]]
    for ends in ({}, {"first_id": 1}, {"last_id": 2}, {"first_id": 1, "last_id": 2}):
        padded = sharded.padded(chosen, **ends)
        assert padded.dtype == np.int32
        assert np.array_equal(padded, whole.padded(chosen, **ends))
    with pytest.raises(IndexError):
        sharded[len(rows)]
