"""Lua scripts that Redis keeps by their hash."""

from hashlib import sha1
from typing import Any, cast

from redis.asyncio import Redis
from redis.exceptions import NoScriptError


class RedisScript:
    """Sends the hash, and the text only to a server that does not know it yet."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._sha = sha1(text.encode(), usedforsecurity=False).hexdigest()

    async def run(self, client: Redis, keys: tuple[str, ...], arguments: tuple[Any, ...]) -> Any:
        """The script's answer. Raises one of redis_shards.FAILURES."""
        untyped = cast(Any, client)
        try:
            return await untyped.evalsha(self._sha, len(keys), *keys, *arguments)
        except NoScriptError:
            return await untyped.eval(self._text, len(keys), *keys, *arguments)
