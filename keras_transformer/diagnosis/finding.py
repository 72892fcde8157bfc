"""What a probe found: one measurement beside its bound, with what to do about it."""

from __future__ import annotations

from typing import Any, NamedTuple

# The five ways in which a reproduction of the paper fails, in the order in which a run meets them.
TROUBLES = ("divergence", "repetition", "order", "memory", "bleu")


class Finding(NamedTuple):
    """The result of one probe.

    Args:
        name: str. The probe, such as `"causality"`; where `ok` is False, the name of the fault.
        trouble: str. One of `TROUBLES`, what the fault leads to.
        ok: bool or None. False where the fault is there, None where the probe cannot tell, which
            `detail` gives the reason of.
        measured: dict of what was measured, as JSON can hold it.
        bound: str. Where health ends, in words.
        detail: str. What was found, in one line.
        remedy: str. What to do; empty unless `ok` is False.

    Example:

    >>> finding = Finding("beam", "bleu", False, {"beam_size": 1}, "beam_size of at least 2",
    ...                   "greedy search", "set decoding.beam_size to 4")
    >>> finding.as_dict()["name"], finding.state
    ('beam', 'fault')
    """

    name: str
    trouble: str
    ok: bool | None
    measured: dict[str, Any]
    bound: str
    detail: str
    remedy: str = ""

    @property
    def state(self) -> str:
        """`"fault"`, `"ok"` or `"unknown"`."""
        return {True: "ok", False: "fault", None: "unknown"}[self.ok]

    def as_dict(self) -> dict[str, Any]:
        """All fields, for JSON."""
        return self._asdict()


def faults(findings: list[Finding]) -> list[str]:
    """The names of what is wrong.

    Args:
        findings: list of `Finding`.

    Returns:
        List of the names of those whose `ok` is False.
    """
    return [finding.name for finding in findings if finding.ok is False]
