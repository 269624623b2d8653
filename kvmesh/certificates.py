"""Certificates and keys in PEM files: read, and checked before anybody connects.

Every problem is a ValueError that names the setting and the file: an operator reads "tls_key: b.key
does not belong to tls_cert" at start, and not "handshake failed" from a client at night.
"""

import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_SEQUENCE, _UTC_TIME, _VERSION = 0x30, 0x17, 0xA0


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """Where one side of a connection has its files. `prefix` begins the names of its settings."""

    cert: Path | None = None  # our own, followed by the chain up to, but without, the root
    key: Path | None = None  # of `cert`, not encrypted
    ca: Path | None = None  # roots that the other side's certificate must come from
    prefix: str = "tls_"

    def __post_init__(self) -> None:
        for name, other in (("cert", "key"), ("key", "cert")):
            if getattr(self, name) is None and getattr(self, other) is not None:
                raise ValueError(f"{self.prefix}{name}: must be set beside {self.prefix}{other}")

    def check_server(self) -> None:
        """Raises ValueError for a server that would check its clients and could not show itself."""
        if self.ca is not None and self.cert is None:
            raise ValueError(f"{self.prefix}cert: must be set beside {self.prefix}ca")

    def load(self) -> "Certificates":
        """What the files hold now. Raises ValueError for what is missing, malformed or out of its
        time, and for a key that is not the certificate's.
        """
        cert, key, ca = (self._read(name) for name in ("cert", "key", "ca"))
        if cert is not None:
            self._check_time("cert", _only_valid(cert))
            self._check_pair()
        if ca is not None:
            self._check_time("ca", _only_valid(ca))
        return Certificates(cert, key, ca)

    def stamp(self) -> tuple[tuple[int, int, int] | None, ...]:
        """Changes when a file does."""
        return tuple(_stamp(path) for path in (self.cert, self.key, self.ca))

    def _read(self, name: str) -> bytes | None:
        path: Path | None = getattr(self, name)
        if path is None:
            return None
        try:
            return path.read_bytes()
        except OSError as error:
            problem = f"cannot read {path}: {error.strerror}"
            raise ValueError(f"{self.prefix}{name}: {problem}") from error

    def _check_time(self, name: str, problem: str | None) -> None:
        if problem is not None:
            raise ValueError(f"{self.prefix}{name}: {getattr(self, name)} {problem}")

    def _check_pair(self) -> None:
        assert self.cert is not None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # An empty password instead of a prompt on the terminal.
            context.load_cert_chain(self.cert, self.key, password=b"")
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                problem = f"{self.key} does not belong to {self.prefix}cert, {self.cert}"
            else:
                problem = f"{self.key} is not an unencrypted PEM key"
            raise ValueError(f"{self.prefix}key: {problem}") from error


@dataclass(frozen=True, slots=True, repr=False)
class Certificates:
    """PEM bytes. Not to be shown: `key` is a secret."""

    cert: bytes | None
    key: bytes | None
    ca: bytes | None


def _stamp(path: Path | None) -> tuple[int, int, int] | None:
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _only_valid(pem: bytes) -> str | None:
    """What is wrong with the first certificate, or with its time; None when nothing is."""
    try:
        start, end = next(_validities(pem.decode("ascii")))
    except (ValueError, IndexError, StopIteration):
        return "holds no PEM certificate"
    now = time.time()
    if now > end:
        return f"has expired on {_day(end)}"
    return f"is not valid before {_day(start)}" if now < start else None


def _validities(pem: str) -> Iterator[tuple[float, float]]:
    """First and last second of each certificate, since 1970."""
    rest = pem
    while _BEGIN in rest:
        one, _, rest = rest[rest.index(_BEGIN) :].partition(_END)
        yield _validity(ssl.PEM_cert_to_DER_cert(one + _END))


def _validity(der: bytes) -> tuple[float, float]:
    """RFC 5280, 4.1: Certificate { TBSCertificate { [version] serial algorithm issuer validity …"""
    _, certificate, _ = _element(der)
    _, fields, _ = _element(certificate)
    tag, _, rest = _element(fields)
    for _ in range(3 if tag == _VERSION else 2):  # without a version the first was the serial
        _, _, rest = _element(rest)
    tag, validity, _ = _element(rest)
    if tag != _SEQUENCE:
        raise ValueError("no validity where a certificate has it")
    first, start, rest = _element(validity)
    last, end, _ = _element(rest)
    return _seconds(first, start), _seconds(last, end)


def _element(der: bytes) -> tuple[int, bytes, bytes]:
    """Tag and content of the first DER element, and what follows it."""
    length, start = der[1], 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(der[2:start], "big")
    return der[0], der[start : start + length], der[start + length :]


def _seconds(tag: int, text: bytes) -> float:
    """UTCTime has two digits of the year, of 1950 to 2049; GeneralizedTime four."""
    digits = text.decode("ascii")
    if tag == _UTC_TIME:
        digits = ("19" if digits >= "5" else "20") + digits
    return datetime.strptime(digits, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
