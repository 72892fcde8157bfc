"""The Beam pipeline: every line once and in its place, whatever fails on the way."""

import json
import threading
from pathlib import Path

import pytest
from beam_doubles import Shouting, ShoutingHandler, lines, read, write
from small_translators import SENTENCES

from export import beam_files
from export.beam import Corpus, find_corpus, main, run, translate_corpus
from export.beam_model import LoadedExport
from export.session import ExportSession
from keras_transformer.errors import InputError

# Repeats a bundle that fails, as the runners of many machines do; the default one here does not.
REPEATING = ["--runner=BundleBasedDirectRunner"]
SHARDS = {
    "corpus-1.txt": b"".join(text.encode() + b"\n" for text in SENTENCES[:12]),
    "corpus-2.txt": b"",
    "corpus-3.txt.gz": b"one two\n\nthree\rfour\r\nsix\n",
    "corpus-4.txt": b"\n\nfour one\xff\xe2\x80\xa8five",
    "corpus-5.txt": b"\n",
}

LONG = 2  # of these 20 lines, those that `Shouting` says it has cut


def shouted(shards: dict[str, bytes]) -> dict[str, bytes]:
    """What `Shouting` makes of shards."""
    return {
        name: b"".join(line.upper() + b"\n" for line in lines(content))
        for name, content in shards.items()
    }


@pytest.fixture
def corpus(tmp_path) -> Corpus:
    folder = write(tmp_path / "in", SHARDS)
    paths = [str(folder / name) for name in SHARDS]
    return Corpus(paths, export="none", output=str(tmp_path / "out"))


@pytest.fixture
def small_blocks(monkeypatch):
    """A shard is put in order in more than one piece."""
    monkeypatch.setattr(beam_files, "_BLOCK", 5)


def command(folder: Path, output: Path, export, *flags: str) -> list[str]:
    words = ["--input", f"{folder}/corpus-*", "--output", str(output), "--export", str(export)]
    return [*words, "--batch-size", "3", *flags]


def test_every_shard_becomes_the_translation_that_the_export_gives(
    tmp_path, numbers_export, small_blocks, capfd
):
    folder, output = write(tmp_path / "in", SHARDS), tmp_path / "new" / "out"
    assert main(command(folder, output, numbers_export.parent)) == 0
    session = ExportSession(numbers_export)
    assert read(output) == {
        name: b"".join(
            line + b"\n"
            for line in session.run("serving_default", text=lines(content))["translation"]
        )
        for name, content in SHARDS.items()
    }
    assert b"eins zwei drei\n" in read(output)["corpus-1.txt"]
    assert {path.name for path in output.iterdir()} == set(SHARDS)
    assert capfd.readouterr().err.endswith("20 lines, of which 0 were cut to the export's limit\n")


def test_lines_that_were_cut_are_counted(tmp_path, numbers_export):
    folder = write(tmp_path / "in", {"corpus-1.txt": b"one\n" + b"one " * 200 + b"\ntwo\n"})
    counts = translate_corpus(f"{folder}/*", str(tmp_path / "out"), str(numbers_export))
    assert counts == (3, 1, 0)


def test_threads_share_one_model(corpus, monkeypatch):
    loads, threads = [], set()

    class Counted(Shouting):
        def translate(self, texts):
            threads.add(threading.get_ident())
            return super().translate(texts)

    def load_model(handler):
        loads.append(threading.get_ident())
        return Counted()

    monkeypatch.setattr(ShoutingHandler, "load_model", load_model)
    flags = ["--direct_running_mode=multi_threading", "--direct_num_workers=3"]
    assert run(corpus, ShoutingHandler(1), flags) == (20, LONG, 0)
    assert read(Path(corpus.output)) == shouted(SHARDS)
    assert len(loads) == 1
    assert len(threads) > 1


@pytest.mark.parametrize("flags", [[], REPEATING])
def test_failed_lines_are_empty_and_recorded(corpus, small_blocks, flags):
    poison = SENTENCES[7].encode()
    assert run(corpus, ShoutingHandler(poison=poison), flags).failed == 1
    expected = shouted(SHARDS)
    expected["corpus-1.txt"] = expected["corpus-1.txt"].replace(poison.upper(), b"")
    assert read(Path(corpus.output)) == expected
    failed = read(Path(corpus.output, "failed"))
    assert list(failed) == ["corpus-1.txt.jsonl"]
    assert json.loads(failed["corpus-1.txt.jsonl"]) == {
        "shard": "corpus-1.txt",
        "line": 8,
        "text": poison.decode(),
        "error": "ValueError: poison",
    }
    # The next run, in which nothing fails, says so.
    assert run(corpus, ShoutingHandler()).failed == 0
    assert read(Path(corpus.output, "failed")) == {}
    assert read(Path(corpus.output)) == shouted(SHARDS)


