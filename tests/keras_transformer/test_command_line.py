"""What the command line understands, without running any command."""

from pathlib import Path

import pytest

from keras_transformer.cli import COMMANDS
from keras_transformer.command_line import command_line

REQUIRED = {
    "demo": [],
    "prepare": ["recipe.yaml"],
    "train": ["recipe.yaml"],
    "average": ["run"],
    "import-marian": ["opus-mt-en-de", "--run-dir", "run"],
    "evaluate": ["run"],
    "translate": ["run"],
    "score": ["run", "--source", "s", "--target", "t"],
    "export": ["run", "--output", "base"],
    "check-export": ["base"],
    "serve-client": ["grpc://127.0.0.1:8500"],
    "benchmark": ["train"],
    "doctor": ["run"],
    "attention": ["run", "--source", "One."],
    "report": ["run"],
    "ablate": ["recipe.yaml"],
    "complexity": [],
}


def parse(*words: str):
    return command_line(COMMANDS).parse_args(words)


def refused(capsys, *words: str) -> str:
    """The one line that says what is wrong."""
    with pytest.raises(SystemExit) as error:
        parse(*words)
    assert error.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.endswith("\n") and captured.err.count("\n") == 1
    return captured.err[:-1]


def test_the_commands_are_the_functions_documented_in_one_line():
    assert set(REQUIRED) == set(COMMANDS)
    for function in COMMANDS.values():
        assert function.__doc__ and "\n" not in function.__doc__.strip()


@pytest.mark.parametrize("name", REQUIRED)
def test_every_command_runs_its_function_and_prints_json_on_request(name):
    options = parse(name, *REQUIRED[name])
    assert options.command is COMMANDS[name] and options.json is False
    assert parse(name, *REQUIRED[name], "--json").json is True


@pytest.mark.parametrize("name", [None, *REQUIRED])
def test_every_command_has_help(capsys, name):
    with pytest.raises(SystemExit) as done:
        parse(*([name] if name else []), "--help")
    assert done.value.code == 0
    captured = capsys.readouterr()
    assert captured.err == "" and captured.out.startswith("usage: keras-transformer")
    for each in REQUIRED if name is None else ():
        assert f"\n    {each}" in captured.out


# Arguments ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["r.yaml", "--run-dir", "run", "a.b=1", "c=2"],
        ["r.yaml", "a.b=1", "c=2", "--run-dir", "run"],
        ["--run-dir", "run", "r.yaml", "a.b=1", "c=2"],
        ["r.yaml", "a.b=1", "--run-dir", "run", "c=2"],
        ["r.yaml", "--run-dir=run", "--json", "a.b=1", "c=2"],
    ],
)
def test_overrides_of_a_recipe_stand_anywhere_after_it(words):
    options = parse("train", *words)
    assert options.recipe == "r.yaml" and options.run_dir == Path("run")
    assert options.overrides == ["a.b=1", "c=2"]


def test_defaults():
    assert parse("train", "r.yaml").overrides == []
    assert parse("train", "r.yaml").run_dir is None
    assert parse("demo").run_dir == Path("runs/demo")
    translate = parse("translate", "run")
    assert translate.input is translate.output is translate.n_best is None
    assert translate.beam_size is translate.alpha is None
    assert parse("average", "run").last is None
    assert parse("doctor", "run").sentences == parse("report", "run").sentences == 200
    assert parse("ablate", "r.yaml").rows == ("A", "B", "C", "D", "E")
    assert parse("export", "run", "--output", "base").version is None


def test_values():
    words = "--beam-size 5 --alpha 0.7 --n-best 2 --input a --output b"
    options = parse("translate", "run", *words.split())
    assert (options.model, options.beam_size, options.alpha) == (Path("run"), 5, 0.7)
    assert (options.n_best, options.input, options.output) == (2, Path("a"), Path("b"))
    words = "--source a --reference b --language de --output c"
    options = parse("evaluate", "run", *words.split())
    assert (options.source, options.reference, options.language) == (Path("a"), Path("b"), "de")
    options = parse("ablate", "r.yaml", "a.b=1", "--rows", "A,length", "--seeds", "1,2")
    assert (options.rows, options.seeds) == (("A", "length"), (1, 2))
    assert options.overrides == ["a.b=1"] and options.run_dir == Path("runs/ablation")
    options = parse("complexity", "--lengths", "8,16", "--no-memory", "--layers", "recurrent")
    assert (options.lengths, options.memory, options.layers) == ((8, 16), False, ("recurrent",))
    assert parse("report", "run", "--source", "a", "--source", "b").source == ["a", "b"]
    assert parse("demo", "--minutes", "0.5").minutes == 0.5
    assert parse("export", "run", "--output", "base", "--version", "7").version == 7


@pytest.mark.parametrize("what", ["train", "decode"])
def test_a_benchmark_hands_on_just_its_settings(what):
    from trainers import benchmark

    options = parse("benchmark", what, "--layers", "2", "--dtype", "bfloat16", "--json")
    function = getattr(benchmark, f"measure_{what}")
    taken = function.__code__.co_varnames[: function.__code__.co_argcount]
    assert sorted(options.settings) == sorted(taken)
    assert options.layers == 2 and options.dtype == "bfloat16" and options.threads == 0
    assert parse("benchmark", what, "--threads", "0").threads == 0


# Bad input ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "the following arguments are required: COMMAND"),
        ("trian", "argument COMMAND: invalid choice: 'trian' (choose from"),
        ("translate", "the following arguments are required: RUN_OR_EXPORT"),
        ("score run --source s", "the following arguments are required: --target"),
        ("export run", "the following arguments are required: --output"),
        ("translate run --wrong 1", "unrecognized arguments: --wrong 1"),
        ("translate run another", "unrecognized arguments: another"),
        ("train r.yaml --run-dir run --wrong", "unrecognized arguments: --wrong"),
        ("translate run --alpha", "argument --alpha: expected one argument"),
        ("attention run", "the following arguments are required: --source"),
        ("ablate r.yaml --seeds 1,x", "argument --seeds: must be a whole number, at least 0"),
        ("complexity --lengths 0,8", "argument --lengths: must be a whole number, at least 1"),
        ("benchmark", "the following arguments are required: train|decode"),
        ("benchmark walk", "argument train|decode: invalid choice: 'walk'"),
        ("benchmark train --dtype int8", "argument --dtype: invalid choice: 'int8'"),
    ],
)
def test_what_is_not_understood_is_said_in_one_line(capsys, words, message):
    line = refused(capsys, *words.split())
    assert line.startswith("keras-transformer") and message in line
    assert line.endswith("--help")


@pytest.mark.parametrize("value", ["high", "-0.1", "nan", "inf", ""])
@pytest.mark.parametrize("command", ["translate", "evaluate", "export"])
def test_a_length_penalty_is_a_number_from_0_on(capsys, command, value):
    line = refused(capsys, command, *REQUIRED[command], f"--alpha={value}")
    expected = f"argument --alpha: must be a finite number, at least 0. Received: {value};"
    assert expected in line


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", ""])
@pytest.mark.parametrize(
    "words",
    [
        "translate run --beam-size",
        "translate run --n-best",
        "average run --last",
        "export run --output base --version",
        "benchmark train --layers",
        "benchmark decode --repeats",
    ],
)
def test_a_count_is_a_whole_number_from_1_on(capsys, words, value):
    line = refused(capsys, *words.split(), value)
    option = words.split()[-1]
    assert f"argument {option}: must be a whole number, at least 1. Received: {value}" in line
