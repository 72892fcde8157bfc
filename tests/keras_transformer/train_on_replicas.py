"""Trains the same batches on one replica and on two, and writes what came of it.

A process of its own: logical devices must be made before TensorFlow does anything else.

    python train_on_replicas.py OUTPUT.npz
"""

import sys

import keras
import numpy as np
import tensorflow as tf
from small_models import small_batch, small_config

from keras_transformer import Perplexity, SmoothedCrossEntropy, build_transformer

# Each case is a list of batches of (source lengths, target lengths). Batches are split by rows.
CASES = {
    # Three rows on the first replica, two on the second: from the very first batch on.
    "odd": [((7, 4, 5, 3, 6), (9, 8, 1, 2, 7))],
    # 17 target tokens on the first replica, 3 on the second.
    "ragged": [((7, 4, 5, 3), (9, 8, 1, 2))],
    # One row: the second replica has nothing.
    "empty replica": [((7,), (9,))],
    "three steps": [((7, 4, 5, 3), (9, 8, 1, 2)), ((5, 5), (1, 30)), ((6,), (4,))],
}


def dataset(case: str) -> tf.data.Dataset:
    def generate():
        for seed, lengths in enumerate(CASES[case]):
            yield small_batch(*lengths, seed=seed)

    ids = tf.TensorSpec((None, None), tf.int32)
    return tf.data.Dataset.from_generator(
        generate, output_signature=({"source": ids, "target": ids}, ids)
    )


def main(output: str) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    assert mirrored.num_replicas_in_sync == 2
    results, start = {}, None
    for replicas, strategy in {1: tf.distribute.get_strategy(), 2: mirrored}.items():
        with strategy.scope():
            model = build_transformer(small_config(num_encoder_layers=1, num_decoder_layers=1))
            model.compile(
                keras.optimizers.SGD(0.5),
                loss=SmoothedCrossEntropy(0.1),
                weighted_metrics=[Perplexity()],
            )
        if start is None:
            start = model.get_weights()
            results["start"] = np.concatenate([w.ravel() for w in start])
        for case in CASES:
            model.set_weights(start)
            shown = model.evaluate(dataset(case), return_dict=True, verbose=0)
            shown = {f"val_{name}": value for name, value in shown.items()}
            history = model.fit(dataset(case), verbose=0).history
            shown.update({name: values[0] for name, values in history.items()})
            for name, value in shown.items():
                results[f"{case}/{replicas}/{name}"] = value
            results[f"{case}/{replicas}/weights"] = np.concatenate(
                [v.numpy().ravel() for v in model.trainable_variables]
            )
        with strategy.scope():
            model.compile(
                keras.optimizers.SGD(0.5, global_clipnorm=0.1), loss=SmoothedCrossEntropy(0.1)
            )
        model.set_weights(start)
        model.fit(dataset("ragged"), verbose=0)
        results[f"clipped/{replicas}/weights"] = np.concatenate(
            [v.numpy().ravel() for v in model.trainable_variables]
        )
    model.set_weights(start)
    for case, batches in CASES.items():
        for i, lengths in enumerate(batches):
            inputs, labels = small_batch(*lengths, seed=i)
            results[f"{case}/logits_{i}"] = model(inputs).numpy()
            results[f"{case}/labels_{i}"] = labels
    np.savez(output, **results)


if __name__ == "__main__":
    main(sys.argv[1])
