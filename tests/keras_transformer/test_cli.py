"""Every command, by `main([...])` here and by `python -m keras_transformer` elsewhere."""

import functools
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import sacrebleu
from small_translators import SENTENCES, numbers, numbers_recipe_text

from export import loaded
from keras_transformer import cli
from keras_transformer.cli import main
from keras_transformer.errors import InputError
from trainers.run import RunDirectory

ROOT = Path(__file__).parents[2]
# Lines end with LF or CRLF; all else is white space within a line. The last line has no end.
ODD_LINES = (
    "one two\n\nsix\r\n   \nfive\rseven\nthree\u2028four\ntwo\u0085one\x0b\x0csix\x1c\n\r\n\u00a0\n"
    "eight\ttwo\nlast six"
).encode()
READ_AS = ["one two", "", "six", "", "five seven", "three four", "two one six", "", "", "eight two"]
READ_AS += ["last six"]


def environment(**changes) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    return {**kept, "PYTHONPATH": str(ROOT), **changes}


def in_new_process(*words, input=b"", **changes) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "keras_transformer", *map(str, words)],
        input=input,
        env=environment(**changes),
        cwd="/",
        capture_output=True,
    )


@pytest.fixture(scope="module", autouse=True)
def models_are_loaded_once():
    """Or most of the time would go into loading the same models again for each command."""
    load, kept = RunDirectory.load_translator, {}

    def load_once(run, beam_size=None, alpha=None):
        decoding = run.load_recipe().decoding
        beam_size = decoding.beam_size if beam_size is None else beam_size
        alpha = decoding.alpha if alpha is None else alpha
        key = (run.path, beam_size, alpha)
        if key not in kept:
            kept[key] = load(run, beam_size=beam_size, alpha=alpha)
        return kept[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunDirectory, "load_translator", load_once)
        patch.setattr(loaded, "ExportedTranslator", functools.cache(loaded.ExportedTranslator))
        yield


@pytest.fixture
def run_command(capfd):
    """`run_command(*words)`: exit code, stdout and stderr of a command in this process."""

    def run(*words):
        capfd.readouterr()
        code = main([str(word) for word in words])
        return (code, *capfd.readouterr())

    return run


@pytest.fixture
def read_json(run_command):
    """`read_json(*words)`: the one JSON object that a command prints."""

    def run(*words):
        code, output, errors = run_command(*words, "--json")
        assert code == 0, errors
        assert output.endswith("\n") and output.count("\n") == 1
        value = json.loads(output)
        assert isinstance(value, dict)
        return value

    return run


@pytest.fixture
def refuse(run_command):
    """`refuse(*words)`: the one line on stderr of a command that ends with code 2."""

    def run(*words):
        code, output, errors = run_command(*words)
        assert (code, output) == (2, "")
        assert errors.startswith("keras-transformer: ") and errors.count("\n") == 1
        assert "Received: " in errors
        return errors

    return run


@pytest.fixture(scope="module")
def expected(numbers_run):
    """What Python translates, by the run's recipe."""
    texts = [*SENTENCES, *READ_AS]
    return dict(zip(texts, numbers_run.load_translator().translate(texts), strict=True))


@pytest.fixture
def copied_run(numbers_run, tmp_path):
    return RunDirectory(shutil.copytree(numbers_run.path, tmp_path / "run"))


def write(path: Path, lines: list[str]) -> Path:
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path


# translate ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["run", "export"])
def test_odd_lines_through_stdin_and_stdout(numbers_run, numbers_export, expected, kind):
    path = {"run": numbers_run.path, "export": numbers_export}[kind]
    # Output is UTF-8 whatever the terminal's encoding is.
    done = in_new_process("translate", path, input=ODD_LINES, PYTHONIOENCODING="latin-1")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == "".join(f"{expected[text][0].text}\n" for text in READ_AS)


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_line_ends_change_nothing(numbers_export, run_command, expected, tmp_path, ending, last):
    texts = ["six", "", "one two", "two"]
    content = ending.join(text.encode() for text in texts) + (ending if last else b"")
    (tmp_path / "input").write_bytes(content)
    code, output, errors = run_command("translate", numbers_export, "--input", tmp_path / "input")
    assert (code, errors) == (0, "")
    assert output == "".join(f"{expected[text][0].text}\n" for text in texts)


