"""Runs an export in both of TensorFlow's loaders; knows TensorFlow alone, as a server does.

    python load_export.py EXPORT < REQUESTS

REQUESTS is a JSON object: for each signature its inputs, lists of texts. The answer on stdout is
one too: for `python/SIGNATURE` and `session/SIGNATURE` the outputs.
"""

import json
import sys

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  registers the tokenizer's ops


def main(path, requests):
    results = {}
    loaded = tf.saved_model.load(path)
    for name, columns in requests.items():
        inputs = {key: tf.constant(texts) for key, texts in columns.items()}
        outputs = loaded.signatures[name](**inputs)
        results[f"python/{name}"] = {key: value.numpy() for key, value in outputs.items()}
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        meta_graph = tf.compat.v1.saved_model.load(session, ["serve"], path)
        for name, columns in requests.items():
            signature = meta_graph.signature_def[name]
            results[f"session/{name}"] = session.run(
                {key: info.name for key, info in signature.outputs.items()},
                {
                    signature.inputs[key].name: np.array(texts, dtype=object)
                    for key, texts in columns.items()
                },
            )
    assert not {"keras_transformer", "export", "keras_nlp", "keras_hub"} & set(sys.modules)
    print(
        json.dumps(
            {
                name: {key: np.vectorize(plain, [object])(value).tolist() for key, value in each}
                for name, each in ((name, outputs.items()) for name, outputs in results.items())
            }
        )
    )


def plain(value):
    """A value as JSON has it."""
    return value.decode() if isinstance(value, bytes) else getattr(value, "item", lambda: value)()


if __name__ == "__main__":
    main(sys.argv[1], json.load(sys.stdin))
