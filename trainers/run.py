"""A run directory: where a run's recipe, tokenizer, checkpoints and model are."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from keras_transformer import Transformer
from keras_transformer.errors import InputError
from keras_transformer.translation_tokenizer import TranslationTokenizer
from keras_transformer.translator import Translator
from trainers.checkpoints import Checkpoints, load_model, save_model
from trainers.recipe import Recipe, load_recipe


class FinalModel(NamedTuple):
    """What a run's `model.keras` is: of how many checkpoints, and in words."""

    checkpoints: int
    what: str


class RunDirectory:
    """The files of one run.

    - `recipe.yaml`: the recipe with every default written out,
    - `tokenizer/`: the SentencePiece models,
    - `checkpoints/`: the last checkpoints,
    - `metrics.jsonl` and `tensorboard/`: the figures of the run,
    - `model.keras`: the averaged model, for translation.

    Args:
        path: path of the directory.

    Example:

    >>> RunDirectory("runs/demo").model_path.as_posix()
    'runs/demo/model.keras'
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.recipe_path = self.path / "recipe.yaml"
        self.tokenizer_path = self.path / "tokenizer"
        self.model_path = self.path / "model.keras"

    def load_recipe(self) -> Recipe:
        """The recipe that the run was started with."""
        self._need(self.recipe_path, "a recipe.yaml")
        return load_recipe(self.recipe_path)

    def has_tokenizer(self) -> bool:
        """Whether the tokenizer is there, and whole: its tokenizer.json is written last."""
        return (self.tokenizer_path / "tokenizer.json").exists()

    def load_tokenizer(self) -> TranslationTokenizer:
        """The tokenizer of the run."""
        self._need(self.tokenizer_path, "a tokenizer")
        return TranslationTokenizer.load(self.tokenizer_path)

    def load_model(self) -> Transformer:
        """The averaged model."""
        self._need(self.model_path, "a model.keras, which 'train' or 'average' writes")
        return load_model(self.model_path)

    def checkpoints(self, keep: int = 5) -> Checkpoints:
        """The checkpoints of the run."""
        return Checkpoints(self.path / "checkpoints", keep)

    def load_translator(
        self,
        model: Transformer | None = None,
        **decoding: float | None,
    ) -> Translator:
        """A translator by the run's decoding section.

        Args:
            model: `Transformer` in the place of the averaged model.
            **decoding: keys of the recipe's section `decoding` in the place of its own, where they
                are not None.
        """
        recipe = self.load_recipe()
        return translator_of(recipe, model or self.load_model(), self.load_tokenizer(), **decoding)

    def load_last_model(self) -> Transformer:
        """The model of the last checkpoint, in float32 as the averaged one is."""
        return with_policy(self.checkpoints().average(1), "float32")

    def average(self, last: int | None = None) -> FinalModel:
        """Writes `model.keras`, the mean of the last checkpoints.

        Its weights and its computation are float32 whatever the precision of the training.

        Args:
            last: int or None. How many. `None` means what the recipe says: the exponential moving
                average of the last checkpoint where it has an `ema_decay`, else the mean of
                `average_checkpoints`, or of all where the run has fewer.
        """
        checkpoints = self.checkpoints()
        training = self.load_recipe().training
        if last is None and training.ema_decay is not None:
            model, last = checkpoints.exponential_average(), 1
            what = "the exponential moving average of the weights"
        else:
            if last is None:
                last = max(1, min(training.average_checkpoints, len(checkpoints.steps())))
            model = checkpoints.average(last)
            what = f"the mean of the last {last} checkpoints"
        save_model(with_policy(model, "float32"), self.model_path)
        return FinalModel(last, what)

    def _need(self, path: Path, what: str) -> None:
        if not path.exists():
            raise InputError(f"A run directory must hold {what}. Received: {self.path}")


def translator_of(
    recipe: Recipe,
    model: Transformer,
    tokenizer: TranslationTokenizer,
    **decoding: float | None,
) -> Translator:
    """A translator by a recipe's decoding section.

    Args:
        recipe: `Recipe`.
        model: `Transformer`.
        tokenizer: `TranslationTokenizer` of the model.
        **decoding: as for `RunDirectory.load_translator`.
    """
    settings = vars(recipe.decoding) | {
        name: value for name, value in decoding.items() if value is not None
    }
    del settings["batch_sentences"]
    return Translator(model, tokenizer, **settings)


def with_policy(model: Transformer, policy: str) -> Transformer:
    """The same weights under another Keras dtype policy.

    Args:
        model: `Transformer`.
        policy: name of the policy. `"bfloat16"` rounds the weights too: half the memory.
    """
    if model.policy.name == policy:
        return model
    copy = Transformer(model.config, name=model.name, dtype=policy)
    copy.set_weights(model.get_weights())
    return copy
