"""Every way to install the chart renders objects that Kubernetes' own schemas accept, and the default way is known by heart."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from specserver import __version__
from specserver.api import labels
from tests.chart.helm import (
    CHART,
    NAMESPACE,
    RELEASE,
    Helm,
    HelmRefused,
    Values,
    default_values,
    leaves,
    of_kind,
    only,
)  # fmt: skip

GOLDEN = Path(__file__).parent / "golden" / "default.yaml"
KUBERNETES = "1.36"
DIGEST = "sha256:" + "4c" * 32

MATRIX: dict[str, Values] = {
    "default": {},
    "namespaced": {"watchNamespaces": ["team-a", "team-b"]},
    "no crd": {"crds": {"install": False}},
    "crd not kept": {"crds": {"keep": False}},
    "image by digest": {"image": {"digest": DIGEST}},
    "monitors": {"monitors": {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}}},
    "monitors, namespaced": {
        "watchNamespaces": ["team-a"],
        "monitors": {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}},
    },
    "existing account": {"serviceAccount": {"create": False, "name": "operators"}},
    "everything on the pod": {
        "imagePullSecrets": [{"name": "registry"}],
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "dedicated", "operator": "Equal", "value": "control", "effect": "NoSchedule"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "DoesNotExist"}]}]
                }
            },
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 10, "podAffinityTerm": {"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}}}
                ]
            },
        },
        "podAnnotations": {"example.com/team": "platform"},
        "podLabels": {"example.com/tier": "control"},
        "podSecurityContext": {"runAsUser": 65532, "fsGroup": 65532},
        "extraEnv": [
            {"name": "HTTPS_PROXY", "value": "http://proxy:3128"},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "token", "key": "value", "optional": True}}},
        ],
    },
    "as little as can be": {
        "crds": {"install": False},
        "resources": {"requests": None, "limits": None},
        "podSecurityContext": {"runAsNonRoot": None, "seccompProfile": None},
        "securityContext": {"allowPrivilegeEscalation": None, "readOnlyRootFilesystem": None, "capabilities": None},
    },
}


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX.keys())
def test_rendered_objects_satisfy_the_schemas_of_kubernetes(helm: Helm, values: Values) -> None:
    """Strictly: an unknown field is an error. The Prometheus operator's kinds aren't Kubernetes' own: they have a test below."""
    foreign = ("ServiceMonitor", "PodMonitor")
    checked = [manifest for manifest in helm.render(values) if manifest["kind"] not in foreign]
    assert len(checked) >= 4
    for manifest in checked:
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


def test_the_schema_check_sees_a_misspelt_field(helm: Helm) -> None:
    deployment = only(helm.render(), "Deployment")
    deployment["spec"]["replicsa"] = 1
    with pytest.raises(kubernetes_validate.ValidationError, match="replicsa"):
        kubernetes_validate.validate(deployment, KUBERNETES, strict=True)


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX.keys())
def test_lint_finds_nothing(helm: Helm, values: Values) -> None:
    assert "0 chart(s) failed" in helm.run("lint", "--strict", str(CHART), values=values)


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX.keys())
def test_no_object_is_there_twice(helm: Helm, values: Values) -> None:
    names = [(m["kind"], m["metadata"].get("namespace"), m["metadata"]["name"]) for m in helm.render(values)]
    assert len(names) == len(set(names))


def test_default_render_is_the_golden_one(helm: Helm, request: pytest.FixtureRequest) -> None:
    """Without the definition: it is compared with its own source elsewhere."""
    rendered = helm.render_text({"crds": {"install": False}})
    if request.config.getoption("--update-golden"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(rendered)
    assert rendered == GOLDEN.read_text(), "not as before: if it is as wanted, run pytest tests/chart --update-golden"


def test_chart_and_operator_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__


# ---- what stands in the objects ---------------------------------------------------------------------------------------


def _pod(helm: Helm, values: Values | None = None) -> dict[str, Any]:
    return dict(only(helm.render(values), "Deployment")["spec"]["template"]["spec"])


def _container(helm: Helm, values: Values | None = None) -> dict[str, Any]:
    (container,) = _pod(helm, values)["containers"]
    return dict(container)


def test_one_operator_at_a_time(helm: Helm) -> None:
    spec = only(helm.render(), "Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        pytest.param({}, f"specserver/operator:{__version__}", id="tag is the version"),
        pytest.param({"repository": "r.example:5000/op", "tag": "dev"}, "r.example:5000/op:dev", id="tag given"),
        pytest.param({"tag": "dev", "digest": DIGEST}, f"specserver/operator@{DIGEST}", id="digest wins"),
    ],
)
def test_image(helm: Helm, image: Values, expected: str) -> None:
    assert _container(helm, {"image": image})["image"] == expected


@pytest.mark.parametrize(
    ("namespaces", "expected"),
    [pytest.param([], "", id="all"), pytest.param(["team-a", "team-b"], "team-a,team-b", id="two")],
)
def test_the_operator_is_told_its_settings(helm: Helm, namespaces: list[str], expected: str) -> None:
    container = _container(helm, {"watchNamespaces": namespaces, "logLevel": "debug", "logFormat": "text"})
    assert {entry["name"]: entry["value"] for entry in container["env"]} == {
        "SPECSERVER_NAMESPACES": expected,
        "SPECSERVER_LOG_LEVEL": "debug",
        "SPECSERVER_LOG_FORMAT": "text",
        "SPECSERVER_PORT": "8080",
    }


