"""Orders to load and unload with what Triton's clients send along: files, and the models of an ensemble's steps;
and what of a repository is passed over, or loaded again."""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from loopback import serving
from test_repository_control import Load, ask, connect, models, put, states, until  # noqa: F401

EXPLICIT = ("--model-control-mode", "explicit")


def onnx_bytes(tmp_path, factor):
    """A model file that multiplies by `factor`."""
    folder = tmp_path / f"made-{factor}"
    folder.mkdir(exist_ok=True)
    put(folder, "m", factor)
    return (folder / "m" / "1" / "model.onnx").read_bytes()


def given_folders(folder):
    return [path for path in folder.iterdir() if path.name.startswith("carillon-given-")]


# -- file: overrides

@pytest.fixture
def temporary(tmp_path):
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


def test_a_model_comes_from_the_files_of_an_order(program, models, tmp_path, temporary, module):  # noqa: F811
    config = json.dumps({"max_batch_size": 8})
    with serving(program, models, tmp_path / "log", *EXPLICIT, "--load-model", "one",
                 environment={"TMPDIR": str(temporary)}) as server, connect(module, server) as client:
        client.load_model("one", config=config, files={"file:1/model.onnx": onnx_bytes(tmp_path, 11)})
        assert ask(client, module, "one") == 11
        (folder,) = given_folders(temporary)
        assert (folder.stat().st_mode & 0o777) == 0o700
        # The versions are those of the files.
        client.load_model("one", config=config, files={"file:3/model.onnx": onnx_bytes(tmp_path, 12)})
        assert ask(client, module, "one") == 12 and ask(client, module, "one", version="3") == 12
        with pytest.raises(InferenceServerException, match="unloaded"):
            ask(client, module, "one", version="1")
        # The same files again are loaded again, and no request is lost meanwhile.
        with Load(server, "one") as load:
            client.load_model("one", config=config, files={"file:3/model.onnx": onnx_bytes(tmp_path, 13)})
            until(lambda: load.answers[-1:] == [13.0])
        assert load.errors == [] and set(load.answers) <= {12.0, 13.0}
        # A model that the repository does not have.
        client.load_model("given", config=config, files={"file:1/model.onnx": onnx_bytes(tmp_path, 14)})
        assert ask(client, module, "given") == 14
        assert states(client, module)["given", "1"] == ("READY", "")
        until(lambda: len(given_folders(temporary)) == 2)
        # An order without files is for the repository's.
        client.load_model("one")
        assert ask(client, module, "one") == 2
        with pytest.raises(InferenceServerException, match="is not in the repository"):
            client.load_model("given")
        assert ask(client, module, "given") == 14
        client.unload_model("given")
        until(lambda: given_folders(temporary) == [])
    assert given_folders(temporary) == []


def test_what_an_order_brings_is_checked(program, models, tmp_path, temporary, module):  # noqa: F811
    good = onnx_bytes(tmp_path, 11)
    with serving(program, models, tmp_path / "log", *EXPLICIT, "--load-model", "one",
                 environment={"TMPDIR": str(temporary)}) as server, connect(module, server) as client:
        def refused(match, files, config=json.dumps({}), model="one"):
            with pytest.raises(InferenceServerException, match=match):
                client.load_model(model, config=config, files=files)

        refused("no config; give one as parameter config", {"file:1/model.onnx": good}, config=None)
        refused("'file:1/model.onnx'.*not an ONNX model", {"file:1/model.onnx": b"x"})
        refused("the order has no version folder: the model's file belongs there as file:1/model.onnx",
                {"file:model.onnx": good})
        refused("has no version folder", {"file:01/model.onnx": good})
        refused("it begins with '/'", {"file:" + str(tmp_path / "stolen"): good})
        for path in ("../two/1/model.onnx", "1/../../x", "..", "", "1//model.onnx", "1/"):
            refused("it has the part", {"file:" + path: good})
        refused("are hidden", {"file:1/model.onnx": good}, model=".one")
        refused("names a file, not|model.other is not there", {"file:1/model.onnx": good},
                config=json.dumps({"default_model_filename": "model.other"}))
        refused("is not known; there are config", {"1/model.onnx": good})
        assert ask(client, module, "one") == 2
        assert not (tmp_path / "stolen").exists()
        until(lambda: given_folders(temporary) == [])
        # As long as the server takes none, none is written.
    with serving(program, models, tmp_path / "log") as server, connect(module, server) as client:
        with pytest.raises(InferenceServerException, match="--model-control-mode"):
            client.load_model("one", config="{}", files={"file:1/model.onnx": good})


