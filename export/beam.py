"""Translates a corpus of many files with an export, on one machine or on many, by Apache Beam.

    python -m export.beam --input 'corpus-*.txt' --output translated --export exports/demo

Every file becomes one of the same name with as many lines, in the same order. Beam's own flags,
such as `--runner`, may follow; without them the pipeline runs in this process.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import os
import sys
import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

_PROGRAM = "export.beam"


class Corpus(NamedTuple):
    """What is to be translated: paths of shards, of a version, and of a folder for the results."""

    shards: list[str]
    export: str
    output: str


class Counts(NamedTuple):
    """What became of the lines: all, those cut to the export's limit, and those that failed."""

    lines: int
    truncated: int
    failed: int


def find_corpus(pattern: str, output: str, export: str) -> Corpus:
    """Checks what a pipeline would stumble over, before it starts.

    Args:
        pattern: str, of files in any of Beam's file systems, such as `gs://bucket/corpus-*.txt`.
        output: str, path of a folder, which need not exist.
        export: str, path of a version, or of a folder of versions, of which the highest is taken.

    Returns:
        A `Corpus`, local paths made absolute.

    Raises:
        InputError: where no file matches, two have one name, the output is where the input is,
            there is no export, or a path is of a file system that Beam does not know.
    """
    from export.beam_files import FAILED, shard_name
    from keras_transformer.errors import InputError

    pattern, output, export = map(_absolute, (pattern, output, export))
    try:
        shards = sorted(_match(pattern))
        version = _version(export)
    except (ValueError, OSError) as error:  # an unknown scheme, or no right to read
        raise InputError(f"Input and export must be readable. Received: {error}") from error
    if not shards or shards == [pattern] and os.path.isdir(pattern):
        raise InputError(
            f"The input must be a pattern that matches files, such as corpus-*.txt. "
            f"Received: {pattern}"
        )
    names = [shard_name(path) for path in shards]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InputError(
            f"Every input file becomes an output file of its name, so names must differ. "
            f"Received: {pattern} with more than one {min(twice)}"
        )
    if FAILED in names:
        raise InputError(
            f"No input file may have the name of the folder for lines that fail. "
            f"Received: {shards[names.index(FAILED)]}"
        )
    if any(
        os.path.realpath(path) == os.path.realpath(f"{output}/{shard_name(path)}")
        for path in shards
    ):
        raise InputError(
            f"The output must be another folder than that of the input. Received: {output}"
        )
    if version is None:
        raise InputError(
            f"An export must hold saved_model.pb, itself or in a numbered folder. "
            f"Received: {export}"
        )
    return Corpus(shards, version, output)


def build(pipeline: Any, corpus: Corpus, handler: Any, temporary: str) -> Any:
    """Adds the translation of a corpus to a pipeline.

    Args:
        pipeline: `beam.Pipeline`.
        corpus: `Corpus`.
        handler: `export.beam_model.TranslationHandler`.
        temporary: str, path of a folder below the output.

    Returns:
        The `PCollection` of the names of the shards that are written.
    """
    import apache_beam as beam
    from apache_beam.ml.inference.base import KeyedModelHandler, RunInference

    from export.beam_files import ReadShard, WriteBlock, WriteShard

    lines = (
        pipeline
        | "Shards" >> beam.Create(corpus.shards)
        | "OneBundleEach" >> beam.Reshuffle()
        | "Read" >> beam.ParDo(ReadShard()).with_outputs(ReadShard.LENGTHS, main="lines")
    )
    blocks = (
        lines.lines
        # A shard is read by one worker; its lines are translated by all.
        | "Spread" >> beam.Reshuffle()
        | "Translate" >> RunInference(KeyedModelHandler(handler))
        | "KeyByBlock" >> beam.Map(WriteBlock.key)
        | "GroupBlocks" >> beam.GroupByKey()
        | "WriteBlocks" >> beam.ParDo(WriteBlock(temporary))
    )
    return (
        {"blocks": blocks, "lengths": lines[ReadShard.LENGTHS]}
        | "GroupShards" >> beam.CoGroupByKey()
        | "WriteShards" >> beam.ParDo(WriteShard(corpus.output, temporary))
    )


