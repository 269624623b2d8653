"""How an answer goes out: in one piece once it is complete, or as a stream while it grows."""

import asyncio
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kvmesh.errors import invalid
from router.answer import Answer
from router.exchange import Exchange
from router.openai_answers import DONE, AnswerForm, encoded, event
from router.openai_requests import AnswerOptions
from router.openai_transcript import Piece, Transcript, usage

MAX_HELD_BYTES = 16 << 20
"""Of frames: an answer in one piece is held until its end. As log-probabilities in JSON they become
some 50 times as much.
"""

SMALL_ANSWER = 256 << 10
"""Bytes of frames up to which the answer is put together on the event loop."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as its reply needs it. `prompts`: how many of them are answered."""

    chat: bool
    request_id: str
    prompts: int
    options: AnswerOptions


class Reply(ABC):
    """To all prompts of a request. Each is answered by `begin`, then `take` for each frame, then
    `end`, in a task of its own; the last `end` completes the reply.

    Holds at most MAX_HELD_BYTES of frames.
    """

    def __init__(self, asked: Asked, exchange: Exchange) -> None:
        self._asked = asked
        self._options = asked.options
        self._exchange = exchange
        self._transcripts: dict[int, Transcript] = {}  # by place of the prompt
        self._open = asked.prompts
        self._held_bytes = 0

    async def begin(self, place: int, answer: Answer) -> Transcript:
        transcript = self._transcripts[place] = Transcript(
            answer,
            self._options,
            chat=self._asked.chat,
            place=place,
            ttft_us=self._exchange.elapsed_us(),
        )
        return transcript

    @abstractmethod
    async def take(self, transcript: Transcript, frame: bytes) -> None:
        """The next frame of a prompt's answer."""

    async def end(self, transcript: Transcript) -> None:
        """Once the node has said that all is well."""
        self._open -= 1
        await self._end(transcript)

    @abstractmethod
    async def _end(self, transcript: Transcript) -> None: ...

    @cached_property
    def _form(self) -> AnswerForm:
        """Once a prompt's answer has begun."""
        model = next(iter(self._transcripts.values())).model
        return AnswerForm(self._asked.chat, model.name, self._asked.request_id)

    def _hold(self, transcript: Transcript, frame: bytes) -> list[Piece]:
        """What a frame says, once it is known that there is room for it."""
        pieces = transcript.read(frame)
        copies = self._options.n if transcript.scores_prompt else 1  # each choice gets them
        self._held_bytes += len(frame) * copies
        if self._held_bytes > MAX_HELD_BYTES:
            raise invalid(
                "max_tokens",
                f"the answer has more than {MAX_HELD_BYTES} bytes: ask for fewer tokens, choices "
                "or log-probabilities, or for a stream",
            )
        return pieces

    async def _off_loop(self, work: Callable[[], bytes]) -> bytes:
        """Puts together what was held: in a thread when it is much."""
        return work() if self._held_bytes <= SMALL_ANSWER else await asyncio.to_thread(work)

    def _usage(self) -> dict[str, Any]:
        return usage(self._transcripts.values())

    def _kvmesh(self) -> dict[str, Any]:
        """Of the prompt; of several, one by one."""
        each = [self._transcripts[place].kvmesh() for place in sorted(self._transcripts)]
        if len(each) == 1:
            return each[0]
        return {"request_id": self._asked.request_id, "prompts": each}

    def _headers(self) -> dict[str, str]:
        if self._asked.prompts > 1:
            return {}  # they may have been answered by several nodes
        return {"x-kvmesh-node": self._transcripts[0].report.node}


