"""OPUS-MT / Marian checkpoints: their words, their tokenizers and their weights."""
