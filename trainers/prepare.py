"""Turns a training corpus into token ids in files, once, however large it is."""

from __future__ import annotations

import collections
import contextlib
import hashlib
import itertools
import json
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import tqdm

from keras_transformer.errors import InputError
from keras_transformer.folder_lock import folder_lock
from keras_transformer.tokenizer import EOS_ID, SubwordTokenizer
from keras_transformer.translation_tokenizer import TranslationTokenizer
from trainers.corpus import CorpusSource, Stretch
from trainers.pair_filter import pair_hashes
from trainers.prepared import FORMAT, MANIFEST, PreparedCorpus
from trainers.recipe import Recipe
from trainers.run import RunDirectory
from trainers.shard_writer import Arrays, ShardWriter, writing_to
from trainers.splits import open_split

SHARD_PAIRS = 100_000
STRETCH_PAIRS = 10_000

# One is read and prepared in Python while SentencePiece cuts another on all cores.
_STRETCHES_AT_A_TIME = 2


def prepare_corpus(
    recipe: Recipe,
    folder: str | Path,
    progress: bool = True,
    tokenizer: TranslationTokenizer | None = None,
) -> PreparedCorpus:
    """Tokenizes a recipe's training corpus into files, or finds the files of an earlier time.

    In the folder, `tokenizer-HASH` holds the tokenizer and `train-HASH` the ids. The first hash
    is of the corpus' content and the recipe's section `tokenizer`, the second of the content and
    the tokenizer: another corpus or vocabulary has other files. Where they are whole, nothing is
    written. Where an earlier attempt was broken off, its whole shards of 100,000 pairs are kept.

    Memory is bounded, whatever the corpus' size: by the sentences that the tokenizer is trained
    on, `tokenizer.maximum_sentences`, and by a shard.

    Args:
        recipe: `Recipe`.
        folder: path of the folder. Another process that prepares in it is waited for.
        progress: whether to tell on stderr what is done.
        tokenizer: `TranslationTokenizer` to use in the place of one trained on the corpus. `None`
            takes that of `training.initial_run`, where there is one.

    Returns:
        A `PreparedCorpus`.

    Raises:
        InputError: if the recipe has no `data.train`, if the corpus cannot be read, if its sides
            differ in length, if a tokenizer cannot be trained on it, if the folder cannot be
            written to (a full disk), or if a prepared file is damaged.
    """
    recipe.check_trains()
    folder = Path(folder)
    if tokenizer is None and recipe.training.initial_run is not None:
        tokenizer = RunDirectory(recipe.training.initial_run).load_tokenizer()
    source = open_split(recipe.data, "train")
    source.check()
    fingerprints = source.fingerprints()
    content = [*fingerprints.values(), recipe.data.source_language, recipe.data.target_language]
    section = vars(recipe.tokenizer).copy()
    del section["normalize_punctuation"]  # of imported tokenizers only
    tokenizer_folder = folder / f"tokenizer-{_short_hash([*content, section])}"

    def finished() -> PreparedCorpus | None:
        """What is there already."""
        nonlocal tokenizer
        if tokenizer is None and (tokenizer_folder / "tokenizer.json").exists():
            tokenizer = TranslationTokenizer.load(tokenizer_folder)
        if tokenizer is None:
            return None
        train_folder = _train_folder(folder, content, tokenizer)
        if not (train_folder / MANIFEST).exists():
            return None
        return PreparedCorpus(train_folder, tokenizer, source.name, fingerprints)

    if corpus := finished():
        return corpus
    with _waiting_lock(folder, progress):
        if corpus := finished():  # by the process that was waited for
            return corpus
        pairs = source.count()
        if not pairs:
            raise InputError(f"{source.name}: must have sentences. Received: empty files")
        if tokenizer is None:
            _say(progress, f"{source.name}: training the tokenizer on {pairs} pairs")
            tokenizer = _trained(source, pairs, section, progress)
            with writing_to(folder):
                tokenizer.save(tokenizer_folder)
        train_folder = _train_folder(folder, content, tokenizer)
        facts = {
            "format": FORMAT,
            "corpus": fingerprints,
            "source_language": recipe.data.source_language,
            "target_language": recipe.data.target_language,
            "tokenizer": tokenizer.fingerprint,
        }
        with writing_to(folder):
            writer = ShardWriter(train_folder, SHARD_PAIRS)
        _write_shards(writer, source, pairs, tokenizer, progress)
        if writer.pairs != pairs or source.fingerprints() != fingerprints:
            shutil.rmtree(train_folder)  # nobody knows which text its shards are of
            raise InputError(
                f"{source.name}: must not be changed while it is prepared. Received: "
                f"{writer.pairs} pairs where there were {pairs}, or other text"
            )
        with writing_to(folder):
            writer.finish(facts)
    _say(progress, f"{source.name}: {pairs} pairs prepared in {train_folder}")
    return PreparedCorpus(train_folder, tokenizer, source.name, fingerprints)


