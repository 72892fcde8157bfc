"""A corpus becomes token ids in files: once, the same ones after any break, or not at all."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from full_disk import no_file_above

from keras_transformer.errors import InputError
from keras_transformer.folder_lock import folder_lock
from keras_transformer.text_preparation import prepare as prepare_text
from trainers import prepare, shard_writer
from trainers.corpus import ParallelFiles
from trainers.prepare import prepare_corpus
from trainers.prepared import file_checksum
from trainers.recipe import Recipe
from trainers.text_files import read_lines

SHIPPED = "shipped:tatoeba-deu-eng-demo.valid.{}.xz"
PAIRS, SHARD_PAIRS, STRETCH_PAIRS, VOCABULARY = 930, 100, 50, 400


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(prepare, "SHARD_PAIRS", SHARD_PAIRS)
    monkeypatch.setattr(prepare, "STRETCH_PAIRS", STRETCH_PAIRS)


@pytest.fixture
def corpus(tmp_path):
    """Two files of 930 lines: nine shards and a short one."""
    paths = []
    for language in ("en", "de"):
        lines = read_lines(SHIPPED.format(language))[:PAIRS]
        lines[3], lines[5], lines[6] = lines[0], " \u00a0", ""
        paths.append(tmp_path / f"corpus.{language}")
        paths[-1].write_bytes("".join(f"{line}\n" for line in lines).encode())
    return paths


def recipe(source, target, **changes):
    files = {"source": str(source), "target": str(target)}
    data = {"source_language": "en", "target_language": "de", "train": files, "validation": files}
    tokenizer = {"vocabulary_size": VOCABULARY}
    for key, value in changes.items():
        (tokenizer if key in ("kind", "shared") else data)[key] = value
    model = {"tying": "output"}  # for one vocabulary or two
    return Recipe.from_dict(
        {"data": data, "tokenizer": tokenizer, "model": model, "training": {"steps": 1}}
    )


def contents(folder):
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in Path(folder).rglob("*")
        if file.is_file()
    }


def train_folders(folder):
    return sorted(path.name for path in Path(folder).glob("train-*"))


@pytest.fixture
def prepared(corpus, tmp_path):
    return prepare_corpus(recipe(*corpus), tmp_path / "prepared")


@pytest.mark.parametrize("shared", [True, False])
def test_the_ids_are_the_tokenizers(corpus, tmp_path, shared, capfd):
    found = prepare_corpus(recipe(*corpus, shared=shared), tmp_path / "prepared")
    assert capfd.readouterr().out == ""
    assert len(found) == PAIRS and found.tokenizer.shared == shared
    sides = (found.tokenizer.source, found.source), (found.tokenizer.target, found.target)
    for path, (tokenizer, rows) in zip(corpus, sides, strict=True):
        expected = tokenizer.encode_batch(read_lines(path))
        assert [row.tolist() for row in rows] == expected
        assert rows.lengths[5] == rows.lengths[6] == 0
    assert found.fingerprints == {
        "corpus": ParallelFiles(*corpus).fingerprints(),
        "tokenizer": found.tokenizer.fingerprint,
    }
    kept, counts = found.filter(recipe(*corpus, drop_duplicates=True, maximum_length=40).data)
    assert counts["empty_source"] == 2 and counts["empty_target"] == 0
    assert counts["duplicate"] == 1 and 0 in kept and 3 not in kept
    longest = np.maximum(found.source.lengths, found.target.lengths)
    assert counts["too_long"] == np.count_nonzero(longest > 39) > 0
    assert counts["kept"] == len(kept) == PAIRS - 3 - counts["too_long"]


def test_no_white_space_has_ids():
    white = [chr(code) for code in range(sys.maxunicode + 1) if chr(code).isspace()]
    assert len(white) > 20 and {prepare_text(text) for text in [*white, "".join(white)]} == {""}


def test_shards_are_small_files_and_the_manifest_knows_them(prepared):
    manifest = json.loads((prepared.folder / "manifest.json").read_bytes())
    assert manifest["pairs"] == PAIRS and manifest["tokenizer"] == prepared.tokenizer.fingerprint
    assert manifest["corpus"] == prepared.fingerprints["corpus"]
    assert [shard["pairs"] for shard in manifest["shards"]] == [100] * 9 + [30]
    for shard in manifest["shards"]:
        files = {
            file.name: file.stat().st_size for file in (prepared.folder / shard["name"]).iterdir()
        }
        assert files == shard["bytes"]
    assert np.load(prepared.folder / "shard-00009" / "source_ids.npy").dtype == np.uint16


def test_what_is_there_is_not_made_again(prepared, corpus, tmp_path, monkeypatch, capfd):
    before = contents(tmp_path / "prepared")
    monkeypatch.setattr(prepare, "ShardWriter", None)
    monkeypatch.setattr(prepare, "_trained", None)
    capfd.readouterr()
    moved = [shutil.move(path, f"{path}.moved") for path in corpus]
    with folder_lock(tmp_path / "prepared"):  # nor is it waited for
        again = prepare_corpus(recipe(*moved), tmp_path / "prepared")
    assert capfd.readouterr() == ("", "")
    assert contents(tmp_path / "prepared") == before
    assert again.folder == prepared.folder and len(again) == PAIRS
    assert list(again.fingerprints["corpus"]) == list(map(str, moved))


def test_another_line_language_or_vocabulary_has_other_files(prepared, corpus, tmp_path):
    folder = tmp_path / "prepared"
    found = {prepared.folder}
    found.add(prepare_corpus(recipe(*corpus[::-1]), folder).folder)
    found.add(prepare_corpus(recipe(*corpus, source_language="fr"), folder).folder)
    found.add(prepare_corpus(recipe(*corpus, kind="unigram"), folder).folder)
    text = corpus[1].read_bytes()
    corpus[1].write_bytes(text.replace(b"\n", b" \n", 1))
    found.add(prepare_corpus(recipe(*corpus), folder).folder)
    assert len(found) == 5 and len(train_folders(folder)) == 5
    given = prepare_corpus(recipe(*corpus), folder, tokenizer=prepared.tokenizer)
    assert given.tokenizer is prepared.tokenizer and given.folder != prepared.folder
    assert given.target[1].tolist() == prepared.target[1].tolist()


@pytest.mark.parametrize("write", [1, 3, 6, 14, 46, 50, 51])
def test_a_break_at_any_write_is_made_good(prepared, corpus, tmp_path, monkeypatch, write):
    expected = contents(tmp_path / "prepared")
    writes, broken = [], shard_writer._write_for_good

    def interrupted(path, data):
        writes.append(path)
        if len(writes) == write:
            path.write_bytes(bytes(data)[:7])
            raise KeyboardInterrupt
        broken(path, data)

    folder = tmp_path / "other"
    with monkeypatch.context() as patch:
        patch.setattr(shard_writer, "_write_for_good", interrupted)
        with pytest.raises(KeyboardInterrupt):
            prepare_corpus(recipe(*corpus), folder)
    encoded = []
    encode = prepare._encode
    monkeypatch.setattr(
        prepare, "_encode", lambda *arguments: encoded.append(arguments) or encode(*arguments)
    )
    prepare_corpus(recipe(*corpus), folder)
    assert contents(folder) == expected
    whole = min((write - 1) // 5, 9)  # the last is short: nobody knows that nothing is missing
    assert sum(len(sources) for (sources, _), *_ in encoded) == PAIRS - whole * SHARD_PAIRS


def test_kill_9_is_made_good(prepared, corpus, tmp_path):
    folder = tmp_path / "killed"
    sizes = [SHARD_PAIRS, STRETCH_PAIRS, VOCABULARY]
    program = Path(__file__).parent.parent / "prepare_and_die.py"
    command = [sys.executable, program, *corpus, folder, *sizes, 28]
    done = subprocess.run(list(map(str, command)), cwd=program.parent.parent, env=_environment())
    assert done.returncode == -signal.SIGKILL
    assert (next(folder.glob("train-*")) / "shard-00005.partial").is_dir()
    prepare_corpus(recipe(*corpus), folder)
    assert contents(folder) == contents(tmp_path / "prepared")


def _environment():
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent.parent)}


def test_a_full_disk_is_named_and_nothing_half_used(prepared, corpus, tmp_path):
    folder = tmp_path / "full"
    with no_file_above(100), pytest.raises(InputError, match=f"^{folder}") as error:
        prepare_corpus(recipe(*corpus), folder, progress=False)
    assert "\n" not in str(error.value) and "Received: " in str(error.value)
    with no_file_above(2000), pytest.raises(InputError, match=f"^{folder}"):
        prepare_corpus(recipe(*corpus), folder, progress=False, tokenizer=prepared.tokenizer)
    assert not list(folder.rglob("manifest.json"))
    prepare_corpus(recipe(*corpus), folder)
    assert contents(folder) == contents(tmp_path / "prepared")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InputError, match=f"^{tmp_path / 'file'}"):
        prepare_corpus(recipe(*corpus), tmp_path / "file")


@pytest.mark.parametrize(
    "name", ["manifest.json", "shard-00004/target_ids.npy", "shard-00009/hashes.npy"]
)
@pytest.mark.parametrize("fault", ["missing", "short", "empty"])
def test_a_damaged_file_is_named(prepared, corpus, tmp_path, name, fault):
    file = prepared.folder / name
    if fault == "missing" and name != "manifest.json":  # without it all is prepared again
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-1] if fault == "short" else b"")
        if (name, fault) == ("manifest.json", "short"):
            file.write_bytes(b'{"shards": 3}')
    with pytest.raises(InputError, match=f"^{file}: expected .*{prepared.folder}") as error:
        prepare_corpus(recipe(*corpus), tmp_path / "prepared")
    assert "\n" not in str(error.value)


def test_lengths_that_do_not_fit_the_ids_are_named(prepared, corpus, tmp_path):
    file = prepared.folder / "shard-00002" / "source_lengths.npy"
    lengths = np.load(file)
    lengths[7] += 1
    np.save(file, lengths)
    manifest = prepared.folder / "manifest.json"
    facts = json.loads(manifest.read_text())
    with pytest.raises(InputError, match=f"^{file}: expected bytes with the checksum"):
        prepare_corpus(recipe(*corpus), tmp_path / "prepared")
    facts["shards"][2]["crc32"]["source_lengths.npy"] = file_checksum(file)
    manifest.write_text(json.dumps(facts))
    with pytest.raises(InputError, match=f"^{file}: expected lengths of the"):
        prepare_corpus(recipe(*corpus), tmp_path / "prepared")


def test_unequal_sides_are_refused_before_any_work(corpus, tmp_path):
    corpus[1].write_bytes(corpus[1].read_bytes() + b"one more\n")
    with pytest.raises(InputError, match=f"with {PAIRS} lines and .* with {PAIRS + 1} lines"):
        prepare_corpus(recipe(*corpus), tmp_path / "prepared")
    assert list((tmp_path / "prepared").iterdir()) == []
    with pytest.raises(InputError, match="none: no such file"):
        prepare_corpus(recipe(corpus[0], tmp_path / "none"), tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_corpus_that_changes_meanwhile_is_refused(corpus, tmp_path, monkeypatch):
    trained = prepare._trained

    def changing(*arguments):
        found = trained(*arguments)
        corpus[0].write_bytes(corpus[0].read_bytes().replace(b"\n", b"!\n", 1))
        return found

    monkeypatch.setattr(prepare, "_trained", changing)
    with pytest.raises(InputError, match="must not be changed while it is prepared"):
        prepare_corpus(recipe(*corpus), tmp_path / "prepared")
    assert train_folders(tmp_path / "prepared") == []


def test_another_process_is_waited_for(corpus, tmp_path, capfd):
    folder = tmp_path / "prepared"
    folder.mkdir()
    released = []

    def release():
        time.sleep(0.7)
        released.append(train_folders(folder))
        stack.__exit__(None, None, None)

    stack = folder_lock(folder)
    stack.__enter__()
    thread = threading.Thread(target=release)
    thread.start()
    assert len(prepare_corpus(recipe(*corpus), folder)) == PAIRS
    thread.join()
    assert released == [[]]
    assert capfd.readouterr().err.count("waiting for the process that prepares it") == 1


def test_no_more_than_some_stretches_are_in_memory(prepared):
    taken, done = 0, 0

    def stretches():
        nonlocal taken
        for _ in range(20):
            taken += 1
            assert taken - done <= 4
            yield ["a word"] * 5, ["ein Wort"] * 5

    for arrays in prepare._encoded(stretches(), prepared.tokenizer, 0):
        assert len(arrays[1]) == 5
        done += 1
    assert taken == done == 20


class FakeTokenizer:
    vocabulary_size = 70_000

    def __init__(self, rows):
        self.rows = rows

    def encode_batch(self, sentences):
        return self.rows[: len(sentences)]


def test_large_vocabularies_have_wider_ids():
    ids, lengths = prepare._flat_ids(FakeTokenizer([[69_999], [], [4]]), ["a"] * 3)
    assert ids.dtype == np.int32 and ids.tolist() == [69_999, 4] and lengths.tolist() == [1, 0, 1]


def test_a_control_id_from_a_tokenizer_is_refused():
    tokenizer = type("Both", (), {"source": FakeTokenizer([[5], [], [7, 2]])})()
    tokenizer.target = tokenizer.source
    with pytest.raises(InputError, match="^Pair 42: expected ids above 2 .*Received: 2$"):
        prepare._encode((["a"] * 3, ["b"] * 3), tokenizer, 40)


def test_a_side_may_be_without_a_single_id(corpus, tmp_path):
    corpus[0].write_bytes(b"\n" * PAIRS)
    found = prepare_corpus(recipe(*corpus), tmp_path / "prepared")
    assert found.source.lengths.sum() == 0 and found.target.lengths.sum() > 0
    assert found.filter(recipe(*corpus).data)[1]["empty_source"] == PAIRS
