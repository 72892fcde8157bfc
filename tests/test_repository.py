"""The house stays in order: who imports whom, what the text may hold, what the manual explains."""

import ast
import dataclasses
import importlib.metadata
import re
import typing
from pathlib import Path

import pytest

import keras_transformer
from keras_transformer import TransformerConfig
from trainers.recipe import Recipe, shipped_recipes

ROOT = Path(__file__).parent.parent
PACKAGES = ("keras_transformer", "trainers", "export")
SOURCES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
# Everything that people read, but for the licence, which is not ours to word.
FOLDERS = (*PACKAGES, "benchmarks", "deploy", "docs", "recipes", "tests", ".ci")
TEXTS = [
    path
    for path in sorted(
        [*ROOT.iterdir(), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))]
    )
    if path.suffix in {".py", ".md", ".yaml", ".toml", ".txt", ".sbatch"}
    or path.name in ("Makefile", "run")
    if path.is_file()
]

# The floors of the house. A module imports from its own floor or from those below. What is not
# named here is on the ground floor: layers, config, search, tokenizer, losses, schedules ...
FLOORS = {
    "keras_transformer.model": 1,
    "keras_transformer.forced_decoding": 2,
    "keras_transformer.translator": 2,
    "keras_transformer.translation_tokenizer": 2,
    "keras_transformer.marian": 2,
    "keras_transformer": 2,
    "keras_transformer.diagnosis": 3,
    "trainers": 4,
    "export": 4,
    "keras_transformer.cli": 5,
    "keras_transformer.__main__": 5,
}
SIDE_BY_SIDE = ("trainers", "export")


def module_name(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def floor(module):
    if module == "keras_transformer":
        return FLOORS[module]
    homes = [home for home in FLOORS if f"{module}.".startswith(f"{home}.")]
    home = max(set(homes) - {"keras_transformer"}, key=len, default=None)
    return FLOORS[home] if home else 0


def room(module):
    return next((home for home in SIDE_BY_SIDE if f"{module}.".startswith(f"{home}.")), None)


def imported_modules(path):
    """Names of our own modules that a file imports, at the top or inside a function."""
    modules = {module_name(source) for source in SOURCES}
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in modules else node.module)
    return {name for name in found if name in modules}


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_imports_run_downward_only(path):
    module = module_name(path)
    for imported in imported_modules(path):
        assert floor(imported) <= floor(module), f"{module} may not import {imported}"
        if room(module) and room(imported):
            assert room(imported) == room(module), f"{module} may not import {imported}"


def test_the_library_knows_neither_trainers_nor_export():
    importing = {
        module_name(path)
        for path in SOURCES
        for imported in imported_modules(path)
        if path.is_relative_to(ROOT / "keras_transformer")
        and imported.split(".")[0] in ("trainers", "export")
    }
    assert importing <= {"keras_transformer.cli"}


def test_floors_are_told_apart():
    assert floor("keras_transformer.layers.attention") == floor("keras_transformer.search") == 0
    assert floor("keras_transformer.model") == 1
    assert floor("keras_transformer.diagnosis.doctor") == 3
    assert floor("trainers.recipe") == floor("export.publish") == 4
    assert "keras_transformer.config" in imported_modules(ROOT / "trainers" / "recipe.py")


def test_no_text_names_the_writers_machine_or_work_left_undone():
    forbidden = re.compile(
        "|".join(
            [
                r"(?<![\w.])/(home|root|Users|tmp|work)/",
                r"\.\./" + "shared",
                "TO" + "DO|FIX" + "ME|XX" + "X",
                "<<<<" + "<<<|>>>>" + ">>>",
                "extra-" + "index-url|files." + "pythonhosted",
            ]
        )
    )
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match.group()}"
        for path in TEXTS
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1)
        if (match := forbidden.search(line))
    ]
    assert found == []


def test_no_file_is_too_long_to_be_one_idea():
    lengths = {path: path.read_text().count("\n") for path in TEXTS if path.suffix == ".py"}
    assert [str(path.relative_to(ROOT)) for path in lengths if lengths[path] > 420] == []


def test_the_changelog_knows_the_version():
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert headings[0] == keras_transformer.__version__


def test_setup_reads_the_version_and_pins_tensorflow_text_to_tensorflow():
    setup = (ROOT / "setup.py").read_text()
    assert keras_transformer.__version__ not in setup
    pins = dict(re.findall(r'^ +"(tensorflow|tensorflow-text)>=[\d.]+,(<[\d.]+)"', setup, re.M))
    assert pins["tensorflow"] == pins["tensorflow-text"]
    minor = {name: importlib.metadata.version(name).split(".")[:2] for name in pins}
    assert minor["tensorflow"] == minor["tensorflow-text"]


@pytest.mark.parametrize("target", ["demo", "test", "lint", "slow", "clean"])
def test_the_makefile_has_the_targets_and_explains_them(target):
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(rf"^{target}:", makefile, re.M)
    assert re.search(rf"^# make {target} +\S", makefile, re.M)


@pytest.mark.parametrize("path", shipped_recipes(), ids=lambda path: path.name)
def test_every_key_of_a_recipe_is_commented(path):
    lines = path.read_text().split("\n")
    keys = [line for line in lines if re.match(r" +(# )?\w+: ", line) or re.match(r" +\w+:", line)]
    assert len(keys) > 40
    assert [line for line in keys if not re.search(r" # \S.{4,}$", line.split(": ", 1)[-1])] == []
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("path", shipped_recipes(), ids=lambda path: path.name)
def test_every_recipe_shows_every_key_of_its_sections(path):
    text = path.read_text()
    is_new = "initial_run: null" in text  # Others take tokenizer and decoding from their first run.
    sections = typing.get_type_hints(Recipe)
    for name in ("data", "tokenizer", "training", "decoding") if is_new else ("data", "training"):
        section = text.split(f"\n{name}:")[1].split("\n\n")[0]
        shown = re.findall(r"^  (\w+):", section, re.M)
        assert shown == [field.name for field in dataclasses.fields(sections[name])]


def test_the_recipe_for_your_own_files_explains_every_key_of_the_model_with_its_default():
    text = (ROOT / "recipes" / "your-own-files.yaml").read_text()
    shown = dict(re.findall(r"^  # (\w+): (\S+)", text.split("\nmodel:")[1], re.M))
    named = re.findall(r"^  (?:# )?(\w+):", text.split("\nmodel:")[1].split("\n\n")[0], re.M)
    fields = {field.name: field.default for field in dataclasses.fields(TransformerConfig)}
    del fields["vocabulary_size"], fields["source_vocabulary_size"]
    assert set(named) == {"preset", *fields}
    words = {"null": None, "false": False, "true": True}
    for name, value in shown.items():
        expected = fields[name]
        assert words.get(value, type(expected)(value) if value not in words else None) == expected
