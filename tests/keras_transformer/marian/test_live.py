"""Marian checkpoints compute here what other systems compute, which are installed for it.

The environment variable KERAS_TRANSFORMER_PEERS may name a Python that has them already.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from marian_files import (
    SHAPES,
    Shape,
    random_sources,
    vocabularies,
    write_hugging_face,
    write_release,
)
from marian_peers import PACKAGES
from marian_release_files import write_decoder_options, write_npz, write_vocabulary
from marian_searches import check_logits, check_searches, our_ids, search
from marian_tokenizers import CHECKPOINT
from safetensors.numpy import load_file, save_file

from keras_transformer.marian.checkpoint import read_marian

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[2]
WEIGHTS = "model.safetensors"
SEED = 20

# As a release has no pad word: the Hugging Face form is then the same model as the release.
RELEASED = {"pad_row": "zero", "pad_bias": -100.0}
CONVERTED = {
    "released": SHAPES["released"],
    "released relu": SHAPES["released relu"],
    "released, two embeddings": Shape(share_embeddings=False, **RELEASED),
}
# Marian's gelu is not Hugging Face's.
RELEASES = {**CONVERTED, "released gelu": Shape(activation="gelu", **RELEASED)}
COMPARED = [
    *(("hugging_face", name) for name in (*CONVERTED, "trained")),
    *(("release", name) for name in (*RELEASES, "trained")),
]
LIMIT, FIXTURE_LIMIT = 15, 127
ODD_TEXTS = [
    "",
    " ",
    "  two   spaces ",
    "no-break\u00a0space, tab\tand\u3000wide space",
    "e\u0301 and \u00e9, \ufb01ne, \u2460, \uff21\uff22",
    "zero\u200bwidth, soft\u00adhyphen, \ufeffmark",
    "\U0001f642\U0001f469\u200d\U0001f467 \u4f60\u597d \u0645\u0631\u062d\u0628\u0627",
    "\u2581 and \u2581\u2581",
    ">>deu<< Hello.",
    "a" * 300,
]


@pytest.fixture(scope="module")
def peer_python(tmp_path_factory) -> Iterator[str]:
    if os.environ.get("KERAS_TRANSFORMER_PEERS"):
        yield os.environ["KERAS_TRANSFORMER_PEERS"]
        return
    folder = tmp_path_factory.mktemp("peers")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, *PACKAGES], check=True)
    yield str(python)
    shutil.rmtree(folder)  # 6 GB, which pytest would keep for two runs more


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Path:
    """All checkpoints that are compared."""
    root = tmp_path_factory.mktemp("checkpoints")
    for name, shape in SHAPES.items():
        write_hugging_face(root / "goldens" / name, shape, SEED)
    for name, shape in CONVERTED.items():
        write_hugging_face(root / "hugging_face" / name, shape, SEED)
    for name, shape in RELEASES.items():
        write_release(root / "release" / name, shape, SEED)
    _write_fixture_with_zero_pad(root / "hugging_face" / "trained", root / "release" / "trained")
    return root


@pytest.fixture(scope="module")
def answers(peer_python, folders) -> dict:
    requests = {
        "seed": SEED,
        "goldens": {name: str(folders / "goldens" / name) for name in SHAPES},
        "texts": {str(CHECKPOINT): [*_source_lines(), *ODD_TEXTS]},
        "translations": {},
    }
    for form, name in COMPARED:
        sources, words, _, limit = _problem(name)
        requests["translations"][f"{form}/{name}"] = {
            "folder": str(folders / form / name),
            "form": form,
            "sentences": [[words[id] for id in source[:-1]] for source in sources],
            "limit": limit,
        }
    requests_path, answers_path = folders / "requests.json", folders / "answers.json"
    requests_path.write_text(json.dumps(requests), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    command = [peer_python, TESTS / "marian_peers.py", requests_path, answers_path]
    subprocess.run(command, check=True, env=environment)
    return json.loads(answers_path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", SHAPES)
def test_logits_and_searches_equal_hugging_faces(answers, folders, name):
    golden = answers["goldens"][name]
    model = read_marian(folders / "goldens" / name).build_model()
    check_logits(model, SHAPES[name], {**golden, "logits": np.array(golden["logits"])})
    check_searches(model, SHAPES[name], golden)


@pytest.mark.parametrize("form, name", COMPARED)
def test_translations_equal_ctranslate2s(answers, folders, form, name):
    sources, words, shape, limit = _problem(name)
    model = read_marian(folders / form / name).build_model()
    arguments = {"num_beams": 4, "early_stopping": True, "max_length": limit + 1}
    outputs, _ = search(model, shape, sources, arguments)
    ours = [[[words[id] for id in ids[:-1]] for ids in rows] for rows in outputs]
    assert ours == answers["translations"][f"{form}/{name}"]


def test_ids_equal_marian_tokenizers(answers):
    tokenizer = read_marian(CHECKPOINT).tokenizer
    (ids,) = answers["ids"].values()
    config = json.loads((CHECKPOINT / "config.json").read_text(encoding="utf-8"))
    ours = our_ids(config["vocab_size"], config["pad_token_id"])
    for text, theirs in zip([*_source_lines(), *ODD_TEXTS], ids, strict=True):
        assert tokenizer.source.encode(text) == ours[theirs[:-1]].tolist(), text


def _problem(name: str) -> tuple[list[list[int]], list[str], Shape, int]:
    """Sources in the checkpoint's ids with the end token, words, shape and limit."""
    if name != "trained":
        shape = RELEASES[name]
        return random_sources(shape, SEED), vocabularies(shape)[1], shape, LIMIT
    words = _fixture_words()
    ours = our_ids(len(words), len(words) - 1)
    theirs = np.argsort(ours)  # our ids but that of the start token, 1, in order
    tokenizer = read_marian(CHECKPOINT).tokenizer.source
    sources = [
        [*(int(theirs[id - (id > 1)]) for id in tokenizer.encode(line)), 0]
        for line in _source_lines()
    ]
    return sources, words, Shape(vocabulary_size=len(words)), FIXTURE_LIMIT


def _source_lines() -> list[str]:
    return (CHECKPOINT / "source.en").read_text(encoding="utf-8").removesuffix("\n").split("\n")


def _fixture_words() -> list[str]:
    ids = json.loads((CHECKPOINT / "vocab.json").read_text(encoding="utf-8"))
    return sorted(ids, key=ids.__getitem__)


def _write_fixture_with_zero_pad(hugging_face: Path, release: Path) -> None:
    """The trained checkpoint in both forms, with the pad row of a converted release.

    CTranslate2 begins every translation with an embedding of zeros, as Marian does. The trained
    checkpoint begins with its pad row, which is not zeros.
    """
    shutil.copytree(CHECKPOINT, hugging_face)
    config = json.loads((CHECKPOINT / "config.json").read_text(encoding="utf-8"))
    weights = {name: value.copy() for name, value in load_file(CHECKPOINT / WEIGHTS).items()}
    weights["model.shared.weight"][config["pad_token_id"]] = 0
    weights["final_logits_bias"][0, config["pad_token_id"]] = -100
    (hugging_face / WEIGHTS).unlink()
    save_file(weights, hugging_face / WEIGHTS, metadata={"format": "pt"})
    release.mkdir(parents=True)
    write_npz(release / "model.npz", weights, config)
    write_vocabulary(release / "opus.vocab.yml", _fixture_words())
    write_decoder_options(release / "decoder.yml", "model.npz", ["opus.vocab.yml"] * 2)
    for name in ("source.spm", "target.spm"):
        shutil.copy(CHECKPOINT / name, release / name)
