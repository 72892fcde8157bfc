"""The tokenizers of two languages: shared or separate, trained here or of a Marian checkpoint."""

import hashlib
import json

import pytest
from marian_tokenizers import marian_tokenizer
from small_tokenizers import ENGLISH, GERMAN

from keras_transformer.errors import InputError
from keras_transformer.marian.tokenizer import MarianTokenizer
from keras_transformer.tokenizer import SubwordTokenizer
from keras_transformer.translation_tokenizer import TranslationTokenizer


@pytest.fixture
def separate():
    return TranslationTokenizer.train(
        GERMAN, ENGLISH, vocabulary_size=310, source_vocabulary_size=320, shared=False
    )


def test_a_shared_model_is_learned_from_both_sides():
    tokenizer = TranslationTokenizer.train(iter(GERMAN), iter(ENGLISH), vocabulary_size=330)
    assert tokenizer.shared
    assert tokenizer.source is tokenizer.target
    both = SubwordTokenizer.train(GERMAN + ENGLISH, vocabulary_size=330)
    assert tokenizer.fingerprint == tokenizer.source.fingerprint == both.fingerprint


def test_separate_models_are_learned_from_their_side(separate):
    assert not separate.shared
    assert separate.source.vocabulary_size == 320
    assert separate.target.vocabulary_size == 310
    german = SubwordTokenizer.train(GERMAN, vocabulary_size=320)
    assert separate.source.fingerprint == german.fingerprint
    swapped = TranslationTokenizer(separate.target, separate.source)
    assert swapped.fingerprint != separate.fingerprint


def test_both_sorts_are_saved_and_loaded(tmp_path, separate):
    shared = TranslationTokenizer.train(GERMAN, ENGLISH, vocabulary_size=330, kind="unigram")
    for name, tokenizer, files in (
        ("shared", shared, {"tokenizer.json", "shared.model"}),
        ("separate", separate, {"tokenizer.json", "source.model", "target.model"}),
    ):
        directory = tmp_path / "new" / name
        tokenizer.save(directory)
        assert {file.name for file in directory.iterdir()} == files
        loaded = TranslationTokenizer.load(directory)
        assert loaded.shared == tokenizer.shared
        assert loaded.fingerprint == tokenizer.fingerprint
        assert loaded.source.encode(GERMAN[1]) == tokenizer.source.encode(GERMAN[1])
        assert loaded.target.encode(ENGLISH[1]) == tokenizer.target.encode(ENGLISH[1])
    description = json.loads((tmp_path / "new" / "shared" / "tokenizer.json").read_bytes())
    assert description["models"]["shared.model"] == {
        "fingerprint": shared.fingerprint,
        "kind": "unigram",
        "normalization": "nmt_nfkc",
        "character_coverage": 1.0,
        "vocabulary_size": 330,
    }


def test_changed_missing_and_foreign_files_are_named(tmp_path, separate):
    def refuses(message):
        with pytest.raises(InputError, match=message):
            TranslationTokenizer.load(tmp_path)

    refuses(r"tokenizer\.json: .*Received: No such file")
    separate.save(tmp_path)
    (tmp_path / "target.model").write_bytes(separate.source.model_proto)
    refuses(rf"target\.model: changed .*Received: {separate.source.fingerprint}$")
    (tmp_path / "target.model").unlink()
    refuses(r"target\.model: .*Received: No such file")
    separate.save(tmp_path)
    description = json.loads((tmp_path / "tokenizer.json").read_bytes())
    for content, message in (
        ({**description, "format": 2}, r"tokenizer\.json: format must be 1\. Received: 2$"),
        ({**description, "shared": True}, r"tokenizer\.json: must be JSON with the keys"),
        ([1], r"tokenizer\.json: must be JSON with the keys .*Received: b'\[1\]'$"),
    ):
        (tmp_path / "tokenizer.json").write_text(json.dumps(content))
        refuses(message)
    (tmp_path / "tokenizer.json").write_bytes(b"\xff{")
    refuses(r"tokenizer\.json: must be JSON")


