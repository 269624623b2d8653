"""Times that a user may set."""

LONGEST = 1e9
"""Seconds, some 30 years: gRPC and the clocks of Python count no further."""


def check_seconds(field: str, value: float, *, or_zero: bool = False) -> None:
    """Raises ValueError unless `value` is above 0, or 0 where `or_zero`, and at most LONGEST."""
    fits = 0 <= value <= LONGEST if or_zero else 0 < value <= LONGEST
    if not fits:
        least = "at least" if or_zero else "above"
        raise ValueError(
            f"{field}: must be {least} 0 seconds and at most {LONGEST:.0e}, is {value}"
        )
