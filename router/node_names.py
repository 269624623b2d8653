"""Names that stand for all nodes behind them."""

from dataclasses import dataclass

PREFIX = "dns:"


@dataclass(frozen=True, slots=True)
class Name:
    """`dns:HOST:PORT` of the configuration; an IPv6 address may be in brackets."""

    host: str
    port: int

    @classmethod
    def parse(cls, target: str) -> "Name":
        """Raises ValueError for what is none."""
        host, _, port = target.removeprefix(PREFIX).rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise ValueError(f"nodes: {target!r} must be {PREFIX}HOST:PORT")
        return cls(host, int(port))