def test_a_shared_vocabulary_has_one_size_and_a_failing_side_is_named():
    with pytest.raises(InputError, match=r"one size.*Received: source_vocabulary_size=300$"):
        TranslationTokenizer.train(GERMAN, ENGLISH, vocabulary_size=330, source_vocabulary_size=300)
    with pytest.raises(InputError, match=r"^target: .*empty corpus$"):
        TranslationTokenizer.train(GERMAN, [], vocabulary_size=310, shared=False)


def test_a_kind_of_another_day_is_refused(tmp_path, separate):
    separate.save(tmp_path)
    description = json.loads((tmp_path / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**description, "kind": "bytes"}))
    with pytest.raises(InputError, match=r"kind must be marian or left out\. Received: 'bytes'$"):
        TranslationTokenizer.load(tmp_path)


def test_both_sides_are_of_one_kind(separate):
    with pytest.raises(InputError, match=r"Received: MarianTokenizer and SubwordTokenizer$"):
        TranslationTokenizer(marian_tokenizer("source"), separate.target)


# Of a Marian checkpoint


@pytest.fixture(scope="module")
def pairs():
    source, target = marian_tokenizer("source"), marian_tokenizer("target")
    normalizing = MarianTokenizer(source.model_proto, source.words, punctuation="en")
    fewer = MarianTokenizer(target.model_proto, target.words[:3000])
    return {
        "one list of words": TranslationTokenizer(source, target),
        "punctuation": TranslationTokenizer(normalizing, target),
        "two lists of words": TranslationTokenizer(normalizing, fewer),
    }


@pytest.mark.parametrize("name", ["one list of words", "punctuation", "two lists of words"])
def test_a_marian_pair_is_saved_and_loaded(tmp_path, pairs, name):
    pair = pairs[name]
    pair.save(tmp_path)
    words = {"shared.words.json"} if pair.shared else {"source.words.json", "target.words.json"}
    files = {"tokenizer.json", "source.spm", "target.spm", *words}
    assert {file.name for file in tmp_path.iterdir()} == files
    assert (tmp_path / "target.spm").read_bytes() == pair.target.model_proto
    loaded = TranslationTokenizer.load(tmp_path)
    assert loaded.shared == pair.shared == (name != "two lists of words")
    assert loaded.fingerprint == pair.fingerprint
    for side in ("source", "target"):
        before, after = getattr(pair, side), getattr(loaded, side)
        assert after.options == before.options
        assert after.words == before.words
        assert after.encode("“Tom”, bitte! Übung") == before.encode("“Tom”, bitte! Übung")


def test_marian_pairs_that_differ_have_fingerprints_of_their_own(pairs):
    source, target = pairs["one list of words"].source, pairs["one list of words"].target
    swapped = TranslationTokenizer(target, source)
    alone = TranslationTokenizer(source, source)
    all_pairs = [*pairs.values(), swapped, alone]
    assert len({pair.fingerprint for pair in all_pairs}) == len(all_pairs)
    other_words = [*source.words[:-2], source.words[-1], source.words[-2]]
    assert MarianTokenizer(source.model_proto, other_words).fingerprint != source.fingerprint


def test_changed_files_of_a_marian_pair_are_named(tmp_path, pairs):
    def refuses(message):
        with pytest.raises(InputError, match=message):
            TranslationTokenizer.load(tmp_path)

    pair = pairs["one list of words"]
    pair.save(tmp_path)
    path = tmp_path / "shared.words.json"
    words = json.loads(path.read_bytes())
    path.write_text(json.dumps([*words[:4], *sorted(words[4:])]))
    received = hashlib.sha256(path.read_bytes()).hexdigest()
    refuses(rf"shared\.words\.json: changed .*Received: {received}$")
    pair.save(tmp_path)
    (tmp_path / "source.spm").write_bytes(pair.target.model_proto)
    refuses(r"source\.spm: changed since it was saved")
    (tmp_path / "target.spm").unlink()
    (tmp_path / "source.spm").write_bytes(pair.source.model_proto)
    refuses(r"target\.spm: .*Received: No such file")
    pair.save(tmp_path)
    description = json.loads((tmp_path / "tokenizer.json").read_bytes())
    del description["files"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(description))
    refuses(
        r"tokenizer\.json: must have the keys .*Received: format, kind, shared, source, target$"
    )
