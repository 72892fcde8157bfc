"""The command line's words: every command with its arguments and options."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from keras_transformer.argument_types import (
    at_least,
    language,
    names,
    not_negative,
    numbers,
    positive,
)

Command = Callable[[argparse.Namespace], int]

# Options of `benchmark`, the same as those of benchmarks/peer_hugging_face.py.
_BENCHMARKS: dict[str, dict[str, Any]] = {
    "train": {
        "layers": 3,
        "d_model": 256,
        "d_ff": 1024,
        "heads": 4,
        "vocabulary_size": 8000,
        "batch": 64,
        "length": 32,
        "steps": 20,
        "warm_up": 5,
        "dtype": "float32",
        "threads": 0,
    },
    "decode": {
        "layers": 6,
        "d_model": 512,
        "d_ff": 2048,
        "heads": 8,
        "vocabulary_size": 32000,
        "batch": 16,
        "source_length": 20,
        "beam_size": 4,
        "new_tokens": 40,
        "repeats": 3,
        "warm_up": 1,
        "dtype": "float32",
        "threads": 0,
    },
}


class _Parser(argparse.ArgumentParser):
    """A parser that says what is wrong in one line, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")

    def parse_args(self, args=None, namespace=None) -> argparse.Namespace:
        # argparse takes no positional arguments after an option once it has had some; those of
        # `train RECIPE --run-dir RUN KEY=VALUE` come back as unknown.
        options, unknown = self.parse_known_args(args, namespace)
        overrides = getattr(options, "overrides", None)
        if unknown and (overrides is None or any(word.startswith("-") for word in unknown)):
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        if unknown:
            options.overrides = [*overrides, *unknown]
        return options


def command_line(commands: dict[str, Command]) -> argparse.ArgumentParser:
    """The parser of the command line.

    Args:
        commands: the function of each command; its docstring is the command's help.

    Returns:
        A parser whose namespace has the function as `command`.
    """
    parser = _Parser(
        prog="keras-transformer",
        description="Trains, evaluates, exports and runs the Transformer of 'Attention Is All You "
        "Need'.",
    )
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, function in commands.items():
        summary = (function.__doc__ or "").strip()
        added = subparsers.add_parser(name, help=summary, description=summary)
        added.set_defaults(command=function)
        if name != "benchmark":
            _json_option(added)
        _OPTIONS[name](added)
    return parser


def _json_option(added: argparse.ArgumentParser) -> None:
    added.add_argument("--json", action="store_true", help="print one JSON object on stdout")


def _beam_options(added: argparse.ArgumentParser) -> None:
    added.add_argument("--beam-size", type=at_least(1), metavar="K", help="1 is greedy search")
    added.add_argument("--alpha", type=not_negative, metavar="A", help="length penalty")
    added.add_argument(
        "--length-penalty",
        choices=("gnmt", "power"),
        help="((5 + n) / 6)^alpha or n^alpha, for n tokens",
    )


def _model_options(added: argparse.ArgumentParser) -> None:
    added.add_argument("model", metavar="RUN_OR_EXPORT", type=Path)
    _beam_options(added)


def _text_options(added: argparse.ArgumentParser) -> None:
    added.add_argument("--input", type=Path, help="default: stdin")
    added.add_argument("--output", type=Path, help="default: stdout")
    added.add_argument(
        "--n-best", type=at_least(1), metavar="N", help="N hypotheses: line, score, text"
    )


def _demo(added: argparse.ArgumentParser) -> None:
    added.add_argument("--run-dir", type=Path, default=Path("runs/demo"), metavar="RUN")
    added.add_argument("--minutes", type=float, metavar="N", help="minutes of training")


def _recipe_options(added: argparse.ArgumentParser) -> None:
    added.add_argument("recipe", metavar="RECIPE.yaml", help="a file, or a shipped recipe's name")
    added.add_argument("overrides", nargs="*", default=[], metavar="KEY.PATH=VALUE")
    added.add_argument(
        "--run-dir", type=Path, metavar="RUN", help="default: runs/ and the recipe's name"
    )


