"""Many requests at a time to a server that is killed in the middle and started again."""

import concurrent.futures
import time

import numpy as np
import pytest
from serving_double import ServerProcess
from session_answers import expected_hypotheses, is_same
from small_translators import SENTENCES, numbers

from export.serving.client import ServingClient
from export.session import ExportSession

THREADS = 32
SECONDS_AWAY = 2.0


@pytest.fixture(scope="module")
def sentences():
    return [*SENTENCES, *numbers(300, seed=9)[0]]


@pytest.fixture(scope="module")
def expected(numbers_export, sentences):
    """The hypotheses of each sentence, from a session in this process."""
    session = ExportSession(numbers_export)
    found = expected_hypotheses(session, sentences, 3)
    session.close()
    return dict(zip(sentences, found, strict=True))


def mixed_requests(sentences, count):
    """1 to 32 texts each, and the hypotheses to ask for: of every fourth request more than one."""
    random = np.random.default_rng(3)
    return [
        (list(random.choice(sentences, random.integers(1, 33))), 3 if number % 4 == 0 else 1)
        for number in range(count)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("api", "count"), [("grpc", 1000), ("rest", 300)])
def test_no_request_is_lost_when_the_server_is_killed(
    numbers_export, sentences, expected, api, count
):
    requests = mixed_requests(sentences, count)
    with (
        ServerProcess(numbers_export, api) as server,
        concurrent.futures.ThreadPoolExecutor(THREADS) as pool,
    ):
        url = server.start()
        with ServingClient(url, retry_seconds=120, concurrency=THREADS) as client:
            started = time.monotonic()
            futures = [
                pool.submit(client.translate, texts, n_best=n_best) for texts, n_best in requests
            ]
            while sum(future.done() for future in futures) < count // 3:
                time.sleep(0.01)
            retries_before = client.retries
            server.kill()
            under_way = sum(future.running() for future in futures)
            answered = sum(future.done() for future in futures)
            time.sleep(SECONDS_AWAY)
            assert server.start() == url
            found = [future.result() for future in futures]
            seconds = time.monotonic() - started
            retries = client.retries
    print(
        f"\n{api}: {count} requests of {sum(len(texts) for texts, _ in requests)} texts in "
        f"{seconds:.1f} s; killed after {answered} answers with {under_way} requests under way; "
        f"{retries} retries"
    )
    assert retries_before == 0
    assert count // 3 <= answered < count // 2
    assert under_way > THREADS // 2
    # Every thread met a server that was not there.
    assert retries >= THREADS
    wrong = [
        number
        for number, ((texts, n_best), rows) in enumerate(zip(requests, found, strict=True))
        if not is_same(rows, [expected[text][:n_best] for text in texts])
    ]
    assert wrong == []