def post(server, path, body):
    request = urllib.request.Request(f"http://{server.http}/v2/repository/models/{path}",
                                     data=body if isinstance(body, bytes) else json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, ""
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())["error"]


@pytest.mark.parametrize("order,body,reason", [
    ("load", b"[]", "must be a JSON object"),
    ("load", b'{"parameters": {"config": "{}"', "the body is not JSON"),
    ("load", {"parameters": 7}, '"parameters" must be an object'),
    ("load", {"parameters": [{}]}, '"parameters" must be an object'),
    ("load", {"parameters": {"config": 7}}, "parameter 'config' must be text"),
    ("load", {"parameters": {"config": {"max_batch_size": 8}}}, "parameter 'config' must be text"),
    ("load", {"parameters": {"config": "{}", "file:1/model.onnx": "no base64!"}}, "text in base64"),
    ("load", {"parameters": {"config": "{}", "file:1/model.onnx": ["eA=="]}}, "text in base64"),
    ("load", b'{"parameters": {"config": "{}", "file:1/a": "eA==", "file:1/a": "eA=="}}', "file '1/a' comes twice"),
    ("load", {"parameters": {"unload_dependents": True}}, "parameter 'unload_dependents' is not known"),
    ("unload", {"parameters": {"unload_dependents": "yes"}}, "'unload_dependents' must be true or false"),
    ("unload", {"parameters": {"config": "{}"}}, "parameter 'config' is not known"),
])
def test_orders_that_are_not_understood(orders_server, order, body, reason):
    status, said = post(orders_server, f"one/{order}", body)
    assert status == 400 and reason in said


def test_orders_may_have_more_than_they_need(orders_server):
    assert post(orders_server, "one/load", {"parameters": {}, "other": [{"parameters": {"x": 1}}]})[0] == 200
    assert post(orders_server, "one/load", b"")[0] == 200


