import doctest
import hashlib
import io
import json
import random
import subprocess
import sys
import textwrap

import pytest
import sentencepiece
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer import tokenizer as module
from keras_transformer.errors import InputError
from keras_transformer.tokenizer import (
    BOS_ID,
    EOS_ID,
    KINDS,
    NORMALIZATIONS,
    PAD_ID,
    UNK_ID,
    SubwordTokenizer,
    TranslationTokenizer,
)

GERMAN = [
    "Das Haus ist groß und die Tür ist grün.",
    "Über den Fluss führt eine schöne, alte Brücke.",
    "Ich lese gern Bücher; alle lesen sie schnell.",
    "Wo ist der Ball? Alle wollen ihn holen!",
]
ENGLISH = [
    "The house is big and the door is green.",
    "A beautiful old bridge leads over the river.",
    "I like reading books; they all read quickly.",
    "Where is the ball? They all will call for it!",
]
OTHERS = ["Le café naïf coûte 12 €.", "我们明天去北京。", "Он читает книгу."]
CORPUS = GERMAN + ENGLISH + OTHERS
SIZE = 355  # 4 controls, 256 bytes, the characters of CORPUS and what is learned

# What has broken tokenizers: separators, marks, other scripts, markers as text, spaces of all kinds
AWKWARD = [
    *"\n\r\t\v\f\x00\x07\x1b\x1c\x1d\x1e\x1f\x7f\x80\x85\x9f\u2028\u2029",
    *" \u00a0\u1680\u2003\u200b\u200d\u200e\u202f\u205f\u3000\u2581\u2585\u2047\ufeff\ufffd\ufffe",
    *("</s>", "<s>", "<pad>", "<unk>", "<0x41>", "<0x", " ⁇ ", "▁the", "ﬁ", "Ⅷ", "①", "ẞ", "İ"),
    *(
        "e\u0301",
        "\u0301",
        "ﷺ",
        "が",
        "か\u3099",
        "각",
        "👨\u200d👩\u200d👧",
        "🐇",
        "𠮷",
        "\U0010ffff",
    ),
]
words = st.sampled_from(sorted({word for line in CORPUS for word in line.split()}))
texts = st.lists(
    st.one_of(words, st.just(" "), st.sampled_from(AWKWARD), st.text(max_size=4)), max_size=12
).map("".join)
blobs = st.lists(
    st.one_of(
        texts.map(str.encode),
        st.binary(max_size=6),
        # Halves of characters, surrogates in UTF-8, overlong forms, beyond U+10FFFF, a mark
        st.sampled_from(
            [
                b"\xe2\x96",
                b"\xf0\x9f",
                b"\xed\xa0\x80",
                b"\xc0\x80",
                b"\xf4\x90\x80\x80",
                b"\xef\xbb",
            ]
        ),
    ),
    max_size=6,
).map(b"".join)

_trained = {}


def trained(kind="bpe", normalization="nmt_nfkc"):
    """One tokenizer of each sort for the whole file."""
    key = kind, normalization
    if key not in _trained:
        _trained[key] = SubwordTokenizer.train(
            CORPUS, vocabulary_size=SIZE, kind=kind, normalization=normalization
        )
    return _trained[key]


every_sort = pytest.mark.parametrize(
    ("kind", "normalization"), [(k, n) for k in KINDS for n in NORMALIZATIONS]
)


def in_graph(tokenizer, texts):
    return tokenizer.encode_graph(tf.constant(texts, tf.string, shape=[len(texts)])).to_list()


def out_of_graph(tokenizer, rows, width=None):
    width = max(map(len, rows), default=0) if width is None else width
    matrix = [list(row) + [PAD_ID] * (width - len(row)) for row in rows]
    ids = tf.constant(matrix, tf.int32, shape=[len(rows), width])
    return tokenizer.decode_graph(ids).numpy().tolist()


# Python and the graph agree


@every_sort
@settings(deadline=None, max_examples=60)
@given(batch=st.lists(texts, max_size=5))
def test_graph_gives_the_ids_of_python_and_their_texts(kind, normalization, batch):
    tokenizer = trained(kind, normalization)
    ids = [tokenizer.encode(text) for text in batch]
    assert in_graph(tokenizer, batch) == ids
    assert tokenizer.encode_batch(batch) == ids
    decoded = [tokenizer.decode(row).encode() for row in ids]
    assert out_of_graph(tokenizer, ids) == decoded


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=200)
@given(batch=st.lists(blobs, max_size=5))
def test_any_bytes_give_the_ids_of_their_text_with_replacement_characters(kind, batch):
    tokenizer = trained(kind, "nfkc")  # nmt_nfkc would turn U+FFFD into a space
    ids = [tokenizer.encode(blob.decode("utf-8", "replace")) for blob in batch]
    assert in_graph(tokenizer, batch) == ids


