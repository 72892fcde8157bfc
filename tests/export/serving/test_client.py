import contextlib
import os
import shutil
import subprocess
import threading

import numpy as np
import pytest
from served_model import Model, Trouble
from serving_double import DOUBLES, free_port, serving
from session_answers import Echo, expected_hypotheses, is_same
from small_translators import SENTENCES

from export.serving.client import ServingClient
from export.serving.server_address import ServingError
from keras_transformer.errors import InputError

TEXTS = [
    *SENTENCES,
    "one\0two\0",
    '{"b64": "b25l"}',
    'two "three" \\ four',
    "\ufeffone\r\ttwo\u2028three",
    "one \ud800 two",
    "🙂👩‍👩‍👧 дом 家",
]
# The real server is tried too where it is installed. It serves the same export as the doubles do.
SERVERS = [
    *DOUBLES,
    *(["real grpc", "real rest"] if shutil.which("tensorflow_model_server") else []),
]
# A server that runs elsewhere, with an export that is not ours.
ELSEWHERE = [os.environ["TF_SERVING_URL"]] if os.environ.get("TF_SERVING_URL") else []


@contextlib.contextmanager
def real_server(base):
    """TensorFlow Serving itself; gives the URLs of its APIs."""
    ports = {"grpc": free_port(), "rest": free_port()}
    process = subprocess.Popen(
        [
            "tensorflow_model_server",
            f"--port={ports['grpc']}",
            f"--rest_api_port={ports['rest']}",
            "--model_name=translator",
            f"--model_base_path={base}",
        ]
    )
    try:
        yield {
            "real grpc": f"grpc://127.0.0.1:{ports['grpc']}",
            "real rest": f"http://127.0.0.1:{ports['rest']}",
        }
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def urls(session, numbers_export):
    with contextlib.ExitStack() as stack:
        found = {
            api: stack.enter_context(double(Model(session))) for api, double in DOUBLES.items()
        }
        if len(SERVERS) > len(DOUBLES):
            found |= stack.enter_context(real_server(numbers_export.parent))
        yield found | {url: url for url in ELSEWHERE}


@pytest.fixture(params=[*SERVERS, *ELSEWHERE])
def anyone(request, urls):
    """A client of each server that can be had."""
    with ServingClient(urls[request.param]) as client:
        yield client


@pytest.fixture(params=SERVERS)
def ours(request, urls):
    """A client of each server of our export."""
    with ServingClient(urls[request.param]) as client:
        yield client


@pytest.fixture(params=DOUBLES)
def api(request):
    return request.param


def test_a_batch_is_translated_as_one_by_one_and_in_order(anyone):
    texts = TEXTS[:12]
    one_by_one = [anyone.translate([text])[0] for text in texts]
    assert is_same(anyone.translate(texts, batch_sentences=5), one_by_one)
    assert all(len(row) == 1 for row in one_by_one)


def test_hypotheses_begin_with_the_translation(anyone):
    texts = TEXTS[:5]
    several = anyone.translate(texts, n_best=3)
    assert is_same([row[:1] for row in several], anyone.translate(texts))
    for row in several:
        assert [best.score for best in row] == sorted((best.score for best in row), reverse=True)


def test_the_session_gives_the_same_translations(ours, session):
    assert is_same(ours.translate(TEXTS), expected_hypotheses(session, TEXTS, 1))
    assert ours.retries == 0


def test_more_hypotheses_than_the_beam_are_refused(ours):
    with pytest.raises(ServingError, match=r"n_best must be at most the 3 .* Received: 4"):
        ours.translate(TEXTS, n_best=4)


@pytest.mark.parametrize("n_best", [2, 3])
def test_the_session_gives_the_same_hypotheses(ours, session, n_best):
    expected = expected_hypotheses(session, TEXTS, n_best)
    assert max(map(len, expected)) == min(n_best, 3)
    assert is_same(ours.translate(TEXTS, n_best=n_best), expected)


