"""The files of deploy/ agree with each other, with the server they are for, and with their page."""

from __future__ import annotations

import functools
import http.server
import json
import re
import subprocess
import threading
from pathlib import Path

import pytest
import yaml
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    text_format,
    wrappers_pb2,
)
from tensorflow_serving.config import model_server_config_pb2

from export import warm_up
from keras_transformer.cli import COMMANDS
from keras_transformer.command_line import command_line

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
PAGE = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
GRPC_PORT, REST_PORT = 8500, 8501

# The flags of `tensorflow_model_server`: flag_list in tensorflow_serving/model_servers/main.cc of
# github.com/tensorflow/serving. Those that stand there both in 2021 and in 2025, so that every
# release between, 2.20 among them, has them; and the last one, which came in between.
_FLAGS = """
port grpc_socket_path rest_api_port rest_api_num_threads rest_api_timeout_in_ms
rest_api_enable_cors_support enable_batching allow_version_labels_for_unavailable_models
batching_parameters_file enable_per_model_batching_parameters model_config_file
model_config_file_poll_wait_seconds model_name model_base_path num_load_threads
num_unload_threads max_num_load_retries load_retry_interval_micros
file_system_poll_wait_seconds flush_filesystem_caches tensorflow_session_parallelism
tensorflow_session_config_file tensorflow_intra_op_parallelism
tensorflow_inter_op_parallelism use_alts_credentials ssl_config_file platform_config_file
per_process_gpu_memory_fraction saved_model_tags grpc_channel_arguments grpc_max_threads
enable_model_warmup num_request_iterations_for_warmup version monitoring_config_file
remove_unused_fields_from_bundle_metagraph prefer_tflite_model num_tflite_pools
num_tflite_interpreters_per_pool enable_signature_method_name_check
xla_cpu_compilation_enabled enable_profiler thread_pool_factory_config_file
xla_gpu_compilation_enabled
"""
SERVER_FLAGS = set(_FLAGS.split())

# Messages that are in no package from PyPI: names, types and numbers of their fields are those of
# servables/tensorflow/session_bundle_config.proto and config/monitoring_config.proto.
_MESSAGES = """
name: "deploy.proto" package: "tensorflow.serving" syntax: "proto3"
dependency: "google/protobuf/wrappers.proto"
message_type {
  name: "BatchingParameters"
  field { name: "max_batch_size" number: 1 type_name: ".google.protobuf.Int64Value" }
  field { name: "batch_timeout_micros" number: 2 type_name: ".google.protobuf.Int64Value" }
  field { name: "max_enqueued_batches" number: 3 type_name: ".google.protobuf.Int64Value" }
  field { name: "num_batch_threads" number: 4 type_name: ".google.protobuf.Int64Value" }
  field { name: "thread_pool_name" number: 5 type_name: ".google.protobuf.StringValue" }
  field { name: "allowed_batch_sizes" number: 6 type: TYPE_INT64 label: LABEL_REPEATED }
  field { name: "pad_variable_length_inputs" number: 7 type: TYPE_BOOL }
}
message_type {
  name: "PrometheusConfig"
  field { name: "enable" number: 1 type: TYPE_BOOL }
  field { name: "path" number: 2 type: TYPE_STRING }
}
message_type {
  name: "MonitoringConfig"
  field {
    name: "prometheus_config" number: 1 type_name: ".tensorflow.serving.PrometheusConfig"
  }
}
"""


@functools.cache
def message_pool():
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(text_format.Parse(_MESSAGES, descriptor_pb2.FileDescriptorProto()))
    return pool


def read_message(name, text):
    """A message of `_MESSAGES` in protobuf's text format."""
    descriptor = message_pool().FindMessageTypeByName(f"tensorflow.serving.{name}")
    return text_format.Parse(text, message_factory.GetMessageClass(descriptor)())


