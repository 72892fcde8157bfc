"""The encoder-decoder Transformer of *Attention Is All You Need* for TensorFlow and Keras."""

from keras_transformer import startup

if startup.is_command_line():
    startup.import_tensorflow_quietly()

from keras_transformer.config import TransformerConfig  # noqa: E402
from keras_transformer.errors import InputError  # noqa: E402
from keras_transformer.losses import SmoothedCrossEntropy  # noqa: E402
from keras_transformer.metrics import Perplexity, TokenAccuracy  # noqa: E402
from keras_transformer.model import Transformer, build_transformer  # noqa: E402
from keras_transformer.schedules import TransformerSchedule  # noqa: E402

__version__ = "0.1.0"

__all__ = [
    "InputError",
    "Perplexity",
    "SmoothedCrossEntropy",
    "TokenAccuracy",
    "Transformer",
    "TransformerConfig",
    "TransformerSchedule",
    "build_transformer",
]
