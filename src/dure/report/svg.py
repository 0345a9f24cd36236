"""Line charts, histograms and heat maps as inline SVG that stretches, with labels as HTML that doesn't.

The drawing area is an SVG of 1000 × 1000 units stretched over its box (lines keep their width), and all
text is HTML placed by percentages, so letters have one size on a phone and on a wide screen, follow the
page's fonts, and colours are the page's CSS variables (light and dark).
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from dure.report import words

POINTS = 300  # more points than a screen shows are thinned; the ends stay
BINS = 20
END = ' class="end"'  # a tick at the axis's end, whose label must stay on the card


@dataclass(frozen=True)
class Line:
    """One line of a chart; NaN leaves a gap; `low` and `high` add a band."""

    label: str
    x: Sequence[words.Number]
    y: Sequence[words.Number]
    tone: str = "var(--c1)"
    low: Sequence[words.Number] | None = None
    high: Sequence[words.Number] | None = None
    thin: bool = False


@dataclass(frozen=True)
class Axis:
    """What an axis shows; `kind` is "bytes", "percent", "number" or "count" (whole numbers)."""

    label: str
    kind: str = "number"
    low: words.Number | None = None
    high: words.Number | None = None
    ticks: list[float] = field(default_factory=list)

    def at(self, value: words.Number) -> float:
        """Where a value lies, in percent of the axis's length."""
        assert self.low is not None
        assert self.high is not None
        return 100 * (value - self.low) / (self.high - self.low)

    def text(self, value: words.Number) -> str:
        """A tick's label."""
        if self.kind == "bytes":
            return words.bytes_(value)
        if self.kind == "percent":
            return f"{100 * value:.4g} %"
        return f"{value:,.4g}" if abs(value) < 1e5 else words.number(value)


def nice_ticks(low: words.Number, high: words.Number, count: int = 5) -> list[float]:
    """About `count` round numbers (1, 2, 2.5 or 5 × 10^k apart) that lie within [low, high]."""
    span = high - low
    if not math.isfinite(span) or span <= 0:
        return [low]
    rough = span / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


def scaled(axis: Axis, values: Sequence[words.Number], *, zero: bool = False) -> Axis:
    """The axis with ends (those it has not got yet) and ticks that hold the finite `values`."""
    low = axis.low if axis.low is not None else (0.0 if zero else min(values, default=0.0))
    high = axis.high if axis.high is not None else max(values, default=1.0)
    if high <= low:
        low, high = (low - 0.5, low + 0.5) if low else (0.0, 1.0)
    ticks = nice_ticks(low, high, 4)
    if axis.kind == "count":
        ticks = sorted({float(round(tick)) for tick in ticks})
    return Axis(axis.label, axis.kind, low, high, [tick for tick in ticks if low <= tick <= high])


def line_chart(
    title: str, lines: Sequence[Line], x: Axis, y: Axis, *, target: words.Number | None = None
) -> str:
    """A chart with grid, legend and (by page.js) values under the pointer, as HTML."""
    lines = [_thinned(line) for line in lines if any(map(math.isfinite, line.y))]
    xs = [v for line in lines for v in line.x]
    ys = [v for line in lines for vs in (line.y, line.low, line.high) for v in vs or () if math.isfinite(v)]
    heading = f'<figure class="chart"><figcaption>{escape(title)}</figcaption>'
    if not ys:
        return f"{heading}{empty('nothing recorded')}</figure>"
    margin = 0.06 * (max(ys) - min(ys))
    low = max(0.0, min(ys) - margin) if min(ys) >= 0 else min(ys) - margin
    high = min(1.0, max(ys) + margin) if y.kind == "percent" and max(ys) <= 1 else max(ys) + margin
    low = low if y.low is None else y.low
    y = Axis(y.label, y.kind, low, high if high > low else low + 1.0)
    x, y = scaled(x, xs, zero=True), scaled(y, ys)
    drawn = "".join(_band(line, x, y) for line in lines) + "".join(_path(line, x, y) for line in lines)
    if target is not None and 0 <= y.at(target) <= 100:
        drawn += f'<path class="target" d="M0 {1000 - 10 * y.at(target):.1f}H1000"/>'
    thin = {True: " class=thin", False: ""}
    legend = "".join(
        f'<span><i style="background:{line.tone}"{thin[line.thin]}></i>{escape(line.label)}</span>'
        for line in lines
    )
    spoken = escape(_spoken(title, lines, x, y), quote=True)
    return (
        f'{heading}<div class="legend">{legend}</div><div class="frame">{_ticks(x, y)}'
        f'<div class="plot" tabindex="0" role="img" aria-label="{spoken}" '
        f"data-points='{_hover(lines, x, y)}'>{_stretched(_grid(x, y) + drawn)}</div>"
        f'<div class="xlabel">{escape(x.label)}</div></div></figure>'
    )