def _prepare(added: argparse.ArgumentParser) -> None:
    _recipe_options(added)
    added.add_argument(
        "--prepared-dir",
        type=Path,
        metavar="DIR",
        help="default: the recipe's data.prepared_dir, or prepared in the run directory",
    )


def _train(added: argparse.ArgumentParser) -> None:
    _recipe_options(added)
    added.add_argument(
        "--workers",
        type=at_least(1),
        metavar="N",
        help="train in N processes on this machine, as N hosts would",
    )


def _average(added: argparse.ArgumentParser) -> None:
    added.add_argument("run", metavar="RUN", type=Path)
    added.add_argument("--last", type=at_least(1), metavar="N")


def _import_marian(added: argparse.ArgumentParser) -> None:
    added.add_argument(
        "checkpoint", metavar="DIR", type=Path, help="in Hugging Face's layout, or a Marian release"
    )
    added.add_argument("--run-dir", type=Path, required=True, metavar="RUN", help="new or empty")
    for side, direction in (("source", "from"), ("target", "to")):
        added.add_argument(
            f"--{side}-language",
            type=language,
            metavar="CODE",
            help=f"of the language translated {direction}, where the checkpoint does not tell",
        )
    added.add_argument(
        "--normalize-punctuation",
        action="store_true",
        help="write quotation marks, dashes and the like as the corpora of OPUS-MT do",
    )


def _evaluate(added: argparse.ArgumentParser) -> None:
    _model_options(added)
    added.add_argument("--source", type=Path, help="default: the recipe's test split")
    added.add_argument("--reference", type=Path)
    added.add_argument("--language", help="target language, where the recipe does not say")
    added.add_argument("--output", type=Path, help="file for the translations")


def _translate(added: argparse.ArgumentParser) -> None:
    _model_options(added)
    _text_options(added)


def _score(added: argparse.ArgumentParser) -> None:
    _model_options(added)
    added.add_argument("--source", type=Path, required=True)
    added.add_argument("--target", type=Path, required=True)


def _export(added: argparse.ArgumentParser) -> None:
    added.add_argument("run", metavar="RUN", type=Path)
    added.add_argument("--output", type=Path, required=True, metavar="BASE")
    added.add_argument("--version", type=at_least(1), metavar="N", help="default: the next")
    _beam_options(added)
    added.add_argument(
        "--maximum-source-length", type=at_least(1), metavar="N", help="tokens; more are cut"
    )
    added.add_argument(
        "--maximum-extra-length",
        type=at_least(0),
        metavar="N",
        help="tokens that a translation may have more than its source",
    )
    added.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    added.add_argument("--weights", choices=("averaged", "last"), default="averaged")
    added.add_argument(
        "--signatures",
        type=names,
        metavar="NAME,...",
        help="default: serving_default,n_best,score,align",
    )
    added.add_argument(
        "--keep", type=at_least(1), metavar="N", help="remove all versions but the N highest"
    )
    added.add_argument(
        "--bleu-sentences",
        type=at_least(0),
        default=1000,
        metavar="N",
        help="test sentences, at most, that the model card's BLEU is measured on (1000)",
    )


def _check_export(added: argparse.ArgumentParser) -> None:
    added.add_argument("export", metavar="DIR", type=Path)
    added.add_argument(
        "--fuzz",
        type=at_least(0),
        default=0,
        metavar="N",
        help="send N random byte strings too, which takes a while",
    )


def _serve_client(added: argparse.ArgumentParser) -> None:
    added.add_argument(
        "url", metavar="URL", help="grpc://HOST:8500 or http://HOST:8501, or grpcs, https"
    )
    added.add_argument("--model", default="translator", metavar="NAME", help="default: translator")
    _text_options(added)
    added.add_argument("--batch-size", type=at_least(1), default=32, metavar="B")
    added.add_argument(
        "--concurrency", type=at_least(1), default=4, metavar="C", help="requests at a time"
    )
    added.add_argument("--timeout", type=positive, default=60.0, help="seconds of one request")
    added.add_argument(
        "--retry-seconds",
        type=not_negative,
        default=60.0,
        help="how long to try again while the server is unavailable",
    )