def test_probes_metrics_and_service_meet_at_one_port(helm: Helm) -> None:
    manifests = helm.render(MATRIX["monitors"])
    template = only(manifests, "Deployment")["spec"]["template"]
    service = only(manifests, "Service")
    (container,) = template["spec"]["containers"]
    assert container["ports"] == [{"name": "http", "containerPort": 8080, "protocol": "TCP"}]
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    assert service["spec"]["ports"][0]["targetPort"] == "http"
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()

    monitor = only(manifests, "ServiceMonitor")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["endpoints"] == [{"port": service["spec"]["ports"][0]["name"], "path": "/metrics", "interval": "30s"}]


@pytest.mark.parametrize(
    ("namespaces", "selector"),
    [
        pytest.param([], {"any": True}, id="all"),
        pytest.param(["team-a", "team-b"], {"matchNames": ["team-a", "team-b"]}, id="two"),
    ],
)
def test_engines_are_scraped_where_the_operator_makes_them(
    helm: Helm, namespaces: list[str], selector: dict[str, Any]
) -> None:
    values = {"watchNamespaces": namespaces, "monitors": {"podMonitor": {"enabled": True, "labels": {"release": "prom"}}}}
    monitor = only(helm.render(values), "PodMonitor")
    assert monitor["metadata"]["labels"]["release"] == "prom"
    assert monitor["spec"] == {
        "selector": {"matchLabels": {labels.MANAGED_BY: labels.MANAGED_BY_VALUE, labels.APP_NAME: labels.APP_NAME_VALUE}},
        "namespaceSelector": selector,
        "podTargetLabels": [labels.SERVER],
        "podMetricsEndpoints": [{"port": labels.PORT_NAME, "path": "/metrics", "interval": "15s"}],
    }


def test_monitors_are_off_unless_asked_for(helm: Helm) -> None:
    """Their definitions are not in every cluster, and without them the install would fail."""
    assert of_kind(helm.render(), "ServiceMonitor", "PodMonitor") == []


def test_labels_of_the_user_never_break_the_selector(helm: Helm) -> None:
    spec = only(helm.render({"podLabels": {"app.kubernetes.io/name": "mine", "team": "a"}}), "Deployment")["spec"]
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    assert spec["template"]["metadata"]["labels"]["team"] == "a"


def test_token_is_mounted_in_the_operator_alone(helm: Helm) -> None:
    manifests = helm.render()
    assert only(manifests, "ServiceAccount")["automountServiceAccountToken"] is False
    pod = only(manifests, "Deployment")["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is True
    assert pod["serviceAccountName"] == only(manifests, "ServiceAccount")["metadata"]["name"]


# ---- names ------------------------------------------------------------------------------------------------------------

DNS_LABEL = re.compile(r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$")
LONGEST_RELEASE = "a-release-name-that-has-all-the-53-characters-allowed"


@pytest.mark.parametrize("release", ["a", "specserver", "my-specserver-2", LONGEST_RELEASE])
def test_names_fit_for_every_release_name(helm: Helm, release: str) -> None:
    assert len(release) <= 53
    manifests = helm.render(release=release)
    for manifest in manifests:
        assert len(manifest["metadata"]["name"]) <= 253
        for value in manifest["metadata"]["labels"].values():
            assert len(value) <= 63
    assert DNS_LABEL.match(only(manifests, "Service")["metadata"]["name"])
    assert DNS_LABEL.match(only(manifests, "Deployment")["metadata"]["name"])


def test_releases_of_one_name_share_no_cluster_wide_object(helm: Helm) -> None:
    """The second install failed in other charts: a ClusterRole of a fixed name belonged to the first release."""
    cluster_wide = [
        {m["metadata"]["name"] for m in helm.render({"crds": {"install": False}}, namespace=namespace) if _clusterwide(m)}
        for namespace in ("n1", "n2")
    ]
    assert all(cluster_wide)
    assert not cluster_wide[0] & cluster_wide[1]


def _clusterwide(manifest: dict[str, Any]) -> bool:
    return "namespace" not in manifest["metadata"]


# ---- as a dependency, and the notes -----------------------------------------------------------------------------------


def test_works_as_a_dependency_of_another_chart(helm: Helm, tmp_path: Path) -> None:
    """Helm adds `global` to the values then, which a strict schema must let through."""
    shutil.copytree(CHART, tmp_path / "charts" / "specserver")
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: umbrella\nversion: 1.0.0\n")
    manifests = helm.render({"global": {"region": "eu"}, "specserver": {"logLevel": "debug"}}, chart=tmp_path)
    assert {"name": "SPECSERVER_LOG_LEVEL", "value": "debug"} in (
        only(manifests, "Deployment")["spec"]["template"]["spec"]["containers"][0]["env"]
    )


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param({}, "in all namespaces", id="all"),
        pytest.param({"watchNamespaces": ["team-a", "team-b"]}, "in team-a, team-b.", id="two namespaces"),
        pytest.param({}, "leaves every SpeculativeServer", id="kept"),
        pytest.param({"crds": {"keep": False}}, "CAUTION: crds.keep is false", id="not kept"),
        pytest.param({"crds": {"install": False}}, "relies on the definition", id="no crd"),
    ],
)
def test_notes_say_what_was_installed(helm: Helm, values: Values, expected: str) -> None:
    printed = helm.run("install", RELEASE, str(CHART), "-n", NAMESPACE, "--dry-run=client", values=values)
    assert expected in printed.split("NOTES:", 1)[1]


def test_everything_in_values_has_a_row_in_the_readme() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \| .+ \|$", (CHART / "README.md").read_text(), re.MULTILINE)
    assert {path: json.loads(default) for path, default in rows} == leaves(default_values())


def test_refusal_of_helm_is_an_error_of_ours(helm: Helm) -> None:
    with pytest.raises(HelmRefused, match="no-such-chart"):
        helm.render(chart=CHART / "no-such-chart")
