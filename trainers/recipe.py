"""The recipe: one YAML file that says everything about a run, checked before any work starts."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_transformer.config import PRESETS, TransformerConfig
from keras_transformer.errors import InputError
from trainers.initial_run import take_over
from trainers.recipe_keys import (
    DataSection,
    DecodingSection,
    ModelSection,
    TokenizerSection,
    TrainingSection,
)
from trainers.sections import build, show
from trainers.yaml_text import dump_yaml, parse_yaml, read_yaml

# Beside this file where the package is installed, beside the packages in the source tree.
_RECIPE_FOLDERS = (Path(__file__).parent / "recipes", Path(__file__).parent.parent / "recipes")

_MODEL_KEYS = {field.name for field in dataclasses.fields(ModelSection)}
_TOKENIZER_KEYS = {field.name for field in dataclasses.fields(TokenizerSection)}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Everything about a run: data, tokenizer, model, training and decoding, all checked.

    Relative paths in it are relative to the current directory of the process that reads the data,
    not to the recipe's folder.

    Args:
        data: `DataSection`.
        tokenizer: `TokenizerSection`.
        model: `ModelSection`, every field of `TransformerConfig` but the vocabulary sizes.
        training: `TrainingSection`.
        decoding: `DecodingSection`.

    Raises:
        InputError: where keys of two sections contradict one another.

    Example:

    >>> recipe = load_recipe("wmt14-en-de-big.yaml", ["training.precision=mixed_bfloat16"])
    >>> recipe.model.d_model, recipe.training.steps, recipe.training.precision
    (1024, 300000, 'mixed_bfloat16')
    """

    data: DataSection
    tokenizer: TokenizerSection
    model: ModelSection
    training: TrainingSection
    decoding: DecodingSection

    def __post_init__(self) -> None:
        training = self.training
        if self.data.train is not None:
            if training.steps is None and training.minutes is None:
                raise InputError(
                    "training.steps must be an integer, or training.minutes a number, so that the "
                    "run ends. Received: null for both"
                )
            if self.tokenizer.kind == "marian" and training.initial_run is None:
                raise InputError(
                    "tokenizer.kind must be 'bpe' or 'unigram' unless training.initial_run names "
                    "an imported run: a marian tokenizer is never learned. Received: 'marian'"
                )
        if not self.tokenizer.shared and self.model.tying == "three-way":
            raise InputError(
                "model.tying must be 'output' or 'none' where tokenizer.shared is false. "
                "Received: 'three-way'"
            )
        if training.batch_tokens < self.data.maximum_length:
            raise InputError(
                "training.batch_tokens must be at least data.maximum_length, which is "
                f"{self.data.maximum_length}. Received: {training.batch_tokens}"
            )
        if self.model.positions == "learned" and (
            self.model.maximum_positions < self.data.maximum_length
        ):
            raise InputError(
                "model.maximum_positions must be at least data.maximum_length, which is "
                f"{self.data.maximum_length}. Received: {self.model.maximum_positions}"
            )
        try:  # The real sizes are known after the tokenizer's training; the rest is checked now.
            self.transformer_config(1000, None if self.tokenizer.shared else 1000)
        except InputError as error:
            raise InputError(f"model.{error}") from None

    def check_trains(self) -> None:
        """Refuses a recipe of an imported run where something is to be learned.

        Raises:
            InputError: where there is no `data.train`.
        """
        if self.data.train is None:
            raise InputError(
                "data.train must be given, the pairs to learn from; an imported run is trained "
                "further by a recipe whose training.initial_run names it. Received: null"
            )

    def transformer_config(
        self, vocabulary_size: int, source_vocabulary_size: int | None = None
    ) -> TransformerConfig:
        """The model's config, once the tokenizer is trained.

        Args:
            vocabulary_size: int. Number of target words, of all words where they are shared.
            source_vocabulary_size: int or None. Number of source words where they are not shared.

        Returns:
            A `TransformerConfig`.
        """
        fields = dataclasses.asdict(self.model)
        del fields["preset"]
        return TransformerConfig(vocabulary_size, source_vocabulary_size, **fields)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], run: str | Path | None = None) -> Recipe:
        """A recipe from nested dicts, as `to_dict` gives; keys left out take their defaults.

        Or, where `training.initial_run` names a run, its values in `model`, `tokenizer` and
        `decoding`.

        Args:
            values: nested dicts.
            run: path of the run directory that the recipe is for, as for `load_recipe`.

        Raises:
            InputError: naming the dotted key, what was expected and what was received.
        """
        return build(cls, _with_preset(_with_initial_run(values, run)))

    def to_dict(self) -> dict[str, Any]:
        """Nested dicts in plain Python types, with every default written out."""
        values = dataclasses.asdict(self)
        for split in ("train", "validation", "test"):
            if files := getattr(self.data, split):
                values["data"][split] = files.given()
        for section in values.values():
            for name, value in section.items():
                if isinstance(value, tuple):
                    section[name] = list(value)
        return values

    def to_yaml(self) -> str:
        """The resolved recipe: YAML that `load_recipe` reads back to an equal recipe."""
        return (
            "# Every key of the run with its value. Relative data paths start from the directory "
            "that the\n# command is run in.\n" + dump_yaml(self.to_dict())
        )

    def save(self, path: str | Path) -> None:
        """Writes `to_yaml()` to a file: under another name, which is then renamed.

        Raises:
            InputError: where it cannot be written.
        """
        path = Path(path)
        partial = path.with_name(f".writing-{path.name}")
        try:
            partial.write_bytes(self.to_yaml().encode())
            partial.replace(path)
        except OSError as error:
            raise InputError(f"A recipe must be writable to {path}. Received: {error}") from error


