"""`kvmesh key`: makes an API key, and the hash of it that a router is told."""

import secrets
import sys
from hashlib import sha256
from typing import Annotated

import typer

BYTES = 32  # of chance in a key


def key(
    read: Annotated[
        bool, typer.Option("--stdin", help="Hash a key from standard input, make none.")
    ] = False,
) -> None:
    """Make an API key. The hash goes into the file of `--tenants` or of `--admin-key-file`, the key
    to the client; the router never needs it.

    Examples:

        kvmesh key
        kvmesh key --stdin < key.txt

    A tenant in the file of `kvmesh router --tenants tenants.toml`; only `keys` is required:

        [acme]
        keys = ["sha256:..."]
        requests_per_second = 10
        tokens_per_second = 20000
        burst_seconds = 10
        concurrency = 32
        weight = 2
        max_priority = 0
    """
    made = sys.stdin.readline().strip() if read else f"kv-{secrets.token_urlsafe(BYTES)}"
    if not made:
        raise typer.BadParameter("there is no key on standard input")
    if not read:
        typer.echo(f"key:  {made}")
    typer.echo(f"hash: sha256:{sha256(made.encode()).hexdigest()}")