def test_failed_lines_of_a_gzip_shard_are_no_gzip(tmp_path):
    folder = write(tmp_path / "in", {"a.gz": b"one\ntw\xc3o\nthree"})
    corpus = Corpus([f"{folder}/a.gz"], "none", str(tmp_path / "out"))
    assert run(corpus, ShoutingHandler(poison=b"tw\xc3o")) == (3, 0, 1)
    assert read(tmp_path / "out") == {"a.gz": b"ONE\n\nTHREE\n"}
    record = json.loads((tmp_path / "out/failed/a.gz.jsonl").read_text(encoding="utf-8"))
    assert (record["line"], record["text"]) == (2, "tw\ufffdo")


def test_the_command_fails_where_lines_fail(tmp_path, numbers_export, monkeypatch, capfd):
    translate = LoadedExport.translate

    def failing(export, texts):
        if b"six" in texts:
            raise RuntimeError("no sixes")
        return translate(export, texts)

    monkeypatch.setattr(LoadedExport, "translate", failing)
    folder, output = write(tmp_path / "in", {"corpus-1.txt": b"one\nsix\n"}), tmp_path / "out"
    assert main(command(folder, output, numbers_export)) == 1
    assert read(output) == {"corpus-1.txt": b"eins\n\n"}
    assert capfd.readouterr().err.endswith(
        f"export.beam: Lines that could not be translated and are empty: 1; "
        f"{output}/failed tells which and why\n"
    )


@pytest.mark.parametrize("step", ["ReadShard", "WriteBlock", "WriteShard"])
@pytest.mark.parametrize("after", [0, 2])
def test_a_bundle_that_fails_on_the_way_is_repeated_and_duplicates_nothing(
    corpus, small_blocks, monkeypatch, tmp_path, step, after
):
    fail_after(after, getattr(beam_files, step), tmp_path / "failed", monkeypatch)
    assert run(corpus, ShoutingHandler(), REPEATING) == (20, LONG, 0)
    assert (tmp_path / "failed").exists()
    assert read(Path(corpus.output)) == shouted(SHARDS)
    assert {path.name for path in Path(corpus.output).iterdir()} == set(SHARDS)


def fail_after(count: int, step: type, flag: Path, monkeypatch) -> None:
    """Makes a step raise once in its life, when `count` of its results are out."""
    process = step.process
    flag.with_name("results").write_bytes(b"")

    def failing(self, element):
        for result in process(self, element):
            with flag.with_name("results").open("r+b") as results:
                out = len(results.read())
                results.write(b".")
            if out >= count and not flag.exists():
                flag.write_bytes(b"")
                raise RuntimeError("the machine is gone")
            yield result

    monkeypatch.setattr(step, "process", failing)


def test_a_bundle_that_is_processed_three_times_changes_nothing(corpus, small_blocks):
    poison = SENTENCES[7].encode()
    run(corpus, ShoutingHandler(poison=poison), ["--direct_runner_bundle_repeat=2"])
    expected = shouted(SHARDS)
    expected["corpus-1.txt"] = expected["corpus-1.txt"].replace(poison.upper(), b"")
    assert read(Path(corpus.output)) == expected
    assert len(lines(read(Path(corpus.output, "failed"))["corpus-1.txt.jsonl"])) == 1


def test_a_pipeline_that_fails_for_good_leaves_no_half_file(corpus, monkeypatch):
    def failing(self, element):
        raise RuntimeError("the disk is full")

    monkeypatch.setattr(beam_files.WriteShard, "process", failing)
    with pytest.raises(RuntimeError, match="the disk is full"):
        run(corpus, ShoutingHandler())
    assert list(Path(corpus.output).iterdir()) == []