class WholeReply(Reply):
    def __init__(self, asked: Asked, exchange: Exchange) -> None:
        super().__init__(asked, exchange)
        self._pieces: defaultdict[int, list[Piece]] = defaultdict(list)  # by choice

    async def take(self, transcript: Transcript, frame: bytes) -> None:
        for piece in self._hold(transcript, frame):
            self._pieces[piece.index].append(piece)

    async def _end(self, transcript: Transcript) -> None:
        for piece in transcript.missing_ends():
            self._pieces[piece.index].append(piece)
        if not self._open:
            await self._exchange.send_json(await self._off_loop(self._body), self._headers())

    def _body(self) -> bytes:
        for transcript in self._transcripts.values():
            echoes = transcript.echoes() if self._options.echo else []
            for piece in echoes:
                self._pieces[piece.index].insert(0, piece)
        choices = [self._form.choice(self._pieces[index]) for index in sorted(self._pieces)]
        answer = self._form.whole(choices, self._usage())
        for transcript in self._transcripts.values():
            told = self._of_prompt(transcript)
            for each in [answer] if self._asked.chat else [choices[i] for i in transcript.indices]:
                each.update(told)
        return encoded({**answer, "kvmesh": self._kvmesh()})

    def _of_prompt(self, transcript: Transcript) -> dict[str, Any]:
        """What vLLM tells of a prompt: in a chat's answer, or in each choice of a completion."""
        told: dict[str, Any] = {}
        if self._options.prompt_logprobs:
            told["prompt_logprobs"] = transcript.prompt_logprobs()
        if self._options.token_ids:
            told["prompt_token_ids"] = transcript.prompt_ids
        return told


class StreamReply(Reply):
    """The end of a choice is held back until the next frame has come, or the node has said that all
    is well: after an error no choice of the last frame looks complete.

    An echoed prompt's log-probabilities come in the last frame and are shown first, so then all
    pieces are held.
    """

    def __init__(self, asked: Asked, exchange: Exchange) -> None:
        super().__init__(asked, exchange)
        self._holds_all = self._options.echo and self._options.logprobs
        self._held: defaultdict[int, list[Piece]] = defaultdict(list)  # by place of the prompt

    async def begin(self, place: int, answer: Answer) -> Transcript:
        transcript = await super().begin(place, answer)
        await self._exchange.start_stream(self._headers())
        await self._write(self._opening(transcript))
        return transcript

    async def take(self, transcript: Transcript, frame: bytes) -> None:
        if self._holds_all:
            self._held[transcript.place] += self._hold(transcript, frame)
            return
        chunks = self._endings(self._held.pop(transcript.place, []))
        pieces = transcript.read(frame)
        chunks += self._texts(transcript, pieces)
        self._held[transcript.place] += [piece for piece in pieces if piece.finish]
        await self._write(chunks)

    async def _end(self, transcript: Transcript) -> None:
        held = self._held.pop(transcript.place, [])
        if self._holds_all:
            await self._exchange.write(await self._off_loop(lambda: self._all(transcript, held)))
        chunks = self._endings([*held, *transcript.missing_ends()])
        if self._open:
            await self._write(chunks)
            return
        if self._options.usage:
            chunks.append(self._form.usage(self._usage()))
        chunks[-1]["kvmesh"] = self._kvmesh()
        await self._exchange.end(_events(chunks) + DONE)

    def _all(self, transcript: Transcript, held: list[Piece]) -> bytes:
        return _events(self._texts(transcript, [*transcript.echoes(), *held]))

    def _opening(self, transcript: Transcript) -> list[dict[str, Any]]:
        """A chat's choices begin with the role, a completion's with the echoed prompt."""
        if self._asked.chat:
            chunks = [self._form.opening(index) for index in transcript.indices]
        elif self._options.echo and not self._holds_all:
            chunks = self._texts(transcript, transcript.echoes())
        elif self._options.token_ids:
            chunks = [self._form.piece(Piece(index)) for index in transcript.indices]
        else:
            return []
        if self._options.token_ids:
            for chunk in chunks:
                told = chunk if self._asked.chat else chunk["choices"][0]
                told["prompt_token_ids"] = transcript.prompt_ids
        return [self._with_null_usage(chunk) for chunk in chunks]

    def _texts(self, transcript: Transcript, pieces: Iterable[Piece]) -> list[dict[str, Any]]:
        chunks = []
        for piece in pieces:
            if piece.says_something:
                chunk = self._with_null_usage(self._form.piece(piece))
                if self._options.continuous_usage:
                    chunk["usage"] = transcript.usage_so_far(piece.index)
                chunks.append(chunk)
        return chunks

    def _endings(self, pieces: Iterable[Piece]) -> list[dict[str, Any]]:
        return [self._with_null_usage(self._form.ending(piece)) for piece in pieces if piece.finish]

    def _with_null_usage(self, chunk: dict[str, Any]) -> dict[str, Any]:
        """Of a stream that ends with its usage, every chunk has the field."""
        return {**chunk, "usage": None} if self._options.usage else chunk

    async def _write(self, chunks: Iterable[dict[str, Any]]) -> None:
        await self._exchange.write(_events(chunks))


def _events(chunks: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(map(event, chunks))
