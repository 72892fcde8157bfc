"""One sentence's attention in every layer and head, as a page or a picture."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import numpy as np
from matplotlib.image import imsave

from keras_transformer.command_io import check_output, refuse
from keras_transformer.diagnosis.attention_maps import KINDS, AttentionMaps, attention_maps
from keras_transformer.diagnosis.heat_map_images import (
    heat_map_grid,
    image_of,
    readable_inches,
)
from keras_transformer.diagnosis.page import Page
from keras_transformer.translation_tokenizer import Tokenizer
from keras_transformer.translator import Translator
from trainers.run import RunDirectory

# More cannot be told apart on a screen.
MOST_PIECES = 128
_ENDINGS = (".html", ".htm", ".png")


def write_attention(
    run_dir: str | Path,
    source: str,
    target: str | None = None,
    output: str | Path | None = None,
) -> Path:
    """Writes the heat maps of every layer and head for one sentence.

    They are those of encoder self-attention, decoder self-attention and cross-attention (section
    3.2.3 of the paper).

    Args:
        run_dir: path of a run with a `model.keras`, or with checkpoints.
        source: str. The sentence to translate.
        target: str or None. Its translation; `None` takes the model's own.
        output: path or None. A name that ends in `.png` gives a still picture, one in `.html` a
            page that needs no other file. `None` means `attention.html` in the run directory.

    Returns:
        The path that was written.

    Raises:
        InputError: where the directory is no run, the source or target is empty, longer than 128
            pieces or longer than the model reads, or the file cannot be written or has another
            ending.

    Example:

    >>> write_attention("runs/none", "One.")
    Traceback (most recent call last):
    ...
    keras_transformer.errors.InputError: A run directory must hold a recipe.yaml. Received: ...
    """
    run = RunDirectory(run_dir)
    recipe = run.load_recipe()
    path = Path(output) if output is not None else run.path / "attention.html"
    check_attention_output(path)
    translator = load_translator(run)
    tokenizer = translator.tokenizer
    check_source(source, translator)
    texts = {"source": source}
    if target is None:
        texts["translation"] = translator.translate([source])[0][0].text
    else:
        limit = min(MOST_PIECES, translator.maximum_target_length)
        _check_text("target", target, tokenizer.target, limit)
        texts["target"] = target
    maps = attention_maps(translator.model, tokenizer, *texts.values())
    if path.suffix.lower() == ".png":
        return write_file(path, _png(maps))
    page = Page(f"Attention of {run.path.resolve().name}", recipe.data.languages or "")
    page.add("attention", "Where the model looks", page.explorer([(texts, maps)]))
    return write_file(path, page.html().encode("utf-8", "replace"))


def check_attention_output(path: Path | None) -> None:
    """Refuses a file that `write_attention` could not write, before any work.

    Args:
        path: `Path`, or None for the file in the run directory.

    Raises:
        InputError: for an ending that is neither a page's nor a picture's, or a file that cannot be
            written.

    Example:

    >>> check_attention_output(Path("maps.pdf"))
    Traceback (most recent call last):
    ...
    keras_transformer.errors.InputError: --output must end in .html or .png. Received: maps.pdf
    """
    if path is not None and path.suffix.lower() not in _ENDINGS:
        refuse("--output must end in .html or .png", path)
    check_output(path)


def check_source(source: str, translator: Translator) -> None:
    """Refuses a source whose attention cannot be drawn.

    Raises:
        InputError: where it has no words, or more pieces than a screen shows or the model reads.
    """
    limit = min(MOST_PIECES, translator.maximum_source_length)
    _check_text("source", source, translator.tokenizer.source, limit)


def load_translator(run: RunDirectory) -> Translator:
    """The run's translator; of its last checkpoint where it is still in training."""
    has_checkpoint = not run.model_path.exists() and run.checkpoints().steps()
    return run.load_translator(run.load_last_model() if has_checkpoint else None)


def write_file(path: Path, content: bytes) -> Path:
    """Writes a file, aside and then renamed: never half a page.

    Raises:
        InputError: where it cannot be written.
    """
    # Cut, because a name may be as long as the system allows; a path such as / has none.
    aside = path.parent / f".{path.name[:40]}.partial"
    try:
        aside.write_bytes(content)
        aside.replace(path)
    except (OSError, ValueError) as error:
        with contextlib.suppress(OSError, ValueError):
            aside.unlink()
        refuse("--output must be a file that can be written", error)
    return path


def _check_text(name: str, text: str, tokenizer: Tokenizer, limit: int) -> None:
    """Refuses what has no picture, with one line that says why."""
    ids = tokenizer.encode(text)
    if not ids:
        refuse(f"--{name} must be text with words", repr(text))
    if len(ids) > limit:
        refuse(f"--{name} must have at most {limit} pieces to be drawn", f"{len(ids)} pieces")


def _png(maps: AttentionMaps) -> bytes:
    """All kinds of attention, one grid below the other."""
    # All equally large, so that each head has its column.
    inches = readable_inches(max(len(maps.source), len(maps.outputs)))
    grids = [
        image_of(
            heat_map_grid(layers, maps.rows(kind), maps.columns(kind), KINDS[kind], inches=inches)
        )
        for kind, layers in maps.weights.items()
    ]
    width = max(grid.shape[1] for grid in grids)
    # Numbers of heads are the same, but the labels' room may differ by a pixel.
    padded = [
        np.pad(grid, ((0, 0), (0, width - grid.shape[1]), (0, 0)), constant_values=255)
        for grid in grids
    ]
    file = io.BytesIO()
    imsave(file, np.concatenate(padded), format="png")
    return file.getvalue()
