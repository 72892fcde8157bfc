"""What README and docs say holds: examples run, links lead somewhere, no module is forgotten."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import random
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from numpy_reference import parameter_count

from keras_transformer import TransformerConfig
from keras_transformer.cli import COMMANDS, main
from keras_transformer.command_line import command_line
from trainers.imported import import_marian
from trainers.recipe import load_recipe, shipped_recipes

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CHECKPOINT = ROOT / "tests" / "data" / "marian-en-de-tiny"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
PACKAGES = ("keras_transformer", "trainers", "export")

# A fenced block, and the comment before it that says why it is not run.
BLOCK = re.compile(
    r"^(?:<!-- not run: ?(?P<reason>[^\n]*?) ?-->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.M | re.S,
)
# Programs that an example may use beside ours.
HELPERS = {"echo": lambda words, data: (" ".join(words) + "\n").encode()}

NUMBERS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf"}
RECIPE = """
data:
  source_language: en
  target_language: de
  train: {source: train.en, target: train.de}
  validation: {source: valid.en, target: valid.de}
  test: {source: test.en, target: test.de}
tokenizer: {vocabulary_size: 290}
model:
  {preset: tiny, num_encoder_layers: 1, num_decoder_layers: 2, d_model: 16, d_ff: 32, num_heads: 2}
training:
  steps: 3
  batch_tokens: 256
  checkpoint_every_steps: 1
  validate_every_steps: 2
  validation_bleu_sentences: 2
  log_every_steps: 1