def translate_corpus(
    pattern: str,
    output: str,
    export: str,
    batch_size: int = 64,
    beam_flags: Sequence[str] = (),
) -> Counts:
    """Translates a corpus and waits until it is done.

    Args:
        pattern: str, as `find_corpus`.
        output: str, path of a folder. Its files of the same names are replaced, each at once.
        export: str, as `find_corpus`.
        batch_size: int. Lines that are translated at once.
        beam_flags: sequence of str, Beam's own flags.

    Returns:
        `Counts`.

    Raises:
        InputError: as `find_corpus`, or where `batch_size` is no whole number above 0.
    """
    from keras_transformer.errors import check_sizes

    check_sizes(batch_size=batch_size)
    corpus = find_corpus(pattern, output, export)
    from export.beam_model import TranslationHandler

    return run(corpus, TranslationHandler(corpus.export, batch_size), beam_flags)


def run(corpus: Corpus, handler: Any, beam_flags: Sequence[str] = ()) -> Counts:
    """Runs the pipeline with a model handler and waits until it is done.

    Args:
        corpus: `Corpus`.
        handler: `export.beam_model.TranslationHandler`.
        beam_flags: sequence of str, Beam's own flags.

    Returns:
        `Counts`.

    Raises:
        InputError: where Beam has no such runner or refuses a flag, or the output is not writable.
    """
    import apache_beam as beam
    from apache_beam.internal.cloudpickle import cloudpickle
    from apache_beam.io.filesystems import FileSystems
    from apache_beam.options.pipeline_options import PipelineOptions

    from export import beam_files, beam_model
    from keras_transformer.errors import InputError

    # Sent as they are, so that this project need not be installed on the workers.
    for module in (beam_files, beam_model):
        cloudpickle.register_pickle_by_value(module)
    _refuse_unknown_flags(beam_flags)
    try:
        pipeline = beam.Pipeline(options=PipelineOptions([*_local_flags(beam_flags), *beam_flags]))
    except (ValueError, ImportError) as error:
        raise InputError(
            f"Beam must be able to use its flags. Received: {' '.join(beam_flags)} ({error})"
        ) from error
    # Below the output, because a file is renamed within a file system.
    temporary = f"{corpus.output}/writing-{uuid.uuid4().hex}"
    try:
        FileSystems.mkdirs(temporary)
    except OSError as error:
        raise InputError(
            f"The output must be a folder that can be written to. Received: {corpus.output} "
            f"({error})"
        ) from error
    try:
        build(pipeline, corpus, handler, temporary)
        result = pipeline.run()
        result.wait_until_finish()
    finally:
        beam_files.remove_folder(temporary)
    # Not from the metrics, which some runners lack: an exit code depends on it.
    failures = [
        f"{corpus.output}/{beam_files.failed_name(beam_files.shard_name(path))}"
        for path in corpus.shards
    ]
    return Counts(
        lines=_metric(result, "lines"),
        truncated=_metric(result, "truncated_lines"),
        failed=sum(map(beam_files.count_lines, failures)),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        arguments: sequence of str; `None` means those of the process.

    Returns:
        0 where every line was translated, 1 where lines or the pipeline failed, 2 for bad input.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m {_PROGRAM}",
        description="Translates a corpus of many files with an export, by Apache Beam.",
        epilog="Beam's own flags, such as --runner, may follow. Paths may be of any file system "
        "that Beam knows, such as gs://bucket/corpus-*.txt.",
        allow_abbrev=False,
    )
    parser.add_argument("--input", required=True, metavar="PATTERN", help="of the files to read")
    parser.add_argument("--output", required=True, metavar="DIR", help="folder to write to")
    parser.add_argument("--export", required=True, metavar="DIR", help="of `export`")
    parser.add_argument("--batch-size", type=int, default=64, help="lines at once (default: 64)")
    options, beam_flags = parser.parse_known_args(arguments)
    if importlib.util.find_spec("apache_beam") is None:
        return _complain("Apache Beam must be installed: pip install 'keras-transformer[beam]'", 2)
    from keras_transformer.errors import InputError

    try:
        counts = translate_corpus(
            options.input, options.output, options.export, options.batch_size, beam_flags
        )
    except InputError as error:
        return _complain(str(error), 2)
    except KeyboardInterrupt:
        return _complain("interrupted", 130)
    except Exception as error:  # whatever a step of the pipeline raises, on whichever runner
        if "KeyboardInterrupt" in str(error):
            return _complain("interrupted", 130)
        message = str(error).strip().split("\n")[0] or "no message"
        return _complain(f"the pipeline failed: {type(error).__name__}: {message}", 1)
    print(
        f"{counts.lines} lines, of which {counts.truncated} were cut to the export's limit",
        file=sys.stderr,
    )
    if counts.failed:
        return _complain(
            f"Lines that could not be translated and are empty: {counts.failed}; "
            f"{options.output}/failed tells which and why",
            1,
        )
    return 0


