"""From a recipe to a trained run directory, by `model.fit`."""

from __future__ import annotations

import contextlib
import hashlib
import json
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np

from keras_transformer import Transformer
from keras_transformer.command_io import say
from keras_transformer.errors import InputError
from trainers import callbacks
from trainers.batching import TokenBatches
from trainers.initial_run import initial_model_path, initial_weights, weights_fingerprint
from trainers.new_model import config_of, new_model
from trainers.picture_log import PictureLog
from trainers.precision import resolve_precision
from trainers.prepare import prepare_corpus
from trainers.prepared import PreparedCorpus
from trainers.recipe import Recipe
from trainers.rendezvous import meet
from trainers.resumption import check_fingerprints, check_same_recipe, first_difference
from trainers.run import RunDirectory
from trainers.run_lock import run_lock
from trainers.run_log import RunLog
from trainers.splits import open_split, read_split
from trainers.stop_signal import StopSignal
from trainers.strategy import create_strategy, local_replicas
from trainers.validation import rise_of_loss, validation_of
from trainers.workers import WorkerLost, Workers

# The last are the weights that a fine-tuning starts from, None for random ones or a checkpoint's.
_Data = tuple[PreparedCorpus, TokenBatches, list[np.ndarray] | None]


class Trainer:
    """Trains a recipe in a run directory; in one that exists, goes on where it stopped.

    Where `TF_CONFIG` names several workers, each of them makes one of these, with the same recipe
    and the same directory, which all of them see.

    Args:
        recipe: `Recipe`.
        run_directory: path. Made where it does not exist.

    Attributes:
        workers: `Workers`.
        stop: `StopSignal` that the run has been sent.

    Raises:
        InputError: where the directory holds a run of another recipe, or cannot be made; where a
            file of the recipe's data is missing, or the recipe is one of an imported run.
    """

    def __init__(self, recipe: Recipe, run_directory: str | Path) -> None:
        recipe.check_trains()
        self.workers = Workers()
        self.stop = StopSignal()
        precision = resolve_precision(recipe.training.precision)
        # The run's recipe says what this machine chose, so that it resumes with the same.
        recipe = replace(recipe, training=replace(recipe.training, precision=precision))
        self.recipe = recipe
        self.run = RunDirectory(run_directory)
        for split in ("train", "validation", "test"):
            if getattr(recipe.data, split):
                try:
                    open_split(recipe.data, split).check()
                except InputError as error:
                    raise InputError(f"data.{split}: {error}") from error
        try:
            self.run.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"A run directory must be a folder that can be made. Received: {error}"
            ) from error
        initial_run = recipe.training.initial_run
        if initial_run is not None and not self.run.checkpoints().steps():
            initial_model_path(initial_run)
        if self.run.recipe_path.exists() and self.workers.is_chief:
            check_same_recipe(self.run.load_recipe(), recipe, self.run.path)

    def train(self) -> signal.Signals | None:
        """Trains to the recipe's end and writes the averaged model.

        SIGTERM and Ctrl-C end it after the update that is being made, with a checkpoint.

        Returns:
            The signal that has ended it, or None where the run is finished.

        Raises:
            InputError: where the data cannot be used, or another process trains in the directory.
            TrainingDiverged: where the loss is no longer a finite number.
            WorkerLost: where another worker is gone, or sees other files.
        """
        lock = run_lock(self.run.path) if self.workers.is_chief else contextlib.nullcontext()
        # Several workers wait for one another, and end together at any time; one process may be
        # ended at once where it is not training.
        stop = self.stop if self.workers.count > 1 else contextlib.nullcontext()
        with lock, self.workers.watched(), stop:
            return self._train()

    def _train(self) -> signal.Signals | None:
        if self.workers.count > 1:
            say(f"waiting for all of {self.workers.count} workers")
            if not meet(self.workers.addresses, self.workers.index, self._is_stopped):
                return self._before_training()
        # Strategy before all else: it divides the CPU into devices, which must be done first.
        strategy = create_strategy(self.recipe.training.devices, self.workers)
        self.workers.join(strategy)
        # The others read what the chief has written, and nothing half-written.
        data = self._in_turn(lambda: self._prepare(strategy.num_replicas_in_sync))
        if data is None:
            return self._before_training()
        corpus, batches, weights = data
        self._check_same_start(corpus, weights)
        with strategy.scope():
            keras.utils.set_random_seed(self.recipe.training.seed)
            resumed = self.run.checkpoints().load_latest()
            if resumed is None:
                model = new_model(self.recipe, corpus.tokenizer)
                if weights is not None:
                    for variable, value in zip(model.trainable_variables, weights, strict=True):
                        variable.assign(value)
                    initial = RunDirectory(self.recipe.training.initial_run)
                    self._say(f"starting from the model of {initial.path}")
                    theirs, ours = initial.load_recipe().data.languages, self.recipe.data.languages
                    if theirs not in (None, ours):  # which may be meant
                        self._say(f"it translates {theirs}, this run {ours}")
                state = {"step": 0, "batches": 0, "seconds": 0.0}
                if RunLog(self.run.path).lines():
                    self._say("there are no checkpoints: the run begins anew")
            else:
                model, state = resumed
                self._say(
                    f"resuming at step {state['step']}, {state['seconds'] / 60:.1f} minutes in"
                )
            model.accumulate_steps = self.recipe.training.accumulate_steps
            model.logs_layer_gradients = True
        return self._go_on(model, state, corpus, batches)

    def _in_turn(self, prepare: Callable[[], _Data]) -> _Data | None:
        """What the chief prepares, then what the others do; an error of one ends all.

        Returns:
            What `prepare` does, or None where a signal has come.
        """
        result, error = None, None
        for is_chief in (True, False):
            if self.workers.is_chief == is_chief:
                try:
                    result = prepare()
                except InputError as caught:
                    error = caught
            failed, stopped = self.workers.agree(error is not None, self._is_stopped())
            if error is not None:
                raise error
            if failed:
                raise InputError(
                    "All workers must be able to start. Received: an error of another one, which "
                    "says what it is"
                )
            if stopped:
                return None
        return result

    def _is_stopped(self) -> bool:
        return self.stop.requested is not None

    def _before_training(self) -> signal.Signals:
        """Says that a signal has come where there is nothing to save; returns it."""
        self._say("stopped by a signal before training; the same command starts it")
        return self.stop.requested or signal.SIGTERM  # or another worker's

    def _check_same_start(self, corpus: PreparedCorpus, weights: list[np.ndarray] | None) -> None:
        """Has all workers start from the same weights and corpus, which they find by themselves.

        A file system that hosts share may show some of them what was there a moment ago.
        """
        step = max(self.run.checkpoints().steps(), default=0)
        facts = [corpus.fingerprints, weights and weights_fingerprint(weights)]
        content = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
        if not self.workers.as_chief(step, int(content.hexdigest()[:12], 16)):
            raise WorkerLost(
                "All workers must see the same corpus and weights as the chief; start them "
                f"again. Received: step {step} and content {content.hexdigest()[:12]} on worker "
                f"{self.workers.index}"
            )

    def _prepare(self, replicas: int) -> _Data:
        """The tokenized corpus, its batches, and the weights that a fine-tuning starts from.

        Recipe and tokenizer are in the run directory then.
        """
        recipe, run = self.recipe, self.run
        if recipe.training.batch_tokens < 2 * replicas:
            raise InputError(
                f"training.batch_tokens must be at least 2 for each of the {replicas} devices. "
                f"Received: {recipe.training.batch_tokens}"
            )
        if self.workers.is_chief and not len(read_split(recipe.data, "validation")):
            raise InputError("data.validation must have sentences. Received: an empty file")
        tokenizer = run.load_tokenizer() if run.has_tokenizer() else None
        if tokenizer is not None:
            check_fingerprints(run, recipe, tokenizer)  # before another corpus is tokenized
        folder = Path(recipe.data.prepared_dir or run.path / "prepared")
        if not self.workers.is_chief:
            difference = first_difference(run.load_recipe(), recipe)
            if difference is not None:
                name, of_chief, of_this = difference
                raise InputError(
                    f"All workers must train the same recipe; the chief has {name}={of_chief!r}. "
                    f"Received: {name}={of_this!r} on worker {self.workers.index}"
                )
            corpus = prepare_corpus(recipe, folder, progress=False, tokenizer=tokenizer)
            return corpus, self._batches(corpus, replicas), self._initial_weights(corpus)
        corpus = prepare_corpus(recipe, folder, tokenizer=tokenizer)
        batches = self._batches(corpus, replicas)
        weights = self._initial_weights(corpus)
        # The recipe comes first: a tokenizer alone would serve whatever recipe is tried next.
        recipe.save(run.recipe_path)
        if tokenizer is None:
            corpus.tokenizer.save(run.tokenizer_path)
        return corpus, batches, weights

    def _initial_weights(self, corpus: PreparedCorpus) -> list[np.ndarray] | None:
        """Those of `training.initial_run`, which a run with a checkpoint needs no more."""
        initial_run = self.recipe.training.initial_run
        if initial_run is None or self.run.checkpoints().steps():
            return None
        return initial_weights(initial_run, config_of(self.recipe, corpus.tokenizer))

    def _batches(self, corpus: PreparedCorpus, replicas: int) -> TokenBatches:
        """The corpus, filtered and divided into batches."""
        training = self.recipe.training
        kept, counts = corpus.filter(self.recipe.data)
        if not len(kept):
            raise InputError(f"{corpus.name} must have pairs left to train on. Received: {counts}")
        dropped = {
            reason.replace("_", " "): count
            for reason, count in counts.items()
            if count and reason not in ("kept", "total")
        }
        details = "".join(f", {count} dropped as {reason}" for reason, count in dropped.items())
        self._say(f"{corpus.name}: {counts['kept']} of {counts['total']} pairs{details}")
        batches = TokenBatches(
            corpus.source,
            corpus.target,
            rows=kept,
            batch_tokens=training.batch_tokens,
            seed=training.seed,
        )
        least = min(batches.smallest_batch(), len(batches))
        if least < replicas:
            raise InputError(
                f"A batch must have a pair for each of the {replicas} devices: raise "
                "training.batch_tokens, lower data.maximum_length, or train on fewer devices. "
                f"Received: {training.batch_tokens} tokens, enough for {least} of the longest of "
                f"{len(batches)} pairs"
            )
        return batches

    def _go_on(
        self, model: Transformer, state: dict, corpus: PreparedCorpus, batches: TokenBatches
    ) -> signal.Signals | None:
        """Trains from a state to the end, and writes the model."""
        training, is_chief = self.recipe.training, self.workers.is_chief
        clock = callbacks.RunClock(state["seconds"])
        counter = callbacks.CountBatches(state["batches"])
        is_finished = self._is_finished(state["step"], state["seconds"])
        with self.stop if self.workers.count == 1 else contextlib.nullcontext():
            stop = self.stop
            end_run = callbacks.EndRun(clock, training.steps, training.minutes, stop, self.workers)
            run_callbacks = [callbacks.Watch(), counter, end_run]
            if is_chief:
                log = RunLog(self.run.path)
                log.forget_after(state["step"])
                validation = validation_of(self.recipe, model, corpus.tokenizer)
                validate = callbacks.Validate(
                    log, validation, end_run, training.validate_every_steps
                )
                files = corpus.fingerprints["corpus"]
                files = files | open_split(self.recipe.data, "validation").fingerprints()
                saver = callbacks.SaveCheckpoints(
                    self.run.checkpoints(training.keep_checkpoints),
                    clock,
                    counter,
                    training.checkpoint_every_steps,
                    training.checkpoint_every_minutes,
                    {**corpus.fingerprints, "corpus": files},
                )
                replicas = model.distribute_strategy.num_replicas_in_sync
                log_training = callbacks.LogTraining(
                    log, training.log_every_steps, batches, counter, replicas
                )
                sentences = read_split(self.recipe.data, "validation")
                pictures = PictureLog(log, corpus.tokenizer, sentences)
                run_callbacks += [log_training, validate, pictures, saver]
                # What a signal or a crash has kept from being measured, and what a fine-tuning
                # starts from: whether it gets better can be told from the first lines.
                step = state["step"]
                is_due = is_finished or step % training.validate_every_steps == 0
                is_due &= step > 0 or training.initial_run is not None
                if is_due and not log.has(step, "val_loss"):
                    validate.measure(step)
            if is_finished:
                self._say(f"the run is finished: step {state['step']}")
            else:
                self._fit(model, state["step"], batches, counter, end_run, run_callbacks)
                if is_chief:
                    saver.save_last()
            if end_run.is_interrupted:
                self._say(
                    f"stopped by a signal at step {callbacks.current_step(model)}, which is saved; "
                    "the same command goes on from there"
                )
                self._leave_together(is_finished)
                return stop.requested or signal.SIGTERM  # or another worker's
        # A finished run's model stays, whatever checkpoints it is the mean of.
        if is_chief and not (is_finished and self.run.model_path.exists()):
            self._say(f"model.keras is {self.run.average().what}")
            if rise := rise_of_loss(log.lines()):
                self._say(rise)
        self._leave_together(is_finished)
        return None

    def _leave_together(self, is_finished: bool) -> None:
        """Waits for the chief: whoever leaves before it would be a lost worker to TensorFlow.

        The chief of a run that was finished before may have nothing to do.
        """
        if not is_finished:
            self.workers.agree(False)

    def _fit(
        self,
        model: Transformer,
        step: int,
        batches: TokenBatches,
        counter: callbacks.CountBatches,
        end_run: callbacks.EndRun,
        run_callbacks: list[keras.callbacks.Callback],
    ) -> None:
        """Trains until the run ends. An epoch of Keras is the stretch between two validations."""
        training, strategy = self.recipe.training, model.distribute_strategy
        replicas = strategy.num_replicas_in_sync
        here = local_replicas(strategy, self.workers)
        # Keras puts a moving average in the place of the weights whenever `fit` ends.
        optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
        optimizer.finalize_variable_values = lambda variables: None
        while not (end_run.is_over or end_run.is_interrupted):
            every = training.validate_every_steps
            left = every - step % every  # a run that resumes in an epoch trains the rest of it
            if training.steps is not None:
                left = min(left, training.steps - step)
            dataset = strategy.distribute_datasets_from_function(
                lambda context: batches.dataset(counter.batches, replicas, here)
            )
            # Keras' progress bar goes to stdout, which is for results.
            with contextlib.redirect_stdout(sys.stderr):
                try:
                    model.fit(
                        dataset,
                        initial_epoch=step // every,
                        epochs=step // every + 1,
                        steps_per_epoch=left,
                        shuffle=False,  # The batches are; Keras warns that it cannot.
                        verbose=self._verbosity(),
                        callbacks=run_callbacks,
                    )
                except BaseException:
                    self._say("")  # What is said next does not go on the bar's line.
                    raise
            step = callbacks.current_step(model)
            if not end_run.is_interrupted:
                end_run.look_for_signal()  # which may have come in a validation

    def _is_finished(self, step: int, seconds: float) -> bool:
        training = self.recipe.training
        by_steps = training.steps is not None and step >= training.steps
        return by_steps or (training.minutes is not None and seconds >= training.minutes * 60)

    def _verbosity(self) -> int:
        """Keras' bar on a terminal, a line an epoch in a file, and nothing of other workers."""
        if not self.workers.is_chief:
            return 0
        return 1 if sys.stderr.isatty() else 2

    def _say(self, message: str) -> None:
        """Tells on stderr how the run goes; the chief alone does."""
        if self.workers.is_chief:
            say(message)
