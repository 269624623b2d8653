"""What a client has got so far of an answer, kept unparsed until it is needed."""

from collections.abc import Sequence

from kvmesh.v1 import cache_node_pb2, generate_pb2

MOST_BYTES = 16 << 20
"""Of an answer that can still go on elsewhere. One of 8,192 tokens without log-probabilities takes
some 250 KB.
"""


class Relayed:
    """The frames of a node, one behind the other: as one message they are the answer so far."""

    def __init__(self, samples: int) -> None:
        self.progressed = False  # a frame has come since this was last set to False
        self.last = b""
        self._samples = samples
        self._frames: bytearray | None = bytearray()

    def add(self, frame: bytes) -> None:
        self.progressed = True
        self.last = frame
        if self._frames is None:
            return
        self._frames += frame
        if len(self._frames) > MOST_BYTES:
            self._frames = None

    @property
    def complete(self) -> bool:
        """Whether the node has said all: what is missing is its status."""
        return generate_pb2.GenerateResponse.FromString(self.last).HasField("summary")

    def resume(self) -> Sequence[cache_node_pb2.Resume] | None:
        """How another node can go on, one entry a sample. None: the answer has become too long."""
        if self._frames is None:
            return None
        answer = generate_pb2.GenerateResponse.FromString(bytes(self._frames))
        entries = [cache_node_pb2.Resume(index=index) for index in range(self._samples)]
        texts: list[list[str]] = [[] for _ in entries]
        for delta in answer.deltas:
            entry = entries[delta.index]
            entry.token_ids += delta.token_ids
            entry.finished |= delta.finish_reason != generate_pb2.FINISH_REASON_UNSPECIFIED
            texts[delta.index].append(delta.text)
        for entry, text in zip(entries, texts, strict=True):
            entry.text_bytes_sent = len("".join(text).encode())
        return entries
