"""Trains the same five batches at one of several places, and writes what came of it.

A process of its own for each place: logical devices must be made before TensorFlow does anything
else, and one process cannot have strategies of several sizes.

    python train_five_steps.py FOLDER REPLICAS

With TF_CONFIG it is one of several workers. The file in FOLDER is named after the place.
"""

import json
import os
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from small_models import small_batch, small_config

from keras_transformer import SmoothedCrossEntropy, build_transformer

ACCUMULATE_STEPS = (1, 2, 5)
STEPS = 5


def global_batch(step: int):
    """Nine rows of 1 to 8 words on either side; the last batch has three rows."""
    random = np.random.default_rng(step)
    rows = 3 if step == STEPS - 1 else 9
    source, target = random.integers(1, 9, (2, rows))
    return small_batch(tuple(source), tuple(target), seed=step)


def dataset(first: int, every: int) -> tf.data.Dataset:
    """Batches of the rows `first`, `first + every` and so on, one replica's part after another."""

    def generate():
        for step in range(STEPS):
            inputs, labels = global_batch(step)
            parts = [first] if os.environ.get("TF_CONFIG") else range(every)
            for part in parts:
                mine = {name: ids[part::every] for name, ids in inputs.items()}
                yield mine, labels[part::every]

    ids = tf.TensorSpec((None, None), tf.int32)
    signature = ({"source": ids, "target": ids}, ids)
    batches = tf.data.Dataset.from_generator(generate, output_signature=signature)
    # Endless, so that no worker asks the others at each step whether they have a batch left.
    return batches.repeat()


def create_strategy(replicas: int) -> tf.distribute.Strategy:
    if os.environ.get("TF_CONFIG"):
        return tf.distribute.MultiWorkerMirroredStrategy()
    if replicas == 1:
        return tf.distribute.get_strategy()
    (cpu,) = tf.config.list_physical_devices("CPU")
    devices = [tf.config.LogicalDeviceConfiguration()] * replicas
    tf.config.set_logical_device_configuration(cpu, devices)
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])


def main(folder: str, replicas: int) -> None:
    strategy = create_strategy(replicas)
    worker = json.loads(os.environ.get("TF_CONFIG", '{"task": {"index": 0}}'))["task"]["index"]
    count = strategy.num_replicas_in_sync
    results = {}
    for accumulate_steps in ACCUMULATE_STEPS:
        keras.utils.set_random_seed(7)
        with strategy.scope():
            model = build_transformer(small_config(num_encoder_layers=1, num_decoder_layers=1))
            model.compile(keras.optimizers.SGD(0.5), SmoothedCrossEntropy(0.1))
            model.accumulate_steps = accumulate_steps
        start = np.concatenate([weight.ravel() for weight in model.get_weights()])
        history = model.fit(
            strategy.distribute_datasets_from_function(lambda context: dataset(worker, count)),
            steps_per_epoch=STEPS,
            shuffle=False,
            verbose=0,
        ).history
        weights = np.concatenate([weight.ravel() for weight in model.get_weights()])
        results[f"{accumulate_steps}/start"] = start
        results[f"{accumulate_steps}/weights"] = weights
        for name, values in history.items():
            results[f"{accumulate_steps}/{name}"] = values[0]
    np.savez(Path(folder) / f"{count}-{worker}.npz", **results)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
