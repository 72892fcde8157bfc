"""Trains a small model on 1 or 2 devices, saves it or loads it in mid-training, and goes on.

Run by test_checkpoint_contents.py in processes of their own: a checkpoint is read by another
process than wrote it, and TensorFlow divides a CPU into devices only before its first use.

    python save_and_go_on.py save|load DEVICES FOLDER KIND ...
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from small_models import small_batch, small_model

from keras_transformer import SmoothedCrossEntropy, TransformerSchedule
from trainers.checkpoints import Checkpoints
from trainers.strategy import create_strategy

# With this scale some batches overflow in float16, and the scale is doubled now and then.
BATCHES, SCALE, GROWTH_STEPS = 9, 2.0**19, 3


def new_model(kind: str) -> keras.Model:
    """`kind` is words: `average`, `scale` and `dropout` add each their part."""
    keras.utils.set_random_seed(3)
    model = small_model(
        "mixed_float16" if "scale" in kind else "float32",
        num_encoder_layers=1,
        num_decoder_layers=1,
        dropout=0.2 if "dropout" in kind else 0.0,
    )
    optimizer = keras.optimizers.Adam(
        TransformerSchedule(16, 4),
        0.9,
        0.98,
        epsilon=1e-9,
        global_clipnorm=0.5,
        use_ema="average" in kind,
        ema_momentum=0.7,
    )
    if "scale" in kind:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, SCALE, GROWTH_STEPS)
    model.compile(optimizer, loss=SmoothedCrossEntropy(0.1), jit_compile=False)
    return model


def everything_in(model: keras.Model) -> dict[str, np.ndarray]:
    """Every variable by its place and name; an optimizer's path has a number that varies."""
    variables = [*model.variables, *model.optimizer.variables]
    return {
        f"{place} {variable.name}": keras.ops.convert_to_numpy(variable)
        for place, variable in enumerate(variables)
    }


class SaveAndGoOn(keras.callbacks.Callback):
    """Keeps all variables after each batch; saves a checkpoint after the last batch but one.

    Keras overwrites the weights by their moving averages when `fit` ends, so that nothing is looked
    at after that.
    """

    def __init__(self, folder: Path, batches: int) -> None:
        super().__init__()
        self.folder, self.batches = folder, batches
        self.weights: list[list[np.ndarray]] = []

    def on_train_batch_end(self, batch, logs=None):
        self.weights.append(
            [keras.ops.convert_to_numpy(weight) for weight in self.model.trainable_variables]
        )
        if batch == self.batches - 2:
            Checkpoints(self.folder).save(self.model, batch + 1, {})
            np.savez(self.folder / "saved.npz", **everything_in(self.model))
        elif batch == self.batches - 1:
            np.savez(self.folder / "next.npz", **everything_in(self.model))


def main(role: str, devices: int, folder: Path, kinds: list[str]) -> None:
    names = [f"CPU:{number}" for number in range(devices)]
    strategy = create_strategy(names if devices > 1 else None)
    scope = strategy.scope if devices > 1 else contextlib.nullcontext
    inputs, labels = small_batch((7, 4, 5, 6), (3, 6, 5, 4))
    dataset = tf.data.Dataset.from_tensors((inputs, labels)).repeat()
    for kind in kinds:
        place = folder / kind
        if role == "save":
            with scope():
                model = new_model(kind)
            batches = BATCHES
            callback = SaveAndGoOn(place, batches)
        else:
            with scope():
                model, _ = Checkpoints(place).load_latest()
            batches = 1
            np.savez(place / f"loaded-{devices}.npz", **everything_in(model))
            callback = keras.callbacks.LambdaCallback(
                on_train_batch_end=lambda batch, logs, model=model, place=place: np.savez(
                    place / f"next-{devices}.npz", **everything_in(model)
                )
            )
        model.fit(dataset, steps_per_epoch=batches, verbose=0, callbacks=[callback], shuffle=False)
        if role == "save":
            history = zip(*callback.weights, strict=True)  # each weight after each batch
            np.savez(place / "history.npz", *map(np.stack, history))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