@pytest.mark.parametrize(("content", "lines"), [(b"", 0), (b"\n", 1), (b"\n\n", 2), (b"two", 1)])
def test_as_many_lines_out_as_in(numbers_export, run_command, tmp_path, content, lines):
    (tmp_path / "input").write_bytes(content)
    words = ("--input", tmp_path / "input", "--output", tmp_path / "output")
    assert run_command("translate", numbers_export, *words) == (0, "", "")
    assert (tmp_path / "output").read_bytes().count(b"\n") == lines


def test_n_best_is_line_score_text(numbers_run, run_command, tmp_path):
    texts = ["six five", "", "two"]
    file = write(tmp_path / "input", texts)
    code, output, _ = run_command("translate", numbers_run.path, "--input", file, "--n-best", 5)
    assert code == 0
    # The beam grows with the number of hypotheses that are asked for.
    found = numbers_run.load_translator(beam_size=5).translate(texts)
    assert [len(each) for each in found] == [5, 1, 5]
    rows = [line.split("\t") for line in output.split("\n")[:-1]]
    assert [(number, text) for number, _, text in rows] == [
        (str(number), each.text) for number, best in enumerate(found, 1) for each in best
    ]
    scores = [each.score for best in found for each in best]
    assert [float(score) for _, score, _ in rows] == pytest.approx(scores, abs=1e-4)


def test_n_best_of_an_export_are_its_beam_at_most(numbers_export, run_command, refuse, tmp_path):
    file = write(tmp_path / "input", ["two", "six five"])
    code, output, _ = run_command("translate", numbers_export, "--input", file, "--n-best", 2)
    assert code == 0
    assert [line.split("\t")[0] for line in output.split("\n")[:-1]] == ["1", "1", "2", "2"]
    line = refuse("translate", numbers_export, "--input", file, "--n-best", 4)
    assert "--n-best must be at most the export's 3. Received: 4" in line


def test_translate_prints_json(numbers_export, read_json, expected, tmp_path):
    texts = ["six five", "", "🙂 </s> ß"]
    file = write(tmp_path / "input", texts)
    for count, option in ((1, ()), (3, ("--n-best", 3))):
        result = read_json("translate", numbers_export, "--input", file, *option)
        assert list(result) == ["translations"]
        for found, text in zip(result["translations"], texts, strict=True):
            best = expected[text][:count]
            assert [each["text"] for each in found] == [each.text for each in best]
            scores = [each.score for each in best]
            assert [each["score"] for each in found] == pytest.approx(scores, abs=1e-4)


def test_translate_writes_the_file_and_prints_json_too(numbers_export, read_json, tmp_path):
    file, output = write(tmp_path / "input", ["two"]), tmp_path / "output"
    result = read_json("translate", numbers_export, "--input", file, "--output", output)
    assert result["translations"][0][0]["text"] == "zwei" and output.read_text() == "zwei\n"


def test_beam_size_and_alpha_are_the_search_s(numbers_run, read_json, tmp_path):
    texts = ["six five", "three seven one five"]
    file = write(tmp_path / "input", texts)
    words = ("translate", numbers_run.path, "--input", file, "--beam-size", 1, "--alpha", 0)
    found = read_json(*words)["translations"]
    (best,), (second,) = numbers_run.load_translator(beam_size=1, alpha=0.0).translate(texts)
    assert [each[0]["text"] for each in found] == [best.text, second.text]
    scores = [best.score, second.score]
    assert [each[0]["score"] for each in found] == pytest.approx(scores, abs=1e-4)


def test_a_line_that_is_cut_is_named(numbers_run, run_command, tmp_path):
    file = write(tmp_path / "input", ["two", " ".join(["six"] * 41), "one", " ".join(["two"] * 40)])
    code, output, errors = run_command("translate", numbers_run.path, "--input", file)
    assert code == 0 and output.count("\n") == 4
    assert errors == "source line 2 is cut to 40 tokens\n"


def test_a_reader_that_leaves_ends_the_command_quietly(numbers_export, tmp_path):
    file = write(tmp_path / "input", ["two"] * 10)
    process = subprocess.Popen(
        [sys.executable, "-m", "keras_transformer", "translate", numbers_export, "--input", file],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), errors) == (1, b"")


# Bad input ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("translate", "no/such/run"), "RUN_OR_EXPORT must be a run directory"),
        (("trian",), "invalid choice: 'trian'"),
    ],
)
def test_bad_input_in_a_new_process(words, message):
    done = in_new_process(*words)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.count(b"\n") == 1 and message in done.stderr.decode()


