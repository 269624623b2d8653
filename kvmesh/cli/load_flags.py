"""What `kvmesh load --help` says about its flags. Names and defaults are in LoadConfig."""

from bench.load.config import ARRIVALS, FORMS, POLICIES, TRANSPORTS, WORKLOADS
from kvmesh.cli.flags import Flag

TARGET, ASKED, TIMES, TRACE, JUDGED, OWN = (
    "Where it goes",
    "What is asked",
    "When",
    "A recorded trace",
    "How it is judged",
    "Without --target",
)

LOAD_FLAGS = {
    "target": Flag(
        "host:port of a kvmesh router's gRPC API, or the URL of any OpenAI-compatible server.",
        TARGET,
        default_text="a fleet of its own",
    ),
    "fleet": Flag(
        "host:port of the gRPC API of the kvmesh behind an HTTP target, to plot KV usage and hits.",
        TARGET,
        default_text="the target, where it is gRPC",
    ),
    "model": Flag(
        "Name to ask for; without --target, the model to serve.",
        TARGET,
        default_text="the only one",
    ),
    "api_key": Flag(
        "Who asks. Better in the environment: others see a command line.",
        TARGET,
        default_text="none",
    ),
    "tls": Flag("Talk TLS to a gRPC target with a publicly trusted certificate.", TARGET),
    "tls_ca": Flag(
        "PEM roots of the target's certificate; turns TLS on.",
        TARGET,
        env="KVMESH_ROUTER_CA",
        default_text="none",
    ),
    "tls_cert": Flag(
        "PEM certificate to show.", TARGET, env="KVMESH_CLIENT_CERT", default_text="none"
    ),
    "tls_key": Flag("PEM key of that.", TARGET, env="KVMESH_CLIENT_KEY", default_text="none"),
    "timeout": Flag("Seconds after which a request has failed.", TARGET),
    "workload": Flag("What kind of requests.", ASKED, choices=WORKLOADS),
    "requests": Flag("How many, or less with --duration.", ASKED, least=1),
    "seed": Flag("The same seed sends the same bytes.", ASKED, least=0),
    "prefix_tokens": Flag(
        "Of what requests share: system prompt, or the documents of a question.", ASKED, least=1
    ),
    "prompt_tokens": Flag("Of a request's own.", ASKED, least=1),
    "output_tokens": Flag("Of each answer.", ASKED, least=1),
    "prefixes": Flag("How many system prompts there are.", ASKED, least=1),
    "turns": Flag("Turns of a chat, steps of an agent.", ASKED, least=1),
    "branches": Flag("Ways that an agent tries at once.", ASKED, least=1),
    "documents": Flag("How many there are to ask about.", ASKED, least=1),
    "think": Flag("Mean seconds between an answer and what follows it.", ASKED, least=0),
    "prompts": Flag(
        "Token ids, text, or chat messages. Lengths are exact for token ids only.",
        ASKED,
        choices=FORMS,
    ),
    "token_ids": Flag("LOW:HIGH of the ids that prompts are made of.", ASKED),
    "arrivals": Flag(
        "Times of requests; closed: each waits for an answer, --concurrency at once.",
        TIMES,
        choices=ARRIVALS,
    ),
    "rate": Flag("Requests a second in the mean.", TIMES),
    "concurrency": Flag("Sessions at once, of a closed loop.", TIMES, least=1),
    "duration": Flag("Seconds in which sessions begin.", TIMES, default_text="as --requests take"),
    "trace": Flag(
        "Mooncake's JSONL or Azure's .csv: times, lengths and shared blocks instead of a workload.",
        TRACE,
        default_text="none",
    ),
    "speed": Flag("How many times faster than recorded.", TRACE),
    "length_scale": Flag("Recorded lengths are multiplied by it.", TRACE),
    "trace_share": Flag("Share of the conversations that are kept, whole.", TRACE, most=1),
    "slo_ttft": Flag("Seconds to the first token that users accept.", JUDGED),
    "slo_itl": Flag("Seconds between tokens, mean of a request.", JUDGED),
    "slo_e2e": Flag("Seconds for the whole answer.", JUDGED, default_text="any"),
    "max_lag": Flag(
        "Seconds of p99 lag of the generator itself above which the result is invalid, unless a "
        "tenth of the p99 TTFT is more.",
        JUDGED,
        least=0,
    ),
    "max_cpu": Flag("Share of a core above which it is.", JUDGED, least=0),
    "nodes": Flag("How many to start.", OWN, least=1, most=64),
    "transport": Flag("How the fleet is asked.", OWN, choices=TRANSPORTS),
    "policy": Flag("Of its router.", OWN, choices=POLICIES),
    "enable_prefix_caching": Flag("Of its nodes.", OWN),
    "out": Flag(
        "Directory for result.json, requests.csv, report.html and plots.",
        JUDGED,
        default_text="kvmesh-load/TIME",
    ),
    "compare": Flag(
        "Two result.json: instead of a load, how the second differs.", JUDGED, default_text="none"
    ),
}
