"""Where the shared index lies, as an operator writes it:

    redis[s]://[user[:password]@]host[:port][,host[:port]…][/database][?option=value&…]

A password is better kept in a file, named by the option `password_file`: a command line can be
read by everyone on a host. The other options are redis-py's for TLS.

Checked without redis-py: importing that takes 100 ms, and a mistake shall be told before anything
else happens.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

PORT = 6379
PASSWORD_FILE = "password_file"
FILES = (PASSWORD_FILE, "ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
OPTIONS = (*FILES, "ssl_check_hostname")

_HOST = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^\s\[\]:@/]+)(:(?P<port>\d{1,5}))?")


class Address(NamedTuple):
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """One Redis, or seeds of a Redis Cluster: any of its servers tells where the others are."""

    seeds: tuple[Address, ...]
    tls: bool
    user: str  # user and password quoted as in the URL
    password: str
    database: int
    options: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, url: str) -> "RedisUrl":
        """Raises ValueError that says what is wrong and does not repeat a password."""
        scheme, netloc, path, query, fragment = urlsplit(url)
        if scheme not in ("redis", "rediss"):
            raise ValueError("must begin with redis:// or, for TLS, rediss://")
        if fragment or not (path in ("", "/") or path[1:].isdecimal()):
            raise ValueError("must have nothing behind its hosts but /NUMBER and ?options")
        credentials, _, hosts = netloc.rpartition("@")
        user, _, password = credentials.partition(":")
        return cls(
            seeds=tuple(map(_address, hosts.split(","))),
            tls=scheme == "rediss",
            user=user,
            password=password,
            database=int(path[1:] or 0),
            options=_options(query, tls=scheme == "rediss"),
        )

    def at(self, address: Address) -> str:
        """The same for one server, as redis-py reads it. Raises OSError when the file of the
        password cannot be read.
        """
        scheme = "rediss" if self.tls else "redis"
        options, password = dict(self.options), self.password
        if (path := options.pop(PASSWORD_FILE, None)) is not None:
            password = quote(Path(path).read_text(errors="replace").strip(), safe="")
        host = f"[{address.host}]" if ":" in address.host else address.host
        login = f"{self.user}:{password}@" if self.user or password else ""
        query = f"?{urlencode(options)}" if options else ""
        return f"{scheme}://{login}{host}:{address.port}/{self.database}{query}"


def check_redis_url(url: str | None) -> None:
    """For configurations. Raises ValueError that names the field."""
    if url is None:
        return
    try:
        RedisUrl.parse(url)
    except ValueError as error:
        raise ValueError(f"redis_url: {error}") from None


def check_redis_shards(shards: int) -> None:
    """For configurations. Raises ValueError that names the field."""
    if not 1 <= shards <= 1024:
        raise ValueError(f"redis_shards: must be in [1, 1024], is {shards}")


def _address(text: str) -> Address:
    found = _HOST.fullmatch(text)
    port = int(found["port"] or PORT) if found else 0
    if found is None or not 0 < port < 1 << 16:
        raise ValueError("must name each server as host or host:port, several with commas")
    return Address(found["host"].strip("[]"), port)


def _options(query: str, tls: bool) -> tuple[tuple[str, str], ...]:
    options = parse_qsl(query, keep_blank_values=True)
    for name, value in options:
        if name not in OPTIONS:
            raise ValueError(f"has no option {name[:100]!r}, only {', '.join(OPTIONS)}")
        if name != PASSWORD_FILE and not tls:
            raise ValueError(f"{name} needs TLS: begin with rediss://")
        if name in FILES and not Path(value).is_file():
            raise ValueError(f"{name}: there is no file {value}")
    return tuple(options)
