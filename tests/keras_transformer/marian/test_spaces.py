"""Spaces before punctuation and contractions, as Hugging Face takes them out."""

import json
import shutil

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from marian_tokenizers import CHECKPOINT, marian_tokenizer, out_of_graph

from keras_transformer.marian.checkpoint import read_marian
from keras_transformer.marian.spaces import clean_up_spaces, clean_up_spaces_in_graph
from keras_transformer.translation_tokenizer import TranslationTokenizer

# What `clean_up_tokenization` of transformers 5.24 makes of them.
CLEANED = {
    "Tom is n't here , is he ?": "Tom isn't here, is he?",
    "I 'm sure we 've won ! They 're late .": "I'm sure we've won! They're late.",
    "the dog 's bone ' s": "the dog's bone's",
    "a  .  b . . c": "a .  b.. c",
    " ' ' ' ": "'''",
    "12 .5 ,a.b": "12.5,a.b",
    "": "",
}
texts = st.lists(st.sampled_from([*" .?!,'abnmstre", "n't", "'ve", "🐇"]), max_size=20).map("".join)


@pytest.mark.parametrize(("text", "cleaned"), CLEANED.items())
def test_spaces_are_taken_out_as_hugging_face_does(text, cleaned):
    assert clean_up_spaces(text) == cleaned


@settings(deadline=None, max_examples=200)
@given(batch=st.lists(texts, max_size=5))
def test_the_graph_does_as_python(batch):
    in_graph = clean_up_spaces_in_graph(tf.constant(batch, tf.string, [len(batch)]))
    assert [text.decode() for text in in_graph.numpy()] == list(map(clean_up_spaces, batch))


def test_a_tokenizer_cleans_what_it_decodes_where_it_is_told_to():
    plain = marian_tokenizer("target")
    cleaning = marian_tokenizer("target", cleans_up_spaces=True)
    ids = plain.encode("Wo bist du ? Hier , Tom .")
    assert cleaning.encode("Wo bist du ?") == plain.encode("Wo bist du ?")
    assert plain.decode(ids) == "Wo bist du ? Hier , Tom ."
    assert cleaning.decode(ids) == "Wo bist du? Hier, Tom."
    assert out_of_graph(cleaning, [ids]) == [b"Wo bist du? Hier, Tom."]
    assert cleaning.fingerprint != plain.fingerprint


def test_a_checkpoint_tells_and_a_saved_tokenizer_keeps_it(tmp_path):
    folder = shutil.copytree(CHECKPOINT, tmp_path / "checkpoint")
    path = folder / "tokenizer_config.json"
    told = {"clean_up_tokenization_spaces": True, **json.loads(path.read_text())}
    path.write_text(json.dumps(told))
    tokenizer = read_marian(folder).tokenizer
    tokenizer.save(tmp_path / "tokenizer")
    loaded = TranslationTokenizer.load(tmp_path / "tokenizer")
    assert (
        loaded.target.cleans_up_spaces
        and not read_marian(CHECKPOINT).tokenizer.target.cleans_up_spaces
    )
    assert loaded.fingerprint == tokenizer.fingerprint
