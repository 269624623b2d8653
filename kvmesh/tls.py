"""TLS for gRPC and HTTP, with certificates from files.

A server reads its files again when they have changed, at the next handshake: a renewed certificate
needs no restart. What is wrong by then is logged once, and the last good one stays in use.
"""

import ssl
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import grpc
import structlog

from kvmesh.certificates import CertificateFiles, Certificates

log = structlog.get_logger()

_NAMES = ("x509_common_name", "x509_subject_alternative_name")


class ServerTls:
    """What a server shows, and whom it lets in: with `ca`, only clients with a certificate from it
    (mutual TLS).
    """

    def __init__(self, files: CertificateFiles) -> None:
        """Reads the files. Raises ValueError that names the setting."""
        self._files = files
        self._mutual = files.ca is not None
        self._first = files.load()

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """For gRPC servers, of grpc.aio too."""
        renewal = _Renewal(self._files)

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            renewed = renewal.take()
            return None if renewed is None else _configuration(renewed)

        return grpc.dynamic_ssl_server_credentials(
            _configuration(self._first),
            fetch,  # type: ignore[arg-type]  # its stub does not know that None means: as before
            self._mutual,
        )

    def ssl_context(self) -> ssl.SSLContext:
        """For asyncio servers. Each connection gets the context of the newest certificates."""
        renewal, newest = _Renewal(self._files), self._context()

        def choose(connection: ssl.SSLObject, _name: str | None, _first: ssl.SSLContext) -> None:
            nonlocal newest
            if renewal.take() is not None:
                newest = self._context()
            connection.context = newest

        first = self._context()
        first.sni_callback = choose  # called without a name, too
        return first

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        assert self._files.cert is not None
        context.load_cert_chain(self._files.cert, self._files.key)
        if self._mutual:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self._files.ca)
        return context


class _Renewal:
    """Tells one user of the files when they have changed."""

    def __init__(self, files: CertificateFiles) -> None:
        self._files = files
        self._seen = files.stamp()

    def take(self) -> Certificates | None:
        """What the files hold, if that is new and right. Cheap when nothing has changed."""
        stamp = self._files.stamp()
        if stamp == self._seen:
            return None
        self._seen = stamp
        try:
            renewed = self._files.load()
        except ValueError as error:
            log.error("certificates_not_renewed", reason=str(error))
            return None
        log.info("certificates_renewed", cert=str(self._files.cert))
        return renewed


def _configuration(certificates: Certificates) -> grpc.ServerCertificateConfiguration:
    assert certificates.key is not None
    assert certificates.cert is not None
    pairs = [(certificates.key, certificates.cert)]
    return grpc.ssl_server_certificate_configuration(pairs, root_certificates=certificates.ca)


def server_tls(files: CertificateFiles) -> ServerTls | None:
    """None without a certificate: the server talks plain text. Raises ValueError."""
    return ServerTls(files) if files.cert is not None else None


def channel_credentials(files: CertificateFiles | None) -> grpc.ChannelCredentials | None:
    """What a client shows, and whom it trusts: `ca`, or else the roots that come with gRPC.

    None for None, a connection without TLS. Raises ValueError that names the setting.
    """
    if files is None:
        return None
    certificates = files.load()
    return grpc.ssl_channel_credentials(certificates.ca, certificates.key, certificates.cert)


def open_channel(
    target: str,
    credentials: grpc.ChannelCredentials | None,
    options: Sequence[tuple[str, Any]] = (),
) -> grpc.Channel:
    """A channel with TLS if there are credentials, else in plain text."""
    if credentials is None:
        return grpc.insecure_channel(target, options=options)
    return grpc.secure_channel(target, credentials, options=options)


def open_aio_channel(
    target: str,
    credentials: grpc.ChannelCredentials | None,
    options: Sequence[tuple[str, Any]] = (),
) -> grpc.aio.Channel:
    """As `open_channel`, for grpc.aio."""
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=options)
    return grpc.aio.secure_channel(target, credentials, options=options)


def listen(server: grpc.aio.Server, address: str, tls: ServerTls | None) -> int:
    """Returns the port. Raises RuntimeError when it is taken."""
    if tls is None:
        return server.add_insecure_port(address)
    return server.add_secure_port(address, tls.grpc_credentials())


def names_in(certificate: Mapping[str, Any]) -> frozenset[str]:
    """The names in a certificate as Python's `ssl` shows it: common names and alternative ones."""
    subject = (pair for part in certificate.get("subject", ()) for pair in part)
    common = (name for kind, name in subject if kind == "commonName")
    return frozenset((*common, *(name for _, name in certificate.get("subjectAltName", ()))))


def certified_names(context: grpc.aio.ServicerContext[Any, Any]) -> frozenset[str]:
    """The names in the certificate that the client has proved to own; none without one."""
    proved: Mapping[str, Iterable[bytes]] = context.auth_context()
    found = (name for kind in _NAMES for name in proved.get(kind, ()))
    return frozenset(name.decode("utf-8", "replace") for name in found)
