"""Random bytes: what is sent, what is found, and an export that stands them."""

import random

import numpy as np
import pytest

from export.checking.fuzz import MAXIMUM_BYTES, fuzz, random_bytes
from export.saved_model import export_translator
from export.session import ExportSession


class Echo:
    """An export of one signature that answers with its input."""

    signatures = {"serving_default": None}

    def __init__(self, translation=lambda text: b"", score=0.0, rows=None):
        self.translation, self.score, self.rows = translation, score, rows
        self.sent = []

    def run(self, signature, text):
        assert signature == "serving_default" and 1 <= len(text) <= 64
        self.sent += text
        rows = len(text) if self.rows is None else self.rows
        return {
            "translation": np.array([self.translation(each) for each in text[:rows]], object),
            "score": np.full(rows, self.score, "float32"),
            "truncated": np.array([len(each) > 100 for each in text[:rows]]),
        }


def test_strings_are_of_all_lengths_and_kinds():
    echo = Echo()
    result = fuzz(echo, 3000, seed=1)
    lengths = [len(text) for text in echo.sent]
    assert len(lengths) == result["strings"] == 3000 and result["batches"] > 3000 / 64
    assert min(lengths) == 0 and MAXIMUM_BYTES * 0.9 < max(lengths) <= MAXIMUM_BYTES
    assert np.median(lengths) < 200 and np.mean(np.array(lengths) > 1000) > 0.1
    assert result["truncated"] == sum(length > 100 for length in lengths)
    valid = sum(text.decode(errors="replace").encode() == text for text in echo.sent)
    assert 0.3 < valid / 3000 < 0.9
    together = b"".join(echo.sent)
    for part in (b"\x00", b"\xef\xbb\xbf", b"</s>", "🏳️\u200d🌈".encode(), b"\r\n", "שלום".encode()):
        assert part in together
    assert len(set(together)) == 256


def test_the_same_seed_gives_the_same_strings():
    first, second, third = Echo(), Echo(), Echo()
    for echo, seed in ((first, 1), (second, 1), (third, 2)):
        fuzz(echo, 100, seed)
    assert first.sent == second.sent != third.sent
    assert random_bytes(random.Random(3)) == random_bytes(random.Random(3))


@pytest.mark.parametrize(
    ("export", "message"),
    [
        (Echo(translation=lambda text: text), "codec can't decode"),
        (Echo(translation=lambda text: b"a\nb"), "must be a line"),
        (Echo(score=np.nan), "must be finite"),
        (Echo(score=-np.inf), "must be finite"),
        (Echo(rows=0), "must have"),
    ],
)
def test_what_is_wrong_is_found(export, message):
    with pytest.raises(ValueError, match=message):
        fuzz(export, 500)


@pytest.mark.slow
def test_an_export_stands_thousands(numbers_run, tmp_path):
    """Short limits: most strings are far longer, and a translation would be as long."""
    translator = numbers_run.load_translator(maximum_source_length=16, maximum_extra_length=4)
    session = ExportSession(export_translator(translator, tmp_path))
    lines = []
    result = fuzz(session, 5000, seed=7, report=lines.append)
    assert result["strings"] == 5000 and 0 < result["truncated"] < 5000
    assert result["memory_growth_megabytes"] < 500
    assert lines and lines[-1].endswith("MB")
