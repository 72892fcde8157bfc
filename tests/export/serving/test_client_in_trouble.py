"""Servers that are not there, refuse, are slow, or answer what an export cannot."""

import threading
import time

import numpy as np
import pytest
from served_model import UNAVAILABLE, Model, Refused, Status, Trouble
from serving_double import DOUBLES, free_port, serving
from session_answers import Changed, expected_hypotheses, is_same
from small_translators import SENTENCES

from export.serving.client import ServingClient
from export.serving.server_address import ServingError


@pytest.fixture(params=DOUBLES)
def api(request):
    return request.param


def test_what_is_unavailable_is_asked_again(api, session):
    trouble = Trouble(failures=[UNAVAILABLE] * 3)
    with serving(api, session, trouble) as client:
        found = client.translate(["one two", "six"])
        assert client.retries == 3
    assert trouble.requests == 4
    assert is_same(found, expected_hypotheses(session, ["one two", "six"], 1))


def test_a_server_that_starts_late_is_waited_for(api, session):
    port = free_port()
    scheme = {"grpc": "grpc", "rest": "http"}[api]
    found = []
    with ServingClient(f"{scheme}://127.0.0.1:{port}") as client:
        thread = threading.Thread(target=lambda: found.extend(client.translate(["one two"])))
        thread.start()
        while not client.retries:
            time.sleep(0.01)
        with DOUBLES[api](Model(session), port):
            thread.join(30)
    assert is_same(found, expected_hypotheses(session, ["one two"], 1))


def test_a_server_that_restarts_between_requests_is_found_again(api, session):
    port = free_port()
    with DOUBLES[api](Model(session), port) as url:
        client = ServingClient(url)
        expected = client.translate(["one two"])
    with client, DOUBLES[api](Model(session), port):
        assert client.translate(["one two"]) == expected


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_a_server_that_does_not_come_is_given_up(scheme):
    url = f"{scheme}://127.0.0.1:{free_port()}"
    started = time.monotonic()
    with (
        ServingClient(url, model="de", retry_seconds=0.7) as client,
        pytest.raises(ServingError, match=r"must be up within 0\.7 s") as raised,
    ):
        client.translate(["one"])
    message = str(raised.value)
    assert 0.7 <= time.monotonic() - started < 5
    assert f"{url}/v1/models/de " in message
    assert "refused" in message
    assert f" ({client.retries + 1} tries in " in message
    assert "\n" not in message
    assert client.retries >= 1


def test_no_time_for_retries_is_one_try(api, session):
    trouble = Trouble(failures=[UNAVAILABLE] * 2)
    with (
        serving(api, session, trouble, retry_seconds=0) as client,
        pytest.raises(ServingError, match=r"queue is full \(1 try in "),
    ):
        client.translate(["one"])
    assert trouble.requests == 1


@pytest.mark.parametrize(
    ("options", "request_", "said"),
    [
        ({"model": "nobody"}, ("serving_default", {"text": ["a"]}), r"request: Latest\(nobody\)"),
        (
            {"path": "/v1/models/translator/versions/7"},
            ("serving_default", {"text": ["a"]}),
            r"request: Specific\(translator, 7\)",
        ),
        (
            {"path": "/v1/models/translator/labels/best"},
            ("serving_default", {"text": ["a"]}),
            "label: best",
        ),
        ({}, ("unheard", {"text": ["a"]}), 'Serving signature .*"unheard".* not found'),
        ({}, ("serving_default", {"words": ["a"]}), "input.*words.*text|Missing.*text"),
        ({}, ("score", {"source": ["a"]}), "target"),
    ],
)
def test_what_is_refused_is_not_asked_again(api, session, options, request_, said):
    signature, inputs = request_
    with (
        serving(api, session, **options) as client,
        pytest.raises(ServingError, match=rf"must accept the request\. Received: .*(?:{said})"),
    ):
        client.predict(signature, **inputs)
    assert client.retries == 0


