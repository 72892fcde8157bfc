"""What a recipe can say: every key with its type, default and limits."""

from __future__ import annotations

import dataclasses

from keras_transformer.config import PRESETS, TransformerConfig
from keras_transformer.errors import InputError
from keras_transformer.search_rules import CHOICES
from trainers.sections import Section, key, show

# Fields of TransformerConfig that a recipe does not set: the trained tokenizer knows them.
_VOCABULARY_FIELDS = ("vocabulary_size", "source_vocabulary_size")

# Keys of `tokenizer` that mean something only where it is learned; and the fewest words there: 4
# control words, 256 bytes and a character.
_KEYS_OF_LEARNING = ("normalization", "character_coverage", "maximum_sentences")
_LEAST_LEARNED = 261


@dataclasses.dataclass(frozen=True, kw_only=True)
class Files(Section):
    """Where one split of a parallel corpus is, in exactly one of three forms.

    `source` and `target`, or `tfds` and `split`, or `tfds_folder` and `split`.

    Args:
        source: str or None. Path of a text file, one sentence a line, with `target`. A relative
            path is relative to the current directory; `shipped:NAME` is a file of the package.
        target: str or None. Path of the translations, line by line.
        tfds: str or None. Name of a `tensorflow-datasets` translation set, with `split`.
        tfds_folder: str or None. Path of a folder for `tfds.TranslateFolder`, with `split`.
        split: str or None. The split's name in the data set.
    """

    source: str | None = None
    target: str | None = None
    tfds: str | None = None
    tfds_folder: str | None = None
    split: str | None = None

    def given(self) -> dict[str, str]:
        """The keys that are set, which tell the form."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSection(Section):
    """The section `data`: which languages, which files, what is left out of training.

    Args:
        source_language: str. Code of the language translated from, such as `en`. `None` only in
            an imported run whose checkpoint does not tell.
        target_language: str. Code of the language translated to; `None` as above.
        train: `Files` to learn from. `None` for a run that was imported and not trained here.
        validation: `Files` to watch the training by. `None` only where `train` is.
        test: `Files` for the last figure, or None.
        tfds_data_dir: str or None. Where `tensorflow-datasets` keeps its data.
        maximum_length: int. Pairs with more tokens on a side are dropped from training.
        maximum_length_ratio: float or None. Training pairs whose longer side has more than this
            many times the tokens of the shorter are dropped.
        drop_duplicates: bool. Whether a training pair counts once however often it occurs.
        prepared_dir: str or None. Folder of the tokenized corpus, which several runs may share.
            `None` means `prepared` in the run directory.
    """

    source_language: str | None = key(offer_null=False)
    target_language: str | None = key(offer_null=False)
    train: Files | None = key()
    validation: Files | None = key()
    test: Files | None = None
    tfds_data_dir: str | None = None
    maximum_length: int = key(128, at_least=2)
    maximum_length_ratio: float | None = key(None, at_least=1)
    drop_duplicates: bool = False
    prepared_dir: str | None = None

    @property
    def languages(self) -> str | None:
        """In words, such as `en to de`; None where they are not known."""
        pair = (self.source_language, self.target_language)
        return None if None in pair else " to ".join(pair)

    def __post_init__(self) -> None:
        super().__post_init__()
        trains = self.train is not None
        for name in ("source_language", "target_language"):
            if trains and getattr(self, name) is None:
                raise InputError(f"{name} must be a string. Received: null")
        forms = ({"source", "target"}, {"tfds", "split"}, {"tfds_folder", "split"})
        for split in ("train", "validation", "test"):
            files = getattr(self, split)
            given = files.given() if files else {}
            is_needed = files or (trains and split == "validation")
            if is_needed and set(given) not in forms:
                raise InputError(
                    f"{split} must have source and target, or tfds and split, or tfds_folder "
                    f"and split. Received: {show(given)}"
                )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerSection(Section):
    """The section `tokenizer`: the SentencePiece model that is learned from `data.train`.

    Or the tokenizer of an imported checkpoint, kind `"marian"`, which is never learned: its
    keys of learning are `None`.

    Args:
        kind: `"bpe"`, `"unigram"` or `"marian"`.
        vocabulary_size: int. Number of words, with 4 control words and, where it is learned, 256
            bytes among them.
        shared: bool. Whether source and target have one vocabulary, as in the paper.
        source_vocabulary_size: int or None. The source's number of words where the vocabulary
            is not shared. `None` means `vocabulary_size`.
        normalization: name of a SentencePiece normalization rule.
        character_coverage: float. Share of the text's characters that get a word of their own;
            the others are spelled in bytes. Below 1 for Chinese and Japanese.
        maximum_sentences: int. At most this many training sentences a side are read.
        normalize_punctuation: bool. Whether an imported tokenizer first writes punctuation in one
            way, by Moses' rules; which it does is settled when it is imported.
    """

    kind: str = key("bpe", choices=("bpe", "unigram", "marian"))
    vocabulary_size: int = key(at_least=5)
    shared: bool = True
    source_vocabulary_size: int | None = key(None, at_least=5)
    normalization: str | None = key(
        "nmt_nfkc",
        choices=("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity"),
        offer_null=False,
    )
    character_coverage: float | None = key(1.0, at_least=0.98, at_most=1, offer_null=False)
    maximum_sentences: int | None = key(1_000_000, at_least=1, offer_null=False)
    normalize_punctuation: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind == "marian":
            self._check_imported()
        else:
            self._check_learned()
        if self.shared and self.source_vocabulary_size is not None:
            raise InputError(
                "source_vocabulary_size must be null unless tokenizer.shared is false. "
                f"Received: {self.source_vocabulary_size}"
            )

    def _check_imported(self) -> None:
        """Sets the keys of learning to null; one that asks for something is refused."""
        for field in dataclasses.fields(self):
            if field.name in _KEYS_OF_LEARNING:
                value = getattr(self, field.name)
                if value not in (None, field.default):
                    raise InputError(
                        f"{field.name} must be null where tokenizer.kind is marian: the checkpoint "
                        f"has its tokenizer. Received: {show(value)}"
                    )
                object.__setattr__(self, field.name, None)

    def _check_learned(self) -> None:
        for name in ("vocabulary_size", "source_vocabulary_size"):
            size = getattr(self, name)
            if size is not None and size < _LEAST_LEARNED:
                raise InputError(f"{name} must be at least {_LEAST_LEARNED}. Received: {size}")
        kinds = {"character_coverage": "a number", "maximum_sentences": "an integer"}
        for name in _KEYS_OF_LEARNING:
            if getattr(self, name) is None:
                raise InputError(f"{name} must be {kinds.get(name, 'a string')}. Received: null")
        if self.normalize_punctuation:
            raise InputError(
                "normalize_punctuation must be false unless tokenizer.kind is marian. "
                "Received: True"
            )


# The section `model`: a preset's name and every field of TransformerConfig but the vocabulary
# sizes, which the tokenizer knows. A new field there is a new key here.
ModelSection = dataclasses.make_dataclass(
    "ModelSection",
    [("preset", "str", key("base", choices=tuple(PRESETS)))]
    + [
        (field.name, field.type, field.default)
        for field in dataclasses.fields(TransformerConfig)
        if field.name not in _VOCABULARY_FIELDS
    ],
    bases=(Section,),
    namespace={"__module__": __name__},
    frozen=True,
    kw_only=True,
)


PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16", "auto")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingSection(Section):
    """The section `training`, with the paper's values (section 5) as defaults.

    Args:
        seed: int. Decides initial weights, order of the data and dropout.
        initial_run: str or None. Path of a run, imported or trained, that this one goes on from:
            with its averaged model, its sections `model` and `tokenizer`, and its `decoding`
            where the recipe has none. `None` starts from random weights.
        steps: int or None. Updates after which the run ends.
        minutes: float or None. Minutes after which it ends; whichever comes first. A recipe with
            `data.train` has at least one of the two.
        batch_tokens: int. Most tokens of an update on a side, over all devices together.
        accumulate_steps: int. Parts that a device's batch is divided into, one after the other.
        label_smoothing: float. Share of the probability spread over all words.
        warmup_steps: int. Steps in which the learning rate grows.
        learning_rate_factor: float. Multiplies the paper's learning rate.
        adam_beta_1: float. Decay of Adam's mean of gradients.
        adam_beta_2: float. Decay of Adam's mean of squared gradients.
        adam_epsilon: float. Added to Adam's denominator.
        gradient_clip_norm: float or None. Largest norm of the whole gradient. `None` for any.
        ema_decay: float or None. Decay of the exponential moving average of the weights, which
            is the final model in the place of the mean of checkpoints. `None` for none.
        precision: `"float32"`, `"mixed_bfloat16"`, `"mixed_float16"`, or `"auto"`, which is
            mixed_bfloat16 where the machine has instructions for it and float32 elsewhere.
        jit_compile: bool. Whether XLA compiles the training step.
        devices: tuple of str or None. Devices such as `GPU:0`. `None` means all visible GPUs,
            or the CPU where there is none.
        checkpoint_every_steps: int or None. Steps between checkpoints.
        checkpoint_every_minutes: float or None. Minutes between checkpoints.
        keep_checkpoints: int. The last this many are kept.
        average_checkpoints: int. The last this many are averaged at the end of the run.
        validate_every_steps: int. Steps between validations.
        validation_bleu_sentences: int. Sentences translated at a validation; 0 for none.
        log_every_steps: int. Steps between lines of `metrics.jsonl`.
    """

    seed: int = key(1, at_least=0, below=2**31)
    initial_run: str | None = None
    steps: int | None = key(None, at_least=1)
    minutes: float | None = key(None, above=0)
    batch_tokens: int = key(25_000, at_least=1)
    accumulate_steps: int = key(1, at_least=1)
    label_smoothing: float = key(0.1, at_least=0, below=1)
    warmup_steps: int = key(4000, at_least=1)
    learning_rate_factor: float = key(1.0, above=0)
    adam_beta_1: float = key(0.9, at_least=0, below=1)
    adam_beta_2: float = key(0.98, at_least=0, below=1)
    adam_epsilon: float = key(1e-9, above=0)
    gradient_clip_norm: float | None = key(None, above=0)
    ema_decay: float | None = key(None, above=0, below=1)
    precision: str = key("float32", choices=PRECISIONS)
    jit_compile: bool = False
    devices: tuple[str, ...] | None = None
    checkpoint_every_steps: int | None = key(1000, at_least=1)
    checkpoint_every_minutes: float | None = key(None, above=0)
    keep_checkpoints: int = key(10, at_least=1)
    average_checkpoints: int = key(5, at_least=1)
    validate_every_steps: int = key(1000, at_least=1)
    validation_bleu_sentences: int = key(200, at_least=0)
    log_every_steps: int = key(50, at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.checkpoint_every_steps is None and self.checkpoint_every_minutes is None:
            raise InputError(
                "checkpoint_every_steps must be an integer, or training.checkpoint_every_minutes "
                "a number. Received: null for both"
            )
        if self.average_checkpoints > self.keep_checkpoints:
            raise InputError(
                "average_checkpoints must be at most training.keep_checkpoints, which is "
                f"{self.keep_checkpoints}. Received: {self.average_checkpoints}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodingSection(Section):
    """The section `decoding`: beam search, section 6.1 of the paper.

    Args:
        beam_size: int. Number of hypotheses kept open; 1 is greedy search.
        alpha: float. Strength of the length penalty; 0 for none.
        length_penalty: `"gnmt"` or `"power"`, as in `SearchRules`.
        early_stopping: `"never"`, `"heuristic"` or `"full_beam"`, as in `SearchRules`.
        ends_within: `"candidates"` or `"beam"`, as in `SearchRules`.
        forced_end: `"scored"` or `"free"`, as in `SearchRules`.
        suppressed_tokens: tuple of str or None. Words that are never generated; none is null.
        maximum_extra_length: int. A translation has at most this many tokens more than its source.
        maximum_length: int or None. A translation has at most this many tokens, the end token
            counted, whatever its source.
        maximum_source_length: int. A longer source is cut to this many tokens.
        batch_sentences: int. Sentences translated at a time.
    """

    beam_size: int = key(4, at_least=1)
    alpha: float = key(0.6, at_least=0)
    length_penalty: str = key("gnmt", choices=CHOICES["length_penalty"])
    early_stopping: str = key("never", choices=CHOICES["early_stopping"])
    ends_within: str = key("candidates", choices=CHOICES["ends_within"])
    forced_end: str = key("scored", choices=CHOICES["forced_end"])
    suppressed_tokens: tuple[str, ...] | None = None
    maximum_extra_length: int = key(50, at_least=0, at_most=1_000_000)
    maximum_length: int | None = key(None, at_least=1, at_most=1_000_000)
    maximum_source_length: int = key(512, at_least=1, at_most=1_000_000)
    batch_sentences: int = key(64, at_least=1)

    def __post_init__(self) -> None:
        if self.suppressed_tokens in ([], ()):
            object.__setattr__(self, "suppressed_tokens", None)
        super().__post_init__()
