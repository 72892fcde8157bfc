"""Prepares a corpus in small shards and kills itself, as kill -9 does, at a write of a file.

prepare_and_die.py SOURCE TARGET FOLDER SHARD_PAIRS STRETCH_PAIRS VOCABULARY_SIZE WRITE
"""

import os
import signal
import sys

from trainers import prepare, shard_writer
from trainers.recipe import Recipe

source, target, folder = sys.argv[1:4]
prepare.SHARD_PAIRS, prepare.STRETCH_PAIRS, vocabulary_size, last = map(int, sys.argv[4:])
write, writes = shard_writer._write_for_good, 0


def write_or_die(path, data):
    global writes
    writes += 1
    if writes == last:
        path.write_bytes(bytes(data)[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    write(path, data)


shard_writer._write_for_good = write_or_die
files = {"source": source, "target": target}
recipe = Recipe.from_dict(
    {
        "data": {
            **{"source_language": "en", "target_language": "de"},
            **{"train": files, "validation": files},
        },
        "tokenizer": {"vocabulary_size": vocabulary_size},
        "training": {"steps": 1},
    }
)
prepare.prepare_corpus(recipe, folder, progress=False)
