"""Numbers in sentences. No torch."""


def counted(number: int, one: str, many: str = "") -> str:
    """ "1 run", "2 runs"; ``many`` where it is not ``one`` and an s."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def verb(number: int, one: str = "is", many: str = "are") -> str:
    """What a count of things does."""
    return one if number == 1 else many


def cut(text: str, length: int = 40) -> str:
    """A text in one line, ended at a word where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 3].rsplit(" ", 1)[0].rstrip(",;:") + "..."
