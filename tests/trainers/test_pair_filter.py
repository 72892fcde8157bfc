"""Which pairs of a corpus are kept, and what is counted for the others."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.errors import InputError
from trainers.pair_filter import filter_pairs, pair_hashes


def test_each_reason_is_counted():
    pairs = [
        ("a b", "A B", 2, 2),  # kept
        ("", "A", 0, 1),
        (" ", "A", 0, 1),
        ("a", " ", 1, 0),
        ("", "", 0, 0),
        ("long", "L", 6, 1),
        ("l", "Long", 1, 6),
        ("a b c d", "A", 4, 1),
        ("a", "A B C D", 1, 4),
        ("a b", "A B", 2, 2),  # duplicate
        ("a b", "B A", 2, 2),  # kept: another target
        ("a b c", "A", 3, 1),  # kept: just at the ratio
        ("a b c d e", "A B C D E", 5, 5),  # kept: just at the length
    ]
    sources, targets, source_lengths, target_lengths = zip(*pairs, strict=True)
    lengths = (source_lengths, np.array(target_lengths))
    hashes = pair_hashes(sources, targets)
    kept, counts = filter_pairs(*lengths, maximum_length=5, maximum_length_ratio=3, hashes=hashes)
    assert kept.tolist() == [0, 10, 11, 12] and kept.dtype == np.int64
    assert counts == {
        "empty_source": 3,
        "empty_target": 1,
        "too_long": 2,
        "length_ratio": 2,
        "duplicate": 1,
        "kept": 4,
        "total": 13,
    }
    kept, counts = filter_pairs(*lengths, maximum_length=5)
    assert kept.tolist() == [0, 7, 8, 9, 10, 11, 12]
    assert counts["length_ratio"] == counts["duplicate"] == 0


@settings(deadline=None)
@given(
    pairs=st.lists(st.tuples(*[st.sampled_from(["", " ", "a", "b", "a b", "a b c d"])] * 2)),
    longest=st.integers(1, 5),
    ratio=st.none() | st.floats(1, 5),
    drop=st.booleans(),
)
def test_filtering_equals_a_plain_loop(pairs, longest, ratio, drop):
    lengths = [[len(pair[side].split()) for pair in pairs] for side in (0, 1)]
    hashes = pair_hashes([s for s, _ in pairs], [t for _, t in pairs])
    kept, counts = filter_pairs(
        *lengths,
        maximum_length=longest,
        maximum_length_ratio=ratio,
        hashes=hashes if drop else None,
    )
    expected, seen = [], set()
    for i, (source, target) in enumerate(zip(*lengths, strict=True)):
        if not source or not target or max(source, target) > longest:
            continue
        if ratio is not None and max(source, target) > ratio * min(source, target):
            continue
        if not drop or pairs[i] not in seen:
            expected.append(i)
        seen.add(pairs[i])
    assert kept.tolist() == expected
    assert counts["kept"] == len(expected) and counts["total"] == len(pairs)
    assert sum(counts.values()) == 2 * len(pairs)


def test_hashes_tell_pairs_apart_by_both_sides_and_where_they_meet():
    pairs = [("a", "b"), ("b", "a"), ("ab", ""), ("", "ab"), ("a", "b ")]
    hashes = pair_hashes(*zip(*pairs, strict=True))
    assert hashes.dtype == np.uint64 and len(set(hashes.tolist())) == len(pairs)
    assert pair_hashes(["a"], ["b"])[0] == hashes[0]
    assert pair_hashes([], []).shape == (0,)


def test_filtering_refuses_wrong_arguments():
    with pytest.raises(InputError, match=r"Received: shapes \(2,\) and \(1,\)"):
        filter_pairs([1, 2], [1], maximum_length=3)
    with pytest.raises(InputError, match="maximum_length must.*Received: 0"):
        filter_pairs([1], [1], maximum_length=0)
    with pytest.raises(InputError, match="maximum_length_ratio must.*Received: 0.5"):
        filter_pairs([1], [1], maximum_length=3, maximum_length_ratio=0.5)
