"""values.yaml and values.schema.json: each value does something, and what isn't there is refused by its name.

Charts declare values that nothing reads, or whose effect hides behind another switch, and refuse values that their own
documentation shows. So each value is set alone here, and its trace looked for.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.chart.helm import CHART, Helm, HelmRefused, Values, default_values, leaves, nested

SCHEMA = json.loads((CHART / "values.schema.json").read_text())


@dataclass(frozen=True)
class Setting:
    """value: something else than the default. trace: text that appears or vanishes. given: what must be on beside it."""

    value: Any
    trace: str
    given: Values = field(default_factory=dict)


SETTINGS: dict[str, Setting] = {
    "image.repository": Setting("zz/repository", "zz/repository:"),
    "image.tag": Setting("zz-tag", ":zz-tag"),
    "image.digest": Setting("sha256:" + "f" * 64, "@sha256:" + "f" * 64),
    "image.pullPolicy": Setting("Always", "imagePullPolicy: Always"),
    "imagePullSecrets": Setting([{"name": "zz"}], "- name: zz"),
    "watchNamespaces": Setting(["zz"], "namespace: zz"),
    "crds.install": Setting(False, "kind: CustomResourceDefinition"),
    "crds.keep": Setting(False, "helm.sh/resource-policy: keep"),
    "logLevel": Setting("warning", "value: warning"),
    "logFormat": Setting("text", "value: text"),
    "serviceAccount.create": Setting(False, "kind: ServiceAccount", {"serviceAccount": {"name": "zz"}}),
    "serviceAccount.name": Setting("zz", "serviceAccountName: zz"),
    "serviceAccount.annotations": Setting({"zz": "1"}, 'zz: "1"'),
    "resources.requests.cpu": Setting("77m", "cpu: 77m"),
    "resources.requests.memory": Setting("77Mi", "memory: 77Mi"),
    "resources.limits.memory": Setting("77Mi", "memory: 77Mi"),
    "priorityClassName": Setting("zz", "priorityClassName: zz"),
    "nodeSelector": Setting({"zz": "1"}, 'zz: "1"'),
    "tolerations": Setting([{"key": "zz", "operator": "Exists"}], "key: zz"),
    "affinity": Setting({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zz"}]}},
                        "topologyKey: zz"),
    "podAnnotations": Setting({"zz": "1"}, 'zz: "1"'),
    "podLabels": Setting({"zz": "1"}, 'zz: "1"'),
    "podSecurityContext.runAsNonRoot": Setting(False, "runAsNonRoot: false"),
    "podSecurityContext.seccompProfile.type": Setting("Unconfined", "type: Unconfined"),
    "securityContext.allowPrivilegeEscalation": Setting(True, "allowPrivilegeEscalation: true"),
    "securityContext.readOnlyRootFilesystem": Setting(False, "readOnlyRootFilesystem: false"),
    "securityContext.capabilities.drop": Setting(["ZZ"], "- ZZ"),
    "extraEnv": Setting([{"name": "ZZ", "value": "1"}], "name: ZZ"),
    "monitors.serviceMonitor.enabled": Setting(True, "kind: ServiceMonitor"),
    "monitors.serviceMonitor.interval": Setting("7s", "interval: 7s", {"monitors": {"serviceMonitor": {"enabled": True}}}),
    "monitors.serviceMonitor.labels": Setting({"zz": "1"}, 'zz: "1"', {"monitors": {"serviceMonitor": {"enabled": True}}}),
    "monitors.podMonitor.enabled": Setting(True, "kind: PodMonitor"),
    "monitors.podMonitor.interval": Setting("7s", "interval: 7s", {"monitors": {"podMonitor": {"enabled": True}}}),
    "monitors.podMonitor.labels": Setting({"zz": "1"}, 'zz: "1"', {"monitors": {"podMonitor": {"enabled": True}}}),
}  # fmt: skip


def test_each_value_has_a_row_in_the_table_above() -> None:
    assert set(SETTINGS) == set(leaves(default_values()))


@pytest.mark.parametrize("path", SETTINGS)
def test_each_value_has_its_effect(helm: Helm, path: str) -> None:
    setting = SETTINGS[path]
    before = helm.render_text(setting.given)
    after = helm.render_text(_merged(setting.given, nested(path, setting.value)))
    changed = [line for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line.startswith(("+ ", "- "))]
    assert any(setting.trace in line[2:] for line in changed), "\n".join(changed)


def _merged(one: Values, other: Values) -> dict[str, Any]:
    result = dict(one)
    for key, value in other.items():
        below = result.get(key)
        result[key] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


@pytest.mark.parametrize(
    ("values", "says"),
    [
        pytest.param({"replicaCuont": 2}, "'replicaCuont' not allowed", id="unknown at the top"),
        pytest.param({"image": {"tags": "1"}}, "'/image': additional properties 'tags'", id="unknown below"),
        pytest.param({"tolerations": [{"kye": "a"}]}, "'/tolerations/0': additional properties 'kye'", id="in a list"),
        pytest.param({"affinity": {"nodeAfinity": {}}}, "'/affinity': additional properties 'nodeAfinity'", id="affinity"),
        pytest.param({"securityContext": {"runAsRoot": True}}, "'/securityContext': additional properties", id="context"),
        pytest.param({"extraEnv": [{"name": "A", "valeu": "1"}]}, "'/extraEnv/0': additional", id="environment"),
        pytest.param({"extraEnv": {"A": "1"}}, "'/extraEnv': got object, want array", id="map for list"),
        pytest.param({"tolerations": {"key": "a"}}, "'/tolerations': got object, want array", id="tolerations as a map"),
        pytest.param({"watchNamespaces": "team-a"}, "'/watchNamespaces': got string, want array", id="string for list"),
        pytest.param({"watchNamespaces": ["Team_A"]}, "'/watchNamespaces/0'", id="no namespace name"),
        pytest.param({"watchNamespaces": ["a", "a"]}, "'/watchNamespaces': items at 0 and 1 are equal", id="named twice"),
        pytest.param({"image": {"tag": 1.5}}, "'/image/tag': got number, want string", id="number for string"),
        pytest.param({"image": {"digest": "4c0f"}}, "'/image/digest'", id="no digest"),
        pytest.param({"image": {"pullPolicy": "Sometimes"}}, "'/image/pullPolicy': value must be one of", id="policy"),
        pytest.param({"logLevel": "loud"}, "'/logLevel': value must be one of 'debug', 'info'", id="log level"),
        pytest.param({"crds": {"install": "yes"}}, "'/crds/install': got string, want boolean", id="string for boolean"),
        pytest.param({"podLabels": {"a": 1}}, "'/podLabels/a': got number, want string", id="label that is a number"),
        pytest.param({"monitors": {"podMonitor": {"interval": "soon"}}}, "'/monitors/podMonitor/interval'", id="interval"),
        pytest.param({"imagePullSecrets": ["a"]}, "'/imagePullSecrets/0': got string, want object", id="pull secret"),
        pytest.param({"serviceAccount": {"create": False}}, "serviceAccount.name: needed", id="no account"),
        pytest.param({"extraEnv": [{"name": "SPECSERVER_PORT"}]}, "extraEnv: SPECSERVER_PORT is set by the chart", id="ours"),
        pytest.param({"extraEnv": [{"name": "A"}, {"name": "A"}]}, "extraEnv: A stands there twice", id="variable twice"),
    ],
)
def test_wrong_values_are_refused_by_name(helm: Helm, values: Values, says: str) -> None:
    with pytest.raises(HelmRefused) as refused:
        helm.render_text(values)
    assert says in str(refused.value)


def test_no_object_in_the_schema_is_open() -> None:
    """Open are the maps of strings or quantities, whose keys are the user's, and `global`, which is other charts'."""
    open_nodes = [path for path, node in _objects(SCHEMA) if node.get("additionalProperties") is not False]
    assert open_nodes == ["/properties/global", "/definitions/strings", "/definitions/quantities"]


def test_schema_knows_no_value_that_the_file_does_not_show() -> None:
    assert set(SCHEMA["properties"]) - {"global"} == set(default_values())


def _objects(node: Any, path: str = "") -> list[tuple[str, dict[str, Any]]]:
    """Every schema node that describes an object, with its path."""
    found = []
    if isinstance(node, dict):
        if node.get("type") == "object":
            found.append((path, node))
        for key, below in node.items():
            found += _objects(below, f"{path}/{key}")
    if isinstance(node, list):
        for index, below in enumerate(node):
            found += _objects(below, f"{path}/{index}")
    return found
