"""The ids of Hugging Face's MarianTokenizer, re-ordered: in Python, graphs and SavedModels."""

import functools
import io
import json
import subprocess
import sys
import textwrap

import keras
import pytest
import sentencepiece
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from marian_tokenizers import (
    CHECKPOINT,
    LANGUAGES,
    in_graph,
    marian_tokenizer,
    marian_vocabulary,
    out_of_graph,
)
from small_tokenizers import CORPUS, blobs, texts

from keras_transformer.errors import InputError
from keras_transformer.marian.tokenizer import MarianTokenizer
from keras_transformer.text_preparation import on_one_line
from keras_transformer.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID, SubwordTokenizer

SIDES = ("source", "target")
GOLDEN = json.loads((CHECKPOINT.parent / "marian_tokenizer_golden.json").read_bytes())
CONTROLS = ("<pad>", "<s>", "</s>", "<unk>")
languages = st.sampled_from(["", *LANGUAGES, ">>xxx<<", ">>", "<<", ">><<", " >>deu<<", ">>a\nb<<"])


def our_ids(rows, *more_words):
    """Ids of the checkpoint as ours."""
    ours = {int(row): i for i, row in enumerate(marian_vocabulary(*more_words).rows) if i != BOS_ID}
    return [ours[row] for row in rows]


# As Hugging Face


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(("part", "more_words"), [("texts", ()), ("languages", LANGUAGES)])
def test_texts_have_the_ids_of_hugging_face_and_come_back_alike(side, part, more_words):
    tokenizer = marian_tokenizer(side, *more_words)
    given = [entry["text"] for entry in GOLDEN[part]]
    ids = [our_ids(entry[side], *more_words) for entry in GOLDEN[part]]
    decoded = [on_one_line(entry[f"{side}_decoded"]) for entry in GOLDEN[part]]
    assert tokenizer.encode_batch(given) == ids
    assert [tokenizer.encode(text) for text in given] == ids
    assert in_graph(tokenizer, given) == ids
    assert [tokenizer.decode(row) for row in ids] == decoded
    assert [text.decode() for text in out_of_graph(tokenizer, ids)] == decoded


@pytest.mark.parametrize("side", SIDES)
def test_any_words_decode_as_hugging_face_does(side):
    rows = [our_ids(row) for row, _ in GOLDEN["decoded"]]
    expected = [on_one_line(text) for _, text in GOLDEN["decoded"]]
    assert [marian_tokenizer(side).decode(row) for row in rows] == expected
    assert [text.decode() for text in out_of_graph(marian_tokenizer(side), rows)] == expected


def test_a_piece_unknown_to_this_side_may_be_a_word_of_the_other():
    tokenizer = marian_tokenizer("source")
    assert tokenizer.pieces(tokenizer.encode("5 €")) == ["▁5", "▁", "<unk>"]
    ids = tokenizer.encode("Übung")
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model_proto)
    assert processor.piece_to_id("Ü") == processor.unk_id()
    assert tokenizer.pieces(ids)[:2] == ["▁", "Ü"]
    assert in_graph(tokenizer, ["Übung"]) == [ids]


# Python and the graph agree


@pytest.mark.parametrize("side", SIDES)
@settings(deadline=None, max_examples=100)
@given(batch=st.lists(st.tuples(languages, texts).map("".join), max_size=5))
def test_graph_gives_the_ids_of_python_and_their_texts(side, batch):
    tokenizer = marian_tokenizer(side, *LANGUAGES)
    ids = tokenizer.encode_batch(batch)
    assert in_graph(tokenizer, batch) == ids
    assert not {PAD_ID, BOS_ID, EOS_ID} & {i for row in ids for i in row}
    assert [text.decode() for text in out_of_graph(tokenizer, ids)] == list(
        map(tokenizer.decode, ids)
    )


@settings(deadline=None, max_examples=100)
@given(batch=st.lists(blobs, min_size=1, max_size=5))
def test_bytes_of_any_kind_are_read_as_python_reads_them(batch):
    tokenizer = marian_tokenizer("target")
    decoded = [blob.decode("utf-8", "replace") for blob in batch]
    assert in_graph(tokenizer, batch) == tokenizer.encode_batch(decoded)


@settings(deadline=None, max_examples=60)
@given(batch=st.lists(st.tuples(languages, texts).map("".join), max_size=5))
def test_graph_and_python_normalise_punctuation_alike(batch):
    tokenizer = marian_tokenizer("source", *LANGUAGES, punctuation="en")
    assert in_graph(tokenizer, batch) == tokenizer.encode_batch(batch)


def test_punctuation_is_left_alone_unless_asked():
    normalizing = marian_tokenizer("source", punctuation="en")
    assert normalizing.encode("“Yes”, he said…") == marian_tokenizer("source").encode(
        '"Yes," he said...'
    )
    assert marian_tokenizer("source").encode("“Yes”…") != normalizing.encode("“Yes”…")


