"""What the demo puts into the cluster beside the chart: a namespace, a Prometheus, the example, and the clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from specserver.api import labels

ROOT = Path(__file__).resolve().parent.parent
NAMESPACE = "demo"
SERVER = "tiny"
PROMETHEUS = "prometheus"

_REQUESTS = {"requests": {"cpu": "200m", "memory": "128Mi"}}
"""Without it a pod gets next to no CPU while the engines are busy, and its figures are late."""

PHASES = (("quiet", 2, 40), ("busy", 24, 90), ("quiet again", 2, 65))
"""Name, requests in flight, seconds."""

Object = dict[str, Any]


def build_namespace() -> list[Object]:
    """Its pods have to meet the baseline of Pod Security."""
    enforced = {"pod-security.kubernetes.io/enforce": "baseline"}
    return [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": enforced}}]


def build_prometheus(image: str, python_image: str) -> list[Object]:
    """A Prometheus that scrapes the engines' pods every two seconds, and beside it the script that names them."""
    discovery = [{"url": "http://127.0.0.1:8000/", "refresh_interval": "2s"}]
    settings = {
        "global": {"scrape_interval": "2s", "scrape_timeout": "2s"},
        "scrape_configs": [{"job_name": "engines", "http_sd_configs": discovery}],
    }
    metadata = {"name": PROMETHEUS, "namespace": NAMESPACE}
    app = {"app": PROMETHEUS}
    files = {"prometheus.yml": yaml.safe_dump(settings), "targets.py": (ROOT / "demo" / "targets.py").read_text()}
    mount = {"name": "settings", "mountPath": "/etc/prometheus-demo"}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": metadata,
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": PROMETHEUS},
            "subjects": [{"kind": "ServiceAccount", "name": PROMETHEUS, "namespace": NAMESPACE}],
        },
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": files},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"selector": app, "ports": [{"port": 9090}]},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata,
            "spec": {
                "selector": {"matchLabels": app},
                "template": {
                    "metadata": {"labels": app},
                    "spec": {
                        "serviceAccountName": PROMETHEUS,
                        "containers": [
                            {
                                "name": PROMETHEUS,
                                "image": image,
                                "resources": _REQUESTS,
                                "args": ["--config.file=/etc/prometheus-demo/prometheus.yml", "--storage.tsdb.path=/data"],
                                "readinessProbe": {"httpGet": {"path": "/-/ready", "port": 9090}, "periodSeconds": 1},
                                "volumeMounts": [mount, {"name": "data", "mountPath": "/data"}],
                            },
                            {
                                "name": "targets",
                                "image": python_image,
                                "resources": _REQUESTS,
                                "command": ["python", "/etc/prometheus-demo/targets.py"],
                                "volumeMounts": [mount],
                            },
                        ],
                        "volumes": [
                            {"name": "settings", "configMap": {"name": PROMETHEUS}},
                            {"name": "data", "emptyDir": {}},
                        ],
                    },
                },
            },
        },
    ]


def build_server(engine_image: str) -> list[Object]:
    """examples/tiny-cpu.yaml with this cluster's image and the demo's Prometheus, and quicker to look."""
    server = yaml.safe_load((ROOT / "examples" / "tiny-cpu.yaml").read_text())
    server["metadata"]["namespace"] = NAMESPACE
    spec = server["spec"]
    spec["engine"]["image"] = engine_image
    spec["metrics"] = {
        "interval": "2s",
        "staleness": "20s",
        "prometheus": {"url": f"http://{PROMETHEUS}.{NAMESPACE}.svc:9090"},
    }
    spec["scaling"]["behavior"] = {"scaleDown": {"stabilizationWindowSeconds": 15}}
    return [server]


def build_traffic(image: str) -> list[Object]:
    """The clients, as one pod that sends and reports."""
    port = yaml.safe_load((ROOT / "examples" / "tiny-cpu.yaml").read_text())["spec"]["engine"].get("port", 30000)
    metadata = {"name": "traffic", "namespace": NAMESPACE}
    key = {"secretKeyRef": {"name": labels.keys_secret_name(SERVER), "key": labels.API_KEY_ENTRY}}
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "data": {"traffic.py": (ROOT / "demo" / "traffic.py").read_text()},
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "spec": {
                "restartPolicy": "Never",
                "containers": [
                    {
                        "name": "traffic",
                        "image": image,
                        "resources": _REQUESTS,
                        "command": ["python", "/traffic/traffic.py"],
                        "env": [
                            {"name": "URL", "value": f"http://{SERVER}.{NAMESPACE}.svc:{port}/generate"},
                            {"name": "PHASES", "value": json.dumps(PHASES)},
                            {"name": "API_KEY", "valueFrom": key},
                        ],
                        "volumeMounts": [{"name": "script", "mountPath": "/traffic"}],
                    }
                ],
                "volumes": [{"name": "script", "configMap": {"name": "traffic"}}],
            },
        },
    ]