def batching_faults(parameters):
    """What of the server's rules, or of this export's, batching parameters break."""
    faults = []
    sizes = list(parameters.allowed_batch_sizes)
    largest = parameters.max_batch_size.value
    if sizes and (sizes != sorted(set(sizes)) or sizes[-1] != largest):
        faults.append("allowed_batch_sizes must grow, to max_batch_size")
    if largest < warm_up._BATCH_SENTENCES:
        faults.append("the warm-up batch must fit, or the version is not loaded")
    if largest < serve_client_options([]).batch_size:
        faults.append("serve-client's requests must fit")
    if parameters.pad_variable_length_inputs:
        faults.append("there is nothing to pad")
    if parameters.num_batch_threads.value < 1 or parameters.max_enqueued_batches.value < 1:
        faults.append("threads and queue must be at least 1")
    return faults


def serve_client_options(arguments):
    url = f"grpc://127.0.0.1:{GRPC_PORT}"
    return command_line(COMMANDS).parse_args(["serve-client", url, *arguments])


def compose_service():
    return yaml.safe_load((DEPLOY / "docker-compose.yml").read_text())["services"]["serving"]


def manifests():
    """The objects of kubernetes.yaml by kind and name."""
    objects = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    found = {(each["kind"], each["metadata"]["name"]): each for each in objects}
    assert len(found) == len(objects)
    return found


def pod():
    return manifests()["Deployment", "translator"]["spec"]["template"]


def container():
    (only,) = pod()["spec"]["containers"]
    return only


def flags(arguments):
    found = dict(re.fullmatch(r"--(\w+)=(.+)", argument).groups() for argument in arguments)
    assert len(found) == len(arguments)
    return found


def compose_flags():
    return flags(compose_service()["command"])


def kubernetes_flags():
    return flags(container()["args"])


def batching():
    return read_message("BatchingParameters", (DEPLOY / "batching_parameters.txt").read_text())


def model_config(text):
    config = text_format.Parse(text, model_server_config_pb2.ModelServerConfig())
    (only,) = config.model_config_list.config
    return only


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.M | re.S)


def test_the_server_knows_every_flag():
    assert set(compose_flags()) <= SERVER_FLAGS
    assert set(kubernetes_flags()) <= SERVER_FLAGS
    # The server's flags are written with underscores, other programs' options with hyphens.
    assert set(re.findall(r"--([a-z]+(?:_[a-z]+)+)\b", PAGE)) <= SERVER_FLAGS


def test_the_page_explains_every_flag_with_its_value():
    rows = dict(re.findall(r"^\| `--(\w+)` \| ([^|]+) \|", PAGE, re.M))
    for name, value in {**compose_flags(), **kubernetes_flags()}.items():
        told = re.split(r", (?!grpc)", rows[name])[0].replace(", ", ",")
        assert told == Path(value).name, name


def test_compose_and_kubernetes_start_the_same_server():
    differing = {"grpc_channel_arguments"}
    assert set(kubernetes_flags()) - set(compose_flags()) == differing
    assert compose_flags().items() <= kubernetes_flags().items()
    assert compose_service()["entrypoint"] == container()["command"]
    name, _, tag = container()["image"].partition(":")
    assert compose_service()["image"] == f"{name}:${{SERVING_TAG:-{tag}}}"
    assert name == "tensorflow/serving"
    assert re.fullmatch(r"\d+\.\d+\.\d+", tag)
    assert f"{name}:{tag}" in PAGE


def test_ports():
    assert int(compose_flags()["port"]) == GRPC_PORT
    assert int(compose_flags()["rest_api_port"]) == REST_PORT
    published = [f"127.0.0.1:{port}:{port}" for port in (GRPC_PORT, REST_PORT)]
    assert compose_service()["ports"] == published
    named = {port["name"]: port["containerPort"] for port in container()["ports"]}
    assert named == {"grpc": GRPC_PORT, "rest": REST_PORT}


