"""Shards in folders, and a model that is no model, for the tests of the Beam pipeline."""

import gzip
from pathlib import Path

from export.beam_model import TranslationHandler


def write(folder: Path, shards: dict[str, bytes]) -> Path:
    folder.mkdir()
    for name, content in shards.items():
        (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return folder


def read(folder: Path) -> dict[str, bytes]:
    return {
        path.name: gzip.decompress(path.read_bytes())
        if path.name.endswith(".gz")
        else path.read_bytes()
        for path in folder.iterdir()
        if path.is_file()
    }


def lines(content: bytes) -> list[bytes]:
    return content.removesuffix(b"\n").split(b"\n") if content else []


class Shouting:
    """A model whose translation is its text in capitals; one of its texts is more than it bears."""

    def __init__(self, poison=None, memory=1000):
        self.poison, self.memory, self.failures, self.calls = poison, memory, 0, []

    def translate(self, texts):
        self.calls.append(list(texts))
        if self.failures > 0:
            self.failures -= 1
            raise OSError("for now")
        if len(texts) > self.memory:
            raise MemoryError(f"{len(texts)} texts")
        if self.poison in texts:
            raise ValueError("poison\nand more")
        return [text.upper() for text in texts], sum(len(text) > 20 for text in texts)


class ShoutingHandler(TranslationHandler):
    """A handler with that model instead of an export."""

    def __init__(self, batch_size=4, poison=None):
        super().__init__("none", batch_size)
        self._poison = poison

    def load_model(self):
        return Shouting(self._poison)