def _benchmark(added: argparse.ArgumentParser) -> None:
    kinds = added.add_subparsers(title="benchmarks", required=True, metavar="train|decode")
    for what, settings in _BENCHMARKS.items():
        kind = kinds.add_parser(what)
        for name, default in settings.items():
            option = f"--{name.replace('_', '-')}"
            if name == "dtype":
                kind.add_argument(option, choices=("float32", "bfloat16"), default=default)
            else:
                kind.add_argument(option, type=at_least(min(default, 1)), default=default)
        _json_option(kind)
        kind.set_defaults(what=what, settings=tuple(settings))


def _doctor(added: argparse.ArgumentParser) -> None:
    added.add_argument("run", metavar="RUN", type=Path)
    _sentences_option(added, "pairs that are looked at and translated (200)")


def _attention(added: argparse.ArgumentParser) -> None:
    added.add_argument("run", metavar="RUN", type=Path)
    added.add_argument("--source", required=True, metavar="TEXT", help="the sentence to translate")
    added.add_argument("--target", metavar="TEXT", help="default: the model's own translation")
    added.add_argument(
        "--output", type=Path, help="an .html or a .png file; default: RUN/attention.html"
    )


def _report(added: argparse.ArgumentParser) -> None:
    added.add_argument("run", metavar="RUN", type=Path)
    added.add_argument("--output", type=Path, help="default: RUN/report.html")
    added.add_argument(
        "--source", action="append", default=[], metavar="TEXT", help="a sentence to explore"
    )
    _sentences_option(added, "test sentences that are translated (200)")


def _sentences_option(added: argparse.ArgumentParser, words: str) -> None:
    added.add_argument("--sentences", type=at_least(1), default=200, metavar="N", help=words)


def _ablate(added: argparse.ArgumentParser) -> None:
    added.add_argument("recipe", metavar="RECIPE.yaml", help="the table's base, which has steps")
    added.add_argument("overrides", nargs="*", default=[], metavar="KEY.PATH=VALUE")
    added.add_argument(
        "--rows",
        type=names,
        default=("A", "B", "C", "D", "E"),
        metavar="A,B,...",
        help="groups of rows; also compatibility and length (A,B,C,D,E)",
    )
    added.add_argument(
        "--seeds", type=numbers(0), default=(1,), metavar="N,...", help="one training each (1)"
    )
    added.add_argument("--run-dir", type=Path, default=Path("runs/ablation"), metavar="DIR")
    added.add_argument("--markdown", action="store_true", help="print the table in Markdown")


def _complexity(added: argparse.ArgumentParser) -> None:
    added.add_argument(
        "--lengths",
        type=numbers(1),
        default=(256, 512, 1024, 2048, 4096, 8192),
        metavar="N,...",
        help="n, at a width in the middle",
    )
    added.add_argument(
        "--widths",
        type=numbers(1),
        default=(64, 128, 256, 512, 1024),
        metavar="D,...",
        help="d, at a length in the middle",
    )
    for name, default, words in (
        ("window", 128, "r of restricted self-attention"),
        ("chunk", 256, "queries at a time of chunked self-attention"),
        ("kernel", 3, "k of the convolutions"),
        ("repeats", 5, "rounds, of which the fastest counts"),
    ):
        words = f"{words} ({default})"
        added.add_argument(f"--{name}", type=at_least(1), default=default, help=words)
    added.add_argument("--layers", type=names, metavar="NAME,...", help="default: all kinds")
    added.add_argument("--backward", action="store_true", help="with the gradients")
    added.add_argument(
        "--no-memory", dest="memory", action="store_false", help="leave out the peaks of memory"
    )
    added.add_argument("--output", type=Path, metavar="PLOT", help="a .png, .svg or .pdf file")


_OPTIONS: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "demo": _demo,
    "prepare": _prepare,
    "train": _train,
    "average": _average,
    "import-marian": _import_marian,
    "evaluate": _evaluate,
    "translate": _translate,
    "score": _score,
    "export": _export,
    "check-export": _check_export,
    "serve-client": _serve_client,
    "benchmark": _benchmark,
    "doctor": _doctor,
    "attention": _attention,
    "report": _report,
    "ablate": _ablate,
    "complexity": _complexity,
}
