"""Figures are whole: nothing that is drawn falls off the page."""

import numpy as np

from pflsweep.report import figures


def test_every_name_of_many_lines_is_on_the_page() -> None:
    few, many = (
        [figures.Curve(f"method {k}", np.arange(3.0), *[np.full(3, k / 30)] * 3) for k in range(count)]
        for count in (4, 25)
    )
    heights = []
    for curves in (few, many):
        made = figures.accuracy(curves)
        made.draw_without_rendering()
        names = made.legends[0].get_window_extent()
        assert names.y0 >= 0
        assert names.y1 <= made.bbox.y1
        heights.append(made.get_figheight())
    assert heights[0] == 3.9
    assert heights[1] > 5
