"""The smallest recipe that trains, and what is said of one that is refused."""

import pytest

from keras_transformer import InputError
from trainers.recipe import Recipe

FILES = {"source": "a.en", "target": "a.de"}
SMALLEST = {
    "data": {
        "source_language": "en",
        "target_language": "de",
        "train": FILES,
        "validation": FILES,
    },
    "tokenizer": {"vocabulary_size": 4000},
    "training": {"steps": 10},
}


def message_of(values):
    with pytest.raises(InputError) as error:
        Recipe.from_dict(values)
    message = str(error.value)
    assert "Received: " in message and "\n" not in message
    return message
