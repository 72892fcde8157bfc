"""Commands that read a model, by `main([...])` here and by `python -m` elsewhere."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import sacrebleu
from command_lines import ODD_LINES, READ_AS, environment, in_new_process, write
from small_translators import numbers

from keras_transformer import cli
from keras_transformer.cli import main
from keras_transformer.errors import InputError
from trainers.run import RunDirectory

pytestmark = pytest.mark.usefixtures("models_are_loaded_once")


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


@pytest.mark.parametrize("command", ["translate", "evaluate"])
def test_a_file_that_is_read_is_not_written_over(numbers_export, run_command, tmp_path, command):
    file = write(tmp_path / "lines", ["two"])
    words = {
        "translate": ("--input", file),
        "evaluate": ("--source", write(tmp_path / "other", ["zwei"]), "--reference", file),
    }
    code, _, errors = run_command(command, numbers_export, *words[command], "--output", file)
    assert code == 2 and "--output must be another file than those that are read" in errors
    assert file.read_text() == "two\n"


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


@pytest.mark.parametrize(
    "option", [("--beam-size", 2), ("--alpha", 0.5), ("--length-penalty", "power")]
)
def test_the_search_of_an_export_is_fixed(refuse, numbers_export, option):
    line = refuse("translate", numbers_export, *option)
    assert "--beam-size, --alpha and --length-penalty are part of an export" in line


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


@pytest.mark.parametrize("kind", ["run", "export"])
def test_score_prints_a_log_probability_for_each_pair(
    numbers_run, numbers_export, run_command, tmp_path, kind
):
    sources, targets = ["two", "", "six five"], ["zwei", "sechs", ""]
    path = {"run": numbers_run.path, "export": numbers_export}[kind]
    words = ("score", path, "--source", write(tmp_path / "source", sources))
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


def test_score_refuses_unlike_files(numbers_run, refuse, tmp_path):
    two, one = write(tmp_path / "two", ["two", "six"]), write(tmp_path / "one", ["zwei"])
    line = refuse("score", numbers_run.path, "--source", two, "--target", one)
    assert "2 lines" in line and "1 lines" in line


@pytest.mark.parametrize("kind", ["run", "export"])
def test_what_is_cut_is_told(numbers_run, numbers_export, run_command, tmp_path, kind):
    path = {"run": numbers_run.path, "export": numbers_export}[kind]
    limit = numbers_run.load_translator().maximum_source_length
    lines = ["two", " ".join(["two"] * (limit + 1)), ""]
    file = write(tmp_path / "lines", lines)
    code, output, errors = run_command("translate", path, "--input", file)
    assert (code, output.count("\n"), errors) == (0, 3, f"source line 2 is cut to {limit} tokens\n")
    code, _, errors = run_command("score", path, "--source", file, "--target", file)
    assert code == 0
    assert errors == "source or target line 2 is cut to what the model reads\n"


def test_a_request_to_end_is_an_end_with_what_is_half_done_removed(monkeypatch):
    """SIGTERM, as timeout, docker and systemd send it."""

    def wait(options):
        """Waits."""
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
        finally:
            cleaned.append(True)

    cleaned: list[bool] = []
    monkeypatch.setitem(cli.COMMANDS, "average", wait)
    with pytest.raises(SystemExit) as error:
        main(["average", "run"])
    assert error.value.code == 143 and cleaned == [True]
