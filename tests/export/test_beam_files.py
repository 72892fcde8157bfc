"""The files of the Beam pipeline: read at line feeds, written in order, whatever the order."""

import random

import apache_beam as beam
import pytest
from beam_doubles import lines, read, write

from export import beam_files


@pytest.mark.parametrize("seed", range(3))
def test_lines_that_come_back_in_any_order_are_put_in_order(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(beam_files, "_BLOCK", 5)  # a shard is put in order in five pieces
    translated = [
        ((shard, number), (b"%s %d" % (shard.encode(), number), None))
        for shard in ("a", "b")
        for number in range(1, 24)
    ]
    random.Random(seed).shuffle(translated)
    output, temporary = str(tmp_path / "out"), str(tmp_path / "out" / "temporary")
    with beam.Pipeline("FnApiRunner") as pipeline:
        blocks = (
            pipeline
            | "Lines" >> beam.Create(translated)
            | beam.Map(beam_files.WriteBlock.key)
            | beam.GroupByKey()
            | beam.ParDo(beam_files.WriteBlock(temporary))
        )
        lengths = pipeline | "Lengths" >> beam.Create([("a", 23), ("b", 23)])
        _ = (
            {"blocks": blocks, "lengths": lengths}
            | beam.CoGroupByKey()
            | beam.ParDo(beam_files.WriteShard(output, temporary))
        )
    assert read(tmp_path / "out") == {
        shard: b"".join(b"%s %d\n" % (shard.encode(), number) for number in range(1, 24))
        for shard in ("a", "b")
    }


def test_a_line_that_does_not_come_back_is_noticed(tmp_path):
    step = beam_files.WriteShard(str(tmp_path), str(tmp_path))
    with pytest.raises(RuntimeError, match="a: 0 of 2 lines came back"):
        next(step.process(("a", {"blocks": [], "lengths": [2]})))


def test_shards_are_read_at_line_feeds_alone(tmp_path):
    content = b"a\rb\x0bc\xe2\x80\xa8d\n\ne\x85\x00f\r\n"
    for name in ("a", "a.gz"):
        folder = write(tmp_path / f"of {name}", {name: content})
        *found, length = beam_files.ReadShard().process(f"{folder}/{name}")
        assert [line for _, line in found] == lines(content)
        assert [key for key, _ in found] == [(name, 1), (name, 2), (name, 3)]
        assert length.value == (name, 3)
