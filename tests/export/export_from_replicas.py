"""Trains a model on two replicas, exports it, and writes what Python translates with it.

A process of its own: logical devices must be made before TensorFlow does anything else.

    python export_from_replicas.py FOLDER
"""

import json
import sys
from pathlib import Path

import keras
import tensorflow as tf
from small_translators import SENTENCES, number_tokenizer, random_model, training_dataset

from export.saved_model import export_translator
from keras_transformer import SmoothedCrossEntropy
from keras_transformer.search import EMPTY_SCORE
from keras_transformer.translator import Translator


def main(folder: Path) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    assert strategy.num_replicas_in_sync == 2
    tokenizer = number_tokenizer()
    with strategy.scope():
        model = random_model(tokenizer)
        model.compile(keras.optimizers.Adam(0.001), loss=SmoothedCrossEntropy(0.1))
    model.fit(training_dataset(tokenizer), steps_per_epoch=2, verbose=0)
    translator = Translator(model, tokenizer, 2, 0.6, 6)
    export_translator(translator, folder / "base", sample=tuple(SENTENCES[:4]))
    rows = [(found + [("", EMPTY_SCORE)])[:2] for found in translator.translate(SENTENCES)]
    truncated = [False] * len(SENTENCES)
    expected = {
        "n_best": {
            "translations": [[text for text, _ in row] for row in rows],
            "scores": [[score for _, score in row] for row in rows],
            "truncated": truncated,
        },
        "serving_default": {
            "translation": [row[0][0] for row in rows],
            "score": [row[0][1] for row in rows],
            "truncated": truncated,
        },
    }
    (folder / "expected.json").write_text(json.dumps(expected))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
