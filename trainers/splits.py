"""Reads the split of a corpus that a recipe names, in whichever of its three forms."""

from __future__ import annotations

from keras_transformer.errors import InputError
from trainers.corpus import ParallelCorpus, read_parallel_files, read_tfds, read_tfds_folder
from trainers.recipe_keys import DataSection


def read_split(data: DataSection, split: str) -> ParallelCorpus:
    """The corpus of one split.

    Args:
        data: the recipe's section `data`.
        split: `"train"`, `"validation"` or `"test"`.

    Returns:
        A `ParallelCorpus`.

    Raises:
        InputError: where the recipe has no such split, or as the functions of `corpus`.

    Example:

    >>> from trainers.recipe import load_recipe
    >>> len(read_split(load_recipe("tatoeba-en-de-small.yaml").data, "test"))
    1000
    """
    files = getattr(data, split)
    if files is None:
        raise InputError(f"data.{split} must be given. Received: nothing")
    languages = (data.source_language, data.target_language)
    if files.tfds is not None:
        return read_tfds(files.tfds, files.split, *languages, data_dir=data.tfds_data_dir)
    if files.tfds_folder is not None:
        return read_tfds_folder(files.tfds_folder, files.split, *languages)
    return read_parallel_files(files.source, files.target)