@every_sort
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_any_ids_give_the_same_valid_line_in_python_and_graph(kind, normalization, data):
    tokenizer = trained(kind, normalization)
    some_byte = st.integers(UNK_ID + 1, UNK_ID + 256)
    piece = st.integers(-2, tokenizer.vocabulary_size + 2)
    ids = data.draw(
        st.lists(st.lists(st.one_of(piece, some_byte), min_size=9, max_size=9), min_size=1)
    )
    decoded = out_of_graph(tokenizer, ids)
    assert [text.decode("utf-8", "strict") for text in decoded] == [
        tokenizer.decode(row) for row in ids
    ]
    for text in decoded:
        text = text.decode()
        assert len(text.splitlines()) <= 1
        assert text == text.strip()
        assert not any(ord(c) < 32 or 127 <= ord(c) < 160 or c in "\ufeff\u2581" for c in text)


@pytest.mark.parametrize("kind", KINDS)
def test_near_ties_are_cut_alike_by_both_versions(kind):
    # Few letters, much repeated: many ways to cut with almost the same score.
    generator = random.Random(1)
    batch = ["".join(generator.choices("al les", k=80)) for _ in range(3000)]
    tokenizer = trained(kind)
    assert in_graph(tokenizer, batch) == tokenizer.encode_batch(batch)


def test_unigram_scores_sum_exactly():
    model = module._parse(trained("unigram").model_proto)
    assert all(piece.score * 16 == int(piece.score * 16) for piece in model.pieces)
    assert len({piece.score for piece in model.pieces}) > 20


def test_a_text_of_twenty_thousand_words_agrees():
    generator = random.Random(2)
    vocabulary = " ".join(CORPUS).split()
    long = " ".join(generator.choices([*vocabulary, "🐇"], k=20_000))
    for kind in KINDS:
        tokenizer = trained(kind)
        ids = tokenizer.encode(long)
        assert in_graph(tokenizer, [long]) == [ids]
        assert tokenizer.decode(ids) == long
        assert out_of_graph(tokenizer, [ids]) == [long.encode()]


# Text that comes back


@settings(deadline=None, max_examples=300)
@given(text=texts)
def test_identity_returns_the_prepared_text_exactly(text):
    tokenizer = trained("bpe", "identity")
    ids = tokenizer.encode(text)
    assert all(UNK_ID < i < tokenizer.vocabulary_size for i in ids)
    assert tokenizer.decode(ids) == module._prepare(text)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "text",
    [
        "</s>",
        "a </s> b<pad> <s>",
        "<unk> and <0x41>",
        "Rabbit 🐇 and 👨\u200d👩\u200d👧",
        "𠮷野家 龘",
        "café naïve Ünïcode",
        "< / s >",
        "[END] ▅ \\n",
    ],
)
def test_ordinary_text_comes_back_without_control_ids(kind, text):
    tokenizer = trained(kind)
    ids = tokenizer.encode(text)
    assert not {PAD_ID, BOS_ID, EOS_ID, UNK_ID} & set(ids)
    assert tokenizer.decode(ids) == text
    assert in_graph(tokenizer, [text]) == [ids]
    assert out_of_graph(tokenizer, [ids]) == [text.encode()]


def test_markers_in_the_training_text_stay_text():
    marked = ["say </s> or <pad> and <0x41> <unk> <s>"] * 50
    tokenizer = SubwordTokenizer.train(marked, vocabulary_size=280)
    ids = tokenizer.encode(marked[0])
    assert min(ids) > UNK_ID
    assert 0x41 + UNK_ID + 1 not in ids
    assert tokenizer.decode(ids) == marked[0]


@pytest.mark.parametrize(
    ("text", "prepared"),
    [
        ("a\rb\nc\td", "a b c d"),
        ("a\r\nb", "a b"),
        *((f"a{c}b", "a b") for c in "\x00\v\f\x1c\x1d\x1e\x7f\x85\x9b\u2028\u2029\u2581"),
        ("  a \n\n b  ", "a b"),
        ("\ufeffa\ufeffb", "ab"),
        ("a\ud800b", "a\ufffdb"),
        ("a\u00a0b", "a\u00a0b"),
        ("\u00a0a\u3000", "a"),
    ],
)
def test_preparation(text, prepared):
    tokenizer = trained("bpe", "identity")
    assert tokenizer.decode(tokenizer.encode(text)) == prepared