@pytest.mark.parametrize(
    "status",
    [Status.INVALID_ARGUMENT, Status.NOT_FOUND, Status.FAILED_PRECONDITION, Status.INTERNAL],
)
def test_an_error_of_the_model_is_not_asked_again(api, session, status):
    trouble = Trouble(failures=[Refused(status, 'a\nlong "tale"')])
    with (
        serving(api, session, trouble) as client,
        pytest.raises(ServingError, match='Received: .*: a long "tale"$'),
    ):
        client.translate(["one"])
    assert trouble.requests == 1


def test_a_server_that_is_too_slow_is_an_error(api, session):
    trouble = Trouble(delay=lambda number: 1.0)
    with (
        serving(api, session, trouble, timeout=0.3) as client,
        pytest.raises(ServingError, match=r"within the timeout of 0\.3 s"),
    ):
        client.translate(["one"])
    assert trouble.requests == 1


def test_the_first_error_ends_the_rest(api, session):
    trouble = Trouble(failures=[Refused(Status.INVALID_ARGUMENT, "no")])
    with (
        serving(api, session, trouble, concurrency=1) as client,
        pytest.raises(ServingError, match="no$"),
    ):
        client.translate(SENTENCES, batch_sentences=1)
    assert trouble.requests < 5


def test_an_error_does_not_wait_for_what_is_tried_again(api, session):
    # While one batch fails for good, the others are in a pause before they try again.
    failures = [UNAVAILABLE] * 3 + [Refused(Status.INVALID_ARGUMENT, "no")] + [UNAVAILABLE] * 1000
    trouble = Trouble(failures, delay=lambda number: 0.05 * number if number < 4 else 0)
    started = time.monotonic()
    with serving(api, session, trouble, retry_seconds=60) as client:
        with pytest.raises(ServingError, match="no$"):
            client.translate(["one", "two", "three", "four"], batch_sentences=1)
        assert time.monotonic() - started < 10
        # The threads are free again, for whoever asks next.
        while client.retries < 3:
            time.sleep(0.01)
        trouble.failures = ()
        assert len(client.translate(SENTENCES, batch_sentences=1)) == len(SENTENCES)
    assert time.monotonic() - started < 20


def with_score(value):
    def change(outputs):
        return {**outputs, "score": np.full_like(outputs["score"], value)}

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (with_score(np.nan), "must return score of serving_default as finite numbers.*nan"),
        (with_score(-np.inf), "must return score of serving_default as finite numbers.*-inf"),
        (
            lambda outputs: {**outputs, "translation": np.array([b"ok", b"f\xc3"], object)},
            "UTF-8",
        ),
        (
            lambda outputs: {name: values[:1] for name, values in outputs.items()},
            r"with 2 rows\. Received: the shape \[1\]",
        ),
        (
            lambda outputs: {**outputs, "score": np.float32(1)},
            r"score .* with 2 rows\. Received: the shape \[\]",
        ),
        (
            lambda outputs: {n: v for n, v in outputs.items() if n != "score"},
            "must return score of serving_default as an export does. Received: none",
        ),
        (
            lambda outputs: {**outputs, "score": np.array([[1.0], [2.0]], np.float32)},
            r"must return score .* as an export does. Received: float32 \[2, 1\]",
        ),
        (
            lambda outputs: {**outputs, "translation": np.array([1, 2], np.int32)},
            r"must return translation .* as an export does. Received: int32 \[2\]",
        ),
    ],
    ids=["NaN", "infinity", "UTF-8", "rows", "scalar", "missing", "rank", "kind"],
)
def test_a_malformed_reply_is_an_error(api, session, change, said):
    with (
        serving(api, Changed(session, change)) as client,
        pytest.raises(ServingError, match=said),
    ):
        client.translate(["one", "two"])
    assert client.retries == 0


@pytest.mark.parametrize("slots", [(0, 0), (3, 2)])
def test_hypotheses_without_scores_are_an_error(api, session, slots):
    def change(outputs):
        return {
            **outputs,
            "translations": np.full((2, slots[0]), b"a", object),
            "scores": np.ones((2, slots[1]), np.float32),
        }

    with serving(api, Changed(session, change)) as client, pytest.raises(ServingError):
        client.translate(["one", "two"], n_best=2)
