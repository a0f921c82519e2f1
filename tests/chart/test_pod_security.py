"""The operator's pod meets the Pod Security standard "restricted" (https://kubernetes.io/docs/concepts/security/pod-security-standards/)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chart.helm import Helm, only

ALLOWED_VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret",
}  # fmt: skip


@pytest.fixture(scope="module")
def pod(helm: Helm) -> dict[str, Any]:
    return dict(only(helm.render(), "Deployment")["spec"]["template"]["spec"])


def test_pod_is_restricted(pod: dict[str, Any]) -> None:
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["securityContext"].get("runAsUser") != 0
    assert not {"hostNetwork", "hostPID", "hostIPC", "hostUsers", "initContainers"} & set(pod)
    for volume in pod["volumes"]:
        assert set(volume) - {"name"} <= ALLOWED_VOLUMES


def test_container_is_restricted(pod: dict[str, Any]) -> None:
    for container in pod["containers"]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert not {"privileged", "procMount"} & set(context)
        assert all("hostPort" not in port for port in container["ports"])


def test_root_filesystem_is_read_only_and_tmp_is_not(pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["volumeMounts"] == [{"name": "tmp", "mountPath": "/tmp"}]
    (volume,) = pod["volumes"]
    assert volume["name"] == "tmp"
    assert volume["emptyDir"]["sizeLimit"]
