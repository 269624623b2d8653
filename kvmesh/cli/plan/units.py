"""Numbers as a report shows them."""

from cache_node.plan.hardware import GIB


def size(count: int) -> str:
    """Bytes in words: the largest unit in which it is at least 1."""
    for unit, scale in (("GiB", GIB), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= scale:
            return f"{count / scale:,.2f} {unit}"
    return f"{count} bytes"


def exact(count: int) -> str:
    """Bytes to the byte, and in words."""
    return f"{count:,} bytes" + (f" ({size(count)})" if count >= 1 << 10 else "")


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def element_width(bits: int) -> str:
    return f"{bits // 8} bytes" if bits >= 16 else f"{bits} bits"
