"""Translates with a TensorFlow Serving server: the same calls as `Translator`, over a network."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Sequence

import numpy as np
import tenacity

from export.serving.server_address import ServerAddress, ServerUnavailable, ServingError
from keras_transformer.errors import InputError, check_sizes
from keras_transformer.text_batches import (
    Hypothesis,
    OnCut,
    batches_by_length,
    check_texts,
    hypotheses,
)

Outputs = dict[str, np.ndarray]

# The first pause is up to a fifth of a second, each next one up to twice as long as the last.
_BACKOFF = tenacity.wait_random_exponential(multiplier=0.2, max=5)
_CLOSED = "A client must be open to be used. Received: one that was closed"


class ServingClient:
    """A client of an export that TensorFlow Serving has loaded.

    A request that finds no server, or that a server drops because it ends, is sent again after
    pauses that grow: translating changes nothing on the server, so no request can do harm twice.
    May be used by several threads at once.

    Args:
        url: str. `grpc://HOST:PORT` or `http://HOST:PORT`, `grpcs` or `https` with TLS. After it
            may come `/v1/models/NAME`, and `/versions/N` or `/labels/L`.
        model: str. The model's name on the server, where the URL has none.
        timeout: float. Seconds that a server may take to answer one request.
        retry_seconds: float. Seconds after which a request is not sent again.
        concurrency: int. Requests of `translate` that are under way at a time.

    Attributes:
        address: `ServerAddress`.
        retries: int. Requests that were sent again, so far.

    Raises:
        InputError: for an option that is not possible.

    Example:

    ```python
    with ServingClient("grpc://localhost:8500") as client:
        for best in client.translate(["This is a test.", "And another."]):
            print(best[0].text)
    ```

    References:
        - TensorFlow Serving, [RESTful API](https://www.tensorflow.org/tfx/serving/api_rest)
    """

    def __init__(
        self,
        url: str,
        model: str = "translator",
        timeout: float = 60.0,
        retry_seconds: float = 60.0,
        concurrency: int = 4,
    ) -> None:
        check_sizes(concurrency=concurrency)
        if not 0 < timeout < float("inf"):
            raise InputError(f"timeout must be above 0 seconds. Received: {timeout!r}")
        if not 0 <= retry_seconds < float("inf"):
            raise InputError(f"retry_seconds must be at least 0. Received: {retry_seconds!r}")
        self.address = ServerAddress.parse(url, model)
        # Only what is used is imported: TF Serving's protos and gRPC, or requests.
        if self.address.scheme in ("grpc", "grpcs"):
            from export.serving.grpc_transport import GrpcTransport as Transport
        else:
            from export.serving.rest_transport import RestTransport as Transport
        self.retries = 0
        self._retry_seconds = retry_seconds
        self._transport = Transport(self.address, timeout)
        self._pool = concurrent.futures.ThreadPoolExecutor(concurrency, "serving-client")
        self._closed = threading.Event()
        self._lock = threading.Lock()

    def predict(self, signature: str, /, **inputs: Sequence[str | bytes]) -> Outputs:
        """Runs a signature by one request, whatever its size.

        Args:
            signature: str. Its name.
            **inputs: for each input of the signature the texts, one a row.

        Returns:
            A dict of each output's name and array, texts as bytes of UTF-8.

        Raises:
            ServingError: where the server does not answer, refuses, or answers with what an
                export cannot return. An `InputError`.
        """
        return self._predict(signature, inputs, stopped=threading.Event())

    def translate(
        self,
        texts: Sequence[str],
        batch_sentences: int = 32,
        n_best: int = 1,
        on_cut: OnCut | None = None,
    ) -> list[list[Hypothesis]]:
        """The best hypotheses for each text, in the order of the texts.

        Args:
            texts: sequence of str.
            batch_sentences: int. Texts of one request; the result does not depend on it.
            n_best: int. Hypotheses for a text at most, no more than the export's beam. 1 asks for
                `serving_default`, more for `n_best`.
            on_cut: called with the row of each text that was too long to be read whole.

        Returns:
            For each text a list of `Hypothesis`, best first; at least one.

        Raises:
            ServingError: as `predict`. The other requests are given up.
        """
        check_sizes(batch_sentences=batch_sentences, n_best=n_best)
        encoded = _encoded("text", texts)
        results: list[list[Hypothesis]] = [[] for _ in texts]
        stopped = threading.Event()

        def translate_rows(rows: np.ndarray) -> np.ndarray:
            # Each batch has rows of its own, so threads need not wait for one another.
            batch = [encoded[row] for row in rows]
            translations, scores, truncated = self._hypotheses(batch, n_best, stopped)
            for row, row_texts, row_scores in zip(rows, translations, scores, strict=True):
                results[row] = hypotheses(row_texts, row_scores)[:n_best]
            return rows[truncated]

        try:
            futures = [
                self._pool.submit(translate_rows, rows)
                for rows in batches_by_length(texts, batch_sentences)
            ]
        except RuntimeError as error:  # the pool is shut down
            raise ServingError(_CLOSED) from error
        try:
            for future in concurrent.futures.as_completed(futures):
                future.result()
        finally:
            # After an error or an interrupt nobody waits for the rest.
            stopped.set()
            for future in futures:
                future.cancel()
        if on_cut is not None:
            for row in sorted(int(row) for future in futures for row in future.result()):
                on_cut(row)
        return results

    def close(self) -> None:
        """Ends the connections; what is under way fails."""
        self._closed.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._transport.close()

    def __enter__(self) -> ServingClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _hypotheses(
        self, batch: Sequence[bytes], n_best: int, stopped: threading.Event
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Translations, object [N, K], scores, float [N, K], and what was cut, bool [N]."""
        several = n_best > 1
        signature = "n_best" if several else "serving_default"
        kinds = (
            {"translations": ("O", 2), "scores": ("f", 2), "truncated": ("b", 1)}
            if several
            else {"translation": ("O", 1), "score": ("f", 1), "truncated": ("b", 1)}
        )
        outputs = self._predict(signature, {"text": batch}, stopped)
        for name, (kind, rank) in kinds.items():
            found = outputs.get(name)
            if found is None or (found.dtype.kind, found.ndim) != (kind, rank):
                received = "none" if found is None else f"{found.dtype} {list(found.shape)}"
                raise ServingError(
                    f"{self.address} must return {name} of {signature} as an export does. "
                    f"Received: {received}"
                )
        translations, scores, truncated = (outputs[name] for name in kinds)
        if several and n_best > scores.shape[1]:
            raise ServingError(
                f"n_best must be at most the {scores.shape[1]} hypotheses that {self.address} "
                f"gives. Received: {n_best}"
            )
        if translations.shape != scores.shape or translations.shape[-1:] == (0,):
            raise ServingError(
                f"{self.address} must return a score for each translation, of which there is at "
                f"least one. Received: {list(translations.shape)} and {list(scores.shape)}"
            )
        rows = len(batch)
        return translations.reshape(rows, -1), scores.reshape(rows, -1), truncated

    def _predict(
        self, signature: str, inputs: dict[str, Sequence[str | bytes]], stopped: threading.Event
    ) -> Outputs:
        encoded = {name: _encoded(name, texts) for name, texts in inputs.items()}
        rows = [len(texts) for texts in encoded.values()]
        if len(set(rows)) != 1:
            raise InputError(f"Inputs must be given, all of as many rows. Received: {rows}")
        if self._closed.is_set():
            raise ServingError(_CLOSED)
        started = time.monotonic()

        def pause(state: tenacity.RetryCallState) -> float:
            # The last attempt is made when the time is over, not a long pause before.
            left = started + self._retry_seconds - time.monotonic()
            return max(0.0, min(_BACKOFF(state), left))

        attempts = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(ServerUnavailable),
            stop=tenacity.stop_any(
                tenacity.stop_after_delay(self._retry_seconds),
                tenacity.stop_when_event_set(stopped),
                tenacity.stop_when_event_set(self._closed),
            ),
            wait=pause,
            sleep=tenacity.sleep_using_event(stopped),
            before_sleep=self._count_retry,
            reraise=True,
        )
        try:
            outputs = attempts(self._transport.predict, signature, encoded)
        except ServerUnavailable as error:
            tries = attempts.statistics["attempt_number"]
            raise ServingError(
                f"{self.address} must be up within {self._retry_seconds:g} s. Received: {error} "
                f"({tries} {'try' if tries == 1 else 'tries'} in "
                f"{time.monotonic() - started:.1f} s)"
            ) from error
        self._check(signature, outputs, rows[0])
        return outputs

    def _count_retry(self, state: tenacity.RetryCallState) -> None:
        with self._lock:
            self.retries += 1

    def _check(self, signature: str, outputs: Outputs, rows: int) -> None:
        """What every signature of an export promises."""
        for name, values in outputs.items():
            where = f"{self.address} must return {name} of {signature}"
            if values.shape[:1] != (rows,):
                raise ServingError(
                    f"{where} with {rows} {'row' if rows == 1 else 'rows'}. "
                    f"Received: the shape {list(values.shape)}"
                )
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                raise ServingError(f"{where} as finite numbers. Received: {_odd(values)}")
            if values.dtype.kind == "O":
                for text in values.flat:
                    try:
                        str(text, "utf-8")
                    except (TypeError, UnicodeDecodeError) as error:
                        raise ServingError(
                            f"{where} as UTF-8. Received: {text[:60]!r} ({error})"
                        ) from error


def _encoded(name: str, texts: Sequence[str | bytes]) -> list[bytes]:
    """Texts as a server takes them; the graph replaces what is no valid UTF-8."""
    check_texts(texts)
    for text in texts:
        if not isinstance(text, str | bytes):
            raise InputError(f"{name} must hold texts only. Received: {text!r}")
    return [
        text.encode(errors="surrogatepass") if isinstance(text, str) else text for text in texts
    ]


def _odd(values: np.ndarray) -> float:
    """The first number that is none."""
    return float(values[~np.isfinite(values)].flat[0])
