"""What other systems make of Marian checkpoints; run by a Python that has them installed.

python marian_peers.py REQUESTS.json ANSWERS.json
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).with_name("data")))

PACKAGES = (
    "torch",
    "transformers",
    "ctranslate2",
    "sentencepiece",
    "safetensors",
    "sacremoses",
    "h5py",
    "pyyaml",
)


def main(requests_path: str, answers_path: str) -> None:
    import transformers

    transformers.logging.set_verbosity_error()
    requests = json.loads(Path(requests_path).read_text(encoding="utf-8"))
    answers = {
        "goldens": {
            name: golden(folder, name, requests["seed"])
            for name, folder in requests["goldens"].items()
        },
        "translations": {
            name: ctranslate2_translations(**request)
            for name, request in requests["translations"].items()
        },
        "ids": {
            folder: transformers.MarianTokenizer.from_pretrained(folder)(texts)["input_ids"]
            for folder, texts in requests["texts"].items()
        },
    }
    Path(answers_path).write_text(json.dumps(answers), encoding="utf-8")


def golden(folder: str, name: str, seed: int) -> dict:
    """What a golden file holds, of another seed."""
    from make_marian_golden import golden_of
    from marian_files import SHAPES

    found = golden_of(Path(folder), name, SHAPES[name], seed)
    return {**found, "logits": found["logits"].tolist()}


def ctranslate2_translations(
    folder: str, form: str, sentences: list[list[str]], limit: int
) -> list[list[list[str]]]:
    """CTranslate2's four best translations of each sentence, all as tokens without end tokens.

    Its limit counts no end token, which it does not force; by default it refuses an empty
    translation.
    """
    import ctranslate2
    from ctranslate2 import converters

    kind = {
        "hugging_face": converters.TransformersConverter,
        "release": converters.OpusMTConverter,
    }[form]
    if form == "hugging_face":  # which ends no sentence by itself
        sentences = [[*tokens, "</s>"] for tokens in sentences]
    with tempfile.TemporaryDirectory() as converted:
        kind(folder).convert(converted, force=True)
        translator = ctranslate2.Translator(converted, compute_type="float32")
        results = translator.translate_batch(
            sentences,
            beam_size=4,
            num_hypotheses=4,
            length_penalty=1.0,
            max_decoding_length=limit - 1,
            min_decoding_length=0,
            max_input_length=0,
        )
    return [result.hypotheses for result in results]


if __name__ == "__main__":
    main(*sys.argv[1:])
