"""Charts as compact SVG text: no script, no plotting library, colors from the page's CSS variables.

Every chart is drawn on a canvas 320 units wide, about its size on a phone, so that text stays legible without zoom.
Series differ in color *and* in dash and marker; attackers carry a triangle and a hatched strip. Dense maps are
one small gray PNG used as a mask over a rectangle in the page's ink, so they follow light and dark mode.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from PIL import Image

from ebscfl.errors import UsageError

WIDTH = 320
PALETTE_SIZE = 8
"""Number of categorical colors --c0..--c7 in the style sheet; more categories start again and differ by label."""

DASHES = ("", "6 3", "2 2.5", "8 3 2 3", "4 4", "1 3", "10 4", "5 2 1 2")

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Series:
    """One line of a chart. ``style`` picks color, dash and marker together."""

    label: str
    points: Points
    style: int
    end_label: str = ""


@dataclass(frozen=True)
class MapRow:
    """One client of a map: its id, whether it attacks, and the text shown when a pointer rests on it."""

    client: int
    attacker: bool
    title: str
    domain: int | None = None


def line_chart(series: Sequence[Series], *, title: str, y_label: str, y_max: float = 100.0, height: int = 214) -> str:
    """Lines over rounds with a y axis from 0 to ``y_max``; breaks nowhere, markers at the ends."""
    left, right, top, bottom = 34.0, 26.0 if any(s.end_label for s in series) else 13.0, 24.0, 32.0
    x_max = max((x for s in series for x, _ in s.points), default=1.0) or 1.0
    plot_w, plot_h = WIDTH - left - right, height - top - bottom

    def at(x: float, y: float) -> tuple[float, float]:
        return left + plot_w * x / x_max, top + plot_h * (1.0 - min(max(y, 0.0), y_max) / y_max)

    parts = []
    for tick in ticks(y_max):
        y = at(0, tick)[1]
        parts.append(f'<path class="grid" d="M{left:g} {_n(y)}H{WIDTH - right:g}"/>')
        parts.append(_text(left - 5, y + 4, f"{tick:g}", "end"))
    for tick in ticks(x_max, integer=True):
        parts.append(_text(at(tick, 0)[0], height - bottom + 15, f"{tick:g}", "middle"))
    parts.append(_text(left - 28, 11, y_label, "start", "axis"))
    parts.append(_text(left + plot_w / 2, height - 3, "round", "middle", "axis"))
    for s in series:
        if s.points:
            parts.append(_line([at(x, y) for x, y in s.points], s.style))
    ends = [(s, at(*s.points[-1])) for s in series if s.points and s.end_label]
    for (s, (x, _)), y in zip(ends, spread([y for _, (_, y) in ends], 13.0, top, top + plot_h), strict=True):
        parts.append(_text(x + 7, y + 4, s.end_label, "start", f"f{s.style % PALETTE_SIZE} bold"))
    return _svg(parts, height, title)


def legend_swatch(style: int) -> str:
    """The line and marker of ``style``, for a legend."""
    body = _line([(1.0, 6.0), (25.0, 6.0)], style)
    return f'<svg class="swatch" viewBox="0 0 30 12" width="30" height="12" aria-hidden="true">{body}</svg>'


def weight_map(
    rows: Sequence[MapRow], weights: npt.NDArray[np.float64], rounds: Sequence[int], *, name: str, title: str
) -> str:
    """Trust weights, one row a client (as ordered in ``rows``), one column a round; strong color is heavy.

    ``weights`` is (clients, rounds), the rows in the order of ``rows``; NaN shows as empty. The scale ends at three
    times the equal share whatever the data, so that maps of different methods compare; heavier weights saturate.
    """
    if weights.shape != (len(rows), len(rounds)):
        raise UsageError(f"weights are {weights.shape} for {len(rows)} clients and {len(rounds)} rounds")
    fair = 1.0 / max(len(rows), 1)
    peak = min(1.0, 3.0 * fair)
    gray = np.round(255.0 * np.clip(np.nan_to_num(weights) / peak, 0.0, 1.0)).astype(np.uint8)
    frame = _Frame.of(rows, rounds, left=44.0, right=6.0)
    body = [frame.backdrop(), _masked_image(gray, frame, name), *frame.labels(rows), *frame.attackers(rows)]
    body += [*frame.x_axis(rounds), *frame.titles(rows)]
    body += _scale_bar(frame.bottom + 37, peak, fair)
    return _svg(body, frame.bottom + 66, title)


def cluster_map(rows: Sequence[MapRow], clusters: npt.NDArray[np.int64], rounds: Sequence[int], *, title: str) -> str:
    """Which cluster each client claims, one row a client, one column a round.

    Lines part the true domains; the right margin names the cluster that most honest clients of a domain claimed last.
    """
    if clusters.shape != (len(rows), len(rounds)):
        raise UsageError(f"clusters are {clusters.shape} for {len(rows)} clients and {len(rounds)} rounds")
    frame = _Frame.of(rows, rounds, left=62.0, right=26.0)
    paths: dict[int, list[str]] = {}
    digits = []
    for i, claimed in enumerate(clusters):
        y = frame.y(i)
        for start, stop in runs(claimed.tolist()):
            cluster, x, wide = int(claimed[start]), frame.x(start), frame.column * (stop - start)
            paths.setdefault(cluster, []).append(f"M{_n(x)} {_n(y)}h{_n(wide)}v{_n(frame.row)}h-{_n(wide)}z")
            if wide >= 14.0 and frame.row >= 9.0:
                digits.append(_text(x + 4, y + frame.row / 2 + 3.5, str(cluster), "start", "cell"))
    body = [frame.backdrop()]
    body += [f'<path class="b{c % PALETTE_SIZE}" d="{"".join(d)}"/>' for c, d in sorted(paths.items())]
    for start, stop in domain_groups(rows):
        honest = [i for i in range(start, stop) if not rows[i].attacker]
        if honest and rounds:
            most = int(np.argmax(np.bincount(clusters[honest, -1])))
            middle = (frame.y(start) + frame.y(stop)) / 2 + 4
            body.append(_text(WIDTH - 23, middle, f"C{most}", "start", f"f{most % PALETTE_SIZE} bold"))
    body += [*digits, *frame.domain_gaps(rows), *frame.labels(rows, grouped=True)]
    body += [*frame.x_axis(rounds), *frame.titles(rows)]
    return _svg(body, frame.bottom + 33, title)


def confusion_matrix(counts: Sequence[Sequence[float]], *, name: str, title: str) -> str:
    """True class down, predicted class across; each row in percent of its true class."""
    matrix = np.asarray(counts, dtype=np.float64)
    total = matrix.sum(axis=1, keepdims=True)
    shares = np.divide(matrix, total, out=np.zeros_like(matrix), where=total > 0)
    classes = len(matrix)
    frame = _Frame(
        left=30.0, top=24.0, column=(WIDTH - 36.0) / classes, row=(WIDTH - 36.0) / classes, shape=matrix.shape
    )
    body = [frame.backdrop()]
    if frame.column >= 17.0:
        for (i, j), share in np.ndenumerate(shares):
            if share >= 0.005:
                x, y = frame.x(j), frame.y(i)
                box = f'x="{_n(x)}" y="{_n(y)}" width="{_n(frame.column)}" height="{_n(frame.row)}"'
                body.append(f'<rect class="heat" fill-opacity="{_n(share)}" {box}/>')
                ink = "on" if share > 0.55 else "off"
                middle = x + frame.column / 2, y + frame.row / 2 + 4
                body.append(_text(*middle, f"{100 * share:.0f}", "middle", f"cell {ink}"))
    else:
        body.append(_masked_image(np.round(255 * shares).astype(np.uint8), frame, name))
    step = max(1, -(-classes // 10))
    for k in range(0, classes, step):
        body.append(_text(frame.left - 5, frame.y(k) + frame.row / 2 + 4, str(k), "end"))
        body.append(_text(frame.x(k) + frame.column / 2, frame.bottom + 13, str(k), "middle"))
    body.append(_text(2, 14, "true class ↓", "start", "axis"))
    body.append(_text(WIDTH - 6, frame.bottom + 29, "predicted class →", "end", "axis"))
    return _svg(body, frame.bottom + 34, title)


def stacked_bar(parts: Mapping[str, float], total: float) -> str:
    """One horizontal bar: each part's width is its share of ``total``, hatched or plain in turn."""
    x, body = 0.0, []
    for i, (name, value) in enumerate(parts.items()):
        wide = WIDTH * value / total if total > 0 else 0.0
        box = f'x="{_n(x)}" width="{_n(wide)}" height="16"'
        body.append(f'<rect class="b{i % PALETTE_SIZE}" {box}><title>{escape(name)}</title></rect>')
        if i % 2:
            body.append(f'<rect fill="url(#hatch)" {box}/>')
        x += wide
    return (
        f'<svg class="bar" viewBox="0 0 {WIDTH} 16" preserveAspectRatio="none" aria-hidden="true">{"".join(body)}</svg>'
    )


