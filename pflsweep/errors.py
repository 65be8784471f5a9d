"""The one exception whose message is written for the person at the keyboard."""


class UserError(Exception):
    """Bad input: what is wrong, where, and what would be right. The command prints it and exits with code 2."""


def nearest(word: str, known: list[str]) -> str:
    """`" Did you mean 'x'?"`, or nothing where no known word is close."""
    import difflib

    close = difflib.get_close_matches(word, known, n=1)
    return f" Did you mean '{close[0]}'?" if close else ""
