"""What an export answers in a session, for tests of clients, and sessions that answer otherwise."""

import numpy as np

from keras_transformer.text_batches import hypotheses


class Changed:
    """A session whose outputs are changed."""

    def __init__(self, session, change):
        self.signatures = session.signatures
        self._session = session
        self._change = change

    def run(self, signature, **inputs):
        return self._change(self._session.run(signature, **inputs))


class Echo:
    """A session that gives each text back, which is no work."""

    def __init__(self, session):
        self.signatures = session.signatures

    def run(self, signature, text):
        return {
            "translation": text,
            "score": np.zeros(len(text), np.float32),
            "truncated": np.zeros(len(text), bool),
        }


def encoded(texts):
    return [text.encode(errors="surrogatepass") for text in texts]


def is_same(found, expected):
    """Equal texts, and scores that differ by rounding at most."""
    return [[best.text for best in row] for row in found] == [
        [best.text for best in row] for row in expected
    ] and np.allclose(
        [best.score for row in found for best in row],
        [best.score for row in expected for best in row],
        rtol=0,
        atol=1e-4,
    )


def expected_hypotheses(session, texts, n_best):
    outputs = session.run("n_best", text=encoded(texts))
    return [
        hypotheses(*row)[:n_best]
        for row in zip(outputs["translations"], outputs["scores"], strict=True)
    ]
