"""Certificates and kubeconfigs of one cluster, by openssl: elliptic keys, because they are made in milliseconds.

(Rejected: a Python crypto library — one more dependency for a dozen files that openssl writes as well.)
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.localcluster.errors import ClusterError

VALID_DAYS = 3650


@dataclass(frozen=True)
class Pki:
    """A certificate authority in a directory, and the leaves it has signed: NAME.crt and NAME.key."""

    directory: Path

    @property
    def authority(self) -> Path:
        return self.directory / "ca.crt"

    def certificate(self, name: str) -> Path:
        return self.directory / f"{name}.crt"

    def key(self, name: str) -> Path:
        return self.directory / f"{name}.key"

    def sign(self, name: str, subject: str, alternative_names: Sequence[str] = ()) -> None:
        """A leaf for clients, or for a server when it has alternative names (`IP:…`, `DNS:…`)."""
        request = self.directory / f"{name}.csr"
        extensions = self.directory / f"{name}.ext"
        usage = "serverAuth,clientAuth" if alternative_names else "clientAuth"
        lines = [f"extendedKeyUsage={usage}", "keyUsage=critical,digitalSignature"]
        if alternative_names:
            lines.append("subjectAltName=" + ",".join(alternative_names))
        extensions.write_text("\n".join(lines) + "\n")
        _openssl(
            "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", subject,
            "-keyout", str(self.key(name)), "-out", str(request),
        )  # fmt: skip
        _openssl(
            "x509", "-req", "-in", str(request), "-days", str(VALID_DAYS), "-extfile", str(extensions),
            "-CA", str(self.authority), "-CAkey", str(self.key("ca")), "-CAcreateserial", "-out", str(self.certificate(name)),
        )  # fmt: skip
        request.unlink()
        extensions.unlink()


def create_pki(directory: Path) -> Pki:
    """A new authority, and the key pair that signs service account tokens (sa.key, sa.pub)."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    pki = Pki(directory)
    _openssl(
        "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", str(VALID_DAYS),
        "-subj", "/CN=specserver-localcluster", "-addext", "keyUsage=critical,keyCertSign,cRLSign,digitalSignature",
        "-keyout", str(pki.key("ca")), "-out", str(pki.authority),
    )  # fmt: skip
    _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", str(pki.key("sa")))
    _openssl("pkey", "-in", str(pki.key("sa")), "-pubout", "-out", str(directory / "sa.pub"))
    return pki


def write_kubeconfig(path: Path, pki: Pki, client: str, url: str, *, name: str) -> Path:
    """A kubeconfig with everything embedded, as JSON (which is YAML), readable by its owner alone."""

    def embedded(file: Path) -> str:
        return base64.b64encode(file.read_bytes()).decode()

    user = {
        "client-certificate-data": embedded(pki.certificate(client)),
        "client-key-data": embedded(pki.key(client)),
    }
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": name, "cluster": {"server": url, "certificate-authority-data": embedded(pki.authority)}}
        ],
        "users": [{"name": client, "user": user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": client}}],
        "current-context": name,
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise ClusterError(f"openssl {arguments[0]} failed: {done.stderr.strip()}")
