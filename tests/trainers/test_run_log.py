"""metrics.jsonl and TensorBoard: the same figures, whole lines, none twice."""

import json
import math

import pytest
import tensorflow as tf
from full_disk import no_file_above

from keras_transformer.errors import InputError
from trainers.run_log import RunLog


def shown_by_tensorboard(run):
    """(step, tag) -> number, over all files of events."""
    return {
        (event.step, value.tag): float(tf.make_ndarray(value.tensor))
        for events in (run / "tensorboard").iterdir()
        for record in tf.data.TFRecordDataset(str(events))
        for event in [tf.compat.v1.Event.FromString(record.numpy())]
        for value in event.summary.value
    }


def test_lines_are_json_objects_in_order(tmp_path):
    log = RunLog(tmp_path)
    assert log.lines() == []
    log.write(50, loss=4.5, gradient_norm=0.25)
    log.write(100, val_loss=4.0)
    text = (tmp_path / "metrics.jsonl").read_text()
    assert text.endswith("\n") and text.count("\n") == 2
    assert [json.loads(line) for line in text.split("\n")[:-1]] == log.lines()
    assert log.lines() == [
        {"step": 50, "loss": 4.5, "gradient_norm": 0.25},
        {"step": 100, "val_loss": 4.0},
    ]


def test_another_process_adds_to_the_lines(tmp_path):
    RunLog(tmp_path).write(1, loss=2.0)
    RunLog(tmp_path).write(2, loss=1.0)
    assert [line["step"] for line in RunLog(tmp_path).lines()] == [1, 2]


def test_what_is_no_number_is_null_since_json_has_no_word_for_it(tmp_path):
    RunLog(tmp_path).write(1, val_loss=float("nan"), val_perplexity=float("inf"), val_bleu=1.5)

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    line = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=refuse)
    assert line == {"step": 1, "val_loss": None, "val_perplexity": None, "val_bleu": 1.5}


def test_a_line_that_a_crash_cut_short_is_left_out_and_then_removed(tmp_path):
    log = RunLog(tmp_path)
    log.write(1, loss=2.0)
    with log.path.open("a") as file:
        file.write('{"step": 2, "lo')
    assert log.lines() == [{"step": 1, "loss": 2.0}]
    log.forget_after(5)
    log.write(2, loss=1.0)
    assert log.lines() == [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}]


def test_lines_of_later_steps_are_forgotten(tmp_path):
    log = RunLog(tmp_path)
    log.forget_after(3)
    assert not log.path.exists()
    for step in range(1, 6):
        log.write(step, loss=1 / step)
    log.write(3, val_loss=1.0)
    log.forget_after(3)
    assert [line["step"] for line in log.lines()] == [1, 2, 3, 3]
    assert log.lines()[2] == {"step": 3, "loss": 1 / 3}
    log.forget_after(0)
    assert log.lines() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "tensorboard"]


def test_tensorboard_has_the_figures_at_once(tmp_path):
    log = RunLog(tmp_path)
    log.write(7, loss=2.5, gradient_norm=0.5)
    assert shown_by_tensorboard(tmp_path) == {(7, "loss"): 2.5, (7, "gradient_norm"): 0.5}


def test_a_figure_may_be_a_list_with_a_number_a_replica(tmp_path):
    log = RunLog(tmp_path)
    log.write(7, loss=2.5, padding=[0.25, 0.5])
    log.write(8, padding=[float("nan"), 0.5])
    assert log.lines() == [
        {"step": 7, "loss": 2.5, "padding": [0.25, 0.5]},
        {"step": 8, "padding": [None, 0.5]},
    ]
    shown = shown_by_tensorboard(tmp_path)
    assert shown.pop((8, "padding/0")) != 0.5
    assert shown == {
        (7, "loss"): 2.5,
        (7, "padding/0"): 0.25,
        (7, "padding/1"): 0.5,
        (8, "padding/1"): 0.5,
    }


def test_what_has_been_written_is_known(tmp_path):
    log = RunLog(tmp_path)
    assert not log.has(4, "val_loss")
    log.write(4, loss=1.0)
    log.write(4, val_loss=float("nan"))
    log.write(5, loss=1.0)
    assert log.has(4, "val_loss") and log.has(4, "loss") and log.has(5, "loss")
    assert not log.has(5, "val_loss") and not log.has(6, "loss")


class TestTrouble:
    def test_a_full_disk_is_named_and_lines_before_it_are_kept(self, tmp_path):
        log = RunLog(tmp_path)
        for step in range(10):
            log.write(step, loss=1.0)
        size = log.path.stat().st_size
        with (
            no_file_above(size + 10),
            pytest.raises(InputError, match="writable to .*metrics.jsonl;.*Received: .*Errno"),
        ):
            log.write(10, loss=1.0)
        assert [line["step"] for line in log.lines()] == list(range(10))
        with no_file_above(size // 2), pytest.raises(InputError, match="metrics.jsonl"):
            log.forget_after(7)
        assert [line["step"] for line in log.lines()] == list(range(10))
        log.forget_after(7)
        log.write(8, loss=2.0)
        assert log.lines()[-1] == {"step": 8, "loss": 2.0} and len(log.lines()) == 9

    @pytest.mark.parametrize("name", ["metrics.jsonl", "tensorboard"])
    def test_a_file_that_cannot_be_written_is_named(self, tmp_path, name):
        if name == "metrics.jsonl":
            (tmp_path / name).mkdir()
        else:
            (tmp_path / name).touch()
        with pytest.raises(InputError, match=f"writable to {tmp_path}/{name};.*Received: "):
            RunLog(tmp_path).write(1, loss=1.0)

    @pytest.mark.parametrize("text", ['{"step": 2, "lo', "7", '{"loss": 1.0}', "\0\0\0", "\x80"])
    def test_a_damaged_line_is_named_by_its_number(self, tmp_path, text):
        log = RunLog(tmp_path)
        log.write(1, loss=2.0)
        with log.path.open("ab") as file:
            file.write(text.encode("latin-1") + b"\n")
        with pytest.raises(InputError, match="metrics.jsonl:2 must be a JSON object .*Received: "):
            log.lines()


def test_a_figure_may_be_a_number_by_name(tmp_path):
    log = RunLog(tmp_path)
    log.write(7, norms={"encoder/layer_0": 0.25, "decoder/layer_0": float("nan")})
    assert log.lines() == [{"step": 7, "norms": {"encoder/layer_0": 0.25, "decoder/layer_0": None}}]
    shown = shown_by_tensorboard(tmp_path)
    assert shown[7, "norms/encoder/layer_0"] == 0.25
    assert math.isnan(shown[7, "norms/decoder/layer_0"])