@pytest.fixture(scope="module")
def orders_server(program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    put(folder, "one", 2)
    with serving(program, folder, folder.parent / "orders.log", *EXPLICIT, "--load-model", "one") as server:
        yield server


def test_grpc_parameters_have_their_types(orders_server):
    from tritonclient.grpc import service_pb2, service_pb2_grpc
    import grpc
    with grpc.insecure_channel(orders_server.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)

        def refused(order, name, **value):
            request = (service_pb2.RepositoryModelLoadRequest if order is stub.RepositoryModelLoad
                       else service_pb2.RepositoryModelUnloadRequest)(model_name="one")
            request.parameters[name].CopyFrom(service_pb2.ModelRepositoryParameter(**value))
            with pytest.raises(grpc.RpcError) as error:
                order(request)
            assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            return error.value.details()

        assert "over gRPC bytes_param" in refused(stub.RepositoryModelLoad, "file:1/model.onnx", string_param="eA==")
        assert "must be text" in refused(stub.RepositoryModelLoad, "config", bool_param=True)
        assert "must be true or false" in refused(stub.RepositoryModelUnload, "unload_dependents", string_param="true")


# -- unload_dependents

def ensemble(steps):
    """Multiplies by what each of these models does, one after the other."""
    text = ('platform: "ensemble" max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: [ 8 ] } '
            'output { name: "y" data_type: TYPE_FP32 dims: [ 8 ] } ensemble_scheduling { ')
    names = ["x"] + [f"t{i}" for i in range(len(steps) - 1)] + ["y"]
    for i, step in enumerate(steps):
        text += (f'step {{ model_name: "{step}" model_version: -1 input_map {{ key: "x" value: "{names[i]}" }} '
                 f'output_map {{ key: "y" value: "{names[i + 1]}" }} }} ')
    return text + "}"


def test_an_ensembles_models_go_with_it(program, models, tmp_path, module):  # noqa: F811
    for name, factor in (("alone", 5), ("shared", 7), ("named", 11), ("inner_step", 13)):
        put(models, name, factor)
    for name, steps in (("inner", ["inner_step"]), ("first", ["alone", "shared", "named", "inner"]), ("other", ["shared"])):
        (models / name).mkdir()
        (models / name / "config.pbtxt").write_text(ensemble(steps))
    with serving(program, models, tmp_path / "log", *EXPLICIT, "--load-model", "first", "--load-model", "other") as server, \
            connect(module, server) as client:
        def ready():
            return {name for (name, _), (state, _) in states(client, module).items() if state == "READY"}

        everything = {"first", "other", "inner", "alone", "shared", "named", "inner_step"}
        assert ready() == everything
        assert ask(client, module, "first") == 5 * 7 * 11 * 13
        client.load_model("named")  # it is wanted for itself from now on
        client.unload_model("first", unload_dependents=True)
        assert ready() == {"other", "shared", "named"}
        assert ask(client, module, "other") == 7
        client.unload_model("other", unload_dependents=True)
        assert ready() == {"named"}
        client.load_model("first")
        assert ready() == everything - {"other"}
        client.unload_model("first")
        assert ready() == everything - {"first", "other"}, "without the parameter its models stay"
        client.unload_model("named", unload_dependents=True)
        assert ready() == everything - {"first", "other", "named"}


# -- what is loaded again

def loads(log):
    """How often each version was compiled, by name and version."""
    counts = {}
    for name, version in re.findall(r"(\w+) version (\d+): compiling", log.read_text()):
        counts[name, int(version)] = counts.get((name, int(version)), 0) + 1
    return counts


def versions(client, module):
    metadata = client.get_model_metadata("one")
    return sorted(int(version) for version in (metadata["versions"] if module is http_client else metadata.versions))


@pytest.mark.parametrize("mode", ["explicit", "poll"])
def test_another_version_policy_loads_only_what_is_new(program, models, tmp_path, mode):  # noqa: F811
    put(models, "one", 3, version=2)
    put(models, "one", 4, version=3)
    config, log = models / "one" / "config.pbtxt", tmp_path / "log"
    config.write_text("max_batch_size: 8 version_policy { latest { num_versions: 2 } }")
    options = ("--model-control-mode", mode, *(("--load-model", "one") if mode == "explicit" else ("--repository-poll-secs", "0.1")))
    with serving(program, models, log, *options) as server, connect(http_client, server) as client:
        def change(policy, wanted):
            config.write_text(f"max_batch_size: 8 version_policy {{ {policy} }}")
            if mode == "explicit":
                client.load_model("one")
            else:
                until(lambda: {version for (name, version), (state, _) in states(client, http_client).items()
                               if name == "one" and state == "READY"} == {str(version) for version in wanted}
                      and told() == policy_of(policy))
            assert told() == policy_of(policy)
            for version in wanted:
                assert ask(client, http_client, "one", version=str(version)) == version + 1

        def told():
            return next(iter(client.get_model_config("one")["version_policy"]))

        def policy_of(text):
            return text.split()[0]

        assert loads(log)["one", 2] == loads(log)["one", 3] == 1
        with Load(server, "one") as load:
            until(lambda: load.answers)
            change("specific { versions: [ 2, 3 ] }", [2, 3])
            change("all { }", [1, 2, 3])
            change("latest { num_versions: 1 }", [3])
        assert load.errors == [] and set(load.answers) == {4.0}
        counts = loads(log)
        assert counts["one", 1] == counts["one", 2] == counts["one", 3] == 1
        # What went comes again, and it alone; a change of what is in the files is one of all.
        change("all { }", [1, 2, 3])
        counts = loads(log)
        assert (counts["one", 1], counts["one", 2], counts["one", 3]) == (2, 2, 1)


def test_the_same_config_with_an_order_loads_nothing(program, models, tmp_path, module):  # noqa: F811
    log = tmp_path / "log"
    with serving(program, models, log, *EXPLICIT, "--load-model", "one") as server, connect(module, server) as client:
        client.load_model("one")
        assert loads(log)["one", 1] == 1
        client.load_model("one", config=json.dumps({"max_batch_size": 4}))
        assert loads(log)["one", 1] == 2
        client.load_model("one", config=json.dumps({"max_batch_size": 4, "version_policy": {"all": {}}}))
        assert loads(log)["one", 1] == 2
        client.load_model("one")
        assert loads(log)["one", 1] == 3


# -- what is passed over

def test_odd_names_are_passed_over_with_a_word(program, models, tmp_path, module):  # noqa: F811
    outside = tmp_path / "outside"
    outside.mkdir()
    put(outside, "elsewhere", 9)
    one = models / "one"
    for name in ("01", "1.0", "-1", "+1", "latest", "0", "9223372036854775808", "1e3", "warmup", ".git"):
        (one / name).mkdir()
    put(models, "one", 5, version=9223372036854775807)
    (one / "7").write_text("a file")
    (one / "8").symlink_to(tmp_path / "nowhere")
    for name in ("..model", ".hidden"):
        put(models, "tmp" + name.strip("."), 3)
        os.rename(models / ("tmp" + name.strip(".")), models / name)
    (models / "link_to_nothing").symlink_to(tmp_path / "nowhere")
    (models / "led_out").symlink_to(outside / "elsewhere")
    (models / "version_out" / "1").parent.mkdir()
    (models / "version_out" / "1").symlink_to(outside / "elsewhere" / "1")
    (models / "README.md").write_text("no model")
    log = tmp_path / "log"
    with serving(program, models, log, "--strict-readiness", "false", "--model-control-mode", "poll",
                 "--repository-poll-secs", "0.1") as server, connect(module, server) as client:
        told = states(client, module)
        assert {name for name, _ in told} == {"one", "two", "led_out", "version_out"}
        assert told["one", "9223372036854775807"] == ("READY", "")
        assert ask(client, module, "one") == 5, "the newest"
        for name in ("led_out", "version_out"):
            state, reason = told[name, "1"]
            assert state == "UNAVAILABLE" and "leads out of the repository" in reason
        text = log.read_text()
        for name, reason in (("01", "no leading zeros"), ("1.0", "a whole number"), ("-1", "1 or more"), ("+1", "a whole number"),
                             ("latest", "a whole number"), ("0", "1 or more"), ("1e3", "a whole number"), (".git", "a whole number"),
                             ("9223372036854775808", "at most 9223372036854775807"), ("7", "a version is a folder, and this is none"),
                             ("8", "it is a symbolic link to nothing")):
            assert len(re.findall(rf"{re.escape(str(one))}: '{re.escape(name)}' is passed over: .*{reason}", text)) == 1, name
        for name in ("..model", ".hidden", "link_to_nothing"):
            assert len(re.findall(rf"{re.escape(str(models))}: '{re.escape(name)}' is passed over: ", text)) == 1, name
        assert "'warmup' is passed over" not in text and "README" not in text
        # What is told once is not told at every look; what is new is.
        (models / ".later").mkdir()
        until(lambda: "'.later' is passed over" in log.read_text())
        put(models, "two", 8)
        until(lambda: ask(client, module, "two") == 8)
        assert log.read_text().count("'.hidden' is passed over") == 1


@pytest.mark.parametrize("name", ["..model", ".hidden"])
def test_an_order_for_a_hidden_folder_says_so(program, models, tmp_path, module, name):  # noqa: F811
    os.rename(models / "two", models / name)
    with serving(program, models, tmp_path / "log", *EXPLICIT) as server, connect(module, server) as client:
        with pytest.raises(InferenceServerException, match="begin with '.' are hidden"):
            client.load_model(name)