@pytest.mark.parametrize("command", ["translate", "evaluate", "score", "average", "export"])
def test_a_missing_run_is_refused(refuse, tmp_path, command):
    missing = tmp_path / "missing"
    needed = {"score": ("--source", "a", "--target", "b"), "export": ("--output", tmp_path / "out")}
    line = refuse(command, missing, *needed.get(command, ()))
    assert line.endswith(f"Received: {missing}\n")
    assert not (tmp_path / "out").exists()


def test_a_run_without_a_model_is_refused(refuse, copied_run, tmp_path):
    copied_run.model_path.unlink()
    line = refuse("translate", copied_run.path, "--input", write(tmp_path / "input", ["two"]))
    assert "must hold a model.keras" in line


def test_a_missing_or_unreadable_input_is_refused(refuse, numbers_run, tmp_path):
    assert "no such file" in refuse("translate", numbers_run.path, "--input", tmp_path / "none")
    file = tmp_path / "input"
    file.write_bytes(b"two\nsix \xff five\n")
    assert f"{file}, line 2" in refuse("translate", numbers_run.path, "--input", file)


def test_an_output_that_cannot_be_written_is_refused(refuse, numbers_export, tmp_path):
    file = write(tmp_path / "input", ["two"])
    line = refuse("translate", numbers_export, "--input", file, "--output", tmp_path)
    assert "--output must be a file that can be written" in line


@pytest.mark.parametrize("option", [("--beam-size", 2), ("--alpha", 0.5)])
def test_the_search_of_an_export_is_fixed(refuse, numbers_export, option):
    line = refuse("translate", numbers_export, *option)
    assert "--beam-size and --alpha are part of an export" in line


def test_impossible_searches_are_refused(refuse, numbers_run, tmp_path):
    file = write(tmp_path / "input", ["two"])
    words = ("translate", numbers_run.path, "--input", file)
    line = refuse(*words, "--beam-size", 2, "--n-best", 3)
    assert "--n-best must be at most --beam-size, 2. Received: 3" in line


def test_an_error_within_is_not_taken_for_bad_input(monkeypatch, numbers_run):
    """A bug shows itself, with its traceback."""

    def fail(*arguments, **options):
        raise ValueError("a bug")

    monkeypatch.setattr(RunDirectory, "load_translator", fail)
    with pytest.raises(ValueError, match="a bug"):
        main(["translate", str(numbers_run.path), "--input", os.devnull])


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (InputError("x must be 1. Received: 2"), 2, "keras-transformer: x must be 1. Received: 2"),
        (KeyboardInterrupt(), 130, "keras-transformer: interrupted"),
    ],
)
def test_exit_codes_of_what_stops_a_command(monkeypatch, run_command, error, code, line):
    def fail(options):
        raise error

    monkeypatch.setitem(cli.COMMANDS, "average", fail)
    assert run_command("average", "run") == (code, "", f"{line}\n")


# evaluate -----------------------------------------------------------------------------------------

EVALUATION_KEYS = {
    "bleu",
    "bleu_signature",
    "chrf",
    "sentences",
    "seconds",
    "target_tokens_per_second",
}


@pytest.mark.parametrize("kind", ["run", "export"])
def test_evaluate_scores_with_sacrebleu(numbers_run, numbers_export, read_json, tmp_path, kind):
    sources, references = numbers(9, seed=6)
    output = tmp_path / "translations"
    if kind == "run":  # by default the recipe's test split
        result = read_json("evaluate", numbers_run.path, "--output", output)
    else:
        files = ("--source", write(tmp_path / "source", sources))
        files += ("--reference", write(tmp_path / "reference", references))
        words = (*files, "--language", "de", "--output", output)
        result = read_json("evaluate", numbers_export, *words)
    assert result.keys() >= EVALUATION_KEYS
    translations = output.read_text().split("\n")[:-1]
    assert translations == [
        best[0].text for best in numbers_run.load_translator().translate(sources)
    ]
    bleu = sacrebleu.BLEU()
    assert result["bleu"] == pytest.approx(bleu.corpus_score(translations, [references]).score)
    assert result["bleu_signature"] == str(bleu.get_signature())
    chrf = sacrebleu.CHRF().corpus_score(translations, [references]).score
    assert result["chrf"] == pytest.approx(chrf)
    assert result["sentences"] == 9 and result["bleu"] > 20
    words = sum(len(text.split()) for text in translations)
    assert result["target_tokens_per_second"] == pytest.approx(words / result["seconds"])


