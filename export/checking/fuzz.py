"""Random bytes for an export: whatever comes in, valid text and finite numbers come out."""

from __future__ import annotations

import math
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np

from export.session import ExportSession, Outputs
from export.signatures import INPUTS

MAXIMUM_BYTES = 5000
_MAXIMUM_BATCH = 64

_WORDS = (
    *("the", "house", "is", "Straße", "naïve", "Ελλάδα", "Россия", "שלום", "مرحبا", "नमस्ते"),
    *("你好", "日本語", "한국어", "👩\u200d👧", "🏳️\u200d🌈", "1,000.50", "▁", "\\n"),
    *("<s>", "</s>", "<pad>", "<unk>", "<0x41>", "e\u0301", "\u202eabc", "\ufeff", "\x00"),
    *("\r\n", "\u2028", "\u00a0", "\ufffd"),
)


def random_bytes(generator: random.Random) -> bytes:
    """A string of 0 to 5,000 bytes: noise, text of all scripts, damaged text, one thing repeated.

    Short ones are as frequent as long ones on a logarithmic scale.
    """
    size = round(math.exp(generator.uniform(0, math.log(MAXIMUM_BYTES + 1)))) - 1
    kind = generator.randrange(6)
    if kind == 0:
        return generator.randbytes(size)
    if kind == 1:
        ranges = ((0, 0x7F), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x10FFFF))
        text = "".join(chr(generator.randint(*generator.choice(ranges))) for _ in range(size // 3))
        return text.encode()[:size]
    if kind == 2:
        return (generator.choice(_WORDS).encode() * (size + 1))[:size]
    words = " ".join(generator.choice(_WORDS) for _ in range(size // 4 + 1))
    text = bytearray(words.encode()[:size])
    if kind == 3:
        for _ in range(generator.randint(1, 9) if text else 0):
            text[generator.randrange(len(text))] = generator.randrange(256)
    return bytes(text)


def fuzz(
    session: ExportSession,
    strings: int,
    seed: int = 0,
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, float]:
    """Sends random byte strings through an export in batches of 1 to 64.

    Args:
        session: `ExportSession`.
        strings: int. How many.
        seed: int. The same seed gives the same strings.
        report: called with a line of progress now and then.

    Returns:
        A dict: `strings`, `batches`, `seconds`, `truncated` (how many were cut),
        `memory_megabytes` (the most that the process has held) and `memory_growth_megabytes`
        (how much more after the first tenth of the strings than before).

    Raises:
        ValueError: for an output that is no valid UTF-8 on one line, or no finite number, or has
            not one row a string.
        Exception: what TensorFlow raises.
    """
    generator = random.Random(seed)
    signatures = [name for name in INPUTS if name in session.signatures]
    # Most of them through the default signature, which all exports have.
    weights = [7 if name == "serving_default" else 1 for name in signatures]
    start = time.monotonic()
    done = batches = truncated = 0
    settled = _memory()
    for batch in _batches(generator, strings):
        (signature,) = generator.choices(signatures, weights)
        first, *others = INPUTS[signature]
        columns = {first: batch, **{name: batch[::-1] for name in others}}
        outputs = session.run(signature, **columns)
        _check(signature, batch, outputs)
        done, batches = done + len(batch), batches + 1
        truncated += int(outputs["truncated"].sum())
        if done <= strings // 10:
            settled = _memory()
        if batches % 100 == 0:
            report(f"{done} strings, {time.monotonic() - start:.0f} s, {_memory():.0f} MB")
    return {
        "strings": done,
        "batches": batches,
        "truncated": truncated,
        "seconds": time.monotonic() - start,
        "memory_megabytes": _memory(),
        "memory_growth_megabytes": _memory() - settled,
    }


def _batches(generator: random.Random, strings: int) -> Iterator[list[bytes]]:
    left = strings
    while left:
        size = min(left, generator.randint(1, _MAXIMUM_BATCH))
        left -= size
        yield [random_bytes(generator) for _ in range(size)]


def _check(signature: str, batch: list[bytes], outputs: Outputs) -> None:
    for name, values in outputs.items():
        where = f"{signature}/{name}"
        if len(values) != len(batch):
            raise ValueError(f"{where} must have {len(batch)} rows. Received: {values.shape}")
        if values.dtype == object:
            for row, texts in enumerate(values.reshape(len(batch), -1)):
                for text in texts:
                    decoded = text.decode()  # UnicodeDecodeError is a ValueError
                    if set(decoded) & set("\0\r\n"):
                        raise ValueError(f"{where} of {batch[row]!r} must be a line: {decoded!r}")
        elif not np.all(np.isfinite(values)):
            raise ValueError(f"{where} must be finite. Received: {values}")


def _memory() -> float:
    """The most memory that the process has held, in MB."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
