"""The synthetic corpus is the same at every call, as text files and as a set of tfds."""

import subprocess
import sys
from pathlib import Path

import numpy as np

from trainers.corpus import ParallelFiles
from trainers.tfds_corpus import TfdsSet

PROGRAM = Path(__file__).parent.parent / "benchmarks" / "synthetic_corpus.py"


def write(folder, *options):
    subprocess.run(
        [sys.executable, PROGRAM, "--pairs", "20100", "--output", folder, *options],
        check=True,
        capture_output=True,
    )
    return folder


def test_both_forms_hold_the_same_pairs(tmp_path):
    files = write(tmp_path / "files")
    corpus = ParallelFiles(files / "train.source", files / "train.target").read()
    assert len(corpus) == 20_100 and all(corpus.sources) and all(corpus.targets)
    words = [len(sentence.split()) for sentence in corpus.sources]
    assert 24 < np.mean(words) < 26 and max(words) <= 100
    folder = write(tmp_path / "set", "--tfds")
    found = TfdsSet("synthetic_translate", "train", "source", "target", data_dir=folder)
    found.check()
    assert found.count() == 20_100
    again = found.read()
    assert (again.sources, again.targets) == (corpus.sources, corpus.targets)
