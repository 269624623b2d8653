"""TCP ports on this host."""

import errno
import socket
from contextlib import ExitStack


class PortInUseError(Exception):
    """The port cannot be listened on. The message says which, and what to do."""


def require_free(host: str, port: int, option: str) -> None:
    """Raises PortInUseError if nobody could listen on `port` now; 0 always passes.

    Asked before a server starts: gRPC would share the port with its owner (SO_REUSEPORT) and the
    two would take turns.
    """
    try:
        with _bound(host, port):
            return
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise PortInUseError(f"cannot listen on {host}:{port}: {error.strerror}") from error
        raise PortInUseError(
            f"port {port} on {host} is in use; stop what uses it, or choose another with {option}"
        ) from error


def free_ports(host: str, count: int) -> list[int]:
    """Different ports that nobody listens on. Another process may still be quicker to take one."""
    with ExitStack() as stack:
        return [stack.enter_context(_bound(host, 0)).getsockname()[1] for _ in range(count)]


def _bound(host: str, port: int) -> socket.socket:
    """A socket bound to a port. It does not listen, so that nobody can connect by mistake."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, kind, protocol)
    # Connections that linger in TIME_WAIT are no user of the port.
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound
