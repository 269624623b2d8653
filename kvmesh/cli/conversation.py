"""A conversation with a model: what has been said, and the answer that is being given."""

from collections.abc import Callable
from typing import Any

from kvmesh.client import Client, Completion

Message = dict[str, str]


class Conversation:
    """Remembers both sides. Each question is sent with all that was said before, whose KV the fleet
    has cached.
    """

    def __init__(self, client: Client, system: str, options: dict[str, Any]) -> None:
        """`options` are fields of every request."""
        self._client = client
        self._options = options
        self.system = system
        self._said: list[Message] = []

    @property
    def messages(self) -> list[Message]:
        head = [{"role": "system", "content": self.system}] if self.system else []
        return [*head, *self._said]

    def reset(self) -> None:
        """Forgets what was said; the system message stays."""
        self._said.clear()

    def ask(self, question: str, on_text: Callable[[str], None]) -> tuple[Completion, bool]:
        """The answer, and whether it came to its end: Ctrl-C stops it, and what came by then is
        remembered. Raises RequestError, and remembers nothing.
        """
        turn = {"role": "user", "content": question}
        answer = Completion()
        whole = True
        with self._client.generate(
            messages=[*self.messages, turn], **self._options
        ) as generation:  # left early, it ends on the node too
            try:
                for event in generation:
                    on_text(event.text)
            except KeyboardInterrupt:
                whole = False
            answer = generation.so_far
        self._said += [turn, {"role": "assistant", "content": answer.text}]
        return answer, whole
