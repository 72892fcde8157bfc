"""The model handler of the Beam pipeline: faults cost no line that can be translated."""

import random
import subprocess
import sys

import pytest
import tensorflow as tf
from apache_beam.internal import pickler
from apache_beam.internal.cloudpickle import cloudpickle
from beam_doubles import Shouting, ShoutingHandler

from export import beam_files, beam_model
from export.beam_model import LoadedExport, TranslationHandler


def test_a_fault_that_passes_costs_no_line():
    model = Shouting()
    model.failures = 1
    predictions = ShoutingHandler(4).run_inference([b"a", b"b", b"c", b"d", b"e"], model)
    assert predictions == [(letter, None) for letter in (b"A", b"B", b"C", b"D", b"E")]
    model.failures = 1
    assert ShoutingHandler(4).run_inference([b"a"], model) == [(b"A", None)]


@pytest.mark.parametrize("memory", [1, 3, 7])
def test_a_batch_too_large_for_the_memory_is_halved(memory):
    model = Shouting(memory=memory)
    texts = [b"%d" % number for number in range(64)]
    predictions = ShoutingHandler(64).run_inference(texts, model)
    assert predictions == [(text, None) for text in texts]
    assert (
        max(map(len, (call for call in model.calls if len(call) <= memory)))
        == {1: 1, 3: 2, 7: 4}[memory]
    )


def test_a_line_that_always_fails_is_tried_twice_and_is_the_only_one_lost():
    model = Shouting(poison=b"c")
    predictions = ShoutingHandler(8).run_inference([b"a", b"b", b"c", b"d"], model)
    assert predictions == [
        (b"A", None),
        (b"B", None),
        (b"", (b"c", "ValueError: poison")),
        (b"D", None),
    ]
    assert model.calls.count([b"c"]) == 2


def test_batches_are_of_lines_of_about_one_length():
    model = Shouting()
    texts = [b"a" * length for length in random.Random(1).sample(range(1, 13), 12)]
    predictions = ShoutingHandler(4).run_inference(texts, model)
    assert [translation for translation, _ in predictions] == [text.upper() for text in texts]
    assert [[len(text) for text in call] for call in model.calls] == [
        [1, 2, 3, 4],
        [5, 6, 7, 8],
        [9, 10, 11, 12],
    ]


@pytest.mark.slow
def test_workers_need_nothing_of_this_project(numbers_export, tmp_path):
    """What is sent to them runs where our packages cannot be imported."""
    for module in (beam_files, beam_model):
        cloudpickle.register_pickle_by_value(module)
    steps = (
        TranslationHandler(str(numbers_export), 4),
        beam_files.ReadShard(),
        beam_files.WriteBlock(str(tmp_path)),
        beam_files.WriteShard(str(tmp_path), str(tmp_path)),
    )
    (tmp_path / "steps").write_bytes(pickler.dumps(steps))
    program = (
        "import sys\n"
        "for name in ('export', 'keras_transformer', 'trainers'): sys.modules[name] = None\n"
        "from apache_beam.internal import pickler\n"
        "handler, read, block, shard = pickler.loads(open('steps', 'rb').read())\n"
        "open('in', 'w').write('one two')\n"
        "(key, line), lengths = read.process('in')\n"
        "(translation, failure), = handler.run_inference([line], handler.load_model())\n"
        "(_, block), = block.process((('out', 0), [(1, translation, failure)]))\n"
        "list(shard.process(('out', {'blocks': [block], 'lengths': [1]})))\n"
        "print(open('out').read())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "eins zwei", done.stderr


def test_an_export_is_copied_from_a_file_system_that_is_not_the_machines(numbers_export, tmp_path):
    copy = beam_model.copy_export(str(numbers_export), str(tmp_path))
    files = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {
        path.relative_to(numbers_export) for path in numbers_export.rglob("*") if path.is_file()
    }
    assert LoadedExport(copy).translate([b"one two"]) == ([b"eins zwei"], 0)


def test_a_model_without_the_outputs_is_refused(tmp_path):
    module = tf.Module()
    module.translate = tf.function(
        lambda text: {"translation": text}, input_signature=[tf.TensorSpec([None], tf.string)]
    )
    tf.saved_model.save(module, str(tmp_path), signatures=module.translate)
    with pytest.raises(ValueError, match="must have the output truncated. Received: translation$"):
        LoadedExport(str(tmp_path))
