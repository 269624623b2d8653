"""Text of others, as it may be shown on a terminal or stand in a line of a log."""

import re

_COMMANDS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """`text` with escapes such as \\x1b for all that would not show but do: move the cursor, change
    colours or the window's title, end the line, or turn the direction of writing.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def harmless_lines(text: str) -> str:
    """As `printable`, for text of many lines in any writing: line ends, tabs, and what joins or
    turns letters stay.
    """
    return _COMMANDS.sub(lambda found: ascii(found[0])[1:-1], text)
