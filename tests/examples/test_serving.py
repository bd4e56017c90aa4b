"""The example that serves an adapter: its own commands, run on a real bucket, and its manifest, on a real API server.

The trained adapter, the bucket, the verification and the server are real. Only the paths of the pod's volumes, the
address of the bucket and the port are replaced.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from peft import PeftModel
from s3fs import S3FileSystem
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.import_utils import is_serve_available

from tensafe_api.statement.contents import digest
from tensorguard.checkpoint.store import MANIFEST
from tensorguard.cli.main import main
from tensorguard.signing.keys import PUBLIC_KEY, SIGNING_KEY
from tests.support.programs import s3
from tests.support.programs.controlplane import ControlPlane
from tests.support.trainer.rank_harness import CAUSAL, WORDS, Job

EXAMPLE = Path(__file__).parents[2] / "examples" / "serving" / "deployment.yaml"
BUCKET_FOLDER = f"{s3.BUCKET}/claims/final"
PROMPTS = [f"{WORDS[start]} {WORDS[start + 1]} {WORDS[start + 2]}" for start in (1, 8, 15, 22)]


def documents() -> dict[str, dict[str, Any]]:
    """The objects of the example, by kind."""
    return {each["kind"]: each for each in yaml.safe_load_all(EXAMPLE.read_text())}


def pod() -> dict[str, Any]:
    found: dict[str, Any] = documents()["Deployment"]["spec"]["template"]
    return found


@dataclass
class Pod:
    """The pod of the example, as processes of this machine.

    Attributes:
        volumes: the folders that stand for its volumes, below one folder.
        replaced: what stands in the commands for what a user replaces.
        port: of the server.
        environment: of the bucket's Secret.
    """

    volumes: Path
    replaced: dict[str, str]
    port: int
    environment: Mapping[str, str]

    def command(self, container: Mapping[str, Any]) -> list[str]:
        return [self._here(word, container) for word in (*container["command"], *container["args"])]

    def variables(self, container: Mapping[str, Any]) -> dict[str, str]:
        own = {each["name"]: self._here(each["value"], container) for each in container["env"]}
        programs = str(Path(sys.executable).parent)
        return {**os.environ, **own, **self.environment, "PATH": f"{programs}:{os.environ['PATH']}"}

    def _here(self, text: str, container: Mapping[str, Any]) -> str:
        """The text of a container with the folders and addresses of this machine."""
        paths = "|".join(mount["mountPath"] for mount in container["volumeMounts"])
        text = re.sub(rf"(?:{paths})(?=[/\s]|$)", lambda found: f"{self.volumes}{found[0]}", text)
        for old, new in self.replaced.items():
            text = text.replace(old, new)
        return text

    def verify(self) -> subprocess.CompletedProcess[str]:
        """Run the init container."""
        (container,) = pod()["spec"]["initContainers"]
        return subprocess.run(
            self.command(container), env=self.variables(container), capture_output=True, text=True, check=False
        )

    @contextmanager
    def server(self) -> Iterator[str]:
        """Run the server's container until it is ready; yields its address."""
        (container,) = pod()["spec"]["containers"]
        address = f"http://127.0.0.1:{self.port}"
        log = self.volumes / "server.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                self.command(container), env=self.variables(container), stdout=output, stderr=subprocess.STDOUT
            )
        try:
            path = container["readinessProbe"]["httpGet"]["path"]
            while not answers(f"{address}{path}"):
                assert process.poll() is None, log.read_text()
                time.sleep(0.2)
            yield address
        finally:
            process.terminate()
            process.wait(timeout=60)

    @property
    def copy(self) -> Path:
        return self.volumes / "adapter" / "claims"


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def complete(address: str, prompt: str) -> str:
    """What the server adds to a prompt, with the request that the docs show."""
    body = {"model": "claims", "prompt": prompt, "max_tokens": 5, "temperature": 0}
    request = urllib.request.Request(
        f"{address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.load(answer)["choices"][0]["text"])


def continuation(model: torch.nn.Module, tokenizer: Any, prompt: str) -> str:
    """The most likely continuation, by Transformers alone."""
    inputs = tokenizer(prompt, return_tensors="pt")
    with torch.no_grad():
        written = model.generate(inputs["input_ids"], max_new_tokens=5, do_sample=False)  # type: ignore[operator]
    return str(tokenizer.decode(written[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that trained and signed an adapter for a small Llama, with its keys."""
    folder = tmp_path_factory.mktemp("run")
    assert main(["keygen", str(folder / "keys"), "--only", "signing"]) == 0
    job = Job.make(
        folder / "run", "spec.cluster.workers=1", "spec.training.steps=4", "spec.training.learningRate=0.5", kind=CAUSAL
    )
    job.signing_key = folder / "keys" / SIGNING_KEY
    job.train_alone()
    assert job.ended().reason == "Completed"
    return folder


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3.S3]:
    with s3.server(tmp_path_factory.mktemp("s3") / "objects") as found:
        yield found


@pytest.fixture
def started(run: Path, bucket: s3.S3, tmp_path: Path) -> Pod:
    """A pod that will find the adapter in the bucket, and the public key and the base model in its volumes."""
    checkpoint = run / "run" / "checkpoints" / "final"
    store = files(bucket)
    for path in checkpoint.iterdir():
        store.pipe_file(f"{BUCKET_FOLDER}/{path.name}", path.read_bytes())
    for folder in ("signer", "adapter", "tmp"):
        (tmp_path / folder).mkdir()
    (tmp_path / "signer" / PUBLIC_KEY).write_bytes((run / "keys" / PUBLIC_KEY).read_bytes())
    (tmp_path / "base").symlink_to(run / "run" / "model")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    replaced = {
        "s3://models/claims/final": f"s3://{BUCKET_FOLDER}",
        "sha256:" + "0" * 64: digest((checkpoint / MANIFEST).read_bytes()),
        "--host 0.0.0.0 --port 8000": f"--host 127.0.0.1 --port {port}",
    }
    return Pod(tmp_path, replaced, port, {**bucket.environment, "AWS_ENDPOINT_URL_S3": bucket.endpoint})


def files(bucket: s3.S3) -> S3FileSystem:
    """The files of the bucket, for its owner."""
    return S3FileSystem(
        key=bucket.environment["AWS_ACCESS_KEY_ID"],
        secret=bucket.environment["AWS_SECRET_ACCESS_KEY"],
        endpoint_url=bucket.endpoint,
        skip_instance_cache=True,
    )


@pytest.mark.slow
def test_verified_adapter_is_served(started: Pod, run: Path) -> None:
    if not is_serve_available():
        pytest.skip("`transformers serve` needs the packages of transformers[serving]")
    verified = started.verify()
    assert verified.returncode == 0, verified.stderr
    base = AutoModelForCausalLM.from_pretrained(run / "run" / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(run / "run" / "model")
    of_base = [continuation(base, tokenizer, prompt) for prompt in PROMPTS]
    adapted = PeftModel.from_pretrained(base, run / "run" / "checkpoints" / "final").eval()
    with started.server() as address:
        served = [complete(address, prompt) for prompt in PROMPTS]
    assert served == [continuation(adapted, tokenizer, prompt) for prompt in PROMPTS]
    assert served != of_base, "the adapter has no effect"


@pytest.mark.slow
def test_init_container_copies_the_verified_adapter_and_may_run_again(started: Pod, run: Path) -> None:
    for _ in range(2):
        done = started.verify()
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("verified: tiny, step 4 of 4")
        published = run / "run" / "checkpoints" / "final"
        assert {path.name: path.read_bytes() for path in started.copy.iterdir()} == {
            path.name: path.read_bytes() for path in published.iterdir()
        }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        ("one byte of the weights", "not verified: adapter_model.safetensors: is not what the manifest lists"),
        ("no signature", "not verified: model.sig: is missing"),
        ("another key", "not verified: model.sig: was signed by another key"),
        ("another checkpoint of the signer", "not verified: manifest.json: has the digest"),
    ],
)
def test_init_container_refuses_an_unverified_adapter(
    started: Pod, bucket: s3.S3, tmp_path: Path, attack: str, reason: str
) -> None:
    store, weights = files(bucket), f"{BUCKET_FOLDER}/adapter_model.safetensors"
    match attack:
        case "one byte of the weights":
            content = store.cat_file(weights)
            store.pipe_file(weights, content[:-1] + bytes([content[-1] ^ 1]))
        case "no signature":
            store.rm_file(f"{BUCKET_FOLDER}/model.sig")
        case "another key":
            assert main(["keygen", str(tmp_path / "stranger"), "--only", "signing"]) == 0
            (tmp_path / "stranger" / PUBLIC_KEY).replace(tmp_path / "signer" / PUBLIC_KEY)
        case "another checkpoint of the signer":
            started.replaced["sha256:" + "0" * 64] = "sha256:" + "1" * 64
    done = started.verify()
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(reason)
    assert list((started.volumes / "adapter").iterdir()) == []


def test_server_does_not_start_without_the_adapter(tmp_path: Path) -> None:
    """Transformers would serve the base model, without a word."""
    (container,) = pod()["spec"]["containers"]
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text("{}")
    (tmp_path / "adapter" / "claims").mkdir(parents=True)
    for missing, present in (("weights", "adapter_config.json"), ("config", "adapter_model.safetensors")):
        (tmp_path / "adapter" / "claims" / present).write_text("")
        alone = Pod(tmp_path, {"exec transformers serve": "echo served"}, 0, {})
        done = subprocess.run(alone.command(container), capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (1, ""), missing
        (tmp_path / "adapter" / "claims" / present).unlink()


def test_server_has_neither_the_secret_nor_write_access_to_the_adapter() -> None:
    spec = pod()["spec"]
    (verify,), (server,) = spec["initContainers"], spec["containers"]
    assert "--public-key=/signer/signing-key.pub.pem" in verify["args"]
    assert any(arg.startswith("--digest=") for arg in verify["args"])
    assert [each["secretRef"]["name"] for each in verify["envFrom"]] == ["s3-keys"]
    assert "envFrom" not in server and "s3-keys" not in json.dumps(server)
    mounts = {mount["name"]: mount for mount in server["volumeMounts"]}
    assert mounts["adapter"]["readOnly"] and mounts["base"]["readOnly"]
    assert not spec["automountServiceAccountToken"]
    for container in (verify, server):
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        assert "cpu" not in container["resources"]["limits"]


@pytest.mark.cluster
def test_manifest_is_accepted_by_the_api_server(control_plane: ControlPlane, namespace: str) -> None:
    """Also in a namespace that admits only pods of the restricted Pod Security Standard."""
    control_plane.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    strict = ("-n", namespace, "create", "--dry-run=server", "--validate=strict", "-f")
    created = control_plane.kubectl(*strict, str(EXAMPLE))
    assert "Warning" not in created.stderr and len(created.stdout.splitlines()) == 3
    template = pod()
    head = {**template["metadata"], "generateName": "claims-"}
    alone = {"apiVersion": "v1", "kind": "Pod", "metadata": head, "spec": template["spec"]}
    control_plane.kubectl(*strict, "-", text=json.dumps(alone))
