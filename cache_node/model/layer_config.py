"""What the layers of one model differ in: the sliding window and the rotary embedding."""

from dataclasses import dataclass

from cache_node.model.config_fields import UnsupportedModelError, positive
from cache_node.model.family import Family, Fields

SUPPORTED_ROPE_TYPES = ("default", "linear", "llama3")
SLIDING, FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding. The fields after `factor` matter to `llama3` only."""

    theta: float = 10000.0
    rope_type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192


@dataclass(frozen=True, slots=True)
class LayerConfig:
    rope: RopeConfig
    window: int | None = None  # tokens that a query sees, itself included; None: all before it


def layer_configs(fields: Fields, family: Family) -> tuple[LayerConfig, ...]:
    """One for each layer. Raises UnsupportedModelError with the name of the field."""
    count = positive(fields, "num_hidden_layers")
    slides = _sliding_layers(fields, family, count)
    window = positive(fields, "sliding_window") if any(slides) else 0
    covers_all = window >= positive(fields, "max_position_embeddings")
    configs = {
        True: LayerConfig(_rope(fields, SLIDING), None if covers_all else window),
        False: LayerConfig(_rope(fields, FULL)),
    }
    return tuple(configs[slide] for slide in slides)


def _sliding_layers(fields: Fields, family: Family, count: int) -> list[bool]:
    """By `layer_types`, else by the family's rule."""
    kinds = fields.get("layer_types")
    if kinds is not None and (len(kinds) != count or not {*kinds} <= {SLIDING, FULL}):
        raise UnsupportedModelError(
            f"layer_types must be {SLIDING!r} or {FULL!r} for each of the {count} layers"
        )
    if family.slides is None:
        if fields.get("sliding_window") or SLIDING in (kinds or ()):
            raise UnsupportedModelError(
                "sliding_window is not part of this architecture; name another in architectures, "
                "or remove the field if the model was trained with full attention"
            )
        return [False] * count
    if kinds is not None:
        return [kind == SLIDING for kind in kinds]
    return [family.slides(fields, layer) for layer in range(count)]


def _rope(fields: Fields, kind: str) -> RopeConfig:
    found = _rope_fields(fields, kind)
    rope_type = found.get("rope_type") or found.get("type") or "default"
    if rope_type not in SUPPORTED_ROPE_TYPES:
        raise UnsupportedModelError(
            f"rope_type {rope_type!r} is not supported; supported: "
            + ", ".join(SUPPORTED_ROPE_TYPES)
        )
    if found.get("partial_rotary_factor", fields.get("partial_rotary_factor", 1.0)) != 1.0:
        raise UnsupportedModelError("partial_rotary_factor is not supported unless it is 1.0")
    original = found.get("original_max_position_embeddings")
    return RopeConfig(
        theta=float(found.get("rope_theta") or fields.get("rope_theta") or 10000.0),
        rope_type=rope_type,
        factor=float(found.get("factor", 1.0)),
        low_freq_factor=float(found.get("low_freq_factor", 1.0)),
        high_freq_factor=float(found.get("high_freq_factor", 4.0)),
        original_max_positions=int(original or positive(fields, "max_position_embeddings")),
    )


def _rope_fields(fields: Fields, kind: str) -> Fields:
    """Of the layers of one kind, in all spellings:

    new     rope_parameters: {…}, or {"full_attention": {…}, "sliding_attention": {…}}
    older   rope_theta with rope_scaling; rope_local_base_freq where sliding layers differ
    """
    parameters = fields.get("rope_parameters") or {}
    local = fields.get("rope_local_base_freq")
    if FULL in parameters or SLIDING in parameters:
        parameters = parameters.get(kind) or {}
    elif kind == FULL or local is None:
        return {**(fields.get("rope_scaling") or {}), **parameters}
    return {"rope_theta": local, **parameters} if local and kind == SLIDING else parameters
