"""Keras layers, one idea of the paper a file."""

from keras_transformer.layers.attention import scaled_dot_product_attention
from keras_transformer.layers.decoder import Decoder, DecoderLayer, KeysValues
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.embedding import TokenEmbedding
from keras_transformer.layers.encoder import Encoder, EncoderLayer
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.masks import causal_mask, padding_mask, window_mask
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.positions import LearnedPositions, SinusoidalPositions
from keras_transformer.layers.projection import Projection
from keras_transformer.layers.residual import Residual
from keras_transformer.layers.stack import StackArguments
from keras_transformer.layers.windowed_attention import Window

__all__ = [
    "Decoder",
    "DecoderLayer",
    "Dropout",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "KeysValues",
    "LearnedPositions",
    "MultiHeadAttention",
    "Projection",
    "Residual",
    "SinusoidalPositions",
    "StackArguments",
    "TokenEmbedding",
    "Window",
    "causal_mask",
    "padding_mask",
    "scaled_dot_product_attention",
    "window_mask",
]
