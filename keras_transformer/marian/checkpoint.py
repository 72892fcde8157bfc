"""A Marian checkpoint: model, tokenizer and settings of the search, in our terms."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import tensorflow as tf

from keras_transformer.config import TransformerConfig
from keras_transformer.errors import InputError
from keras_transformer.marian.hugging_face import read_hugging_face
from keras_transformer.marian.release import read_release
from keras_transformer.marian.weights import MarianWeights
from keras_transformer.model import Transformer, build_transformer
from keras_transformer.translation_tokenizer import TranslationTokenizer


@dataclasses.dataclass(frozen=True, eq=False)
class MarianCheckpoint:
    """What `read_marian` found. The weights are read when they are asked for.

    Attributes:
        config: `TransformerConfig`.
        tokenizer: `TranslationTokenizer` of two `MarianTokenizer`s.
        decoding: dict of keys of the recipe's section `decoding`: how the checkpoint's makers
            search.
        source_language: str or None, as the checkpoint calls it.
        target_language: str or None.
        weights: `MarianWeights`, a mapping from the paths of our model's variables to arrays.
    """

    config: TransformerConfig
    tokenizer: TranslationTokenizer
    decoding: dict[str, Any]
    source_language: str | None
    target_language: str | None
    weights: MarianWeights

    def build_model(self, dtype=None) -> Transformer:
        """Builds the model with the checkpoint's weights, a few rows of one tensor at a time.

        Args:
            dtype: dtype policy, as for `build_transformer`.

        Returns:
            A `Transformer`.
        """
        model = build_transformer(self.config, dtype=dtype)
        variables = {variable.path: variable for variable in model.trainable_variables}
        if variables.keys() != self.weights.keys():
            raise AssertionError(sorted(variables.keys() ^ self.weights.keys()))
        for path, variable in variables.items():
            for start, array in self.weights.blocks(path):
                # In place: `assign` would hold the matrix three times, and a slice of a variable
                # be read before it is assigned.
                tf.raw_ops.ResourceStridedSliceAssign(
                    ref=variable.value.handle,
                    begin=[start],
                    end=[start + len(array)],
                    strides=[1],
                    value=tf.constant(array, variable.dtype),
                )
            # So that whoever reads it does not get a copy.
            tf.raw_ops.DisableCopyOnRead(resource=variable.value.handle)
        return model


def read_marian(directory: str | Path) -> MarianCheckpoint:
    """Reads an OPUS-MT or other Marian checkpoint. No PyTorch is needed, and nothing is unpickled.

    Args:
        directory: folder with a Hugging Face checkpoint (`config.json`, ...) or an original Marian
            release (`decoder.yml`, ...).

    Returns:
        A `MarianCheckpoint`.

    Raises:
        InputError: if a file is missing, or a setting or tensor is not what is implemented here,
            naming it.

    References:
        - Junczys-Dowmunt et al., 2018, [Marian: Fast Neural Machine Translation in
          C++](https://arxiv.org/abs/1804.00344)
        - Tiedemann and Thottingal, 2020, [OPUS-MT: Building open translation services for the
          World](https://aclanthology.org/2020.eamt-1.61/)
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise InputError(f"A Marian checkpoint must be a folder. Received: {directory}")
    for name, read in (("config.json", read_hugging_face), ("decoder.yml", read_release)):
        if (directory / name).is_file():
            return MarianCheckpoint(**read(directory))
    raise InputError(
        "A Marian checkpoint must hold config.json (Hugging Face) or decoder.yml (a Marian "
        f"release). Received: {directory} without them"
    )