def histogram(
    values: Sequence[words.Number],
    marks: Sequence[tuple[str, float, str]],
    label: str,
    *,
    beside: Sequence[words.Number] = (),
) -> str:
    """How many clients lie in each of 20 bins, with marks (name, value, tone) for mean, worst, …, as HTML.

    Args:
        values: in [0, 1].
        marks: drawn as vertical lines and named in the legend.
        label: of the horizontal axis.
        beside: values of another histogram that this one is compared with: both get the same axis.
    """
    both = [*values, *beside]
    low = math.floor(10 * min(both)) / 10
    high = max(low + 0.1, math.ceil(10 * max(both)) / 10)
    bins = [0] * BINS
    for value in values:
        bins[min(BINS - 1, int((value - low) / (high - low) * BINS + 1e-9))] += 1
    x, y = scaled(Axis(label, "percent", low, high), []), scaled(Axis("clients", "count", 0.0), bins)
    drawn = _grid(x, y)
    for i, n in enumerate(bins):
        height, width = 10 * y.at(n), 1000 / BINS
        drawn += (
            f'<rect class="bar" x="{width * i + 3:g}" y="{1000 - height:.1f}" width="{width - 6:g}" '
            f'height="{height:.1f}"/>'
        )
    named = ""
    for name, value, tone in marks:
        drawn += f'<path class="mark" stroke="{tone}" d="M{10 * x.at(value):.1f} 0V1000"/>'
        named += f'<span><i style="background:{tone}"></i>{escape(name)} {words.percent(value, 1)}</span>'
    return (
        f'<div class="legend">{named}</div>'
        f'<div class="frame">{_ticks(x, y)}<div class="plot still">{_stretched(drawn)}</div>'
        f'<div class="xlabel">{escape(label)} (how many clients)</div></div>'
    )


def heat_map(rows: Sequence[Sequence[words.Number]], levels: int = 8) -> str:
    """A matrix of values in [0, 1] as stretched cells, darker is more, rows top to bottom, as SVG.

    Cells of one of `levels` shades share a path, so that thousands of cells stay small.
    """
    height, width = len(rows), max((len(row) for row in rows), default=0)
    paths: dict[int, list[str]] = {}
    for i, row in enumerate(rows):
        for j, value in enumerate(row):
            if value > 0:
                shade = min(levels, math.ceil(value * levels))
                paths.setdefault(shade, []).append(f"M{j} {i}h1v1h-1z")
    cells = "".join(
        f'<path fill="var(--c1)" fill-opacity="{0.1 + 0.9 * shade / levels:.2f}" d="{"".join(parts)}"/>'
        for shade, parts in sorted(paths.items())
    )
    return (
        f'<svg class="heat" viewBox="0 0 {width} {height}" preserveAspectRatio="none" aria-hidden="true" '
        f'shape-rendering="crispEdges">{cells}</svg>'
    )