def _train_folder(folder: Path, content: list[str], tokenizer: TranslationTokenizer) -> Path:
    return folder / f"train-{_short_hash([*content, tokenizer.fingerprint, FORMAT])}"


def _short_hash(facts: list) -> str:
    text = json.dumps(facts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _trained(
    source: CorpusSource, pairs: int, section: dict, progress: bool
) -> TranslationTokenizer:
    """The tokenizer of the corpus, which is read twice: one side after the other."""
    with _bar(2 * pairs, "reading", progress) as bar:

        def sentences(side: int) -> Iterator[str]:
            for stretch in source.stretches(STRETCH_PAIRS):
                yield from stretch[side]
                bar.update(len(stretch[side]))

        return TranslationTokenizer.train(sentences(0), sentences(1), **section)


def _write_shards(
    writer: ShardWriter,
    source: CorpusSource,
    pairs: int,
    tokenizer: TranslationTokenizer,
    progress: bool,
) -> None:
    """Tokenizes what the writer does not have yet."""
    stretches = source.stretches(STRETCH_PAIRS)
    # A shard is whole stretches, so what is written ends where a stretch does.
    stretches = itertools.islice(stretches, writer.pairs // STRETCH_PAIRS, None)
    with _bar(pairs, "tokenizing", progress, writer.pairs) as bar:
        shard: list[Arrays] = []
        for arrays in _encoded(stretches, tokenizer, writer.pairs):
            shard.append(arrays)
            bar.update(len(arrays[1]))
            if len(shard) * STRETCH_PAIRS == writer.shard_pairs:
                _write(writer, shard)
        if shard:
            _write(writer, shard)


def _write(writer: ShardWriter, shard: list[Arrays]) -> None:
    with writing_to(writer.folder):
        writer.write(tuple(map(np.concatenate, zip(*shard, strict=True))))
    shard.clear()


def _encoded(
    stretches: Iterable[Stretch], tokenizer: TranslationTokenizer, first_pair: int
) -> Iterator[Arrays]:
    """The ids of each stretch. Threads do it: SentencePiece holds no lock of Python's."""
    pool = ThreadPoolExecutor(_STRETCHES_AT_A_TIME)
    waiting: collections.deque[Future[Arrays]] = collections.deque()
    try:
        for stretch in stretches:
            waiting.append(pool.submit(_encode, stretch, tokenizer, first_pair))
            first_pair += len(stretch[0])
            if len(waiting) > _STRETCHES_AT_A_TIME:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _encode(stretch: Stretch, tokenizer: TranslationTokenizer, first_pair: int) -> Arrays:
    arrays: list[np.ndarray] = []
    for side, sentences in zip((tokenizer.source, tokenizer.target), stretch, strict=True):
        ids, lengths = _flat_ids(side, sentences)
        if len(ids) and ids.min() <= EOS_ID:
            row = first_pair + int(np.searchsorted(np.cumsum(lengths), int(ids.argmin()), "right"))
            raise InputError(
                f"Pair {row}: expected ids above {EOS_ID} from the tokenizer. Received: {ids.min()}"
            )
        arrays += [ids, lengths]
    return (*arrays, pair_hashes(*stretch))


def _flat_ids(tokenizer: SubwordTokenizer, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Ids of the sentences one after the other, and the number of each."""
    dtype = np.uint16 if tokenizer.vocabulary_size <= 1 << 16 else np.int32
    rows = tokenizer.encode_batch(sentences)
    lengths = np.fromiter(map(len, rows), np.int32, len(rows))
    ids = np.fromiter(itertools.chain.from_iterable(rows), dtype, int(lengths.sum()))
    return ids, lengths


@contextlib.contextmanager
def _waiting_lock(folder: Path, progress: bool) -> Iterator[None]:
    """Makes the folder and holds it for this process, once no other does."""
    told = False
    with writing_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(folder_lock(folder))
                break
            except BlockingIOError:
                _say(progress and not told, f"{folder}: waiting for the process that prepares it")
                told = True
                time.sleep(0.5)
            except OSError as error:
                raise InputError(f"{folder} must be a folder. Received: {error}") from error
        yield


def _bar(total: int, what: str, progress: bool, initial: int = 0) -> tqdm.tqdm:
    """A bar on stderr, where that is a terminal."""
    disable = None if progress else True
    return tqdm.tqdm(
        total=total, initial=initial, desc=what, disable=disable, unit_scale=True, leave=False
    )


def _say(progress: bool, message: str) -> None:
    if progress:
        print(message, file=sys.stderr)
