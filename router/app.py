"""Wires one router: every part is made here, once, and stopped here."""

import asyncio
import random
import time
import uuid
from typing import Any

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from kvmesh.addresses import host_and_port
from kvmesh.fleet_key import FleetKey
from kvmesh.lease import LeaseKey
from kvmesh.tls import channel_credentials, listen, server_tls
from kvmesh.traces_endpoint import start_tracing
from router.admin import AdminRole
from router.admitting import Admitting
from router.config import RouterConfig
from router.core import RouterCore
from router.discovery import Discovery
from router.dispatch import Dispatcher
from router.drain import Drain
from router.eligibility import Eligibility
from router.fleet import Fleet
from router.fleet_view import FleetView
from router.grpc_front import FLEET, INFERENCE, SERVER_OPTIONS, FleetFront, InferenceFront
from router.http_front import HttpFront
from router.index import Index
from router.leases import Leases
from router.leasing import Leasing
from router.ledger import Ledger
from router.metrics import RouterMetrics
from router.node import Node
from router.node_names import PREFIX, Name
from router.operations import Operations
from router.overview import Overview
from router.placement import Placement
from router.prefix_pins import PrefixPins
from router.prompt import PromptReader
from router.pulse import Pulse
from router.rates import Rates
from router.registry import Registry
from router.request_log import RequestLog
from router.retry_budget import RetryBudget
from router.sender import Sender
from router.silence import SilenceDetector
from router.tenant_salts import TenantSalts
from router.ui_page import UiPage
from router.watcher import Watcher

log = structlog.get_logger("router")

PULSE = 0.1  # seconds between two looks at what keeps us waiting


