"""A checkpoint that was trained with Hugging Face, imported and exported, as a server loads it."""

import pytest
import sacrebleu
from marian_files import SHAPES, write_hugging_face
from marian_tokenizers import CHECKPOINT, checkpoint_lines

from export.checking.checks import check_export
from export.model_card import read_model_card
from export.saved_model import export_translator
from export.session import ExportSession
from keras_transformer.cli import main
from trainers.imported import import_marian
from trainers.run import RunDirectory


@pytest.fixture(scope="module")
def imported_export(tmp_path_factory):
    folder = tmp_path_factory.mktemp("imported")
    run, base = str(folder / "run"), str(folder / "export")
    assert main(["import-marian", str(CHECKPOINT), "--run-dir", run]) == 0
    assert main(["export", run, "--output", base]) == 0
    return folder / "export" / "1"


def served(path, texts: list[str]) -> list[str]:
    """What the session loader gives, in requests of 50."""
    session = ExportSession(path)
    found = []
    for start in range(0, len(texts), 50):
        outputs = session.run("serving_default", text=texts[start : start + 50])
        found += [translation.decode() for translation in outputs["translation"]]
    session.close()
    return found


def test_the_session_loader_translates_as_hugging_face_does(imported_export):
    assert (
        served(imported_export, checkpoint_lines("source.en")[:50])
        == checkpoint_lines("beam4.de")[:50]
    )


@pytest.mark.slow
def test_all_lines_and_bleu_are_hugging_faces(imported_export):
    translations = served(imported_export, checkpoint_lines("source.en"))
    assert translations == checkpoint_lines("beam4.de")
    bleu = sacrebleu.corpus_bleu(translations, [checkpoint_lines("reference.de")]).score
    assert round(bleu, 2) == 22.38


def test_its_card_tells_where_it_comes_from(imported_export):
    card = read_model_card(imported_export)
    assert card["weights"] == "imported" and card["bleu"] is None
    assert card["languages"] == {"source": "en", "target": "de"}
    assert card["decoding"]["beam_size"] == 4 and card["decoding"]["length_penalty"] == "power"


@pytest.mark.slow
def test_it_passes_every_gate(imported_export):
    assert failed_gates(imported_export) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["two vocabularies", "untied"])
def test_a_checkpoint_whose_tokenizers_lack_most_letters_passes_every_gate(tmp_path, name):
    write_hugging_face(tmp_path / "checkpoint", SHAPES[name], seed=1)
    import_marian(tmp_path / "checkpoint", tmp_path / "run")
    translator = RunDirectory(tmp_path / "run").load_translator()
    assert failed_gates(export_translator(translator, tmp_path / "export")) == {}


def failed_gates(path) -> dict:
    gates = check_export(path)
    return {name: gate for name, gate in gates.items() if name != "ok" and not gate["ok"]}
