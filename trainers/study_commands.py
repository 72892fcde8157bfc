"""The commands to understand by: `doctor`, `attention`, `report`, `ablate`, `complexity`."""

from __future__ import annotations

import argparse
import signal

from keras_transformer.command_io import (
    check_output,
    print_json,
    print_result,
    progress_on_stderr,
    say,
    write_lines,
)


def doctor(options: argparse.Namespace) -> int:
    """Probes a run for the classic faults; exit code 1 where one is found."""
    from keras_transformer.diagnosis.finding import faults
    from trainers.examination import examine

    findings = examine(options.run, options.sentences)
    found = faults(findings)
    if options.json:
        probes = [finding.as_dict() for finding in findings]
        print_json({"ok": not found, "faults": found, "probes": probes})
        return 1 if found else 0
    marks = {"ok": "ok   ", "fault": "FAULT", "unknown": "?    "}
    for finding in findings:
        lines = [f"{marks[finding.state]} {finding.name}: {finding.detail}"]
        if finding.state == "fault":
            lines += [f"      bound: {finding.bound}", f"      remedy: {finding.remedy}"]
        write_lines(None, lines)
    unknown = sum(finding.state == "unknown" for finding in findings)
    end = f"{len(found)} faults found" if len(found) != 1 else "1 fault found"
    write_lines(None, [f"{end} by {len(findings)} probes, {unknown} of which could not tell"])
    return 1 if found else 0


def attention(options: argparse.Namespace) -> int:
    """Writes heat maps of every layer and head for one sentence."""
    from trainers.attention_page import check_attention_output, write_attention

    check_attention_output(options.output)
    path = write_attention(options.run, options.source, options.target, options.output)
    return print_result(options, {"path": str(path)}, str(path))


def report(options: argparse.Namespace) -> int:
    """Writes one HTML page about a run, to be read without a network."""
    check_output(options.output)
    from trainers.report import write_report

    path = write_report(options.run, options.output, options.sentences, options.source)
    return print_result(options, {"path": str(path)}, str(path))


def ablate(options: argparse.Namespace) -> int:
    """Trains and measures the rows of the paper's table 3; the same command again resumes."""
    from trainers import ablation
    from trainers.ablation_table import render
    from trainers.recipe import load_recipe

    recipe = load_recipe(options.recipe, options.overrides)
    with progress_on_stderr():
        result = ablation.ablate(recipe, options.rows, options.seeds, options.run_dir)
    print_result(options, result, render(result, options.markdown))
    if result["stopped_by"] is None:
        return 0
    say("stopped by a signal; the same command goes on")
    return 128 + signal.Signals[result["stopped_by"]]


def complexity(options: argparse.Namespace) -> int:
    """Measures the paper's table 1: time, memory and path length of each kind of layer."""
    from keras_transformer.diagnosis.complexity import measure_complexity
    from keras_transformer.diagnosis.complexity_table import (
        check_picture_path,
        complexity_table,
        plot_complexity,
    )

    if options.output is not None:
        check_picture_path(options.output)
    result = measure_complexity(
        options.lengths,
        options.widths,
        options.window,
        options.layers,
        chunk=options.chunk,
        kernel=options.kernel,
        repeats=options.repeats,
        backward=options.backward,
        memory=options.memory,
        progress=say,
    )
    # First of all what took minutes to measure.
    code = print_result(options, result, complexity_table(result))
    if options.output is not None:
        plot_complexity(result, options.output)
        say(f"{options.output} shows them")
    return code
