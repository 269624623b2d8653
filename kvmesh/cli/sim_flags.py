"""What `kvmesh sim --help` says about its flags. Names and defaults are in SimConfig."""

from bench.load.config import POLICIES
from bench.sim.config import MOST_NODES, SCHEDULING
from kvmesh.cli.flags import Flag

ASKED, FLEET, TROUBLE, JUDGED, FITTED = (
    "What is asked",
    "The fleet",
    "What goes wrong",
    "How it is judged",
    "Step times",
)

SIM_FLAGS = {
    "trace": Flag("Mooncake's JSONL or Azure's .csv.", ASKED, default_text="none"),
    "requests": Flag("How many; a short trace is repeated.", ASKED, least=1),
    "rate": Flag(
        "Requests a second, by copies of the trace beside each other.",
        ASKED,
        default_text="nodes half busy",
    ),
    "length_scale": Flag("Recorded lengths are multiplied by it.", ASKED),
    "seed": Flag("Of the draw, and of choices between equals.", ASKED, least=0),
    "nodes": Flag("Simulated cache nodes.", FLEET, least=1, most=MOST_NODES),
    "policy": Flag(f"Of the router, once for each: {', '.join(POLICIES)}.", FLEET),
    "blocks": Flag("KV blocks of a node.", FLEET, least=1),
    "block_size": Flag("Tokens in a block; Mooncake's traces tell 512.", FLEET, least=1),
    "max_num_seqs": Flag("Requests in one step.", FLEET, least=1),
    "max_num_batched_tokens": Flag("Tokens in one step.", FLEET, least=1),
    "scheduling_policy": Flag("Of nodes.", FLEET, choices=SCHEDULING),
    "max_queue": Flag("Requests that wait in the router.", FLEET, least=1),
    "queue_timeout": Flag("Seconds that one waits at most.", FLEET),
    "index_delay": Flag("Seconds by which a node's reports are late.", TROUBLE, least=0),
    "fail": Flag(
        "AT:NODE:SECONDS, as 12.5:node-3:30: its process is gone, for so long. Once for each.",
        TROUBLE,
        default_text="none",
    ),
    "slo_ttft": Flag("Seconds to the first token that users accept.", JUDGED),
    "slo_itl": Flag("Seconds between tokens, mean of a request.", JUDGED),
    "profile": Flag("cpu, accelerator, or a file that --fit has written.", FITTED),
    "fit": Flag(
        "File for step times of this machine, which are measured instead.",
        FITTED,
        default_text="none",
    ),
    "as_json": Flag("One JSON object on stdout.", JUDGED, name="json"),
}