def empty(text: str) -> str:
    """What stands where a picture would be."""
    return f'<p class="empty">{escape(text)}</p>'


# --- parts -----------------------------------------------------------------------------------------------


def _thinned(line: Line) -> Line:
    n = len(line.x)
    if n <= POINTS:
        return line
    keep = sorted({round(i * (n - 1) / (POINTS - 1)) for i in range(POINTS)})
    low, high = ([v[i] for i in keep] if v is not None else None for v in (line.low, line.high))
    x, y = ([v[i] for i in keep] for v in (line.x, line.y))
    return Line(line.label, x, y, line.tone, low, high, line.thin)


def _point(x: Axis, y: Axis, a: words.Number, b: words.Number) -> str:
    return f"{10 * x.at(a):.1f} {1000 - 10 * y.at(b):.1f}"


def _path(line: Line, x: Axis, y: Axis) -> str:
    parts, pen = [], False
    for a, b in zip(line.x, line.y, strict=True):
        if math.isfinite(b):
            # "h0" makes a lone point a line of length zero, which round caps turn into a dot.
            parts.append(f"L{_point(x, y, a, b)}" if pen else f"M{_point(x, y, a, b)}h0")
        pen = math.isfinite(b)
    css = "line thin" if line.thin else "line"
    return f'<path class="{css}" stroke="{line.tone}" d="{"".join(parts)}"/>'


def _band(line: Line, x: Axis, y: Axis) -> str:
    if line.low is None or line.high is None or len(line.x) < 2:
        return ""
    edges = [*zip(line.x, line.low, strict=True), *reversed(list(zip(line.x, line.high, strict=True)))]
    points = " ".join(_point(x, y, a, b) for a, b in edges)
    return f'<polygon class="band" fill="{line.tone}" points="{points}"/>'


def _grid(x: Axis, y: Axis) -> str:
    across = "".join(f"M0 {1000 - 10 * y.at(tick):.1f}H1000" for tick in y.ticks)
    down = "".join(f"M{10 * x.at(tick):.1f} 0V1000" for tick in x.ticks)
    return f'<path class="grid" d="{across}{down}"/>'


def _ticks(x: Axis, y: Axis) -> str:
    left = "".join(f'<span style="top:{100 - y.at(t):.2f}%">{escape(y.text(t))}</span>' for t in y.ticks)
    below = "".join(
        f'<span{END if x.at(t) > 96 else ""} style="left:{x.at(t):.2f}%">{escape(x.text(t))}</span>'
        for t in x.ticks
    )
    parts = (("yticks", left), ("xticks", below))
    return "".join(f'<div class="{name}" aria-hidden="true">{part}</div>' for name, part in parts)


def _stretched(content: str) -> str:
    return f'<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" aria-hidden="true">{content}</svg>'


def _hover(lines: Sequence[Line], x: Axis, y: Axis) -> str:
    """The data of page.js, as JSON that may stand between single quotes in HTML."""
    known = math.isfinite
    data = {
        "x": [[round(x.at(v), 2) for v in line.x] for line in lines],
        "xv": [[float(v) for v in line.x] for line in lines],
        "y": [[float(f"{v:.6g}") if known(v) else None for v in line.y] for line in lines],
        "top": [[round(100 - y.at(v), 2) if known(v) else None for v in line.y] for line in lines],
        "label": [line.label for line in lines],
        "tone": [line.tone for line in lines],
        "kind": [x.kind, y.kind],
        "name": x.label,
    }
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("&", "&amp;").replace("'", "&#39;").replace("<", "&lt;")


def _spoken(title: str, lines: Sequence[Line], x: Axis, y: Axis) -> str:
    """The chart in a sentence, for who can't see it."""
    ends = [f"{line.label} ends at {y.text([v for v in line.y if math.isfinite(v)][-1])}" for line in lines]
    return f"{title} against {x.label}: {'; '.join(ends)}"