def test_a_gzip_shard_that_ends_too_early_is_no_short_corpus(tmp_path):
    folder = write(tmp_path / "in", {"a.gz": b"one\n" * 1000})
    (folder / "a.gz").write_bytes((folder / "a.gz").read_bytes()[:-12])
    with pytest.raises(Exception, match="EOFError|end-of-stream"):
        run(Corpus([f"{folder}/a.gz"], "none", str(tmp_path / "out")), ShoutingHandler())
    assert list((tmp_path / "out").iterdir()) == []


def test_the_highest_version_is_taken(tmp_path):
    for version in ("2", "10", "writing-11", "old"):
        (tmp_path / "exports" / version).mkdir(parents=True)
        (tmp_path / "exports" / version / "saved_model.pb").write_bytes(b"")
    (tmp_path / "exports" / "30").mkdir()
    folder = write(tmp_path / "in", {"a": b""})
    for export, version in (("exports", "10"), ("exports/2", "2")):
        found = find_corpus(f"{folder}/*", str(tmp_path / "out"), str(tmp_path / export))
        assert found.export == str(tmp_path / "exports" / version)


def test_bad_input_is_refused_before_anything_is_written(tmp_path, numbers_export, capfd):
    folder = write(tmp_path / "in", {"corpus-1.txt": b"one\n"})
    write(tmp_path / "in2", {"corpus-1.txt": b"one\n"})
    write(tmp_path / "named", {"failed": b"one\n"})
    output, before = tmp_path / "out", set(tmp_path.rglob("*"))
    for options, message in (
        ({"--input": f"{folder}/none-*"}, rf"matches files.*Received: {folder}/none-\*$"),
        ({"--input": str(folder)}, rf"matches files.*Received: {folder}$"),
        ({"--input": f"{tmp_path}/in*/*.txt"}, r"Received: .* with more than one corpus-1\.txt$"),
        ({"--input": f"{tmp_path}/named/*"}, r"folder for lines that fail\. Received: .*/failed$"),
        ({"--input": "none://bucket/*"}, r"must be readable\. Received: .*none://bucket"),
        ({"--output": str(folder)}, rf"another folder .* Received: {folder}$"),
        ({"--output": f"{folder}/../in/"}, rf"another folder .* Received: {folder}$"),
        ({"--export": str(folder)}, rf"saved_model\.pb.*Received: {folder}$"),
        ({"--export": f"{tmp_path}/nowhere"}, r"saved_model\.pb.*Received: .*nowhere$"),
        ({"--output": f"{folder}/corpus-1.txt"}, r"written to\. Received: .*corpus-1\.txt "),
        ({"--runner": "Walker"}, r"use its flags\. Received: --runner Walker \(.*Walker"),
        ({"--batch-size": "0"}, r"batch_size must be an integer of at least 1\. Received: 0$"),
    ):
        words = command(folder, output, numbers_export)
        named = {**dict(zip(words[::2], words[1::2], strict=True)), **options}
        assert main([word for pair in named.items() for word in pair]) == 2, options
        error = capfd.readouterr().err
        assert error.startswith("export.beam: ") and error.count("\n") == 1, error
        with pytest.raises(InputError, match=message):
            raise InputError(error.strip())
    assert set(tmp_path.rglob("*")) == before


def test_a_machine_without_beam_is_told(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["--input", "a", "--output", "b", "--export", "c"]) == 2
    assert "pip install 'keras-transformer[beam]'" in capsys.readouterr().err


def test_a_misspelt_flag_is_refused(numbers_export, tmp_path, capsys):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.txt").write_text("one\n")
    words = ["--input", f"{tmp_path}/corpus/*", "--output", f"{tmp_path}/out"]
    words += ["--export", str(numbers_export)]
    assert main([*words, "--batchsize=3"]) == 2
    line = capsys.readouterr().err
    assert line.endswith("Received: --batchsize=3\n") and line.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (RuntimeError("a step\nfailed"), 1, "the pipeline failed: RuntimeError: a step\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (RuntimeError("KeyboardInterrupt"), 130, "interrupted\n"),
    ],
)
def test_a_pipeline_that_fails_says_so_in_a_line(monkeypatch, capsys, error, code, message):
    def fail(*arguments):
        raise error

    monkeypatch.setattr("export.beam.translate_corpus", fail)
    assert main(["--input", "a", "--output", "b", "--export", "c"]) == code
    assert capsys.readouterr().err == f"export.beam: {message}"
