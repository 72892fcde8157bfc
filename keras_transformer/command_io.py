"""What commands read and print: lines of UTF-8, one JSON object, messages on stderr."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn


def write_lines(path: Path | None, lines: Sequence[str]) -> None:
    """Writes lines to a file, or to stdout where `path` is None."""
    # Bytes: whatever the locale, text is UTF-8.
    content = "".join(f"{line}\n" for line in lines).encode()
    if path is None:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    try:
        path.write_bytes(content)
    except OSError as error:
        refuse("--output must be a file that can be written", error)


def check_output(path: Path | None, *inputs: Path | None) -> None:
    """Refuses a file that cannot be written, or is an input, before any work.

    What it holds stays as it is.
    """
    if path is None:
        return
    for each in inputs:
        if each is not None and path.exists() and each.exists() and path.samefile(each):
            refuse("--output must be another file than those that are read", path)
    existed = path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        refuse("--output must be a file that can be written", error)
    if not existed:
        path.unlink()


def print_result(options: argparse.Namespace, values: dict[str, Any], text: str) -> int:
    """Prints the command's result: one JSON object, or text. Returns the exit code 0."""
    if options.json:
        print_json(values)
    else:
        write_lines(None, [text])
    return 0


def print_translations(
    options: argparse.Namespace, results: Sequence[Sequence[Any]], n_best: int | None
) -> int:
    """Prints or writes the best hypothesis of each text, or the `n_best` with line and score."""
    best = [found[: n_best or 1] for found in results]
    if n_best:
        lines = [
            f"{number}\t{hypothesis.score:.6f}\t{hypothesis.text}"
            for number, found in enumerate(best, 1)
            for hypothesis in found
        ]
    else:
        lines = [found[0].text for found in best]
    if options.output or not options.json:
        write_lines(options.output, lines)
    if options.json:
        print_json(
            {"translations": [[hypothesis._asdict() for hypothesis in found] for found in best]}
        )
    return 0


def scores_text(scores: dict[str, Any]) -> str:
    """The scores of a test set for people to read."""
    lines = [f"BLEU {scores['bleu']:.2f}   {scores['bleu_signature']}"]
    if scores["bleu_tokenized_compound_split"] is not None:
        paper = f"{scores['bleu_tokenized_compound_split']:.2f}"
        lines.append(f"tokenised, compound-split BLEU (the paper's kind) {paper}")
    lines += [
        f"chrF {scores['chrf']:.2f}",
        f"{scores['sentences']} sentences in {scores['seconds']:.1f} s, "
        f"{scores['target_tokens_per_second']:.0f} tokens per second",
    ]
    return "\n".join(lines)


def translations_text(rows: Sequence[tuple[str, str, str | None]]) -> str:
    """Sources, each with its translation below it, and its reference where there is one."""
    return "\n".join(
        f"{source}\n    {translation}"
        + ("" if reference is None else f"\n    (reference: {reference})")
        for source, translation, reference in rows
    )


def print_json(values: dict[str, Any]) -> None:
    """Prints one JSON object on a line of stdout."""
    write_lines(None, [json.dumps(values, ensure_ascii=False)])


@contextlib.contextmanager
def progress_on_stderr() -> Iterator[None]:
    """Keras prints its progress bar on stdout, which is the result's."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def refuse(expected: str, received: Any) -> NoReturn:
    """Raises the error for input that is not what was expected."""
    from keras_transformer.errors import InputError

    raise InputError(f"{expected}. Received: {received}")


def say(message: str) -> None:
    """Prints a message on stderr."""
    print(message, file=sys.stderr)


def say_cut(what: str, limit: int | None = None) -> Any:
    """A callback that says which line was cut: `what` names it, `limit` counts its tokens."""

    def on_cut(row: int) -> None:
        length = "what the model reads" if limit is None else f"{limit} tokens"
        say(f"{what} line {row + 1} is cut to {length}")

    return on_cut
