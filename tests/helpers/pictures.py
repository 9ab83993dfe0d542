"""Find texts of a drawn picture that overlap, and texts that are outside of it."""

from itertools import combinations

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox


def text_boxes(figure: Figure) -> list[tuple[str, Bbox]]:
    """Draw the figure, and return every visible text with its box in pixels."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    hidden = {
        id(tick.label1)
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for tick in axis.get_major_ticks()
        if not min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())
    }
    boxes = []
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        if text.get_text().strip() and text.get_visible() and id(text) not in hidden:
            box = text.get_window_extent(canvas.get_renderer())
            if box.width > 1:
                boxes.append((text.get_text(), box))
    return boxes


def overlaps(figure: Figure) -> list[tuple[str, str]]:
    """Draw the figure, and return the pairs of texts that overlap."""
    boxes = [(text, box.padded(-1)) for text, box in text_boxes(figure)]
    return [(a, b) for (a, one), (b, other) in combinations(boxes, 2) if one.overlaps(other)]


def outside(figure: Figure) -> list[str]:
    """Draw the figure, and return the texts that are partly outside of it."""
    frame = figure.bbox.padded(1)
    return [
        text
        for text, box in text_boxes(figure)
        if not (frame.contains(box.x0, box.y0) and frame.contains(box.x1, box.y1))
    ]
