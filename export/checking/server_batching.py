"""The gate on batches that TensorFlow Serving puts together from several requests."""

from __future__ import annotations

from export.checking.examined import (
    ExaminedExport,
    GateFailed,
    Row,
    difference,
    first_dimension,
    row_of,
)

# Rows of requests that arrive together.
_REQUESTS = ((1,), (2, 1), (3, 1, 1), (5, 2), (1, 1, 4, 3))
_ALLOWED_BATCH_SIZES = (1, 4, 8, 16)


def server_batching(export: ExaminedExport) -> str:
    """Requests that the server merges, and fills up, give each what it gives alone."""
    for signature in export.signatures:
        sample = export.rows(signature)
        for sizes in _REQUESTS:
            requests = _requests(sample, sizes)
            merged = [row for request in requests for row in request]
            filled = next(size for size in _ALLOWED_BATCH_SIZES if size >= len(merged))
            # The server fills with the first row of the last request.
            filler = [requests[-1][0]] * (filled - len(merged))
            outputs = export.run(signature, merged + filler)
            first_dimension(outputs, filled, signature)
            start = 0
            for request in requests:
                alone = export.run(signature, request)
                for index, row in enumerate(request):
                    if differ := difference(
                        row_of(alone, index), row_of(outputs, start + index), export.tolerance
                    ):
                        raise GateFailed(
                            f"{signature} {row}: alone and in a batch of {sizes} filled to "
                            f"{filled} gave {differ}"
                        )
                start += len(request)
    return f"{len(_REQUESTS)} batches of up to {max(map(sum, _REQUESTS))} rows, split again"


def _requests(sample: list[Row], sizes: tuple[int, ...]) -> list[list[Row]]:
    """Requests of these sizes whose rows go round the sample, none the one before."""
    rows = (sample[index % len(sample)] for index in range(sum(sizes)))
    return [[next(rows) for _ in range(size)] for size in sizes]