def ticks(top: float, *, integer: bool = False) -> list[float]:
    """Round tick values from 0 to at most ``top``: four to six of them (fewer for a short integer axis)."""
    if top <= 0:
        return [0.0]
    raw = top / 5.0
    power = 10.0 ** np.floor(np.log10(raw))
    step = float(next(m * power for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * power >= raw * (1 - 1e-9)))
    if integer:
        step = max(1.0, round(step))
    return [step * k for k in range(int(top / step * (1 + 1e-9)) + 1)]


def runs(values: Sequence[int]) -> list[tuple[int, int]]:
    """Maximal stretches of equal values as (start, stop)."""
    edges = [0, *(i for i in range(1, len(values)) if values[i] != values[i - 1]), len(values)]
    return [(a, b) for a, b in pairwise(edges) if b > a]


def domain_groups(rows: Sequence[MapRow]) -> list[tuple[int, int]]:
    """Stretches of rows with the same true domain (one stretch where it is unknown)."""
    return runs([-1 if row.domain is None else row.domain for row in rows])


def spread(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """``positions`` moved as little as a single sweep allows so that neighbors are ``gap`` apart, inside the range."""
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    gap = min(gap, (high - low) / max(len(positions) - 1, 1))
    out = list(positions)
    floor = low
    for i in order:
        out[i] = max(out[i], floor)
        floor = out[i] + gap
    ceiling = high
    for i in reversed(order):
        out[i] = min(out[i], ceiling)
        ceiling = out[i] - gap
    return out


@dataclass(frozen=True)
class _Frame:
    """Where the columns and rows of a map lie on the canvas."""

    left: float
    top: float
    column: float
    row: float
    shape: tuple[int, ...]

    @classmethod
    def of(cls, rows: Sequence[MapRow], rounds: Sequence[int], *, left: float, right: float) -> _Frame:
        row = min(13.0, max(2.0, 260.0 / max(len(rows), 1)))
        column = (WIDTH - left - right) / max(len(rounds), 1)
        return cls(left, 18.0, column, row, (len(rows), len(rounds)))

    @property
    def bottom(self) -> float:
        return self.y(self.shape[0])

    @property
    def width(self) -> float:
        return self.column * self.shape[1]

    def x(self, column: int) -> float:
        return self.left + self.column * column

    def y(self, row: int) -> float:
        return self.top + self.row * row

    def backdrop(self) -> str:
        high = self.row * self.shape[0]
        return (
            f'<rect class="plot" x="{_n(self.left)}" y="{_n(self.top)}" width="{_n(self.width)}" height="{_n(high)}"/>'
        )

    def labels(self, rows: Sequence[MapRow], *, grouped: bool = False) -> list[str]:
        """Client ids left of the rows, a triangle before attackers.

        Where rows are thin only every k-th id is written, and none under a grouping by domain, where they would
        run into the lines.
        """
        step = max(1, int(np.ceil(12.0 / self.row)))
        written = step == 1 or not grouped
        out = []
        for i, row in enumerate(rows):
            middle = self.y(i) + self.row / 2
            if written and i % step == step // 2:
                out.append(_text(self.left - 12, middle + 3.5, str(row.client), "end", "small"))
            if row.attacker:
                size = min(4.0, self.row / 2)
                x = self.left - 6
                shape = f"M{_n(x - size)} {_n(middle + size * 0.8)}h{_n(2 * size)}l-{_n(size)}-{_n(size * 1.6)}z"
                out.append(f'<path class="attacker" d="{shape}"/>')
        return [_text(2, 11, "client" if written else "", "start", "axis"), *out]

    def attackers(self, rows: Sequence[MapRow]) -> list[str]:
        """A hatched strip beside the attackers, who come first, and a line under the last of them."""
        count = sum(row.attacker for row in rows)
        if not count:
            return []
        y, high = self.top, self.row * count
        strip = f'<rect class="strip" x="1" y="{_n(y)}" width="7" height="{_n(high)}"/>'
        hatch = f'<rect fill="url(#hatch)" x="1" y="{_n(y)}" width="7" height="{_n(high)}"/>'
        line = f'<path class="divider" d="M1 {_n(y + high)}H{_n(self.left + self.width)}"/>'
        return [strip, hatch, line, _text(self.left, 11, "▲ attackers first", "start", "warn")]

    def domain_gaps(self, rows: Sequence[MapRow]) -> list[str]:
        """A line between true domains and each domain's number, turned into a bracket on the left."""
        out = [_text(self.left, 11, "rows grouped by true domain", "start", "axis")]
        for start, stop in domain_groups(rows):
            domain, y = rows[start].domain, self.y(start)
            if domain is None:
                continue
            high = self.row * (stop - start)
            out.append(f'<rect class="bracket" x="1" y="{_n(y + 1.5)}" width="22" height="{_n(high - 3)}" rx="3"/>')
            out.append(_text(12, y + high / 2 + 4, f"D{domain}", "middle", "small bold"))
            if start:
                out.append(f'<path class="divider" d="M1 {_n(y)}H{_n(self.left + self.width)}"/>')
        return out

    def x_axis(self, rounds: Sequence[int]) -> list[str]:
        """Round numbers below the columns (round values, as many as fit) and what they are."""
        right = self.left + self.width
        step = max(1.0, 32.0 * (rounds[-1] - rounds[0] + 1) / max(self.width, 1.0)) if rounds else 1.0
        nice = next(k * 10**p for p in range(12) for k in (1, 2, 5) if k * 10**p >= step)
        out, free = [], 0.0  # free: where the next label may start
        for i, round_id in enumerate(rounds):
            if i and round_id % nice:
                continue
            half = 3.6 * len(str(round_id))
            x = min(self.x(i) + self.column / 2, right + 4.0 - half)
            if x - half >= free:
                out.append(_text(x, self.bottom + 13, str(round_id), "middle"))
                free = x + half + 6.0
        return [*out, _text(self.left + self.width / 2, self.bottom + 28, "round", "middle", "axis")]

    def titles(self, rows: Sequence[MapRow]) -> list[str]:
        """Invisible rectangles that carry what a row says when a pointer rests on it (rows high enough to hit)."""
        if self.row < 6.0:
            return []
        box = f'x="{_n(self.left)}" width="{_n(self.width)}" height="{_n(self.row)}"'
        return [
            f'<rect class="tip" {box} y="{_n(self.y(i))}"><title>{escape(row.title)}</title></rect>'
            for i, row in enumerate(rows)
        ]


def _scale_bar(y: float, peak: float, fair: float) -> list[str]:
    """What the strength of a weight map's color means, with the fair share 1/n marked."""
    x, wide = 44.0, 150.0
    at = x + wide * fair / peak
    more = "" if peak >= 1.0 else " or more"
    return [
        f'<rect class="outline" fill="url(#scale)" x="{_n(x)}" y="{_n(y)}" width="{_n(wide)}" height="8"/>',
        _text(x - 4, y + 8, "0", "end"),
        _text(x + wide + 5, y + 8, f"{100 * peak:.3g} %{more}", "start"),
        f'<path class="tick" d="M{_n(at)} {_n(y - 2)}v12"/>',
        _text(at, y + 23, f"equal share {100 * fair:.3g} %", "middle"),
    ]


def _masked_image(gray: npt.NDArray[np.uint8], frame: _Frame, name: str) -> str:
    """``gray`` stretched over the frame as the opacity of the heat color. ``name`` is unique on the page."""
    buffer = io.BytesIO()
    Image.fromarray(gray).save(buffer, "PNG", optimize=True)
    data = base64.b64encode(buffer.getvalue()).decode()
    box = (
        f'x="{_n(frame.left)}" y="{_n(frame.top)}" width="{_n(frame.width)}" height="{_n(frame.row * frame.shape[0])}"'
    )
    image = f'<image {box} preserveAspectRatio="none" class="pixels" href="data:image/png;base64,{data}"/>'
    mask = escape(f"mask-{name}", quote=True)
    return f'<mask id="{mask}">{image}</mask><rect class="heat" {box} mask="url(#{mask})"/>'


def _line(points: Points, style: int) -> str:
    color = style % PALETTE_SIZE
    path = "L".join(f"{_n(x)} {_n(y)}" for x, y in points)
    dash = DASHES[style % len(DASHES)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<path class="line s{color}" d="M{path}"{dashed}/>' + _marker(*points[-1], style)


def _marker(x: float, y: float, style: int) -> str:
    """Circle, square, triangle, diamond in turn."""
    shape = (
        f"M{_n(x - 3.5)} {_n(y)}a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0z",
        f"M{_n(x - 3.2)} {_n(y - 3.2)}h6.4v6.4h-6.4z",
        f"M{_n(x - 4)} {_n(y + 3.2)}h8l-4-7z",
        f"M{_n(x - 4.2)} {_n(y)}l4.2-4.2l4.2 4.2l-4.2 4.2z",
    )[style % 4]
    return f'<path class="f{style % PALETTE_SIZE}" d="{shape}"/>'


def _text(x: float, y: float, text: str, anchor: str, style: str = "") -> str:
    kind = f' class="{style}"' if style else ""
    return f'<text x="{_n(x)}" y="{_n(y)}" text-anchor="{anchor}"{kind}>{escape(text)}</text>'


def _svg(parts: Sequence[str], height: float, title: str) -> str:
    label = escape(title, quote=True)
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {_n(height)}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
    )


def _n(value: float) -> str:
    """A coordinate with at most two decimals and no trailing zeros."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
