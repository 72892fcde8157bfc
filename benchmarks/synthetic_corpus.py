"""Writes a synthetic parallel corpus of any size, to measure what large corpora cost.

The words are drawn by Zipf's law and spelled with random letters, the lengths are those of news
text, about 25 words a sentence. A target sentence has the words of its source in another
spelling, some left out. The same options give the same files.

    python benchmarks/synthetic_corpus.py --pairs 4500000 --output FOLDER

writes FOLDER/train.source and FOLDER/train.target. With `--tfds` it writes a prepared set of
tensorflow-datasets instead, `synthetic_translate` in FOLDER as `data.tfds_data_dir`, which a
recipe reads as `train: {tfds: synthetic_translate, split: train}`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

SET_NAME = "synthetic_translate"
SET_VERSION = "1.0.0"
LANGUAGES = ("source", "target")

_STRETCH = 20_000
_WORDS = 200_000
_ZIPF_EXPONENT = 1.05
_KEPT = 0.95


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tfds", action="store_true", help="a set of tensorflow-datasets")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    write = write_tfds_set if options.tfds else write_text_files
    write(options.pairs, options.seed, options.output)


def synthetic_stretches(pairs: int, seed: int) -> Iterator[tuple[list[str], list[str]]]:
    """Yields some thousands of source sentences and their targets at a time."""
    generator = np.random.default_rng(seed)
    vocabularies = [
        _vocabulary(generator, letters) for letters in ("aeioubdfgklmnprstz", "äeiouéchknrstvwßyx")
    ]
    weights = np.arange(1, _WORDS + 1) ** -_ZIPF_EXPONENT
    cumulated = np.cumsum(weights / weights.sum())
    for start in range(0, pairs, _STRETCH):
        count = min(_STRETCH, pairs - start)
        lengths = np.clip(generator.gamma(4.0, 6.25, count), 1, 100).astype(int)
        words = np.searchsorted(cumulated, generator.random(lengths.sum()))
        words = np.minimum(words, _WORDS - 1)
        kept = generator.random(len(words)) < _KEPT
        ends = np.cumsum(lengths)
        kept[ends - 1] = True  # no target is empty
        kept_ends = np.cumsum(kept)[ends - 1]
        yield (
            _sentences(vocabularies[0][words], ends),
            _sentences(vocabularies[1][words[kept]], kept_ends),
        )


def write_text_files(pairs: int, seed: int, folder: Path) -> None:
    """Writes `train.source` and `train.target`, one sentence a line."""
    with (
        open(folder / "train.source", "wb") as sources,
        open(folder / "train.target", "wb") as targets,
    ):
        for stretch in synthetic_stretches(pairs, seed):
            for file, sentences in zip((sources, targets), stretch, strict=True):
                file.write(("\n".join(sentences) + "\n").encode())


def write_tfds_set(pairs: int, seed: int, folder: Path) -> None:
    """Writes a prepared set, as `tfds.builder` reads it without code that would make it."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    folder = folder / SET_NAME / SET_VERSION
    folder.mkdir(parents=True, exist_ok=True)
    shards = -(-pairs // _STRETCH)
    lengths, size = [], 0
    for number, stretch in enumerate(synthetic_stretches(pairs, seed)):
        path = folder / f"{SET_NAME}-train.tfrecord-{number:05d}-of-{shards:05d}"
        with tf.io.TFRecordWriter(str(path)) as writer:
            for pair in zip(*stretch, strict=True):
                writer.write(_example(dict(zip(LANGUAGES, pair, strict=True))))
        lengths.append(len(stretch[0]))
        size += path.stat().st_size
    template = tfds.core.ShardedFileTemplate(
        data_dir=folder, dataset_name=SET_NAME, split="train", filetype_suffix="tfrecord"
    )
    split = tfds.core.SplitInfo(
        name="train", shard_lengths=lengths, num_bytes=size, filename_template=template
    )
    tfds.folder_dataset.write_metadata(
        data_dir=folder, features=tfds.features.Translation(LANGUAGES), split_infos=[split]
    )


def _example(pair: dict[str, str]) -> bytes:
    import tensorflow as tf

    features = {
        language: tf.train.Feature(bytes_list=tf.train.BytesList(value=[sentence.encode()]))
        for language, sentence in pair.items()
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def _vocabulary(generator: np.random.Generator, letters: str) -> np.ndarray:
    """Words of 1 to 12 letters, the frequent ones short; an array of str objects."""
    lengths = 1 + np.minimum(generator.poisson(np.log2(np.arange(_WORDS) + 2) / 2), 11)
    spelled = "".join(np.array(list(letters))[generator.integers(0, len(letters), lengths.sum())])
    ends = np.cumsum(lengths).tolist()
    words = [
        spelled[end - length : end] for end, length in zip(ends, lengths.tolist(), strict=True)
    ]
    return np.array(words, object)


def _sentences(words: np.ndarray, ends: np.ndarray) -> list[str]:
    words, ends = words.tolist(), ends.tolist()
    starts = [0, *ends[:-1]]
    return [" ".join(words[start:end]) for start, end in zip(starts, ends, strict=True)]


if __name__ == "__main__":
    main()