def _complain(message: str, code: int) -> int:
    print(f"{_PROGRAM}: {message}", file=sys.stderr)
    return code


def _absolute(path: str) -> str:
    """Workers may have another current directory."""
    return path.rstrip("/") if "://" in path else os.path.abspath(path)


def _match(pattern: str) -> list[str]:
    from apache_beam.io.filesystems import FileSystems

    return [file.path for file in FileSystems.match([pattern])[0].metadata_list]


def _version(export: str) -> str | None:
    """The version that a path means: itself, or the highest in a folder of versions."""
    from export.publish import version_of

    if _match(f"{export}/saved_model.pb"):
        return export
    versions = [
        path.removesuffix("/saved_model.pb") for path in _match(f"{export}/*/saved_model.pb")
    ]
    numbered = {version_of(path.rpartition("/")[2]): path for path in versions}
    numbered.pop(None, None)
    return numbered[max(numbered)] if numbered else None


def _local_flags(beam_flags: Sequence[str]) -> list[str]:
    """Flags for a pipeline without a runner of its own: this process, as Beam's default was.

    Beam's default runner now is a program that it downloads first.
    """
    if any(flag.startswith("--runner") for flag in beam_flags):
        return []
    return ["--runner=FnApiRunner"]


def _refuse_unknown_flags(beam_flags: Sequence[str]) -> None:
    """Beam itself drops what it does not know; a runner that is named may have flags of its own."""
    from apache_beam.options import pipeline_options

    from keras_transformer.errors import InputError

    if any(flag.startswith("--runner") for flag in beam_flags):
        return
    parser = argparse.ArgumentParser(add_help=False, conflict_handler="resolve", allow_abbrev=False)
    for options in pipeline_options.PipelineOptions.__subclasses__():
        if hasattr(options, "_add_argparse_args"):  # where Beam has options declare their flags
            options._add_argparse_args(parser)
    _, unknown = parser.parse_known_args(list(beam_flags))
    if unknown:
        raise InputError(
            f"A flag must be one of --input, --output, --export, --batch-size or Beam's. "
            f"Received: {' '.join(unknown)}"
        )


def _metric(result: Any, name: str) -> int:
    from apache_beam.metrics import MetricsFilter

    from export.beam_model import METRICS

    found = result.metrics().query(MetricsFilter().with_namespace(METRICS).with_name(name))
    return sum(counter.result for counter in found["counters"])


if __name__ == "__main__":
    # Beam writes to the root logger what it can do without; its other loggers have names.
    logging.getLogger().addFilter(lambda record: record.levelno >= logging.ERROR)
    sys.exit(main())
