"""Makes `marian_golden/`: what Hugging Face's Marian computes for the checkpoints of marian_files.

    pip install torch transformers safetensors sentencepiece h5py pyyaml
    python tests/data/make_marian_golden.py

Everything is in the checkpoint's own ids. A search whose outcome hangs on rounding is refused: its
outputs must be the same in float64.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers

sys.path.insert(0, str(Path(__file__).parents[1]))
from marian_files import SHAPES, Shape, random_sources, write_hugging_face
from marian_searches import golden_name, searches_of

SEED = 3
GOLDEN = Path(__file__).parent / "marian_golden"


def main() -> None:
    transformers.logging.set_verbosity_error()
    GOLDEN.mkdir(exist_ok=True)
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    for name, shape in SHAPES.items():
        with tempfile.TemporaryDirectory() as folder:
            write_hugging_face(Path(folder), shape, SEED)
            golden = {"seed": SEED, "versions": versions}
            golden |= golden_of(Path(folder), name, shape, SEED)
        logits = golden.pop("logits")
        path = GOLDEN / golden_name(name)
        np.savez_compressed(path.with_suffix(".npz"), logits=logits)
        path.with_suffix(".json").write_text(json.dumps(golden) + "\n", encoding="utf-8")
        print(name, [len(row[0]) for search in golden["searches"] for row in search["outputs"]])


def golden_of(folder: Path, name: str, shape: Shape, seed: int) -> dict:
    """Inputs, logits at the real positions one after another [positions, V], and searches."""
    model = transformers.MarianMTModel.from_pretrained(folder).eval()
    exact = transformers.MarianMTModel.from_pretrained(folder).double().eval()
    sources = random_sources(shape, seed=seed + 1)
    target_shape = Shape(**{**vars(shape), "vocabulary_size": shape.target_words})
    targets = [
        [shape.pad_id, *row[:-1]]
        for row in random_sources(target_shape, seed=seed + 2, lengths=(3, 1, 2, 0, 4))
    ]
    return {
        "sources": sources,
        "targets": targets,
        "logits": logits_of(model, shape, sources, targets),
        "searches": [
            {**search, **outputs_of(model, exact, shape, sources, search)}
            for search in searches_of(name)
        ],
    }


def logits_of(model, shape: Shape, sources, targets) -> np.ndarray:
    ids, mask = padded(sources, shape.pad_id)
    decoder_ids, decoder_mask = padded(targets, shape.pad_id)
    with torch.no_grad():
        logits = model(
            input_ids=ids,
            attention_mask=mask,
            decoder_input_ids=decoder_ids,
            decoder_attention_mask=decoder_mask,
        ).logits
    return logits[decoder_mask.bool()].numpy()


def outputs_of(model, exact, shape: Shape, sources, search: dict) -> dict:
    """All hypotheses of each sentence with the end token, without the start token."""
    outputs, scores = generate(model, shape, sources, search)
    exact_outputs, _ = generate(exact, shape, sources, search)
    assert outputs == exact_outputs, f"{search} hangs on rounding"
    return {"outputs": outputs, "scores": scores}


def generate(model, shape: Shape, sources, search: dict):
    ids, mask = padded(sources, shape.pad_id)
    beams = search["num_beams"]
    result = model.generate(
        input_ids=ids,
        attention_mask=mask,
        num_return_sequences=beams,
        output_scores=True,
        return_dict_in_generate=True,
        **search,
    )
    # Where there are fewer hypotheses than beams, the rest is all padding.
    outputs = [row[1 : row.index(0) + 1] if 0 in row else [] for row in result.sequences.tolist()]
    outputs = [outputs[start : start + beams] for start in range(0, len(outputs), beams)]
    if beams == 1:
        return outputs, None
    return outputs, result.sequences_scores.reshape(-1, beams).tolist()


def padded(rows: list[list[int]], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, rows))
    ids = torch.tensor([row + [pad_id] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    return ids, mask


if __name__ == "__main__":
    main()
