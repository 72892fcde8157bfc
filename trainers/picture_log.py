"""A Keras callback that shows in TensorBoard how a run's attention takes shape."""

from __future__ import annotations

import keras
import tensorflow as tf

from keras_transformer.command_io import say
from keras_transformer.translation_tokenizer import TranslationTokenizer
from trainers.callbacks import current_step
from trainers.corpus import ParallelCorpus
from trainers.run_log import RunLog

# Of a sentence whose picture is easy to look at, and how many are looked through for one.
_FEWEST, _MOST = 5, 16
_LOOKED_THROUGH = 500


class PictureLog(keras.callbacks.Callback):
    """Draws the last layer's attention for one validation pair whenever the run has validated.

    The pair is the same in the whole run, so that its pictures can be compared. They go into the
    folder `attention` beside the figures of TensorBoard. Pictures that cannot be drawn or written
    are left out with a line on stderr: a training never ends by them.

    Args:
        log: `RunLog`; the callback that writes validations to it comes before this one.
        tokenizer: `TranslationTokenizer` of the run.
        corpus: `ParallelCorpus` of the validation set.

    Example:

    >>> tokenizer = TranslationTokenizer.train(["one two"], ["eins zwei"], vocabulary_size=275)
    >>> corpus = ParallelCorpus(["one two"], ["eins zwei"], "validation")
    >>> PictureLog(RunLog("runs/mine"), tokenizer, corpus).pair
    ('one two', 'eins zwei')
    """

    def __init__(
        self, log: RunLog, tokenizer: TranslationTokenizer, corpus: ParallelCorpus
    ) -> None:
        super().__init__()
        self.log = log
        self.folder = log.path.parent / "tensorboard" / "attention"
        self.tokenizer = tokenizer
        self.pair = _pair(corpus, tokenizer)
        self._writer = None

    def on_epoch_end(self, epoch, logs=None):
        step = current_step(self.model)
        if self.pair is None or not self.log.has(step, "val_loss"):
            return
        try:
            self._draw(step)
        except Exception as error:  # noqa: BLE001  whatever it is, the training matters more
            reason = (str(error) or type(error).__name__).partition("\n")[0]
            say(f"no pictures of attention for TensorBoard: {reason}")
            self.pair = None

    def _draw(self, step: int) -> None:
        # Here, so that a training without pictures does not wait for matplotlib.
        from keras_transformer.diagnosis.attention_maps import KINDS, attention_maps
        from keras_transformer.diagnosis.heat_map_images import heat_map_grid, image_of

        maps = attention_maps(self.model, self.tokenizer, *self.pair)
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(str(self.folder))
        with self._writer.as_default(step=step):
            for kind, layers in maps.weights.items():
                last = len(layers) - 1
                figure = heat_map_grid(
                    layers[last:],
                    maps.rows(kind),
                    maps.columns(kind),
                    f"{KINDS[kind]}, step {step:,}",
                    first_layer=last,
                    inches=1.8,
                )
                tf.summary.image(f"attention/{kind}/layer_{last}", image_of(figure)[None])
        self._writer.flush()


def _pair(corpus: ParallelCorpus, tokenizer: TranslationTokenizer) -> tuple[str, str] | None:
    """The first pair of an easy length, or else the shortest one; None where all are empty."""
    found = None
    pairs = zip(corpus.sources, corpus.targets, strict=True)
    for (source, target), _ in zip(pairs, range(_LOOKED_THROUGH), strict=False):
        lengths = len(tokenizer.source.encode(source)), len(tokenizer.target.encode(target))
        if min(lengths) >= _FEWEST and max(lengths) <= _MOST:
            return source, target
        if min(lengths) and (found is None or max(lengths) < found[0]):
            found = max(lengths), source, target
    return None if found is None else found[1:]