decoding: {beam_size: 2}
"""


class Block(NamedTuple):
    """A fenced block of a page: its language, text, reason not to be run, and line."""

    language: str
    text: str
    reason: str | None
    line: int


def blocks(page: Path) -> list[Block]:
    content = page.read_text(encoding="utf-8")
    return [
        Block(m["language"], m["text"], m["reason"], content.count("\n", 0, m.start("text")))
        for m in BLOCK.finditer(content)
    ]


def page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


ALL_BLOCKS = [(page, block) for page in PAGES for block in blocks(page)]


def commands(text: str) -> list[list[str]]:
    """The commands of a shell block, in words, with `|`, `<` and `>` as words of their own."""
    found = []
    for line in text.replace("\\\n", " ").split("\n"):
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|<>&;")
        lexer.whitespace_split = True
        if words := list(lexer):
            found.append(words)
    return found


def parts(words: list[str]) -> list[list[str]]:
    """The commands of a pipeline."""
    pipeline: list[list[str]] = [[]]
    for word in words:
        if word == "|":
            pipeline.append([])
        else:
            pipeline[-1].append(word)
    return pipeline


@pytest.fixture(scope="module")
def workplace(tmp_path_factory) -> Path:
    """A folder with the files that the pages name: a corpus, a recipe, and a run of 3 steps."""
    folder = tmp_path_factory.mktemp("workplace")
    generator = random.Random(1)
    for split, count in (("train", 60), ("valid", 6), ("test", 6), ("sentences", 3)):
        rows = [generator.choices(list(NUMBERS), k=generator.randint(2, 5)) for _ in range(count)]
        german = [[NUMBERS[word] for word in row] for row in rows]
        for language, side in (("en", rows), ("de", german)):
            text = "".join(" ".join(row) + "\n" for row in side)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")
    (folder / "sentences.de").unlink()  # What the examples are to write.
    (folder / "my-recipe.yaml").write_text(RECIPE)
    with contextlib.chdir(folder):
        assert main(["train", "my-recipe.yaml", "--run-dir", "runs/mine"]) == 0
    shutil.copytree(folder / "runs/mine", folder / "runs/demo")
    shutil.copytree(CHECKPOINT, folder / "opus-mt-en-de")
    return folder


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory) -> Path:
    """A folder with the run that recipes of a fine-tuning go on from."""
    folder = tmp_path_factory.mktemp("pretrained")
    import_marian(CHECKPOINT, folder / "runs" / "opus-mt-en-de")
    return folder


@pytest.fixture
def here(workplace, tmp_path, monkeypatch) -> Path:
    """A copy of the workplace, made the current directory."""
    shutil.copytree(workplace, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_program(words: list[str], data: bytes, monkeypatch) -> bytes:
    """Runs one command with `data` as its stdin; returns its stdout."""
    name, *arguments = words
    if name in HELPERS:
        return HELPERS[name](arguments, data)
    assert name == "keras-transformer", f"{name}: mark the block as not run, or teach the test"
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
        patch.setattr(sys, "stdout", stdout)
        assert main(arguments) == 0, " ".join(words)
    return stdout.buffer.getvalue()


def run_python(text: str, name: str, namespace: dict) -> None:
    """Runs a block, and checks what the comment after a `print` says that it prints."""
    stdout = io.StringIO()
    with contextlib.redirect_stdout(stdout):
        exec(compile(text, name, "exec"), namespace)
    printed = iter(stdout.getvalue().split("\n"))
    for expected in re.findall(r"^ *print\(.*\)  # (.+)$", text, re.M):
        assert expected in printed, f"{name}: {expected!r} is not in {stdout.getvalue()!r}"


# `make test` follows the README, `make slow` the other pages.
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[] if page.name == "README.md" else [pytest.mark.slow])
        for page in PAGES
        if any(block.language in ("python", "bash") for block in blocks(page))
    ],
    ids=page_name,
)
def test_examples_run(page, here, monkeypatch):
    namespace: dict = {"__name__": "example"}
    for block in blocks(page):
        name = f"{page_name(page)}:{block.line}"
        if block.reason is not None:
            continue
        if block.language == "python":
            run_python(block.text, name, namespace)
        if block.language == "bash":
            for words in commands(block.text):
                data = b""
                for part in parts(words):
                    data = run_program(part, data, monkeypatch)


def test_commands_write_what_the_pages_say(here, monkeypatch):
    def run(line: str, data: bytes = b"") -> list[str]:
        return run_program(shlex.split(line), data, monkeypatch).decode().split("\n")[:-1]

    assert len(run("keras-transformer translate runs/demo", b"one two\n\nthree\n")) == 3
    n_best = run("keras-transformer translate runs/demo --input sentences.en --n-best 2")
    rows = [line.split("\t") for line in n_best]
    assert all(len(row) == 3 and float(row[1]) < 0 for row in rows)
    assert list(dict.fromkeys(row[0] for row in rows)) == ["1", "2", "3"]
    assert len(run("keras-transformer score runs/demo --source test.en --target test.de")) == 6
    files = {path.name for path in (here / "runs/demo").iterdir()}
    assert files == {
        *("recipe.yaml", "tokenizer", "prepared", "checkpoints", "metrics.jsonl", "tensorboard"),
        "model.keras",
    }


@pytest.mark.parametrize(
    ("page", "block"), ALL_BLOCKS, ids=[f"{page_name(p)}:{b.line}" for p, b in ALL_BLOCKS]
)
def test_blocks_are_of_a_kind_that_is_checked(page, block):
    assert block.language in {"python", "bash", "yaml", "text"}
    if block.reason is not None:
        assert len(block.reason.split()) >= 3, "a reason that a reader understands"
        assert block.language == "bash"


def test_every_reason_stands_right_before_its_block():
    for page in PAGES:
        marks = page.read_text(encoding="utf-8").count("not run:")
        assert marks == sum(block.reason is not None for block in blocks(page)), page


@pytest.mark.parametrize(
    ("page", "block"),
    [(page, block) for page, block in ALL_BLOCKS if block.language == "bash"],
    ids=[f"{page_name(p)}:{b.line}" for p, b in ALL_BLOCKS if b.language == "bash"],
)
def test_commands_are_ones_that_exist(page, block, pretrained, monkeypatch, capsys):
    monkeypatch.chdir(pretrained)
    for words in commands(block.text):
        for name, *arguments in parts(words):
            if name != "keras-transformer":
                continue
            try:
                options = command_line(COMMANDS).parse_args(arguments)
            except SystemExit:
                pytest.fail(f"{' '.join(words)}: {capsys.readouterr().err}")
            recipe = getattr(options, "recipe", None)
            if recipe in {path.name for path in shipped_recipes()}:
                load_recipe(recipe, options.overrides)


def test_every_command_is_shown():
    shown = {
        part[1]
        for _, block in ALL_BLOCKS
        if block.language == "bash"
        for words in commands(block.text)
        for part in parts(words)
        if part[0] == "keras-transformer"
    }
    # `demo` is `make demo`; `benchmark` has its own page in benchmarks/.
    assert shown >= set(COMMANDS) - {"demo", "benchmark"}


def test_yaml_blocks_are_recipes(tmp_path, pretrained, monkeypatch):
    monkeypatch.chdir(pretrained)
    texts = [block.text for _, block in ALL_BLOCKS if block.language == "yaml"]
    assert texts
    for text in texts:
        (tmp_path / "recipe.yaml").write_text(text)
        load_recipe(tmp_path / "recipe.yaml")


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_lead_to_files_and_headings(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"https?://", target):
            continue
        path, _, heading = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.is_file() and file.is_relative_to(ROOT), target
        if heading:
            headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.M)
            assert heading in {text.lower().replace(" ", "-") for text in headings}, target


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_files_and_keys_in_the_text_exist(page):
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    resolved = load_recipe("your-own-files.yaml").to_dict()
    for name in re.findall(
        r"`((?:keras_transformer|trainers|export|tests|docs|recipes)/[^`\s]*)`", text
    ):
        assert (ROOT / name).exists(), name
    for section, key in re.findall(r"`(data|tokenizer|model|training|decoding)\.(\w+)", text):
        # `model.fit` is a method, `model.keras` and others are files.
        assert key in {*resolved[section], "fit", "keras", "py", "safetensors"}, f"{section}.{key}"


def test_architecture_names_every_module():
    text = ARCHITECTURE.read_text(encoding="utf-8")
    named = set(re.findall(r"`(?:[\w/]+/)?(\w+\.py)`", text))
    modules = {
        path.name
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if path.name != "__init__.py"
    }
    assert named - {"test_repository.py"} == modules


def test_architecture_puts_every_module_into_its_folder():
    text = ARCHITECTURE.read_text(encoding="utf-8")
    for package in PACKAGES:
        table = re.search(rf"^`{package}/`\n\n(.*?)\n\n", text, re.M | re.S)[1]
        for name in re.findall(r"`(\w+\.py)`", table):
            assert (ROOT / package / name).is_file(), f"{package}/{name}"


def test_fidelity_counts_the_parameters_of_table_3():
    text = (ROOT / "docs" / "fidelity.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [^|]+ \| `(\S+)` \| ([\d.]+) \| \d+ \|$", text, re.M)
    assert len(rows) == 11
    for preset, millions in rows:
        config = TransformerConfig.preset(preset, vocabulary_size=37_000)
        assert parameter_count(config) / 1e6 == pytest.approx(float(millions), abs=0.05), preset


def test_the_licence_of_the_corpus_is_quoted_as_it_asks():
    source = (ROOT / "trainers" / "demo_corpus" / "README.md").read_text(encoding="utf-8")
    attribution = re.search(r"^Attribution: (.+)$", source, re.M)[1]
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert attribution in readme


def test_a_picture_of_a_run_is_drawn(here, capsys):
    specification = importlib.util.spec_from_file_location(
        "make_pictures", ROOT / "docs" / "make_pictures.py"
    )
    pictures = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(pictures)
    assert pictures.main(["runs/demo", "--output", "new/demo.png", "--sentence", "one $two$"]) == 0
    assert (here / "new/demo.png").read_bytes().startswith(b"\x89PNG")
    assert pictures.main(["runs/none", "--output", "none.png"]) == 2
    assert pictures.main(["runs/demo", "--output", "none.png", "--head", "2"]) == 2
    error = capsys.readouterr().err
    assert "head must be from 0 to 1. Received: 2" in error
    assert not (here / "none.png").exists()
    assert not (here / "runs/none").exists()


def test_examples_that_are_wrong_are_found(here, monkeypatch):
    with pytest.raises(AssertionError, match="is not in"):
        run_python("print(1)  # 2\n", "page", {})
    with pytest.raises(AssertionError, match="teach the test"):
        run_program(["curl", "x"], b"", monkeypatch)