class RouterApp:
    """A running router. `start`, then `stop` once; both on the same event loop.

    `http_port` and `grpc_port` are the real ones once it has started.
    """

    def __init__(self, config: RouterConfig) -> None:
        """Raises ValueError, by the field's name, for files of the configuration that are wrong."""
        self._config = config
        self._tls = server_tls(config.tls_files)
        self._admin = AdminRole(config.admin_key_file, config.admin_names)
        self.ledger = Ledger()
        self.metrics = RouterMetrics()
        self._fleet = Fleet()
        fleet_key = FleetKey.read(config.fleet_key_file) if config.fleet_key_file else None
        lease_key = LeaseKey(fleet_key) if fleet_key is not None else None
        self.leases = Leases(lease_key, config.lease_time, self.metrics)
        self._index = Index(config.redis_url, config.redis_group, config.redis_shards)
        addresses = [each for each in config.nodes if not each.startswith(PREFIX)]
        self._registry = Registry(addresses, channel_credentials(config.node_tls_files))
        self._reader = PromptReader(config.tokenizer_threads, TenantSalts(fleet_key))
        self._router_id = uuid.uuid4().hex
        self._admitting = Admitting(
            config, self._registry, self.ledger, self.metrics.admission, self._router_id
        )
        self.admission = self._admitting.admission
        self._rates = Rates(self._registry)
        self.view = FleetView(self._registry, self.ledger, self._index, self._rates)
        self._tracing = start_tracing(config.otlp_traces_endpoint, "kvmesh-router", self._router_id)
        self._requests = self._make_request_log()
        self._overview = Overview(
            self._fleet,
            self.view,
            config.policy,
            self.admission,
            self._admitting.queue,
            self._requests,
        )
        self._core = self._make_core()
        self._operations = Operations(self._core, self._registry, Drain(self._registry), self._pins)
        self._grpc = grpc.aio.server(options=SERVER_OPTIONS)
        self._inference = InferenceFront(self._core, config.max_request_bytes)
        ui = UiPage(self._overview, self._admin)
        self._http = HttpFront(self._core, self.view, ui, config, self._tls)
        self._health = health.aio.HealthServicer()
        self._silence = SilenceDetector(config.node_silence, config.stream_silence)
        self._pulse = Pulse(PULSE)
        self._pulse.on_beat(self._silence.pass_time)
        self._pulse.on_beat(self._registry.pass_time)
        self._pulse.on_beat(self._rates.pass_time)
        self._tasks: list[asyncio.Task[Any]] = []
        self.grpc_port = self.http_port = 0

    def _make_request_log(self) -> RequestLog:
        enabled = self._config.log_requests
        if self._tracing is None:
            return RequestLog(enabled)
        from router.request_spans import TracedRequestLog

        return TracedRequestLog(enabled, self._tracing)

    def _make_core(self) -> RouterCore:
        policy, rng = self._config.policy, random.Random()
        eligibility = Eligibility(self._config.slow_start, time.monotonic, rng)
        self._registry.on_join(eligibility.joined)
        placement = Placement(
            self._registry,
            eligibility,
            self._index,
            self.ledger,
            self._admitting.watermark,
            policy,
            rng,
        )
        budget = RetryBudget(self._config.retry_share, time.monotonic)
        self.metrics.watch(self._registry, self._index, budget)
        sender = Sender(
            placement, self.ledger, self._router_id, self.metrics, self._config.patience
        )
        self._pins = PrefixPins(self._registry, self._index, self._reader, sender)
        dispatcher = Dispatcher(sender, budget, self.metrics, self._config.resume_timeout)
        return RouterCore(
            self._fleet,
            self._registry,
            self.admission,
            self._reader,
            placement,
            dispatcher,
            self.metrics,
            leasing=Leasing(
                placement,
                sender,
                self.ledger,
                self.leases,
                node_tls=self._config.node_tls_files is not None,
            ),
            request_timeout=self._config.request_timeout,
            request_log=self._requests,
        )

    async def start(self) -> None:
        """Serves from here on, UNAVAILABLE until a node is up. Raises OSError for a taken port."""
        self._registry.on_change(self._show_health)
        await self._start_grpc()
        self.http_port = await self._http.start()
        self._spawn(self._index.run(), "index")
        self._spawn(self._beat(), "pulse")
        for name, work in self._admitting.work().items():
            self._spawn(work, name)
        for node in self._registry.nodes:
            self._watch(node)
        if names := [Name.parse(each) for each in self._config.nodes if each.startswith(PREFIX)]:
            self._spawn(Discovery(names, self._registry, self._watch).run(), "discovery")

    async def stop(self) -> None:
        """Takes no new request, lets running ones finish within the grace, then cancels them."""
        grace = self._config.shutdown_grace
        await self._health.enter_graceful_shutdown()
        self._inference.end_route_streams()
        await asyncio.gather(self._grpc.stop(grace), self._http.stop(grace))
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._admitting.close()
        await self._registry.close()
        self._reader.close()
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)

    def _watch(self, node: Node) -> asyncio.Task[None]:
        watcher = Watcher(
            node,
            self._registry,
            self._fleet,
            self._index,
            self.ledger,
            self.leases,
            self._silence,
            self._router_id,
        )
        return self._spawn(watcher.run(), f"watch {node.address}")

    def _spawn(self, work: Any, name: str) -> asyncio.Task[Any]:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(_log_failure)
        task.add_done_callback(self._tasks.remove)
        self._tasks.append(task)
        return task

    async def _start_grpc(self) -> None:
        limit = self._config.max_request_bytes
        services = {
            INFERENCE: self._inference.handlers(),
            FLEET: FleetFront(
                self._core, self.view, self._overview, self._operations, self._admin, limit
            ).handlers(),
        }
        for name, handlers in services.items():
            handler = grpc.method_handlers_generic_handler(name, handlers)
            self._grpc.add_generic_rpc_handlers((handler,))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._grpc)
        names = (INFERENCE, FLEET, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._grpc)
        await self._set_health()
        address = host_and_port(self._config.grpc_host, self._config.grpc_port)
        try:
            self.grpc_port = listen(self._grpc, address, self._tls)
        except RuntimeError as error:
            raise OSError(f"grpc_port: cannot listen on {address}, choose another") from error
        await self._grpc.start()

    def _show_health(self) -> None:
        self._spawn_once(self._set_health())

    def _spawn_once(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.append(task)
        task.add_done_callback(self._tasks.remove)

    async def _set_health(self) -> None:
        serving = self.view.serving
        status = health_pb2.HealthCheckResponse
        for service in ("", INFERENCE, FLEET):
            await self._health.set(service, status.SERVING if serving else status.NOT_SERVING)

    async def _beat(self) -> None:
        while True:
            self._pulse.beat(time.monotonic())
            await asyncio.sleep(PULSE)


def _log_failure(task: asyncio.Task[Any]) -> None:
    """Background work ends with the router, not before."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("background", task=task.get_name(), exc_info=error)
