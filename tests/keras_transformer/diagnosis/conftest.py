"""A small model and a sample that the probes of this folder are tried on."""

import numpy as np
import pytest
from small_models import small_model

from keras_transformer.diagnosis.sample import make_sample


def a_sample(vocabulary_size=20, seed=0):
    """Twelve pairs of 3 to 9 random words, no word twice in a row."""
    random = np.random.default_rng(seed)

    def rows():
        return [
            random.choice(np.arange(4, vocabulary_size), random.integers(3, 10), replace=False)
            for _ in range(12)
        ]

    return make_sample(rows(), rows())


@pytest.fixture(scope="session")
def sample():
    return a_sample()


@pytest.fixture(scope="session")
def model():
    """Untrained, with every weight at random."""
    return small_model()
