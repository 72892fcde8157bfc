"""What docs/deployment.md says of the server's requests, replies and versions fits an export."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from google.protobuf import text_format
from tensorflow_serving.config import model_server_config_pb2

from export.checking.contract import SIGNATURES

PAGE = (Path(__file__).parent.parent / "docs" / "deployment.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.M | re.S)


def test_the_requests_of_the_page_fit_the_signatures():
    shown = set()
    for block in blocks("bash"):
        for line in block.replace("\\\n", " ").split("\n"):
            words = shlex.split(line)
            if "-d" not in words:
                continue
            body = json.loads(words[words.index("-d") + 1])
            name = body.pop("signature_name", "serving_default")
            (form,) = body
            inputs = set(SIGNATURES[name].inputs)
            for row in body[form] if form == "instances" else [body[form]]:
                # A signature with one input takes the bare value, too.
                assert (set(row) if isinstance(row, dict) else inputs) == inputs
                assert isinstance(row, dict) or len(inputs) == 1
            shown.add((name, form))
    assert shown == {(name, form) for name in SIGNATURES for form in ("instances", "inputs")}


def test_the_replies_of_the_page_are_those_of_the_signatures():
    replies = next(text for text in blocks("text") if "predictions" in text)
    decoder = json.JSONDecoder()
    rows = []
    while replies.strip():
        reply, end = decoder.raw_decode(replies.lstrip())
        rows.append(reply["predictions"][0])
        replies = replies.lstrip()[end:]
    ranks = {
        name: {output: rank for output, (_, rank) in signature.outputs.items()}
        for name, signature in SIGNATURES.items()
    }

    def depth(value):
        return 1 + depth(value[0]) if isinstance(value, list) else 0

    # A row has one dimension less than the column.
    shapes = [{output: 1 + depth(value) for output, value in row.items()} for row in rows]
    assert shapes == list(ranks.values())
    table = dict(re.findall(r"^\| `(\w+)` \| (`\w+` \[N.*) \|$", PAGE, re.M))
    for name, columns in table.items():
        told = re.findall(r"`(\w+)` \[([^]]+)\]", columns)
        assert {output: shape.count(",") + 1 for output, shape in told} == ranks[name]
    assert set(table) == set(SIGNATURES)


def test_the_version_policies_of_the_page_are_ones_that_the_server_reads():
    texts = [text for text in blocks("text") if "model_config_list" in text]
    assert len(texts) == 2
    for text in texts:
        parsed = text_format.Parse(text, model_server_config_pb2.ModelServerConfig())
        (config,) = parsed.model_config_list.config
        assert (config.name, config.base_path) == ("translator", "/models/translator")
        versions = set(config.model_version_policy.specific.versions)
        assert versions
        assert set(config.version_labels.values()) <= versions
