"""The session loader, by itself and from several threads."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf
from small_translators import SENTENCES

from export.session import ExportSession


def test_it_runs_every_signature_on_text_and_bytes(session, numbers_run):
    assert set(session.signatures) == {"serving_default", "n_best", "score", "align"}
    expected = [best[0] for best in numbers_run.load_translator().translate(SENTENCES)]
    for texts in (SENTENCES, [text.encode() for text in SENTENCES]):
        found = session.run("serving_default", text=texts)
        assert [text.decode() for text in found["translation"]] == [each.text for each in expected]
        np.testing.assert_allclose(found["score"], [each.score for each in expected], atol=1e-4)
        assert not found["truncated"].any()


def test_threads_may_share_it(session):
    texts = [[text] * (number % 4 + 1) for number, text in enumerate(SENTENCES)]
    expected = [session.run("serving_default", text=each) for each in texts]
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda each: session.run("serving_default", text=each), texts)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine["translation"].tolist() == theirs["translation"].tolist()


def test_it_holds_one_cpu_and_no_python(numbers_export):
    session = ExportSession(numbers_export)
    assert [device.device_type for device in session._session.list_devices()] == ["CPU"]
    session.close()
    with pytest.raises(RuntimeError, match="closed"):
        session.run("serving_default", text=["two"])


def test_the_loaders_error_is_kept(tmp_path):
    with pytest.raises((OSError, tf.errors.OpError)):
        ExportSession(tmp_path)
