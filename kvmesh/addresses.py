"""Addresses of servers as text."""


def host_and_port(host: str, port: int) -> str:
    """As gRPC and URLs have it: an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