def test_the_files_that_flags_name_are_mounted():
    named = {Path(value) for value in compose_flags().values() if value.startswith("/config/")}
    assert len(named) == 3
    assert all((DEPLOY / path.name).is_file() for path in named)
    created = re.findall(r"--from-file=(\S+)", PAGE)
    assert sorted(created) == sorted(f"deploy/{path.name}" for path in named)

    bound = {mount["target"]: mount for mount in compose_service()["volumes"]}
    assert set(bound) == {"/config", "/models/translator"}
    assert all(mount["type"] == "bind" and mount["read_only"] for mount in bound.values())
    assert bound["/config"]["source"] == "."
    assert bound["/models/translator"]["source"].startswith("${EXPORTS:?")

    mounted = {mount["mountPath"]: mount for mount in container()["volumeMounts"]}
    assert set(mounted) == set(bound)
    assert all(mount["readOnly"] for mount in mounted.values())
    volumes = {volume["name"]: volume for volume in pod()["spec"]["volumes"]}
    assert {mount["name"] for mount in mounted.values()} == set(volumes)
    claim = volumes[mounted["/models/translator"]["name"]]["persistentVolumeClaim"]
    assert f"`{claim['claimName']}`" in PAGE
    configuration = volumes[mounted["/config"]["name"]]["configMap"]["name"]
    assert f"kubectl create configmap {configuration} " in PAGE


def test_the_model_has_one_name():
    config = model_config((DEPLOY / "models.config").read_text())
    name = serve_client_options([]).model
    assert config.name == name == "translator"
    assert config.base_path in {mount["target"] for mount in compose_service()["volumes"]}
    assert config.model_platform == "tensorflow"
    assert config.model_version_policy.latest.num_versions == 1
    assert set(re.findall(r"/v1/models/(\w+)", PAGE)) == {name}
    assert container()["readinessProbe"]["httpGet"]["path"] == f"/v1/models/{name}"


def test_batching_follows_the_rules():
    parameters = batching()
    assert batching_faults(parameters) == []
    # Filler rows cost time, and a request without rows has none to fill up with.
    assert list(parameters.allowed_batch_sizes) == []
    told = dict(re.findall(r"^- `(\w+)` (\d+)[,:]", PAGE, re.M))
    assert {name: int(number) for name, number in told.items()} == {
        field.name: value.value
        for field, value in parameters.ListFields()
        if field.message_type is not None
    }
    # While a batch runs and another waits for each thread, as many requests of one row are held.
    threads = parameters.num_batch_threads.value
    for name in ("grpc_max_threads", "rest_api_num_threads"):
        assert int(compose_flags()[name]) == 2 * threads * parameters.max_batch_size.value
    for name in ("tensorflow_intra_op_parallelism", "tensorflow_inter_op_parallelism"):
        assert int(compose_flags()[name]) == threads
    assert compose_service()["deploy"]["resources"]["limits"]["cpus"] == str(threads)
    assert container()["resources"]["requests"]["cpu"] == str(threads)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("allowed_batch_sizes: 8 allowed_batch_sizes: 16", "grow, to max_batch_size"),
        ("allowed_batch_sizes: 64 allowed_batch_sizes: 32", "grow, to max_batch_size"),
        ("max_batch_size { value: 31 }", "warm-up batch"),
        ("max_batch_size { value: 31 }", "serve-client's"),
        ("pad_variable_length_inputs: true", "nothing to pad"),
        ("num_batch_threads { value: 0 }", "at least 1"),
    ],
)
def test_batching_that_breaks_a_rule_is_found(change, fault):
    parameters = batching()
    text_format.Merge(change, parameters)
    assert any(fault in found for found in batching_faults(parameters))


@pytest.mark.parametrize("text", ["max_batch_size: 32", "max_batches { value: 2 }"])
def test_a_file_that_is_no_message_is_found(text):
    with pytest.raises(text_format.ParseError):
        read_message("BatchingParameters", text)


