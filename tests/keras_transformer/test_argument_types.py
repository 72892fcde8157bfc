import argparse

import pytest

from keras_transformer import argument_types


def refusal(parse, text):
    with pytest.raises(argparse.ArgumentTypeError) as error:
        parse(text)
    assert "Received: " in str(error.value)
    return str(error.value)


def test_numbers_have_commas_between_them():
    assert argument_types.numbers(1)("256, 512,1024") == (256, 512, 1024)
    for text in ("", "1,,2", "1,0", "1;2", "1.5", "two"):
        assert "a whole number, at least 1" in refusal(argument_types.numbers(1), text)


def test_names_have_commas_between_them():
    assert argument_types.names("A, compatibility,,") == ("A", "compatibility")


def test_a_finite_number():
    assert argument_types.not_negative("0") == 0.0
    assert argument_types.positive("0.5") == 0.5
    assert "above 0" in refusal(argument_types.positive, "0")
    for text in ("", "-1", "nan", "inf", "x"):
        assert "finite number" in refusal(argument_types.not_negative, text)


def test_a_language_has_a_code():
    assert argument_types.language("de") == "de"
    refusal(argument_types.language, " ")
