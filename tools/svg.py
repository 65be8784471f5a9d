"""What the pictures of docs/ are drawn with: SVG elements and colours."""

from html import escape

WIDTH = 1000
INK, FAINT, BLUE, GREEN, YELLOW = "#1f2328", "#59636e", "#ddf4ff", "#dafbe1", "#fff8c5"
DASHED = 'fill="none" stroke="#d1d9e0" stroke-dasharray="5 4"'


def head(height: int, title: str) -> str:
    """Return the first lines of a picture. It has a background, since GitHub shows it on a white or on a black page."""
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"
  font-family="Helvetica, Arial, sans-serif" font-size="15" fill="{INK}">
<title>{escape(title)}</title>
<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto">
<path d="M0 0 10 5 0 10z" fill="{INK}"/></marker></defs>
<rect x="1" y="1" width="{WIDTH - 2}" height="{height - 2}" rx="10" fill="#ffffff" stroke="#d1d9e0"/>"""


def text(
    x: float, y: float, said: str, *, size: int = 15, fill: str = INK, anchor: str = "middle", bold: bool = False
) -> str:
    """Return a line of text at a point of its base line."""
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" fill="{fill}" text-anchor="{anchor}"{weight}>{escape(said)}</text>'
    )


def box(x: float, y: float, width: float, fill: str, name: str, *lines: str) -> list[str]:
    """Return a box around a middle, 66 high: a name and what is in it."""
    frame = f'<rect x="{x - width / 2}" y="{y - 33}" width="{width}" height="66" rx="6" fill="{fill}" stroke="{INK}"/>'
    first = y + 5 - 9 * len(lines)
    return [
        frame,
        text(x, first, name, bold=True),
        *(text(x, first + 18 * number, line, size=13) for number, line in enumerate(lines, 1)),
    ]


def arrow(*points: tuple[float, float]) -> str:
    """Return a line through points, with a tip at its end."""
    path = " ".join(f"{x},{y}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{INK}" stroke-width="1.6" marker-end="url(#tip)"/>'
