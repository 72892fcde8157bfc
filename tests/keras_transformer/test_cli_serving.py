"""The command that translates through a server, and what commands know of an export."""

import json
import shutil

import numpy as np
import pytest
from command_lines import write
from served_model import Model
from serving_double import DOUBLES, free_port
from small_translators import SENTENCES

from export.model_card import read_model_card, write_model_card
from export.session import ExportSession

pytestmark = pytest.mark.usefixtures("models_are_loaded_once")


@pytest.mark.parametrize("api", ["grpc", "rest"])
def test_serve_client_translates_as_translate_does(numbers_export, run_command, tmp_path, api):
    file = write(tmp_path / "lines", SENTENCES)
    with DOUBLES[api](Model(ExportSession(numbers_export))) as url:
        for words in ((), ("--n-best", 2), ("--json",)):
            words = ("--input", file, *words)
            found = run_command("serve-client", url, *words, "--batch-size", 3)
            code, output, errors = run_command("translate", numbers_export, *words)
            assert found[0] == code == 0 and found[2] == errors == ""
            if "--n-best" in words:
                output, found = (
                    [line.split("\t") for line in text.split("\n")[:-1]]
                    for text in (output, found[1])
                )
                assert [(number, text) for number, _, text in found] == [
                    (number, text) for number, _, text in output
                ]
                np.testing.assert_allclose(
                    [float(score) for _, score, _ in found],
                    [float(score) for _, score, _ in output],
                    atol=1e-4,
                )
            elif "--json" in words:
                best = json.loads(found[1])["translations"]
                assert [each[0]["text"] for each in best] == [
                    each[0]["text"] for each in json.loads(output)["translations"]
                ]
            else:
                assert found[1] == output


def test_serve_client_refuses_what_cannot_be_before_it_asks_the_server(refuse, tmp_path):
    file = write(tmp_path / "lines", ["two"])
    assert "A server's URL must be" in refuse("serve-client", "127.0.0.1:8500", "--input", file)
    url = f"grpc://127.0.0.1:{free_port()}"
    line = refuse("serve-client", url, "--input", file, "--output", tmp_path)
    assert "--output must be a file" in line


def test_a_server_that_is_not_there_is_no_bad_input(run_command, tmp_path):
    url, file = f"grpc://127.0.0.1:{free_port()}", write(tmp_path / "lines", ["two"])
    code, output, errors = run_command("serve-client", url, "--input", file, "--retry-seconds", 0)
    assert (code, output) == (1, "") and "must be up within 0 s" in errors


def test_evaluate_takes_the_language_of_an_export_from_its_card(
    numbers_export, read_json, tmp_path
):
    path = shutil.copytree(numbers_export, tmp_path / "1")
    card = read_model_card(path)
    card["languages"] = {"source": "en", "target": "de"}
    write_model_card(path, card)
    two, zwei = write(tmp_path / "en", ["two", "six"]), write(tmp_path / "de", ["zwei", "sechs"])
    result = read_json("evaluate", path, "--source", two, "--reference", zwei)
    assert result["sentences"] == 2 and "tok:13a" in result["bleu_signature"]
