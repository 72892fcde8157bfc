"""The encoder-decoder Transformer of *Attention Is All You Need* for TensorFlow and Keras."""

from keras_transformer.config import TransformerConfig
from keras_transformer.errors import InputError
from keras_transformer.losses import SmoothedCrossEntropy
from keras_transformer.metrics import Perplexity, TokenAccuracy
from keras_transformer.model import Transformer, build_transformer
from keras_transformer.schedules import TransformerSchedule

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
