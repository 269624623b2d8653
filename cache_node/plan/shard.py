"""What each GPU of a replica holds of a model."""

from dataclasses import dataclass

from cache_node.plan.shape import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One GPU's part, the same on all of a stage; of a whole model without tp and pp. It is a
    `KvShape`.

    With multi-head latent attention its blocks hold one head, half a latent as the key and half as
    the value: so many bytes as the latent has.
    """

    windows: tuple[int | None, ...]  # of its layers
    num_kv_heads: int
    head_dim: int
    parameters: int

    @property
    def num_layers(self) -> int:
        return len(self.windows)


def shards_of(shape: ModelShape, tp: int = 1, pp: int = 1) -> list[Shard]:
    """One for each stage. Raises ValueError that names the field.

    Tensor parallelism divides KV heads; where there are fewer than GPUs, each GPU holds one, and
    some hold the same. A latent belongs to all heads: every GPU holds all of it.
    """
    _check(shape, tp, pp)
    heads, head_dim = max(1, shape.num_kv_heads // tp), shape.head_dim
    if shape.latent is not None:
        heads, head_dim = 1, shape.latent.elements // 2
    shards, first = [], 0
    for stage in range(pp):
        end = first + shape.num_layers // pp + (stage < shape.num_layers % pp)
        weights = sum(shape.parameters.layers[first:end])
        weights += shape.parameters.embedding if stage == 0 else 0
        weights += shape.parameters.head if stage == pp - 1 else 0
        shards.append(
            Shard(
                windows=shape.windows[first:end],
                num_kv_heads=heads,
                head_dim=head_dim,
                parameters=-(-weights // tp),
            )
        )
        first = end
    return shards


def _check(shape: ModelShape, tp: int, pp: int) -> None:
    if shape.num_heads % tp:
        raise ValueError(f"tp: must divide the model's {shape.num_heads} heads, is {tp}")
    kv_heads = shape.num_kv_heads
    if shape.latent is None and kv_heads % tp and tp % kv_heads:
        raise ValueError(
            f"tp: must divide the model's {kv_heads} KV heads, or be a multiple of them, is {tp}"
        )
    if pp > shape.num_layers:
        raise ValueError(f"pp: must be at most the model's {shape.num_layers} layers, is {pp}")
