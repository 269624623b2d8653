"""A whole cache node on one event loop: engine, service, feeds, and their orderly end."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry, ProcessCollector

from cache_node.access import Access
from cache_node.admission import Admission
from cache_node.config import NodeConfig
from cache_node.engine import Engine
from cache_node.executor import ModelExecutor
from cache_node.gpu_gauges import find_gpu
from cache_node.identity import node_info
from cache_node.lease_gate import LeaseGate
from cache_node.metrics import LoadCollector
from cache_node.metrics_server import MetricsServer, registry_of
from cache_node.model.fingerprint import model_fingerprint
from cache_node.node_facts import FactGauges, node_facts
from cache_node.request_log import RequestLog
from cache_node.scheduling import make_scheduler
from cache_node.service import CacheNodeService
from cache_node.state_feed import StateFeed
from cache_node.step_output import Load, StepOutput
from cache_node.vllm_metrics import VllmMetrics
from kvmesh.addresses import host_and_port
from kvmesh.fleet_key import FleetKey
from kvmesh.lease import LeaseKey
from kvmesh.tls import ServerTls, listen, server_tls
from kvmesh.tokenizer import Tokenizer, read_tokenizer_files
from kvmesh.traces_endpoint import start_tracing
from kvmesh.v1 import cache_node_pb2, cache_node_pb2_grpc
from prefix_index.event_log import EventLog

log = structlog.get_logger()

SERVICE = cache_node_pb2.DESCRIPTOR.services_by_name["CacheNode"].full_name
MAX_MESSAGE_BYTES = 64 << 20
SERVER_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # Routers ping idle connections; the default would answer too_many_pings.
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.keepalive_permit_without_calls", 1),
    # More than a router takes from a client, whose metadata it passes on: what it took, fits here.
    ("grpc.max_metadata_size", 32 << 10),
    ("grpc.absolute_max_metadata_size", 64 << 10),
    ("grpc.so_reuseport", 0),  # a second node on the port fails instead of taking half the calls
)


class Node:
    """Built from loaded parts; `serve` runs it. The event loop that calls `serve` owns it."""

    def __init__(self, config: NodeConfig, executor: ModelExecutor, directory: Path) -> None:
        """`directory` is the model's. Raises ValueError when pool and max_model_len do not fit, and
        for certificates that are wrong.
        """
        self._tls = server_tls(config.tls_files)
        files = read_tokenizer_files(directory)
        tokenizer = Tokenizer(files)
        fingerprint = model_fingerprint(directory)
        self.config = config
        self.info = node_info(config, executor, fingerprint, tokenizer)
        self._facts = node_facts(config, executor, self.info)
        self._gpu = find_gpu(executor.device)
        scheduler = make_scheduler(config, executor)
        self.engine = Engine(scheduler, executor, time.monotonic, self._deliver, self._on_death)
        self.state = StateFeed(EventLog(self.info.epoch), self.engine.load())
        admission = Admission(self.info, config.enable_prefix_caching, time.monotonic)
        access = Access(LeaseGate(_lease_key(config), config.node_name), config.router_names)
        self._tracing = start_tracing(config.otlp_traces_endpoint, "kvmesh-node", config.node_name)
        requests = self._request_log()
        self.service = CacheNodeService(
            admission, tokenizer, files, self.engine, self.state, access, requests, config
        )
        self.died = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[int]:
        """Serves until the context ends, then drains for `shutdown_grace` seconds and closes.

        Yields the gRPC port. Raises OSError when a port is in use.
        """
        async with AsyncExitStack() as stack:
            if self._tracing is not None:
                stack.callback(self._tracing.close)
            self.engine.start()
            stack.callback(self.engine.stop)
            if self.config.metrics_port is not None:
                self._serve_metrics(stack, self.config.metrics_port)
            if self.config.redis_url is not None:
                await stack.enter_async_context(self._publishing(self.config.redis_url))
            yield await stack.enter_async_context(self._server())

    def _request_log(self) -> RequestLog:
        enabled = self.config.log_requests
        if self._tracing is None:
            return RequestLog(enabled)
        from cache_node.request_spans import TracedRequestLog

        return TracedRequestLog(enabled, self._tracing, self.info)

    def _serve_metrics(self, stack: AsyncExitStack, port: int) -> None:
        server = MetricsServer(port, self.config.host, self._metrics(), self.config.tls_files)
        stack.callback(server.close)
        self.info.metrics_port = server.port
        self.info.metrics_tls = self.config.tls_cert is not None

    def _metrics(self) -> CollectorRegistry:
        timings, facts = self.engine.timings, self._facts
        vllm = self.config.vllm_metrics
        return registry_of(
            LoadCollector(self._load, facts.block_bytes),
            timings,
            FactGauges(facts),
            self._gpu,
            ProcessCollector(registry=None),
            VllmMetrics(self._load, timings, facts) if vllm else None,
        )

    def _load(self) -> Load:
        return self.state.load

    @asynccontextmanager
    async def _server(self) -> AsyncIterator[int]:
        server = grpc.aio.server(options=SERVER_OPTIONS, compression=grpc.Compression.NoCompression)
        servicer = health.aio.HealthServicer()
        cache_node_pb2_grpc.add_CacheNodeServicer_to_server(self.service, server)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        reflection.enable_server_reflection(
            (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server
        )
        port = _bind(server, self.config.host, self.config.port, self._tls)
        await server.start()
        for name in ("", SERVICE):
            await servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
        try:
            yield port
        finally:
            await servicer.enter_graceful_shutdown()
            await self._drain()
            self.service.stop()
            await server.stop(grace=1.0)

    @asynccontextmanager
    async def _publishing(self, url: str) -> AsyncIterator[None]:
        from prefix_index.redis_publisher import RedisPublisher

        publisher = RedisPublisher(
            url,
            self.config.redis_group,
            self.info.name,
            self.info.epoch,
            self.state.log,
            self.config.redis_shards,
        )
        task = asyncio.create_task(publisher.run(), name="redis-publisher")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await publisher.aclose()

    async def _drain(self) -> None:
        """Takes nothing new, and waits for what runs as long as the grace allows."""
        self.service.drain()
        try:
            async with asyncio.timeout(self.config.shutdown_grace):
                await self.service.idle()
        except TimeoutError:
            log.warning("shutdown_grace_over", requests=self.service.num_open)

    def _deliver(self, output: StepOutput) -> None:
        self._loop.call_soon_threadsafe(self.service.deliver, output)

    def _on_death(self) -> None:
        self._loop.call_soon_threadsafe(self.died.set)


def _lease_key(config: NodeConfig) -> LeaseKey | None:
    path = config.fleet_key_file
    return LeaseKey(FleetKey.read(path)) if path is not None else None


def _bind(server: grpc.aio.Server, host: str, port: int, tls: ServerTls | None) -> int:
    try:
        return listen(server, host_and_port(host, port), tls)
    except RuntimeError as error:
        raise OSError(f"cannot listen on {host}:{port}: is another process using it?") from error
