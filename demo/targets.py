"""Tells the demo's Prometheus which pods to scrape. Runs beside it in the pod, standard library and aiohttp only.

Debian builds Prometheus without its Kubernetes discovery, so this answers its HTTP discovery instead
(https://prometheus.io/docs/prometheus/latest/http_sd/). A cluster of your own has a PodMonitor or `kubernetes_sd_configs`.
"""

from __future__ import annotations

import json
import os
import ssl
from pathlib import Path

import aiohttp
from aiohttp import web

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


async def targets(_request: web.Request) -> web.Response:
    """One target a pod of a SpeculativeServer, with the labels that SpecServer's queries need."""
    namespace = (ACCOUNT / "namespace").read_text()
    host = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
    trust = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    headers = {"Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}"}
    query = {"labelSelector": "specserver.io/server"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(f"{host}/api/v1/namespaces/{namespace}/pods", params=query, ssl=trust) as answer,
    ):
        answer.raise_for_status()
        pods = (await answer.json())["items"]
    found = [
        {
            "targets": [f"{pod['status']['podIP']}:{port['containerPort']}"],
            "labels": {"namespace": namespace, "pod": pod["metadata"]["name"]},
        }
        for pod in pods
        if pod["status"].get("podIP")
        for container in pod["spec"]["containers"]
        for port in container.get("ports", [])
        if port.get("name") == "http"
    ]
    return web.Response(text=json.dumps(found), content_type="application/json")


if __name__ == "__main__":
    application = web.Application()
    application.router.add_get("/", targets)
    web.run_app(application, host="127.0.0.1", port=8000, print=None)
