"""`kvmesh chat`: talk with a model in the terminal."""

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from kvmesh.cli.connection import (
    DEFAULT_ROUTER,
    ApiKey,
    Direct,
    Router,
    Tls,
    TlsCa,
    TlsCert,
    TlsKey,
    connect,
)
from kvmesh.cli.streamed import show

if TYPE_CHECKING:
    from kvmesh.cli.conversation import Conversation
    from kvmesh.client import Completion

SAMPLING = "Sampling"
PROMPT = "› "
COMMANDS = """/reset          forget what was said
/system TEXT    begin again under this system message; without TEXT, under none
/help           show this
/quit           leave (or Ctrl-D)
Ctrl-C          stop an answer"""


def chat(
    router: Router = DEFAULT_ROUTER,
    system: Annotated[str, typer.Option(help="What the model is told first.")] = "",
    model: Annotated[
        str, typer.Option(help="Name of the model.", show_default="the only one")
    ] = "",
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Most tokens of an answer.", rich_help_panel=SAMPLING)
    ] = 512,
    temperature: Annotated[
        float, typer.Option(help="0 is greedy.", rich_help_panel=SAMPLING)
    ] = 0.7,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="The same seed gives the same answers.",
            show_default="drawn by the router",
            rich_help_panel=SAMPLING,
        ),
    ] = None,
    api_key: ApiKey = None,
    direct: Direct = False,
    tls: Tls = False,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """Talk with a model. It remembers what was said, and the fleet its KV.

    Examples:

        kvmesh chat
        kvmesh chat --system "You answer in one sentence." --temperature 0

    After each answer: how much of the conversation came from the cache, and the time to the first
    token. /help shows what else there is.
    """
    from kvmesh.cli.conversation import Conversation

    options: dict[str, Any] = {
        "model": model,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "seed": seed,
    }
    files = (tls_ca, tls_cert, tls_key)
    with connect(router, api_key, tls, files, direct=direct) as client:
        Chat(Conversation(client, system, options), router).run()


class Chat:
    """Reads lines, answers them, and ends with the input."""

    def __init__(self, conversation: "Conversation", router: str) -> None:
        self._conversation = conversation
        self._router = router
        self._console = Console(highlight=False, soft_wrap=True)

    def run(self) -> None:
        self._note("Ctrl-D leaves, /help shows what else there is.")
        going = True
        while going:
            try:
                going = self._turn()
            except KeyboardInterrupt:  # at the prompt, or between an answer and the prompt
                self._console.print()
                self._note("/quit or Ctrl-D leaves")

    def _turn(self) -> bool:
        """One line and its answer. False ends the chat."""
        line = self._read()
        if line is None or line.startswith("/"):
            return line is not None and self._command(line)
        if line:
            self._answer(line)
        return True

    def _read(self) -> str | None:
        """The next line; None at the end."""
        with suppress(ImportError):  # not on every platform
            import readline  # noqa: F401  # gives `input` an editor and a history
        try:
            return input(PROMPT).strip()
        except EOFError:
            self._console.print()
            return None

    def _command(self, line: str) -> bool:
        """False ends the chat."""
        name, _, rest = line.partition(" ")
        match name:
            case "/quit" | "/exit":
                return False
            case "/reset":
                self._conversation.reset()
                self._note("forgotten")
            case "/system":
                self._conversation.reset()
                self._conversation.system = rest.strip()
                self._note("begun again" + (", under that message" if rest.strip() else ""))
            case "/help":
                self._note(COMMANDS)
            case _:
                self._note(f"no command {name}; /help shows them")
        return True

    def _answer(self, question: str) -> None:
        from kvmesh.cli.ask import explain
        from kvmesh.errors import RequestError

        try:
            answer, whole = self._conversation.ask(question, show)
        except RequestError as error:
            self._console.print(f"\n{explain(error, self._router)}", style="red", markup=False)
            return
        self._console.print()
        self._note(footer(answer) if whole else "stopped")

    def _note(self, text: str) -> None:
        self._console.print(text, style="dim", markup=False)


def footer(answer: "Completion") -> str:
    """What an answer says of itself, in one line."""
    usage, cached = answer.usage, answer.usage.cached
    tokens = cached.gpu + cached.cpu + cached.remote
    ttft = "" if answer.ttft is None else f" · first token {answer.ttft * 1e3:.0f} ms"
    return (
        f"cached {tokens} of {usage.prompt_tokens}{ttft} · {usage.completion_tokens} tokens · "
        f"{answer.summary.node}"
    )