def test_evaluate_prints_text(numbers_export, run_command, tmp_path):
    sources, references = numbers(4, seed=6)
    words = ("--source", write(tmp_path / "source", sources))
    words += ("--reference", write(tmp_path / "reference", references), "--language", "de")
    code, output, _ = run_command("evaluate", numbers_export, *words)
    assert code == 0 and output.startswith("BLEU ")
    for part in ("version:", "chrF ", "compound-split", "4 sentences in", "tokens per second"):
        assert part in output


def test_evaluate_refuses_what_does_not_fit(numbers_run, numbers_export, refuse, tmp_path):
    two, one = write(tmp_path / "two", ["two", "six"]), write(tmp_path / "one", ["zwei"])
    line = refuse("evaluate", numbers_run.path, "--source", two, "--reference", one)
    assert f"{two} with 2 lines and {one} with 1 lines" in line
    line = refuse("evaluate", numbers_run.path, "--source", two)
    assert "--source and --reference must be given together" in line
    line = refuse("evaluate", numbers_export, "--source", two, "--reference", two)
    assert "--language must name the target language" in line
    line = refuse("evaluate", numbers_export, "--language", "de")
    assert "An export is evaluated on --source and --reference" in line


# score --------------------------------------------------------------------------------------------


def test_score_prints_a_log_probability_for_each_pair(numbers_run, run_command, tmp_path):
    sources, targets = ["two", "", "six five"], ["zwei", "sechs", ""]
    words = ("score", numbers_run.path, "--source", write(tmp_path / "source", sources))
    words += ("--target", write(tmp_path / "target", targets))
    expected = numbers_run.load_translator().score(sources, targets)
    code, output, errors = run_command(*words)
    assert (code, errors) == (0, "")
    log_probabilities = [value for value, _ in expected]
    assert [float(line) for line in output.split("\n")[:-1]] == pytest.approx(
        log_probabilities, abs=1e-4
    )
    code, output, _ = run_command(*words, "--json")
    result = json.loads(output)
    assert result["log_probabilities"] == pytest.approx(log_probabilities, abs=1e-4)
    assert result["tokens"] == [count for _, count in expected] == [2, 2, 1]


def test_score_of_no_lines_prints_none(numbers_run, run_command, tmp_path):
    (tmp_path / "empty").touch()
    words = ("--source", tmp_path / "empty", "--target", tmp_path / "empty")
    assert run_command("score", numbers_run.path, *words) == (0, "", "")


def test_score_refuses_an_export_and_unlike_files(numbers_run, numbers_export, refuse, tmp_path):
    two, one = write(tmp_path / "two", ["two", "six"]), write(tmp_path / "one", ["zwei"])
    line = refuse("score", numbers_run.path, "--source", two, "--target", one)
    assert "2 lines" in line and "1 lines" in line
    line = refuse("score", numbers_export, "--source", two, "--target", two)
    assert "score needs a run directory" in line


# train, average, export, check-export, benchmark --------------------------------------------------


def test_train_prints_json_alone_on_stdout(refuse, numbers_run, tmp_path):
    recipe, run = tmp_path / "recipe.yaml", RunDirectory(tmp_path / "trained")
    recipe.write_text(numbers_recipe_text(numbers_run.path.parent / "corpus"))
    # The recipe, options and overrides in the order of the manual.
    words = ("train", recipe, "--run-dir", run.path, "training.validation_bleu_sentences=0")
    done = in_new_process(*words, "--json")
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.count(b"\n") == 1
    assert json.loads(done.stdout) == {"run_dir": str(run.path)}
    assert b"step 3" in done.stderr and b"loss" in done.stderr
    assert run.checkpoints().steps()[-1] == 3 and run.model_path.exists()
    assert run.load_recipe().training.validation_bleu_sentences == 0
    # The same run with another model.
    assert "model.d_model" in refuse(*words, "model.d_model=64")


def test_train_refuses_a_wrong_recipe(refuse, tmp_path):
    assert "does not exist" in refuse("train", tmp_path / "none.yaml")
    words = ("train", "tatoeba-en-de-small.yaml", "--run-dir", tmp_path / "run")
    line = refuse(*words, "training.minuets=1")
    assert "training.minuets" in line and "training.minutes" in line
    assert "KEY.PATH=VALUE" in refuse(*words, "minutes")
    assert not (tmp_path / "run").exists()