def load_recipe(
    path: str | Path, overrides: Sequence[str] = (), run: str | Path | None = None
) -> Recipe:
    """Reads a recipe and checks all of it.

    Args:
        path: path of a YAML file, or the name of a shipped recipe.
        overrides: strings `KEY.PATH=VALUE`, the value in YAML, that replace keys of the file.
        run: path of the run directory that the recipe is for. A fine-tuning that has begun there
            does not need its `training.initial_run` any more.

    Returns:
        A `Recipe`.

    Raises:
        InputError: naming the file, the dotted key, what was expected and what was received.

    Example:

    >>> load_recipe("tatoeba-en-de-small.yaml", ["training.minutes=5"]).training.minutes
    5.0
    """
    path = _find(path)
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise InputError(f"{path} must hold sections of keys. Received: {show(values)}")
    for override in overrides:
        _override(values, override)
        if override.startswith("model.preset=") and set(values["model"]) == _MODEL_KEYS:
            raise InputError(
                f"model.preset has no effect where {path} sets every key of the model; override "
                f"those keys. Received: {override}"
            )
    where = f"{path} with {' '.join(overrides)}" if overrides else path
    try:
        return Recipe.from_dict(values, run)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def shipped_recipes() -> list[Path]:
    """The recipes that come with the package, by name."""
    return sorted(path for folder in _RECIPE_FOLDERS for path in folder.glob("*.yaml"))


def _find(path: str | Path) -> Path:
    """The file itself where there is one, else the shipped recipe of that name."""
    if os.path.exists(path):
        return Path(path)
    shipped = {recipe.name: recipe for recipe in shipped_recipes()}
    if str(path) not in shipped:
        raise InputError(
            f"A recipe must be a file or one of the shipped {', '.join(shipped)}. "
            f"Received: {path}, which does not exist"
        )
    return shipped[str(path)]


def _override(values: dict[str, Any], override: str) -> None:
    """Sets one key of nested dicts from `KEY.PATH=VALUE`."""
    dotted, equals, text = override.partition("=")
    *sections, name = dotted.strip().split(".")
    if not equals or not all([*sections, name]):
        raise InputError(f"An override must be KEY.PATH=VALUE. Received: {show(override)}")
    for section in sections:
        if values.get(section) is None:
            values[section] = {}
        values = values[section]
        if not isinstance(values, dict):
            raise InputError(
                f"{section} in override {dotted} must be a section. Received: {show(values)}"
            )
    values[name] = parse_yaml(text, f"override {override}")


def _with_initial_run(values: Mapping[str, Any], run: str | Path | None) -> Mapping[str, Any]:
    """Writes out what a fine-tuning takes over, unless all of it is there already."""
    sections = [values.get(name) or {} for name in ("training", "model", "tokenizer")]
    if not all(isinstance(section, Mapping) for section in sections):
        return values  # The sections say what is wrong with them.
    training, model, tokenizer = sections
    initial_run = training.get("initial_run")
    if not isinstance(initial_run, str) or not initial_run:
        return values
    if set(model) >= _MODEL_KEYS and set(tokenizer) >= _TOKENIZER_KEYS:
        return values
    if run is not None and (begun := Path(run) / "recipe.yaml").exists():
        recipe = load_recipe(begun)
        if recipe.training.initial_run == initial_run:
            return take_over(values, recipe.to_dict(), initial_run)
    path = Path(initial_run) / "recipe.yaml"
    if not path.exists():
        raise InputError(
            "training.initial_run must be a run directory, with a recipe.yaml. "
            f"Received: {show(initial_run)}"
        )
    return take_over(values, load_recipe(path).to_dict(), initial_run)


def _with_preset(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Writes out the fields of the model's preset that the recipe does not set itself."""
    model = (values.get("model") or {}) if isinstance(values, Mapping) else None
    preset = model.get("preset", "base") if isinstance(model, Mapping) else None
    if not isinstance(preset, str) or preset not in PRESETS:
        return values  # The model's section says what is wrong with it.
    return {**values, "model": {**PRESETS[preset], **model}}
