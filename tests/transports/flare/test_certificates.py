# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A server of NVIDIA FLARE's refuses all who have no certificate of its own project.

The engine does this, not this package: the test shows that the kits which our pages make demand it.
"""

from __future__ import annotations

import datetime
import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

import yaml  # noqa: E402
from cryptography import x509  # noqa: E402
from cryptography.hazmat.primitives import hashes, serialization  # noqa: E402
from helpers.flare_poc import Poc, poc, wait_for  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.nvflare, pytest.mark.poc]


def port_of(system: Poc) -> int:
    project = yaml.safe_load((system.folder / "project.yml").read_text())
    [server] = [each for each in project["participants"] if each["type"] == "server"]
    return int(server["fed_learn_port"])


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("localhost", port)) == 0


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Poc]:
    """A running server, and the kit of one client."""
    with poc(tmp_path_factory.mktemp("ours"), ["elm"]) as running:
        running.start("server")
        wait_for("the server's port", lambda: is_listening(port_of(running)))
        yield running


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kit of a client of the same name, of another project."""
    return Poc(tmp_path_factory.mktemp("theirs"), ["elm"]).kits / "elm" / "startup"


def refused(system: Poc, certificate: Path | None, key: Path | None, host: str = "") -> str:
    """Why a client with this certificate is refused; empty where it is taken."""
    context = ssl.create_default_context(cafile=str(system.kits / "elm" / "startup" / "rootCA.pem"))
    context.check_hostname = bool(host)
    context.set_alpn_protocols(["h2"])
    if certificate is not None and key is not None:
        context.load_cert_chain(certificate, key)
    try:
        with socket.create_connection(("localhost", port_of(system)), timeout=20) as raw:
            with context.wrap_socket(raw, server_hostname=host or None) as secured:
                # HTTP/2's first words; a server that refuses a certificate closes instead.
                secured.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))
                return "" if secured.recv(1) else "closed"
    except (ssl.SSLError, ConnectionError) as error:
        return str(error) or type(error).__name__


def test_a_client_of_the_project_is_taken(system: Poc) -> None:
    kit = system.kits / "elm" / "startup"
    assert refused(system, kit / "client.crt", kit / "client.key") == ""


def test_a_client_without_a_certificate_is_refused(system: Poc) -> None:
    assert refused(system, None, None)


def test_a_client_of_another_project_is_refused(system: Poc, strangers: Path) -> None:
    assert refused(system, strangers / "client.crt", strangers / "client.key")


def test_an_expired_certificate_is_refused(system: Poc, tmp_path: Path) -> None:
    kit = system.kits / "elm" / "startup"
    for name, days, expected in (("valid", 1, False), ("expired", -1, True)):
        certificate = reissued(system, kit / "client.crt", days)
        (tmp_path / f"{name}.crt").write_bytes(certificate)
        assert bool(refused(system, tmp_path / f"{name}.crt", kit / "client.key")) is expected


def reissued(system: Poc, file: Path, days: int) -> bytes:
    """The client's certificate, signed again by the project's root, to end in some days."""
    own = x509.load_pem_x509_certificate(file.read_bytes())
    [state] = system.kits.parent.glob("state/cert.json")
    root = json.loads(state.read_text())
    signer = serialization.load_pem_private_key(root["root_pri_key"].encode(), None)
    now = datetime.datetime.now(datetime.timezone.utc)
    builder = (
        x509.CertificateBuilder()
        .subject_name(own.subject)
        .issuer_name(own.issuer)
        .public_key(own.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=9))
        .not_valid_after(now + datetime.timedelta(days=days))
    )
    for extension in own.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    signed = builder.sign(signer, hashes.SHA256())  # type: ignore[arg-type]
    return signed.public_bytes(serialization.Encoding.PEM)


def test_a_client_refuses_a_server_of_another_name(system: Poc) -> None:
    kit = system.kits / "elm" / "startup"
    reason = refused(system, kit / "client.crt", kit / "client.key", host="elsewhere.example.org")
    assert "certificate verify failed" in reason