def test_a_run_that_diverges_ends_with_code_1(monkeypatch, run_command, tmp_path):
    from trainers.callbacks import TrainingDiverged
    from trainers.trainer import Trainer

    def diverge(self):
        print("a progress bar")
        raise TrainingDiverged("The loss became nan at step 3")

    monkeypatch.setattr(Trainer, "train", diverge)
    words = ("train", "tatoeba-en-de-small.yaml", "--run-dir", tmp_path / "run")
    code, output, errors = run_command(*words)
    assert (code, output) == (1, "")
    assert errors == "a progress bar\nkeras-transformer: The loss became nan at step 3\n"


def test_average_writes_the_model(read_json, refuse, copied_run):
    copied_run.model_path.unlink()
    for words, count in (((), 2), (("--last", 1), 1)):
        result = read_json("average", copied_run.path, *words)
        assert result == {"model": str(copied_run.model_path), "checkpoints": count}
        assert copied_run.model_path.exists()
    assert "2 checkpoints" in refuse("average", copied_run.path, "--last", 3)


@pytest.fixture(scope="module")
def exported_by_command(numbers_run, tmp_path_factory):
    """A run whose corpus is gone, exported with a search of its own."""
    folder = tmp_path_factory.mktemp("by command")
    run = RunDirectory(shutil.copytree(numbers_run.path, folder / "run"))
    text = run.recipe_path.read_text()
    run.recipe_path.write_text(text.replace("valid.en", "gone.en"))
    words = ("--output", folder / "base", "--version", "4", "--beam-size", "2", "--json")
    done = in_new_process("export", run.path, *words)
    return folder / "base", done


def test_export_writes_a_version(exported_by_command):
    base, done = exported_by_command
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout) == {"path": str(base / "4"), "version": 4}
    assert done.stdout.count(b"\n") == 1
    (line,) = done.stderr.decode().split("\n")[:-1]
    assert "without validation sentences" in line and "gone.en" in line
    assert {path.name for path in base.iterdir()} == {"4"}
    assert (base / "4" / "saved_model.pb").exists()


def test_what_export_wrote_passes_check_export(exported_by_command, read_json, run_command):
    base, _ = exported_by_command
    result = read_json("check-export", base)
    assert result.pop("ok") is True and len(result) >= 8
    assert all(gate["ok"] is True and gate["detail"] for gate in result.values())
    code, output, _ = run_command("check-export", base / "4")
    assert code == 0
    lines = output.split("\n")[:-1]
    assert len(lines) == len(result) and all(line.startswith("ok   ") for line in lines)


def test_export_never_overwrites(exported_by_command, numbers_run, refuse):
    base, _ = exported_by_command
    line = refuse("export", numbers_run.path, "--output", base, "--version", 4)
    assert "exports are not overwritten. Received: 4" in line


def test_a_gate_that_fails_ends_check_export_with_code_1(numbers_export, run_command, tmp_path):
    path = tmp_path / "1"
    shutil.copytree(numbers_export, path)
    shutil.rmtree(path / "assets.extra")
    code, output, _ = run_command("check-export", path, "--json")
    result = json.loads(output)
    assert code == 1 and result["ok"] is False and result["python_translator"]["ok"] is False
    assert result["session_loader"]["ok"] is True


def test_check_export_refuses_a_folder_without_one(refuse, tmp_path):
    assert "must hold saved_model.pb" in refuse("check-export", tmp_path)


TINY = {
    "train": "--layers 1 --d-model 16 --d-ff 16 --heads 2 --vocabulary-size 50 --batch 2 "
    "--length 5 --steps 2 --warm-up 1",
    "decode": "--layers 1 --d-model 16 --d-ff 16 --heads 2 --vocabulary-size 50 --batch 2 "
    "--source-length 5 --beam-size 2 --new-tokens 4 --repeats 2",
}


@pytest.mark.slow
@pytest.mark.parametrize("what", TINY)
def test_benchmarks_print_one_json_object(what):
    done = in_new_process("benchmark", what, *TINY[what].split(), "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.count(b"\n") == 1
    result = json.loads(done.stdout)
    assert result["benchmark"] == what and result["parameters"] > 0
    assert math.isfinite(result["target_tokens_per_second"])
    assert result["target_tokens_per_second"] > 0 and result["versions"]["tensorflow"]


@pytest.mark.slow
def test_impossible_sizes_of_a_benchmark_are_refused():
    words = TINY["train"].replace("--heads 2", "--heads 3").split()
    done = in_new_process("benchmark", "train", *words)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.count(b"\n") == 1 and b"d_model must be divisible" in done.stderr
