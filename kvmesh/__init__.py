"""kvmesh: a serving fleet for large language models whose centre is the KV cache.

The public package: the generated stubs (`kvmesh.v1`), the Python client, the `kvmesh` command, and
what router and node share at their edges (errors, validation, tokenizer).
"""

__version__ = "0.1.0"
