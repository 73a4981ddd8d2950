"""A certificate for localhost, made when it is needed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


def make_certificate(directory: Path) -> tuple[Path, Path]:
    """The certificate and its key, as PEM files; the test is skipped where nothing can make them."""
    certificate, key = directory / "cert.pem", directory / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    command += ["-keyout", str(key), "-out", str(certificate)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=60.0)
    except FileNotFoundError:
        pytest.skip("openssl is not installed: no certificate can be made")
    return certificate, key