def test_metrics_are_where_prometheus_looks():
    config = read_message("MonitoringConfig", (DEPLOY / "monitoring.txt").read_text())
    assert config.prometheus_config.enable
    notes = pod()["metadata"]["annotations"]
    assert notes["prometheus.io/path"] == config.prometheus_config.path
    assert notes["prometheus.io/port"] == str(REST_PORT)
    (job,) = yaml.safe_load(next(text for text in blocks("text") if "scrape" in text)).values()
    assert job[0]["metrics_path"] == config.prometheus_config.path


def test_probes():
    probes = {name: container()[f"{name}Probe"] for name in ("startup", "readiness", "liveness")}
    for name in ("startup", "readiness"):
        assert probes[name]["httpGet"] == {"path": "/v1/models/translator", "port": "rest"}
    # A server that is busy answers late, and must not be killed for it.
    assert probes["liveness"]["tcpSocket"] == {"port": "grpc"}
    assert probes["startup"]["periodSeconds"] * probes["startup"]["failureThreshold"] == 600
    # What is under way when a pod is to stop can be finished.
    grace = pod()["spec"]["terminationGracePeriodSeconds"]
    assert grace >= serve_client_options([]).timeout
    assert grace * 1000 >= int(kubernetes_flags()["rest_api_timeout_in_ms"])


def test_the_shape_of_the_manifests():
    found = manifests()
    versions = {kind: each["apiVersion"] for (kind, _), each in found.items()}
    assert versions == {
        "Deployment": "apps/v1",
        "Service": "v1",
        "PodDisruptionBudget": "policy/v1",
        "HorizontalPodAutoscaler": "autoscaling/v2",
    }
    labels = pod()["metadata"]["labels"]
    for kind in ("Deployment", "PodDisruptionBudget"):
        assert found[kind, "translator"]["spec"]["selector"] == {"matchLabels": labels}
    (spread,) = pod()["spec"]["topologySpreadConstraints"]
    assert spread["labelSelector"] == {"matchLabels": labels}
    ports = {port["name"]: port["containerPort"] for port in container()["ports"]}
    services = [each["spec"] for (kind, _), each in found.items() if kind == "Service"]
    for service in services:
        assert service["selector"] == labels
        assert all(port["port"] == ports[port["targetPort"]] for port in service["ports"])
    assert [service.get("clusterIP") for service in services] == [None, "None"]
    scaler = found["HorizontalPodAutoscaler", "translator"]["spec"]
    assert scaler["scaleTargetRef"] == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "name": "translator",
    }
    # Each time the manifest is applied, a number of replicas in it would undo the scaler's.
    assert "replicas" not in found["Deployment", "translator"]["spec"]
    assert 2 <= scaler["minReplicas"] < scaler["maxReplicas"]


@pytest.mark.parametrize(("state", "code"), [("AVAILABLE", 0), ("LOADING", 1)])
def test_the_health_check_asks_for_an_available_version(state, code):
    class Status(http.server.BaseHTTPRequestHandler):
        def do_GET(self):  # noqa: N802  the name that http.server calls
            known = self.path == "/v1/models/translator"
            self.send_response(200 if known else 404)
            self.end_headers()
            status = {"model_version_status": [{"version": "1", "state": state}]}
            self.wfile.write(json.dumps(status if known else {}, indent=1).encode())

        def log_message(self, *arguments):
            pass

    kind, *command = compose_service()["healthcheck"]["test"]
    assert kind == "CMD"
    with http.server.HTTPServer(("127.0.0.1", 0), Status) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = [part.replace(str(REST_PORT), str(server.server_port)) for part in command]
        try:
            assert subprocess.run(command, timeout=20).returncode == code
        finally:
            server.shutdown()
    # And nobody listens any more.
    assert subprocess.run(command, timeout=20, capture_output=True).returncode != 0


def test_the_page_names_files_that_exist():
    named = set(re.findall(r"\bdeploy/[\w.-]+\w", PAGE))
    assert {f"deploy/{path.name}" for path in DEPLOY.iterdir() if path.is_file()} == named
