"""What operators may change in a fleet."""

from kvmesh.v1 import fleet_pb2
from router.clear_cache import clear_cache
from router.core import RouterCore
from router.drain import Drain
from router.prefix_pins import PrefixPins
from router.registry import Registry


class Operations:
    """The changing methods of kvmesh.v1.Fleet. Who may call them is not its concern. Each raises
    RequestError.
    """

    def __init__(
        self, core: RouterCore, registry: Registry, drain: Drain, pins: PrefixPins
    ) -> None:
        self._core = core
        self._registry = registry
        self._drain = drain
        self._pins = pins

    async def drain(self, request: fleet_pb2.FleetDrainRequest) -> fleet_pb2.FleetDrainResponse:
        if request.resume:
            running = await self._drain.end(request.node)
        else:
            timed = request.HasField("timeout")
            timeout = request.timeout.ToMicroseconds() / 1e6 if timed else None
            running = await self._drain.begin(request.node, timeout, move=request.move)
        return fleet_pb2.FleetDrainResponse(running=running)

    async def pin_prefix(self, request: fleet_pb2.PinPrefixRequest) -> fleet_pb2.PinPrefixResponse:
        model = self._core.model(request.prefix.model)
        return await self._pins.pin(request, model, self._core.tenant_named(request.tenant))

    async def unpin_prefix(
        self, request: fleet_pb2.UnpinPrefixRequest
    ) -> fleet_pb2.UnpinPrefixResponse:
        return await self._pins.unpin(request.pin_id)

    async def clear_cache(
        self, request: fleet_pb2.ClearCacheRequest
    ) -> fleet_pb2.ClearCacheResponse:
        return await clear_cache(self._registry, request)
