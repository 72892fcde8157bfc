"""metrics.jsonl and TensorBoard: the same figures, whole lines, none twice."""

import json

import tensorflow as tf

from trainers.run_log import RunLog


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
    (events,) = (tmp_path / "tensorboard").iterdir()
    shown = {
        (event.step, value.tag): float(tf.make_ndarray(value.tensor))
        for record in tf.data.TFRecordDataset(str(events))
        for event in [tf.compat.v1.Event.FromString(record.numpy())]
        for value in event.summary.value
    }
    assert shown == {(7, "loss"): 2.5, (7, "gradient_norm"): 0.5}
