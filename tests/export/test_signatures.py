import pytest

from export.signatures import INPUTS, check_signatures, signature_functions
from keras_transformer.errors import InputError


def test_all_signatures_by_default_and_in_their_order():
    assert check_signatures(None) == ("serving_default", "n_best", "score", "align")
    assert check_signatures(["align", "serving_default"]) == ("serving_default", "align")


@pytest.mark.parametrize("names", [["serving_default", "translate"], ["serving-default"], [""]])
def test_unknown_signatures_are_refused(names):
    with pytest.raises(InputError, match=r"must be one of serving_default, .* Received: '"):
        check_signatures(names)


@pytest.mark.parametrize("names", [[], ["score"]])
def test_the_default_signature_is_a_must(names):
    with pytest.raises(InputError, match=r"must hold serving_default\. Received: (none|score)"):
        check_signatures(names)


@pytest.mark.parametrize("name", INPUTS)
def test_every_input_is_a_row_of_texts(numbers_run, name):
    (function,) = signature_functions(numbers_run.load_translator(), [name]).values()
    inputs = function.get_concrete_function().structured_input_signature[0]
    assert [(spec.name, spec.dtype.name, spec.shape.as_list()) for spec in inputs] == [
        (each, "string", [None]) for each in INPUTS[name]
    ]
