"""Text of others, as it may be shown on a terminal or stand in a line of a log."""


def printable(text: str) -> str:
    """`text` with escapes such as \\x1b for all that would not show but do: move the cursor, change
    colours or the window's title, end the line, or turn the direction of writing.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
