"""Certificates for the tests of TLS."""

from __future__ import annotations

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Identity:
    certificate: Path
    key: Path


class Authority:
    """A CA whose certificates are made by the openssl command."""

    def __init__(self, folder: Path, name: str = "ca"):
        self.folder = folder
        self.certificate = folder / f"{name}.pem"
        self.key = folder / f"{name}.key"
        self.openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                     "-subj", f"/CN={name}", "-keyout", str(self.key), "-out", str(self.certificate))

    def openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=self.folder, timeout=60)

    def issue(self, name: str, days: int = 2, names: str = "DNS:localhost,IP:127.0.0.1") -> Identity:
        """Of negative `days`: a certificate that has expired."""
        made = Identity(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        (self.folder / "ext").write_text(f"subjectAltName={names}\n")
        self.openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
                     "-keyout", str(made.key), "-out", f"{name}.csr")
        self.openssl("x509", "-req", "-in", f"{name}.csr", "-CA", str(self.certificate), "-CAkey", str(self.key),
                     "-CAcreateserial", "-days", str(days), "-extfile", "ext", "-out", str(made.certificate))
        made.key.chmod(0o600)
        return made

    def member(self, cluster: str, role: str, id: str, **more) -> tuple[str, ...]:
        """The options by which a process is that member of the cluster."""
        made = self.issue(f"{cluster}-{role}-{id}", names=f"URI:carillon://{cluster}/{role}/{id}", **more)
        return ("--cluster-cert", str(made.certificate), "--cluster-cert-key", str(made.key), "--cluster-ca", str(self.certificate))

    def client_context(self, identity: Identity | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.certificate))
        if identity:
            context.load_cert_chain(identity.certificate, identity.key)
        return context
