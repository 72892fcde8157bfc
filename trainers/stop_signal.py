"""Has a signal to stop wait until the run can stop with nothing lost."""

from __future__ import annotations

import signal
import threading
from types import FrameType


class StopSignal:
    """While active, SIGTERM and the first SIGINT only set `requested`.

    Whoever trains looks at `requested` after each batch, saves a checkpoint and ends. A second
    SIGINT (Ctrl-C) raises `KeyboardInterrupt` at once, for those who will not wait. Signals come to
    the main thread of a process alone: elsewhere this does nothing, and `requested` stays None.

    Attributes:
        requested: `signal.Signals` or None. The first signal that came.

    Example:

    >>> with StopSignal() as stop:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     stop.requested.name
    'SIGTERM'
    """

    def __init__(self) -> None:
        self.requested: signal.Signals | None = None
        self._interrupted = False
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            # None stands for a handler that was not set from Python and cannot be set back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before.clear()

    @property
    def exit_code(self) -> int:
        """What a process ends with that has stopped as requested, its checkpoint saved.

        SIGTERM is how a machine asks to be given back: the job has done what it was asked to, 0.
        Ctrl-C is a person's way: 130, as shells have it, so that a script stops too.
        """
        return 130 if self.requested == signal.SIGINT else 0

    def _request(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._interrupted:
            raise KeyboardInterrupt
        self._interrupted |= number == signal.SIGINT
        self.requested = self.requested or signal.Signals(number)
