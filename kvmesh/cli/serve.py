"""`kvmesh serve`: a whole fleet on this host."""

import asyncio

from kvmesh.cli.fleet import Fleet
from kvmesh.cli.hosting import host
from kvmesh.cli.program import program
from kvmesh.cli.screen import Screen
from kvmesh.cli.serve_config import ServeConfig

HELP = """
Serve a model on this host: one router and several cache nodes, each a process.

Examples:

    kvmesh serve
    kvmesh serve --nodes 3 --http-port 8080 --policy least-loaded
    kvmesh serve --model ./model.gguf --dtype float32 --kv-cache-bytes 268435456
    kvmesh serve --redis redis://127.0.0.1:6379/0

Prepares the model first, shows what each process does, and says how to use the fleet once it is
up. A process that dies later is started again under its name. Ctrl-C stops everything: running
requests may finish; a second Ctrl-C kills.
"""

USE = """
[bold green]Serving {model}[/] with {nodes} nodes. Ctrl-C stops.

  OpenAI API   {http}/v1
  gRPC         {grpc}
  page         {http}/ui
  metrics      {http}/metrics
               {metrics}

[bold]Try it[/]
  {program} generate --router {grpc} "Why is the sky blue?"

  curl {http}/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{{"model": "{model}", "temperature": 0,
         "messages": [{{"role": "user", "content": "Why is the sky blue?"}}]}}'

[bold]Or from Python[/]
  from openai import OpenAI
  client = OpenAI(base_url="{http}/v1", api_key="none")
  answer = client.chat.completions.create(
      model="{model}",
      messages=[{{"role": "user", "content": "Why is the sky blue?"}}],
      temperature=0,
  )
  print(answer.choices[0].message.content)
"""


def serve(config: ServeConfig) -> None:
    """Runs until SIGINT or SIGTERM."""
    screen = Screen()

    async def body(fleet: Fleet) -> None:
        fleet.watch()
        screen.say(_usage(config, fleet))
        await asyncio.Event().wait()

    host(config, screen, body)


def _usage(config: ServeConfig, fleet: Fleet) -> str:
    return USE.format(
        program=program(),
        model=fleet.model,
        nodes=config.nodes,
        http=config.http_url,
        metrics=f"\n{15 * ' '}".join(fleet.metrics_urls),
        grpc=config.grpc_target,
    )