@functools.cache
def trained_over_its_pieces(**options):
    """Models of other kinds than the checkpoint's, over a list of most of their own pieces."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS * 3), model_writer=model, minloglevel=2, **options
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = processor.id_to_piece(list(range(processor.get_piece_size())))
    words = [piece for piece in pieces if piece not in CONTROLS]
    return MarianTokenizer(model.getvalue(), [*CONTROLS, *words[:-5], "ж", "🐇", ">>deu<<"])


OTHER_KINDS = [
    {"model_type": "bpe", "vocab_size": 120},
    {"model_type": "unigram", "vocab_size": 110, "normalization_rule_name": "identity"},
    {"model_type": "unigram", "vocab_size": 110, "add_dummy_prefix": False},
    {"model_type": "unigram", "vocab_size": 110, "remove_extra_whitespaces": False},
    {"model_type": "unigram", "vocab_size": 110, "treat_whitespace_as_suffix": True},
    {"model_type": "unigram", "vocab_size": 120, "split_by_whitespace": False},
    {"model_type": "bpe", "vocab_size": 365, "byte_fallback": True},
    {"model_type": "char", "vocab_size": 90},
]


@pytest.mark.parametrize("options", OTHER_KINDS, ids=str)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_other_kinds_of_models_agree_too(options, data):
    tokenizer = trained_over_its_pieces(**options)
    batch = data.draw(st.lists(texts, max_size=4))
    ids = tokenizer.encode_batch(batch)
    assert in_graph(tokenizer, batch) == ids
    some_id = st.integers(-2, tokenizer.vocabulary_size + 2)
    ids += data.draw(st.lists(st.lists(some_id, max_size=9), min_size=1, max_size=3))
    decoded = [tokenizer.decode(row) for row in ids]
    assert [text.decode() for text in out_of_graph(tokenizer, ids)] == decoded
    assert decoded == list(map(on_one_line, decoded))


def test_bytes_are_put_together_again():
    tokenizer = trained_over_its_pieces(model_type="bpe", vocab_size=365, byte_fallback=True)
    ids = tokenizer.encode("龘 <0x41>")
    assert tokenizer.pieces(ids)[1:4] == [f"<0x{byte:02X}>" for byte in "龘".encode()]
    assert tokenizer.decode(ids) == "龘 <0x41>"
    assert out_of_graph(tokenizer, [ids, ids[:2]]) == ["龘 <0x41>".encode(), "\ufffd".encode()]


# Decoding rules


def test_decoding_stops_at_the_first_end_and_drops_controls():
    tokenizer = marian_tokenizer("target", *LANGUAGES)
    ids = tokenizer.encode("Das Haus")
    language = tokenizer.encode(">>deu<<")
    assert tokenizer.pieces(language) == [">>deu<<"]
    row = [BOS_ID, UNK_ID, *ids[:1], PAD_ID, *ids[1:], 10**6, -1, EOS_ID, *ids, EOS_ID]
    assert tokenizer.decode(row) == "Das Haus"
    assert out_of_graph(tokenizer, [row, [EOS_ID, *ids], [], [*language, *ids]]) == [
        b"Das Haus",
        b"",
        b"",
        b">>deu<< Das Haus",
    ]


def test_control_symbols_in_a_text_are_text():
    for side in SIDES:
        tokenizer = marian_tokenizer(side)
        for symbol in CONTROLS:
            ids = tokenizer.encode(f"a {symbol}")
            assert not {PAD_ID, BOS_ID, EOS_ID} & set(ids)
            assert len(ids) > 3
            assert in_graph(tokenizer, [f"a {symbol}"]) == [ids]


def test_empty_batches():
    tokenizer = marian_tokenizer("source")
    assert tokenizer.encode_batch([]) == []
    ids = tokenizer.encode_graph(tf.zeros([0], tf.string))
    assert ids.dtype == tf.int32
    assert ids.shape.as_list() == [0, None]
    assert out_of_graph(tokenizer, [], width=3) == []
    assert out_of_graph(tokenizer, [[], []], width=0) == [b"", b""]


def test_pieces_in_python_and_graph():
    tokenizer = marian_tokenizer("source")
    ids = [PAD_ID, BOS_ID, EOS_ID, UNK_ID, *tokenizer.encode("Tom is")]
    assert tokenizer.pieces(ids) == ["<pad>", "<s>", "</s>", "<unk>", "▁Tom", "▁is"]
    assert [piece.decode() for piece in tokenizer.pieces_graph(tf.constant([ids])).numpy()[0]] == [
        *("", "<s>", "</s>", "<unk>", "▁Tom", "▁is")
    ]
    with pytest.raises(InputError, match=r"0\.\.4799.*Received: 4800$"):
        tokenizer.pieces([4800])


def test_options_tell_of_the_model():
    assert marian_tokenizer("source").options == {
        "kind": "marian",
        "model": "unigram",
        "normalization": "nmt_nfkc",
        "punctuation": None,
        "cleans_up_spaces": False,
        "vocabulary_size": 4800,
    }


def test_what_is_no_tokenizer_is_refused():
    words = marian_vocabulary().words
    model_proto = marian_tokenizer("source").model_proto
    with pytest.raises(InputError, match=r"serialized SentencePiece model\. Received: 4 bytes"):
        MarianTokenizer(b"none", words)
    with pytest.raises(InputError, match=r"Received: 4 words, 4 of them different$"):
        MarianTokenizer(model_proto, words[:4])
    with pytest.raises(InputError, match=r"Received: 4801 words, 4800 of them different$"):
        MarianTokenizer(model_proto, [*words, "▁Tom"])
    with pytest.raises(InputError, match=r"Received: 5 words and 2500 pieces, none of them alike$"):
        MarianTokenizer(model_proto, [*CONTROLS, "of another model"])


# Inside functions, graphs and SavedModels


@pytest.mark.parametrize("forget", [keras.utils.set_random_seed, tf.random.set_seed])
def test_the_graph_keeps_its_model_and_words_when_a_seed_is_set(forget):
    shared = marian_tokenizer("source")
    tokenizer = MarianTokenizer(shared.model_proto, shared.words)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def round_trip(text):
        return tokenizer.decode_graph(tokenizer.encode_graph(text).to_tensor())

    text = tf.constant(["Tom is here"])
    for call in (round_trip, round_trip.python_function):
        before = call(text).numpy().tolist()
        forget(1)
        assert call(text).numpy().tolist() == before == [b"Tom is here"]


PROGRAMS = {
    "tf.saved_model.load": """
        serve = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
        out = serve(text=tf.constant(blobs))
        ids, texts = out["ids"].numpy(), out["text"].numpy()
    """,
    "session": """
        with tf.compat.v1.Session(graph=tf.Graph()) as session:
            model = tf.compat.v1.saved_model.load(session, ["serve"], sys.argv[1])
            signature = model.signature_def["serving_default"]
            names = [signature.outputs[name].name for name in ("ids", "text")]
            ids, texts = session.run(names, {signature.inputs["text"].name: blobs})
    """,
}


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory):
    tokenizers = [marian_tokenizer(side, *LANGUAGES, punctuation="en") for side in SIDES]
    module = tf.Module()
    module.resources = [tokenizer.resource for tokenizer in tokenizers]

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def serve(text):
        ids = tokenizers[0].encode_graph(text).to_tensor()
        return {"ids": ids, "text": tokenizers[1].decode_graph(ids)}

    path = tmp_path_factory.mktemp("saved") / "model"
    tf.saved_model.save(module, str(path), signatures=serve)
    return path


@pytest.mark.parametrize("loader", PROGRAMS)
def test_a_saved_model_tokenizes_in_a_process_without_this_package(saved_model, tmp_path, loader):
    program = f"""
