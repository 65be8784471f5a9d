"""Text in LaTeX: labels of methods, settings and columns are escaped here, for all tables."""

SPECIAL = {letter: rf"\{letter}" for letter in "&%#_${}"} | {
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "†": r"\textdagger{}",
}


def escaped(text: str) -> str:
    """Return text that LaTeX prints as it is."""
    return "".join(SPECIAL.get(letter, letter) for letter in text)


def comment(text: str) -> str:
    """Return a line of LaTeX that is not printed, whatever the text is."""
    return f"% {' '.join(text.split())}"
