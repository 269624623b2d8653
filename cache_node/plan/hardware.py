"""The memory that a plan is made for: cards by name, or a machine without any."""

from dataclasses import dataclass
from difflib import get_close_matches
from os import sysconf

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Card:
    name: str
    memory: int  # bytes that a program sees


# What PyTorch says of the total capacity of each: less than the name promises, in units of 2**30.
CARDS = {
    name: Card(name, int(gib * GIB))
    for name, gib in {
        "l4": 22.03,
        "a100-40": 39.39,
        "l40s": 44.39,
        "a100-80": 79.15,
        "h100": 79.18,
        "h200": 139.7,
        "b200": 178.35,
        "mi300x": 191.69,
    }.items()
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Raises ValueError that names the field. `tp` GPUs share each layer, `pp` stages share the
    layers; `gpus` are several such replicas. A machine without cards has one replica.
    """

    card: Card | None  # None: the CPU
    ram: int  # bytes of the machine
    gpus: int = 1
    tp: int = 1
    pp: int = 1

    def __post_init__(self) -> None:
        for field in ("gpus", "tp", "pp", "ram"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field}: must be at least 1, is {getattr(self, field)}")
        if self.card is None and self.gpus * self.tp * self.pp > 1:
            raise ValueError("gpu: must name the card that gpus, tp and pp count")
        if self.gpus % (self.tp * self.pp):
            raise ValueError(
                f"gpus: must be a multiple of tp x pp ({self.tp} x {self.pp}), is {self.gpus}"
            )

    @property
    def replicas(self) -> int:
        return self.gpus // (self.tp * self.pp)


def find_card(text: str) -> Card:
    """By name, or by its memory in GiB. Raises ValueError with the names that are near."""
    name = text.lower()
    if name in CARDS:
        return CARDS[name]
    try:
        gib = float(name.removesuffix("gib"))
    except ValueError:
        near = get_close_matches(name, CARDS, n=3, cutoff=0.3) or CARDS
        raise ValueError(
            f"gpu: must be a known card or its memory in GiB, is {text!r}; near it are "
            f"{', '.join(near)}"
        ) from None
    if not 0 < gib <= 1 << 20:
        raise ValueError(f"gpu: must have between 0 and {1 << 20} GiB of memory, is {text!r}")
    return Card(f"{gib:g} GiB", int(gib * GIB))


def machine_memory() -> int:
    """Bytes of this machine, as a node counts them."""
    return sysconf("SC_PAGE_SIZE") * sysconf("SC_PHYS_PAGES")
