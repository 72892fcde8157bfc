"""From a recipe to a trained run directory, by `model.fit`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import keras

from keras_transformer import SmoothedCrossEntropy, Transformer, TransformerSchedule
from keras_transformer.errors import InputError
from keras_transformer.tokenizer import SubwordTokenizer, TranslationTokenizer
from keras_transformer.translator import Translator
from trainers import callbacks
from trainers.batching import TokenBatches, TokenSequences
from trainers.corpus import ParallelCorpus, filter_pairs
from trainers.precision import resolve_precision
from trainers.recipe import Recipe
from trainers.run import RunDirectory
from trainers.run_lock import run_lock
from trainers.run_log import RunLog
from trainers.splits import read_split
from trainers.strategy import create_strategy
from trainers.validation import Validation

# When a run ends, and what it logs and keeps, may change from one start to the next.
CHANGEABLE = {
    ("training", name)
    for name in (
        "steps",
        "minutes",
        "devices",
        "checkpoint_every_steps",
        "checkpoint_every_minutes",
        "keep_checkpoints",
        "average_checkpoints",
        "validate_every_steps",
        "validation_bleu_sentences",
        "log_every_steps",
    )
} | {("decoding", name) for name in ("beam_size", "alpha", "batch_sentences")}


class Trainer:
    """Trains a recipe in a run directory; in one that exists, goes on where it stopped.

    Args:
        recipe: `Recipe`.
        run_directory: path. Made where it does not exist.

    Raises:
        InputError: where the directory holds a run of another recipe, or cannot be made.
    """

    def __init__(self, recipe: Recipe, run_directory: str | Path) -> None:
        precision = resolve_precision(recipe.training.precision)
        # The run's recipe says what this machine chose, so that it resumes with the same.
        recipe = replace(recipe, training=replace(recipe.training, precision=precision))
        self.recipe = recipe
        self.run = RunDirectory(run_directory)
        try:
            self.run.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"A run directory must be a folder that can be made. Received: {error}"
            ) from error
        if self.run.recipe_path.exists():
            _check_same_recipe(recipe, self.run)

    def train(self) -> None:
        """Trains to the recipe's end and writes the averaged model.

        Raises:
            InputError: where the data cannot be used, or another process trains in the directory.
            TrainingDiverged: where the loss is no longer a finite number.
        """
        with run_lock(self.run.path):
            self._train()

    def _train(self) -> None:
        training = self.recipe.training
        # Strategy before all else: it divides the CPU into devices, which must be done first.
        strategy = create_strategy(training.devices)
        train_corpus = read_split(self.recipe.data, "train")
        validation_corpus = read_split(self.recipe.data, "validation")
        tokenizer = self._tokenizer(train_corpus)
        batches = self._batches(train_corpus, tokenizer, strategy.num_replicas_in_sync)
        validation_batches = self._batches(validation_corpus, tokenizer, 1, is_validation=True)
        # The recipe comes first: a tokenizer alone would serve whatever recipe is tried next.
        self.recipe.save(self.run.recipe_path)
        if not self.run.has_tokenizer():
            tokenizer.save(self.run.tokenizer_path)

        checkpoints = self.run.checkpoints(training.keep_checkpoints)
        fingerprints = {"corpus": train_corpus.fingerprint, "tokenizer": tokenizer.fingerprint}
        keras.utils.set_random_seed(training.seed)
        with strategy.scope():
            resumed = checkpoints.load_latest()
            if resumed is None:
                model = self._new_model(tokenizer)
                state = {"step": 0, "batches": 0, "seconds": 0.0}
            else:
                model, state = resumed
                _check_fingerprints(state, fingerprints, self.run.path)
                _say(f"resuming at step {state['step']}, {state['seconds'] / 60:.1f} minutes in")
        log = RunLog(self.run.path)
        log.forget_after(state["step"])
        if self._is_finished(state):
            _say(f"the run is finished: step {state['step']}")
            if self.run.model_path.exists():  # whatever checkpoints it is the mean of
                return
        else:
            validation = self._validation(model, tokenizer, validation_batches, validation_corpus)
            self._fit(model, state, batches, validation, log, fingerprints)
        last = self.run.average()
        _say(f"model.keras is the mean of the last {last} checkpoints")

    def _tokenizer(self, corpus: ParallelCorpus) -> TranslationTokenizer:
        """The run's tokenizer, trained on the corpus where there is none yet."""
        if self.run.has_tokenizer():
            return self.run.load_tokenizer()
        section = self.recipe.tokenizer
        _say(f"training the tokenizer on {len(corpus)} pairs")
        return TranslationTokenizer.train(
            corpus.sources,
            corpus.targets,
            vocabulary_size=section.vocabulary_size,
            shared=section.shared,
            source_vocabulary_size=section.source_vocabulary_size,
            kind=section.kind,
            normalization=section.normalization,
            character_coverage=section.character_coverage,
            maximum_sentences=section.maximum_sentences,
        )

    def _batches(
        self,
        corpus: ParallelCorpus,
        tokenizer: TranslationTokenizer,
        replicas: int,
        is_validation: bool = False,
    ) -> TokenBatches:
        """Tokenizes and filters a corpus and divides it into batches."""
        data, training = self.recipe.data, self.recipe.training
        source_ids = TokenSequences(encode_stretches(tokenizer.source, corpus.sources))
        target_ids = TokenSequences(encode_stretches(tokenizer.target, corpus.targets))
        kept, counts = filter_pairs(
            corpus,
            source_ids.lengths,
            target_ids.lengths,
            maximum_length=data.maximum_length - 1,  # the start or end token is counted
            maximum_length_ratio=None if is_validation else data.maximum_length_ratio,
            drop_duplicates=data.drop_duplicates and not is_validation,
        )
        if not len(kept):
            raise InputError(f"{corpus.name} must have pairs left after filtering: {counts}")
        dropped = {
            reason.replace("_", " "): count
            for reason, count in counts.items()
            if count and reason not in ("kept", "total")
        }
        details = "".join(f", {count} dropped as {reason}" for reason, count in dropped.items())
        _say(f"{corpus.name}: {counts['kept']} of {counts['total']} pairs{details}")
        return TokenBatches(
            TokenSequences(source_ids[row] for row in kept),
            TokenSequences(target_ids[row] for row in kept),
            batch_tokens=training.batch_tokens,
            seed=training.seed,
            batch_multiple=replicas,
        )

    def _new_model(self, tokenizer: TranslationTokenizer) -> Transformer:
        """A model with new weights, compiled by the recipe; called in the strategy's scope."""
        training = self.recipe.training
        source_vocabulary_size = None
        if not tokenizer.shared:
            source_vocabulary_size = tokenizer.source.vocabulary_size
        config = self.recipe.transformer_config(
            tokenizer.target.vocabulary_size, source_vocabulary_size
        )
        model = Transformer(config, dtype=training.precision)
        schedule = TransformerSchedule(
            config.d_model, training.warmup_steps, training.learning_rate_factor
        )
        optimizer = keras.optimizers.Adam(
            schedule,
            beta_1=training.adam_beta_1,
            beta_2=training.adam_beta_2,
            epsilon=training.adam_epsilon,
        )
        if training.precision == "mixed_float16":
            # Small gradients would be 0 in float16.
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        model.compile(
            optimizer=optimizer,
            loss=SmoothedCrossEntropy(training.label_smoothing),
            jit_compile=training.jit_compile,
        )
        return model

    def _validation(
        self,
        model: Transformer,
        tokenizer: TranslationTokenizer,
        batches: TokenBatches,
        corpus: ParallelCorpus,
    ) -> Validation:
        recipe = self.recipe
        translator = None
        if recipe.training.validation_bleu_sentences:
            translator = Translator(
                model,
                tokenizer,
                beam_size=recipe.decoding.beam_size,
                alpha=recipe.decoding.alpha,
                maximum_extra_length=recipe.decoding.maximum_extra_length,
                maximum_source_length=recipe.decoding.maximum_source_length,
            )
        return Validation(
            model,
            batches,
            translator,
            corpus,
            recipe.training.validation_bleu_sentences,
            recipe.data.target_language,
            recipe.training.seed,
        )

    def _fit(
        self,
        model: Transformer,
        state: dict,
        batches: TokenBatches,
        validation: Validation,
        log: RunLog,
        fingerprints: dict[str, str],
    ) -> None:
        training = self.recipe.training
        clock = callbacks.RunClock(state["seconds"])
        counter = callbacks.CountBatches(state["batches"])
        saver = callbacks.SaveCheckpoints(
            self.run.checkpoints(training.keep_checkpoints),
            clock,
            counter,
            training.checkpoint_every_steps,
            training.checkpoint_every_minutes,
            fingerprints,
        )
        run_callbacks = [
            callbacks.Watch(),
            counter,
            callbacks.LogTraining(log, training.log_every_steps),
            callbacks.Validate(log, validation),
            callbacks.EndRun(clock, training.steps, training.minutes),
            saver,
        ]
        # An epoch of Keras is the stretch between two validations. A run that resumes inside one
        # trains the rest of it first.
        every, step = training.validate_every_steps, state["step"]
        while not self._is_finished({"step": step, "seconds": clock.seconds()}):
            left = every - step % every
            epoch = step // every
            epochs = epoch + 1
            if left == every:
                epochs = -(-training.steps // every) if training.steps else sys.maxsize
            elif training.steps:
                left = min(left, training.steps - step)
            # Keras' progress bar goes to stdout, which is for results.
            with contextlib.redirect_stdout(sys.stderr):
                try:
                    model.fit(
                        batches.dataset(counter.batches),
                        initial_epoch=epoch,
                        epochs=epochs,
                        steps_per_epoch=left,
                        shuffle=False,  # The batches are; Keras warns that it cannot.
                        callbacks=run_callbacks,
                    )
                except BaseException:
                    _say("")  # What is said next does not go on the bar's line.
                    raise
            step = callbacks.current_step(model)
        saver.save_last()

    def _is_finished(self, state: dict) -> bool:
        training = self.recipe.training
        by_steps = training.steps is not None and state["step"] >= training.steps
        return by_steps or (
            training.minutes is not None and state["seconds"] >= training.minutes * 60
        )


def encode_stretches(tokenizer: SubwordTokenizer, sentences: Sequence[str]) -> Iterator[list[int]]:
    """The ids of each sentence; some thousands are encoded at a time, so that memory is bounded."""
    for start in range(0, len(sentences), 10_000):
        yield from tokenizer.encode_batch(sentences[start : start + 10_000])


def _check_same_recipe(recipe: Recipe, run: RunDirectory) -> None:
    """Refuses to go on with another model or corpus; when a run ends may be changed."""
    before, now = run.load_recipe().to_dict(), recipe.to_dict()
    for section in now:
        for name, value in now[section].items():
            if (section, name) in CHANGEABLE or before[section].get(name) == value:
                continue
            raise InputError(
                f"{run.path} holds a run with {section}.{name}={before[section].get(name)!r}; "
                f"resume it with the same recipe or train in another directory. "
                f"Received: {section}.{name}={value!r}"
            )


def _check_fingerprints(state: dict, fingerprints: dict[str, str], run: Path) -> None:
    for name, fingerprint in fingerprints.items():
        if state.get(name) != fingerprint:
            raise InputError(
                f"The {name} of {run} must be the one that its checkpoints were trained with "
                f"(sha256 {state.get(name)}). Received: another one (sha256 {fingerprint})"
            )


def _say(message: str) -> None:
    print(message, file=sys.stderr)
