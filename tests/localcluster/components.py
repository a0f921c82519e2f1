"""Flags of the control plane's programs: one place for both sizes, so that they can't drift apart.

A certificate carries the name of the program that shows it; `api` is the API server's own, `admin` the administrator's.
"""

from __future__ import annotations

import http.client
import ssl
from pathlib import Path
from urllib.error import URLError
from urllib.request import HTTPSHandler, ProxyHandler, build_opener

from tests.localcluster.pki import Pki


def etcd_flags(data: Path, *, port: int, peer_port: int) -> list[str]:
    client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer_port}"
    return [
        f"--data-dir={data}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",  # the data lives as long as the test
    ]


def apiserver_flags(
    pki: Pki, certificates: Path, *, bind: str, advertise: str, port: int, etcd_port: int, service_cidr: str
) -> list[str]:
    """RBAC and the Node authorizer; admission by the defaults (ServiceAccount, PodSecurity, …) plus NodeRestriction."""
    return [
        f"--etcd-servers=http://127.0.0.1:{etcd_port}",
        f"--bind-address={bind}",
        f"--advertise-address={advertise}",
        f"--secure-port={port}",
        f"--service-cluster-ip-range={service_cidr}",
        f"--cert-dir={certificates}",
        f"--tls-cert-file={pki.certificate('api')}",
        f"--tls-private-key-file={pki.key('api')}",
        f"--client-ca-file={pki.authority}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction,ServiceAccount,PodSecurity",
        "--allow-privileged=true",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki.directory / 'sa.pub'}",
        f"--service-account-signing-key-file={pki.key('sa')}",
    ]


def manager_flags(pki: Pki) -> list[str]:
    return [
        f"--service-account-private-key-file={pki.key('sa')}",
        f"--root-ca-file={pki.authority}",
        f"--cluster-signing-cert-file={pki.authority}",
        f"--cluster-signing-key-file={pki.key('ca')}",
        "--use-service-account-credentials=true",
    ]


def client_flags(kubeconfig: Path, certificates: Path, *, port: int) -> list[str]:
    """Of controller-manager and scheduler: the only one of its kind needs no leader election."""
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={certificates}",
        "--leader-elect=false",
        "--kube-api-qps=500",  # the default of 20 a second would make start-up a queue
        "--kube-api-burst=1000",
    ]


def fetch(url: str, pki: Pki, path: str, *, client: str = "admin") -> bytes | None:
    """What the API server answers there, asked over its certified connection; None unless that is a 200."""
    context = ssl.create_default_context(cafile=str(pki.authority))
    context.load_cert_chain(pki.certificate(client), pki.key(client))
    direct = build_opener(ProxyHandler({}), HTTPSHandler(context=context))  # a proxy of the user's can't reach it
    try:
        with direct.open(url + path, timeout=5.0) as response:
            return bytes(response.read()) if response.status == 200 else None
    except (URLError, OSError, http.client.HTTPException):
        return None


def answers(url: str, pki: Pki, path: str = "/readyz") -> bool:
    return fetch(url, pki, path) is not None
