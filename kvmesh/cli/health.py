"""`kvmesh health`: whether a router or a node serves, for scripts and containers."""

from typing import Annotated, Any

import typer

from kvmesh.cli.connection import DEFAULT_ROUTER, TlsCa, TlsCert, TlsKey
from kvmesh.cli.errors import fail


def health(
    target: Annotated[str, typer.Argument(help="host:port of its gRPC API.")] = DEFAULT_ROUTER,
    timeout: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds to wait.")] = 3.0,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """Exit code 0 if a router or a node serves, else 1 and why.

    Examples:

        kvmesh health
        kvmesh health 10.0.0.5:50061

    A router serves while any of its nodes takes requests.
    """
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    from kvmesh.certificates import CertificateFiles
    from kvmesh.tls import channel_credentials, open_channel

    try:
        shown = None if tls_ca is None else CertificateFiles(tls_cert, tls_key, tls_ca)
        credentials = channel_credentials(shown)
    except ValueError as error:
        fail(str(error))
    with open_channel(target, credentials) as channel:
        check: Any = health_pb2_grpc.HealthStub(channel).Check  # type: ignore[attr-defined]
        try:
            reply = check(health_pb2.HealthCheckRequest(), timeout=timeout)
        except grpc.RpcError as error:
            fail(f"{target}: {error.code().name}: {error.details()}")
    word = health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)
    if reply.status != health_pb2.HealthCheckResponse.SERVING:
        fail(f"{target}: {word}")
    typer.echo(word)
