"""What `--help` says about the flags of the router. Names and defaults are in RouterConfig."""

from kvmesh.cli.flags import Flag
from kvmesh.cli.node_flags import (
    FLEET_KEY_FLAGS,
    INDEX_FLAGS,
    LOG_FLAGS,
    NETWORK,
    SECURITY,
    TLS_FLAGS,
)
from router.policies import POLICIES

ROUTING, LIMITS, FAILURE = "Routing", "Limits", "Failure"

POLICY_FLAGS = {
    "policy": Flag("How a node is chosen for a request.", ROUTING, choices=POLICIES),
}

HTTP_FLAGS = {
    "max_header_bytes": Flag(
        "An HTTP request with more in its head is refused.", LIMITS, least=1024
    ),
    "header_timeout": Flag("Seconds for the headers of an HTTP request to come.", LIMITS),
    "body_timeout": Flag("Seconds for the body of an HTTP request to come.", LIMITS),
    "cors_allow_origins": Flag(
        "Origin whose pages may call the HTTP API from a browser, or * for all. Once for each.",
        NETWORK,
        name="cors-allow-origin",
        default_text="none",
    ),
}
ADMISSION_FLAGS = {
    "tenants": Flag(
        "TOML file of who may send requests: a table each, with hashed keys and limits. Read again "
        "when it changes. redis: a HASH in Redis instead.",
        SECURITY,
        default_text="everybody may",
    ),
    "max_queue": Flag("Most requests that wait for room on a node.", LIMITS, least=1),
    "queue_timeout": Flag("Seconds that a request waits for room at most.", LIMITS),
    "high_watermark": Flag(
        "Share of a node's blocks above which it gets no new request.", LIMITS, most=1
    ),
    "low_watermark": Flag("Share at which it gets some again.", LIMITS, most=1),
}

NODE_TLS_FLAGS = {
    "node_tls_ca": Flag(
        "PEM roots of the nodes' certificates; turns TLS to nodes on.",
        SECURITY,
        default_text="plain text",
    ),
    "node_tls_cert": Flag("PEM chain to show to nodes.", SECURITY, default_text="none"),
    "node_tls_key": Flag("PEM key of that.", SECURITY, default_text="none"),
}

ADMIN_FLAGS = {
    "admin_key_file": Flag(
        "File of keys, one a line, of who may drain nodes and change caches; sha256:HEX hides one. "
        "Without it and --admin-name, clients on the router's host may.",
        SECURITY,
        default_text="none",
    ),
    "admin_names": Flag(
        "Name in a client certificate whose owner may do so too. Once for each.",
        SECURITY,
        name="admin-name",
        default_text="none",
    ),
}

LEASE_FLAGS = {
    **FLEET_KEY_FLAGS,
    "lease_time": Flag("Seconds in which a client can claim a lease.", LIMITS),
}

FAILURE_FLAGS = {
    "node_silence": Flag("Seconds after which a silent node gets nothing new.", FAILURE),
    "stream_silence": Flag(
        "Seconds after which the streams of a silent node go on elsewhere.", FAILURE
    ),
    "connect_timeout": Flag("Seconds for a node to take a request.", FAILURE),
    "first_token_timeout": Flag(
        "Seconds until the first token once a node has taken a request.", FAILURE
    ),
    "token_timeout": Flag("Seconds between two tokens of a node.", FAILURE),
    "resume_timeout": Flag(
        "Seconds in which a stream that lost its node must find another.", FAILURE
    ),
    "retry_share": Flag(
        "Retries that each request allows, all requests together; 10 a second more are free.",
        FAILURE,
        least=0,
    ),
    "slow_start": Flag(
        "Seconds in which a node that joins comes to its full share of requests.", FAILURE, least=0
    ),
}
ROUTER_FLAGS = {
    "nodes": Flag(
        "host:port of a cache node, or dns:host:port for every address that the name has, now and "
        "later. Once for each.",
        ROUTING,
        name="node",
        env="KVMESH_NODES",
    ),
    **POLICY_FLAGS,
    **FAILURE_FLAGS,
    "http_host": Flag("Address that the HTTP API listens on.", NETWORK),
    "http_port": Flag("Port of the OpenAI-compatible API.", NETWORK, least=0, most=65535),
    "grpc_host": Flag("Address that the gRPC API listens on.", NETWORK),
    "grpc_port": Flag("Port of the gRPC API.", NETWORK, least=0, most=65535),
    **INDEX_FLAGS,
    **TLS_FLAGS,
    **NODE_TLS_FLAGS,
    **ADMIN_FLAGS,
    **LEASE_FLAGS,
    "max_request_bytes": Flag("A larger request is refused unread.", LIMITS, least=1),
    **HTTP_FLAGS,
    "max_in_flight": Flag("Most requests at once; more are told to come back.", LIMITS, least=1),
    **ADMISSION_FLAGS,
    "tokenizer_threads": Flag("Threads that tokenise prompts.", LIMITS, least=1),
    "request_timeout": Flag("Seconds for a request whose client sets no deadline.", LIMITS),
    "shutdown_grace": Flag("Seconds for running streams to finish at the end.", LIMITS, least=0),
    **LOG_FLAGS,
}
