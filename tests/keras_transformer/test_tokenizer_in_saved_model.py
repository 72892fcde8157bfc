"""A tokenizer inside functions, graphs and SavedModels."""

import json
import subprocess
import sys
import textwrap

import tensorflow as tf
from small_tokenizers import CORPUS, GERMAN, SIZE, in_graph, trained
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer.tokenizer import PAD_ID, SubwordTokenizer


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