@pytest.mark.parametrize("signature", ["serving_default", "n_best", "score", "align"])
def test_predict_returns_the_session_s_arrays(ours, session, signature):
    texts = ["one two", b"six \xff", "", "fünf"]
    names = session.signatures[signature].inputs
    found = ours.predict(signature, **{name: texts for name in names})
    expected = session.run(signature, **{name: texts for name in names})
    assert set(found) == set(expected)
    for name, values in expected.items():
        assert found[name].dtype == values.dtype
        assert found[name].shape == values.shape
        if values.dtype.kind == "f":
            np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-4)
        else:
            assert (found[name] == values).all()


def test_no_texts_are_no_request(api, session):
    trouble = Trouble()
    with serving(api, session, trouble) as client:
        assert client.translate([]) == []
        assert client.translate([], n_best=2) == []
    assert trouble.requests == 0


def test_answers_come_in_any_order_and_results_in_the_texts(api, session):
    expected = expected_hypotheses(session, TEXTS, 1)
    trouble = Trouble(delay=lambda number: 0.15 if number % 3 == 0 else 0.0)
    with serving(api, session, trouble, concurrency=3) as client:
        assert is_same(client.translate(TEXTS, batch_sentences=2), expected)
    assert trouble.requests == 13
    assert 1 < trouble.most_at_a_time <= 3


def test_no_more_requests_than_asked_for_are_under_way(api, session):
    trouble = Trouble(delay=lambda number: 0.02)
    with serving(api, Echo(session), trouble, concurrency=1) as client:
        client.translate(SENTENCES, batch_sentences=3)
    assert trouble.most_at_a_time == 1


def test_threads_share_a_client(api, session):
    expected = expected_hypotheses(session, TEXTS, 1)
    found = {}
    with serving(api, session) as client:

        def translate(row):
            found[row] = client.translate(TEXTS[row::4], batch_sentences=2)

        threads = [threading.Thread(target=translate, args=(row,)) for row in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all(is_same(found[row], expected[row::4]) for row in range(4))


@pytest.mark.parametrize("n_best", [1, 2])
def test_rows_that_were_cut_are_told_in_order(api, session, n_best):
    texts = ["one", "two " * 60, "three", "four " * 50, "five " * 70]
    cut = []
    with serving(api, session) as client:
        found = client.translate(texts, batch_sentences=1, n_best=n_best, on_cut=cut.append)
    assert cut == [1, 3, 4]
    assert len(found) == 5


def test_messages_may_be_large(api, session):
    texts = ["ü" * 3_000_000, "ä" * 2_000_000]
    with serving(api, Echo(session)) as client:
        found = client.translate(texts)
    assert [row[0].text for row in found] == texts


def test_the_url_names_model_and_version(api, session):
    with serving(api, session, path="/v1/models/translator/versions/1/", model="other") as client:
        assert client.translate(["one"])[0][0].text
        assert client.address.version == 1


def test_a_closed_client_says_so(api, session):
    with serving(api, session) as client:
        client.translate(["one"])
    with pytest.raises(InputError, match="must be open"):
        client.translate(["one"])
    with pytest.raises(InputError, match="must be open"):
        client.predict("serving_default", text=["one"])
    client.close()


def test_text_in_the_place_of_texts_is_refused():
    with ServingClient("grpc://127.0.0.1:1") as client:
        for texts in ("one", b"one"):
            with pytest.raises(InputError, match="must be a list of str"):
                client.translate(texts)
            with pytest.raises(InputError, match="must be a list of str"):
                client.predict("serving_default", text=texts)
        with pytest.raises(InputError, match="text must hold texts only. Received: 3"):
            client.predict("serving_default", text=["one", 3])
        with pytest.raises(InputError, match="text must hold texts only. Received: None"):
            client.translate(["one", None])
        with pytest.raises(InputError, match=r"as many rows. Received: \[1, 2\]"):
            client.predict("score", source=["a"], target=["a", "b"])
        with pytest.raises(InputError, match=r"must be given"):
            client.predict("score")


@pytest.mark.parametrize("options", [{"batch_sentences": 0}, {"n_best": 0}, {"n_best": 1.5}])
def test_impossible_sizes_are_named(options):
    with (
        ServingClient("http://127.0.0.1:8501") as client,
        pytest.raises(InputError, match=next(iter(options))),
    ):
        client.translate(["one"], **options)
