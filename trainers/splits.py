"""Opens the split of a corpus that a recipe names, in whichever of its three forms."""

from __future__ import annotations

from keras_transformer.errors import InputError
from trainers.corpus import CorpusSource, ParallelCorpus, ParallelFiles, TranslateFolder
from trainers.recipe_keys import DataSection
from trainers.tfds_corpus import TfdsSet


def open_split(data: DataSection, split: str) -> CorpusSource:
    """Where one split is read from, stretch by stretch.

    Args:
        data: the recipe's section `data`.
        split: `"train"`, `"validation"` or `"test"`.

    Returns:
        A `CorpusSource`. Nothing is read or downloaded yet; its `check` finds what is missing.

    Raises:
        InputError: where the recipe has no such split, or its folder is of another layout.

    Example:

    >>> from trainers.recipe import load_recipe
    >>> open_split(load_recipe("tatoeba-en-de-small.yaml").data, "test").count()
    1000
    """
    files = getattr(data, split)
    if files is None:
        raise InputError(f"data.{split} must be given. Received: nothing")
    languages = (data.source_language, data.target_language)
    if files.tfds is not None:
        return TfdsSet(files.tfds, files.split, *languages, data_dir=data.tfds_data_dir)
    if files.tfds_folder is not None:
        return TranslateFolder(files.tfds_folder, files.split, *languages)
    return ParallelFiles(files.source, files.target)


def read_split(data: DataSection, split: str) -> ParallelCorpus:
    """The corpus of one split, in memory; meant for validation and test.

    Args:
        data: the recipe's section `data`.
        split: `"train"`, `"validation"` or `"test"`.

    Returns:
        A `ParallelCorpus`.

    Raises:
        InputError: as `open_split`, or where the corpus cannot be read.

    Example:

    >>> from trainers.recipe import load_recipe
    >>> len(read_split(load_recipe("tatoeba-en-de-small.yaml").data, "test"))
    1000
    """
    return open_split(data, split).read()