def test_invalid_bytes_become_replacement_characters():
    tokenizer = trained("bpe", "identity")
    ids = in_graph(tokenizer, [b"a\xff\xe2\x96b", b"\xef\xbb\xbfhi"])
    assert [tokenizer.decode(row) for row in ids] == ["a\ufffd\ufffdb", "hi"]


@every_sort
def test_white_space_alone_has_no_ids(kind, normalization):
    tokenizer = trained(kind, normalization)
    blank = [
        "",
        " ",
        "\u00a0",
        " \t\r\n\v\f\x00\x85\u2028\u2029 ",
        "\u2003\u3000",
        "\u2581",
        "\ufeff",
    ]
    assert tokenizer.encode_batch(blank) == [[]] * len(blank)
    assert in_graph(tokenizer, blank) == [[]] * len(blank)
    assert tokenizer.decode([]) == ""
    assert out_of_graph(tokenizer, [[]] * 2) == [b"", b""]


def test_case_is_folded_only_when_asked():
    for normalization, expected in (("nmt_nfkc", "Café"), ("nmt_nfkc_cf", "café")):
        tokenizer = trained("bpe", normalization)
        assert tokenizer.decode(tokenizer.encode("Café")) == expected


# Decoding rules


def test_decoding_stops_at_the_first_end_and_drops_controls():
    tokenizer = trained()
    ids = tokenizer.encode("the house")
    row = [BOS_ID, UNK_ID, *ids[:1], PAD_ID, *ids[1:], 10**6, -1, EOS_ID, *ids, EOS_ID]
    assert tokenizer.decode(row) == "the house"
    assert out_of_graph(tokenizer, [row, [EOS_ID, *ids], ids, []]) == [
        b"the house",
        b"",
        b"the house",
        b"",
    ]


def test_bytes_of_no_character_decode_to_replacement_characters():
    tokenizer = trained()

    def byte(value):
        return UNK_ID + 1 + value

    row = [byte(0xE2), byte(0x96), *tokenizer.encode("a"), byte(0x0A), byte(0xFF), byte(0x41)]
    assert tokenizer.decode(row) == "\ufffd\ufffd a \ufffdA"
    assert out_of_graph(tokenizer, [row]) == ["\ufffd\ufffd a \ufffdA".encode()]


def test_empty_batches():
    tokenizer = trained()
    assert tokenizer.encode_batch([]) == []
    ids = tokenizer.encode_graph(tf.zeros([0], tf.string))
    assert ids.dtype == tf.int32
    assert ids.shape.as_list() == [0, None]
    assert out_of_graph(tokenizer, [], width=3) == []
    assert out_of_graph(tokenizer, [], width=0) == []


def test_ids_may_be_numpy_and_are_read_once():
    tokenizer = trained()
    ids = tokenizer.encode("the house")
    assert tokenizer.decode(iter(tf.constant(ids).numpy())) == "the house"


def test_pieces():
    tokenizer = trained()
    pieces = tokenizer.pieces([PAD_ID, BOS_ID, EOS_ID, UNK_ID, *tokenizer.encode("the 🐇")])
    assert pieces[:4] == ["<pad>", "<s>", "</s>", "<unk>"]
    assert "".join(pieces[4:-4]) == "▁the▁"
    assert pieces[-4:] == [f"<0x{byte:02X}>" for byte in "🐇".encode()]
    with pytest.raises(InputError, match=rf"0\.\.{SIZE - 1}.*Received: {SIZE}$"):
        tokenizer.pieces([SIZE])


# Training


@pytest.mark.parametrize("kind", KINDS)
def test_training_is_deterministic_silent_and_fills_the_vocabulary(kind, capfd):
    models = [
        SubwordTokenizer.train(iter(CORPUS), vocabulary_size=SIZE, kind=kind) for _ in range(2)
    ]
    assert capfd.readouterr() == ("", "")
    assert models[0].model_proto == models[1].model_proto
    assert models[0].vocabulary_size == SIZE
    assert models[0].fingerprint == hashlib.sha256(models[0].model_proto).hexdigest()
    other = SubwordTokenizer.train(CORPUS[1:], vocabulary_size=SIZE, kind=kind)
    assert other.fingerprint != models[0].fingerprint


