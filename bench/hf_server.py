"""transformers' `generate` behind OpenAI's streaming API: what one writes without an engine.

Run by an interpreter that has torch and transformers:  python hf_server.py MODEL_DIRECTORY PORT

One static batch at a time of requests with equal lengths, those that wait when it starts.
"""

import json
import os
import queue
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MOST = 32  # requests in a batch
GATHER = 0.02  # seconds for a batch to come together


@dataclass
class Job:
    """A request, and its tokens as they come; None ends them."""

    prompt: list[int]
    max_tokens: int
    tokens: "queue.SimpleQueue[int | None]" = field(default_factory=queue.SimpleQueue)


JOBS: "queue.SimpleQueue[Job]" = queue.SimpleQueue()


def load(directory: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16)


def compute(model: Any) -> None:
    """Runs batches for ever. Ends the process when one fails: nobody should wait for it."""
    try:
        _compute(model)
    finally:
        traceback.print_exc()
        os._exit(1)


def _compute(model: Any) -> None:
    import torch

    kept: list[Job] = []
    while True:
        batch, kept = _next_batch(kept)
        prompts = torch.tensor([job.prompt for job in batch])

        def hand_out(input_ids: Any, _scores: Any, jobs: list[Job] = batch, **_: Any) -> Any:
            for job, token in zip(jobs, input_ids[:, -1].tolist(), strict=True):
                job.tokens.put(token)
            return torch.zeros(len(jobs), dtype=torch.bool)

        tokens = batch[0].max_tokens
        with torch.inference_mode():
            model.generate(
                prompts,
                attention_mask=torch.ones_like(prompts),
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                do_sample=False,
                stopping_criteria=[hand_out],
            )
        for job in batch:
            job.tokens.put(None)


def _next_batch(waiting: list[Job]) -> tuple[list[Job], list[Job]]:
    """The first and those that can run beside it; and those that cannot."""
    if not waiting:
        waiting = [JOBS.get()]
        time.sleep(GATHER)
    while not JOBS.empty():
        waiting.append(JOBS.get())
    shape = (len(waiting[0].prompt), waiting[0].max_tokens)
    batch = [job for job in waiting if (len(job.prompt), job.max_tokens) == shape][:MOST]
    return batch, [job for job in waiting if job not in batch]


class Handler(BaseHTTPRequestHandler):
    """POST /v1/completions with a prompt of token ids; GET /v1/models."""

    def do_GET(self) -> None:
        self._begin("application/json")
        self.wfile.write(json.dumps({"object": "list", "data": []}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        job = Job(body["prompt"], body["max_tokens"])
        JOBS.put(job)
        self._begin("text/event-stream")
        count = 0
        while (token := job.tokens.get()) is not None:
            count += 1
            self._event({"choices": [{"index": 0, "text": f" {token}"}]})
        self._event({"choices": [], "usage": {"completion_tokens": count}})

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def _begin(self, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()

    def _event(self, value: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
        self.wfile.flush()


class Server(ThreadingHTTPServer):
    request_queue_size = 2 * MOST  # connections that come at once


def main() -> None:
    directory, port = sys.argv[1:]
    threading.Thread(target=compute, args=(load(directory),), daemon=True).start()
    Server(("127.0.0.1", int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main()
