"""Translation sets of tensorflow-datasets, read in stretches."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_transformer.errors import InputError
from trainers.corpus import STRETCH_PAIRS, CorpusSource, Stretch, check_languages
from trainers.text_files import SEPARATORS, file_fingerprint

_SEPARATORS_TO_SPACES = str.maketrans(dict.fromkeys("\n" + SEPARATORS, " "))


class TfdsSet(CorpusSource):
    """A split of a translation set of tensorflow-datasets, in the order of the prepared files.

    The set is downloaded and prepared when its pairs are first asked for.

    Args:
        set_name: the set's name, such as `"wmt14_translate/de-en"` (section 5.1 of the paper).
        split: a split, or a part of one: `"train"`, `"validation"`, `"train[:10%]"`.
        source_language: the feature to translate from, such as `"en"`.
        target_language: the feature to translate to, such as `"de"`.
        data_dir: where prepared sets lie; by default where tensorflow-datasets puts them.
    """

    def __init__(
        self,
        set_name: str,
        split: str,
        source_language: str,
        target_language: str,
        data_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        self.set_name, self.split = set_name, split
        self.languages = (source_language, target_language)
        self.data_dir = data_dir
        self.name = f"{set_name}, split {split}"

    def check(self) -> None:
        """Raises an `InputError` where set or language is unknown; the split, once prepared."""
        if self._builder.info.splits:
            self._split_info()

    def fingerprints(self) -> dict[str, str]:
        """SHA-256 of the set's full name, the split and the bytes of the split's files."""
        info = self._prepared_split()
        digest = hashlib.sha256()
        for part in (self._builder.info.full_name, self.split):
            digest.update(part.encode() + b"\n")
        for file in info.filepaths:
            digest.update(f"{file.name} {file_fingerprint(file)}\n".encode())
        return {f"{self._builder.info.full_name}, split {self.split}": digest.hexdigest()}

    def count(self) -> int:
        """Number of pairs."""
        return self._prepared_split().num_examples

    def stretches(self, pairs: int = STRETCH_PAIRS) -> Iterator[Stretch]:
        """The next `pairs` pairs at a time; line ends inside a sentence become spaces."""
        records = self._records(pairs)
        while True:
            with _as_input_error(self.name, "prepared sentences in UTF-8"):
                batch = next(records, None)
                if batch is None:
                    return
                sources, targets = ([_sentence(text) for text in batch[n]] for n in self.languages)
            yield sources, targets

    def _records(self, pairs: int) -> Iterator[dict[str, np.ndarray]]:
        """The bytes of the sentences by language, `[pairs]` at a time.

        The files are read directly: `as_dataset` parses one pair at a time, which takes thirty
        times as long.
        """
        info, file_format = self._prepared_split(), self._builder.info.file_format
        if file_format is not _import_tfds().core.FileFormat.TFRECORD:
            raise InputError(
                f"{self.name}: expected a set that is prepared as tfrecord files. "
                f"Received: {file_format.value}"
            )
        import tensorflow as tf

        parts = info.file_instructions
        if not parts:
            raise InputError(f"{self.name}: expected a split with pairs. Received: none")
        files = [str(part.filename) for part in parts]
        first_and_number = [np.array([part.skip, part.take], np.int64) for part in parts]
        dataset = tf.data.Dataset.from_tensor_slices((files, *np.transpose(first_and_number)))
        dataset = dataset.flat_map(
            lambda file, skip, take: tf.data.TFRecordDataset(file).skip(skip).take(take)
        )
        text = tf.io.FixedLenFeature([], tf.string)
        features = dict.fromkeys(self.languages, text)
        dataset = dataset.batch(pairs).map(lambda records: tf.io.parse_example(records, features))
        return dataset.prefetch(1).as_numpy_iterator()

    @functools.cached_property
    def _builder(self) -> Any:
        tfds = _import_tfds()
        what = f"tensorflow-datasets set {self.set_name!r}"
        options = {} if self.data_dir is None else {"data_dir": os.fspath(self.data_dir)}
        with _as_input_error(what, "a name that tfds.builder knows"):
            builder = tfds.builder(self.set_name, **options)
        features = builder.info.features
        items = features.items() if hasattr(features, "items") else ()
        known = sorted(name for name, feature in items if isinstance(feature, tfds.features.Text))
        check_languages(self.set_name, known, *self.languages)
        return builder

    def _prepared_split(self) -> Any:
        builder = self._builder
        what = f"tensorflow-datasets set {self.set_name!r}"
        with _as_input_error(what, "to download and prepare it"):
            builder.download_and_prepare()
        return self._split_info()

    def _split_info(self) -> Any:
        splits = self._builder.info.splits
        with _as_input_error(self.name, f"a split among {', '.join(sorted(splits))} or a part"):
            return splits[self.split]


def _import_tfds() -> Any:
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise InputError(
            "Reading a tensorflow-datasets set needs `pip install tensorflow-datasets`. "
            f"Received: {error}"
        ) from error
    return tfds


@contextlib.contextmanager
def _as_input_error(what: str, expected: str) -> Iterator[None]:
    """Turns whatever tensorflow-datasets raises into one line, and its prints to stderr."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except Exception as error:  # its builders raise anything: network, manual downloads, splits
        message = str(error).strip() or type(error).__name__
        raise InputError(
            f"{what}: expected {expected}. Received: {type(error).__name__}: "
            f"{message.splitlines()[0]}"
        ) from error


def _sentence(text: bytes) -> str:
    sentence = text.decode("utf-8")
    if sentence.isprintable():  # no separator is; translating takes ten times as long
        return sentence
    return sentence.rstrip("\r\n").translate(_SEPARATORS_TO_SPACES)