def test_options_are_read_from_the_model():
    tokenizer = SubwordTokenizer.train(
        CORPUS, vocabulary_size=SIZE, kind="unigram", normalization="nfkc", character_coverage=0.99
    )
    assert tokenizer.options == {
        "kind": "unigram",
        "normalization": "nfkc",
        "character_coverage": 0.99,
        "vocabulary_size": SIZE,
    }


def test_a_sample_is_uniform_bounded_and_always_the_same():
    assert module._sample(iter("abc"), 3) == list("abc")
    numbers = [str(i) for i in range(2000)]
    kept = module._sample(iter(numbers), 500)
    assert kept == module._sample(iter(numbers), 500)
    assert len(set(kept)) == 500
    assert 200 < sum(int(n) >= 1000 for n in kept) < 300
    learned = SubwordTokenizer.train(["ab ab"] * 9, vocabulary_size=264, maximum_sentences=1)
    assert learned.encode("ab ab") == SubwordTokenizer.train(["ab ab"], vocabulary_size=264).encode(
        "ab ab"
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("space", [" ", ""])
def test_a_very_long_sentence_is_learned_from(kind, space):
    # Uncut, the one without spaces keeps the unigram trainer busy for many minutes.
    long = space.join(["zyxwvu"] * 100_000)
    tokenizer = SubwordTokenizer.train([*CORPUS, long], vocabulary_size=SIZE, kind=kind)
    assert len(tokenizer.encode(long)) < len(long) / 3


def test_long_sentences_are_cut_at_spaces_and_nothing_is_lost():
    limit = module._MAXIMUM_CHARACTERS
    spaced, solid = " ".join(["word"] * 1000), "x" * (2 * limit + 1)
    for text in (spaced, solid, "short", ""):
        parts = list(module._training_texts([text]))
        assert "".join(parts) == text
        assert max(map(len, parts)) <= limit
    words = [word for part in module._training_texts([spaced]) for word in part.split()]
    assert words == spaced.split()


def test_a_sentence_with_the_trainers_reserved_character_is_not_lost():
    tokenizer = SubwordTokenizer.train(["brücke ▅ brücke"], vocabulary_size=270)
    assert len(tokenizer.encode("brücke")) < len("brücke")


@pytest.mark.parametrize("kind", KINDS)
def test_impossible_sizes_tell_the_possible_ones(kind):
    def train(size):
        return SubwordTokenizer.train(CORPUS, vocabulary_size=size, kind=kind)

    with pytest.raises(InputError, match=r"at most \d+.*Received: vocabulary_size=9000$") as error:
        train(9000)
    most = int(str(error.value).split("at most ")[1].split(":")[0])
    assert train(most).vocabulary_size == most
    with pytest.raises(InputError, match=r"at least \d+.*Received: vocabulary_size=10$") as error:
        train(10)
    least = int(str(error.value).split("at least ")[1].split(":")[0])
    assert 260 < least < most
    with pytest.raises(InputError, match=f"at least {least}"):
        train(least - 1)


@pytest.mark.parametrize("sentences", [[], ["", " \t", "\u2028", "\u00a0"]])
def test_an_empty_corpus_is_refused(sentences):
    with pytest.raises(InputError, match=r"Received: an empty corpus$"):
        SubwordTokenizer.train(sentences, vocabulary_size=300)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocabulary_size": 0}, r"vocabulary_size must be a positive .*Received: 0$"),
        ({"vocabulary_size": "8k"}, r"vocabulary_size must be a positive .*Received: '8k'$"),
        ({"maximum_sentences": True}, r"maximum_sentences must be .*Received: True$"),
        ({"kind": "bpf"}, r"kind must be one of bpe, unigram\. Received: 'bpf'$"),
        ({"normalization": "nfc"}, r"normalization must be one of .*Received: 'nfc'$"),
        ({"character_coverage": 0.5}, r"character_coverage must be in .*Received: 0\.5$"),
        ({"vocabulary_size": True}, r"vocabulary_size must be a positive .*Received: True$"),
        ({"character_coverage": 1.1}, r"character_coverage must be in .*Received: 1\.1$"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(InputError, match=message):
        SubwordTokenizer.train(CORPUS, **{"vocabulary_size": SIZE, **options})


@pytest.mark.parametrize("coverage", [0.98, 1, 1.0])
def test_the_whole_range_of_character_coverage_trains(coverage):
    tokenizer = SubwordTokenizer.train(CORPUS, vocabulary_size=350, character_coverage=coverage)
    assert tokenizer.decode(tokenizer.encode(OTHERS[1])) == OTHERS[1]


# Files


def test_a_model_is_saved_and_loaded(tmp_path):
    trained().save(tmp_path / "a.model")
    loaded = SubwordTokenizer.load(tmp_path / "a.model")
    assert loaded.fingerprint == trained().fingerprint
    assert loaded.encode(GERMAN[0]) == trained().encode(GERMAN[0])
    assert [file.name for file in tmp_path.iterdir()] == ["a.model"]


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.model"
    path.write_bytes(b"old")

    def fail(source, destination):
        raise OSError("disk full")

    monkeypatch.setattr(module.os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        trained().save(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_no_model_is_refused_by_name(tmp_path):
    with pytest.raises(InputError, match=r"none\.model: .*Received: No such file"):
        SubwordTokenizer.load(tmp_path / "none.model")
    for content in (b"", b"no model at all"):
        (tmp_path / "a.model").write_bytes(content)
        with pytest.raises(InputError, match=r"a\.model: .*SentencePiece model\. Received"):
            SubwordTokenizer.load(tmp_path / "a.model")


def test_a_model_with_other_control_ids_is_refused():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=model, vocab_size=100, minloglevel=2
    )
    with pytest.raises(InputError, match=r"pad, bos, eos, unk .*Received: \[-1, 1, 2, 0\]$"):
        SubwordTokenizer(model.getvalue())


# Two languages


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


# In a SavedModel


class RoundTrip(tf.Module):
    """The use an export makes of a tokenizer: only the resource is tracked."""

    def __init__(self, tokenizer):
        self.resource = tokenizer.resource

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
        def serve(text):
            ids = tokenizer.encode_graph(text)
            return {"ids": ids.to_tensor(), "text": tokenizer.decode_graph(ids.to_tensor())}

        self.serve = serve


def test_a_saved_model_tokenizes_in_a_process_without_this_package(tmp_path):
    tokenizer = trained("unigram")
    served = RoundTrip(tokenizer)
    tf.saved_model.save(served, str(tmp_path / "model"), signatures=served.serve)
    program = """
        import json, sys
        import tensorflow as tf, tensorflow_text
        serve = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
        blobs = [bytes.fromhex(text) for text in json.loads(sys.argv[2])]
        out = serve(text=tf.constant(blobs, shape=[len(blobs)]))
        print(json.dumps([out["ids"].numpy().tolist(), [t.hex() for t in out["text"].numpy()]]))
    """
    blobs = [GERMAN[0].encode(), b"", b"a </s>\x00 \xff\xf0\x9f\x90\x87", "龘\u2028".encode()]
    done = subprocess.run(
        [
            *(sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "model")),
            json.dumps([blob.hex() for blob in blobs]),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    ids, texts = json.loads(done.stdout)
    expected = [tokenizer.encode(blob.decode("utf-8", "replace")) for blob in blobs]
    assert [[i for i in row if i != PAD_ID] for row in ids] == expected
    assert [bytes.fromhex(text).decode() for text in texts] == list(map(tokenizer.decode, expected))


def test_the_graph_has_no_ops_but_sentencepiece_and_stateless_ones(tmp_path):
    served = RoundTrip(trained())
    tf.saved_model.save(served, str(tmp_path), signatures=served.serve)
    model = saved_model_pb2.SavedModel.FromString((tmp_path / "saved_model.pb").read_bytes())
    graph = model.meta_graphs[0].graph_def
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    ops = {node.op for node in nodes}
    custom = {op for op in ops if "entencepiece" in op}
    assert custom == {
        "SentencepieceOp",
        "SentencepieceTokenizeOp",
        "SentencepieceDetokenizeOp",
    }
    assert not {op for op in ops if "PyFunc" in op or "Table" in op or "Variable" in op}


def test_a_first_use_inside_a_function_outlives_the_trace():
    tokenizer = SubwordTokenizer.train(CORPUS, vocabulary_size=SIZE)
    traced = tf.function(tokenizer.encode_graph)(tf.constant([GERMAN[0]])).to_list()
    assert traced == in_graph(tokenizer, [GERMAN[0]]) == [tokenizer.encode(GERMAN[0])]


def test_two_tokenizers_in_one_graph_stay_apart():
    first, second = trained("bpe"), trained("unigram")

    @tf.function
    def both(text):
        return first.encode_graph(text), second.encode_graph(text)

    ids = [ragged.to_list() for ragged in both(tf.constant([GERMAN[0]]))]
    assert ids == [[first.encode(GERMAN[0])], [second.encode(GERMAN[0])]]
    assert ids[0] != ids[1]


def test_the_examples_in_the_documentation_run():
    result = doctest.testmod(module)
    assert result.attempted > 3
    assert result.failed == 0
