"""Who may call the node: its routers, and clients with a lease."""

from collections.abc import Iterable

from cache_node.lease_gate import LeaseGate
from cache_node.rpc_guard import Context
from kvmesh.errors import Code, RequestError
from kvmesh.lease import METADATA
from kvmesh.tls import certified_names
from kvmesh.v1 import cache_node_pb2 as pb


class Access:
    """Routers are clients whose certificate has one of `router_names`; without such names, all who
    can connect are taken for routers. Everybody else may claim leases, and nothing more.
    """

    def __init__(self, gate: LeaseGate, router_names: Iterable[str]) -> None:
        self._gate = gate
        self._names = frozenset(router_names)

    def require_router(self, rpc: str, context: Context) -> None:
        """Raises PERMISSION_DENIED."""
        if self._names and not self._names & certified_names(context):
            raise RequestError(Code.PERMISSION_DENIED, f"{rpc} needs the certificate of a router")

    def claim(self, message: pb.NodeGenerateRequest, context: Context) -> bool:
        """Whether `message` came with a lease, which is then used, and its salt in the message.

        Raises PERMISSION_DENIED without a lease from anybody but a router, and what the lease gate
        raises.
        """
        for name, value in context.invocation_metadata() or ():
            if name == METADATA and isinstance(value, bytes):  # as all that ends in -bin
                self._gate.claim(value, message)
                return True
        self.require_router("Generate without a lease", context)
        return False