import json, sys
import tensorflow as tf, tensorflow_text
blobs = [bytes.fromhex(text) for text in json.loads(sys.argv[2])]
{textwrap.dedent(PROGRAMS[loader])}
print(json.dumps([ids.tolist(), [text.hex() for text in texts]]))
"""
    blobs = [
        ">>deu<< “Tom”, alles lllls".encode(),
        b"",
        b"a </s>\x00 \xff\xf0\x9f\x90\x87",
        "Ü€".encode(),
    ]
    done = subprocess.run(
        [
            *(sys.executable, "-c", program, str(saved_model)),
            json.dumps([blob.hex() for blob in blobs]),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    ids, decoded = json.loads(done.stdout)
    tokenizers = [marian_tokenizer(side, *LANGUAGES, punctuation="en") for side in SIDES]
    expected = tokenizers[0].encode_batch([blob.decode("utf-8", "replace") for blob in blobs])
    assert [[i for i in row if i != PAD_ID] for row in ids] == expected
    assert [bytes.fromhex(text).decode() for text in decoded] == [
        tokenizers[1].decode(row) for row in expected
    ]


def test_a_first_use_inside_a_function_outlives_the_trace():
    shared = marian_tokenizer("source")
    tokenizer = MarianTokenizer(shared.model_proto, shared.words)
    traced = tf.function(tokenizer.encode_graph)(tf.constant(["Tom is here"])).to_list()
    assert traced == in_graph(tokenizer, ["Tom is here"]) == [tokenizer.encode("Tom is here")]


def test_two_kinds_of_tokenizers_of_one_model_stay_apart_in_a_graph():
    plain = SubwordTokenizer.train(["ein Haus", "ein Hase"], vocabulary_size=272)
    words = [*CONTROLS, "▁", "ein", "H", "a", "u", "s", "e"]
    marian = MarianTokenizer(plain.model_proto, words)

    @tf.function
    def both(text):
        return plain.encode_graph(text), marian.encode_graph(text)

    ids = [ragged.to_list() for ragged in both(tf.constant(["ein Haus"]))]
    assert ids == [[plain.encode("ein Haus")], [marian.encode("ein Haus")]]
