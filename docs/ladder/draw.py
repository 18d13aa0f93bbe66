"""Draw the figures of docs/ladder.md from the kernels' own configs and the committed results.

    python docs/ladder/draw.py                 # needs matplotlib: pip install 'dxgemm[docs]'
    python docs/ladder/draw.py --out /tmp/figures

One SVG a rung, `<name>.svg`, and the rooflines, `roofline_<dtype>.svg`.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import model
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, PathPatch, Rectangle
from matplotlib.path import Path as Outline
from measured import Measured, kernel_file, load_measured

import dxgemm
from dxgemm.handwritten.parts import tiles

FOLDER = Path(__file__).resolve().parent
WARP = 32
BANKS = 32
BANK_BYTES = 4
# On white, so that they read on dark pages too. Thread 0, its warp, the rest of the block.
THREAD, THE_WARP, BLOCK, LINE = "#d1495b", "#f3c677", "#dfe7ee", "#5b6770"
COPY, READ, MULTIPLY = "#7aa6c2", "#f3c677", "#8fb996"

Elements = list[tuple[int, int]]  # (row, column)


def style() -> None:
    matplotlib.rcParams.update(
        {
            "svg.fonttype": "none",  # text stays text
            "svg.hashsalt": "ladder",  # the same input gives the same file
            "figure.facecolor": "white",
            "font.size": 9,
            "font.family": "sans-serif",
            "axes.edgecolor": LINE,
            "axes.labelcolor": LINE,
            "text.color": "#2b3137",
            "xtick.color": LINE,
            "ytick.color": LINE,
        }
    )


# Which elements of a block's tile a thread computes, by rung: the kernels' "where am I".


def one_down_rows(config: Any, thread: int) -> Elements:
    return [(thread % config.tile_m, thread // config.tile_m)]


def one_along_columns(config: Any, thread: int) -> Elements:
    return [(thread // config.tile_n, thread % config.tile_n)]


def adjacent(config: Any, thread: int) -> Elements:
    rows, cols = model.tiles_of(config).reader
    threads_n = config.tile_n // cols
    row, col = thread // threads_n * rows, thread % threads_n * cols
    return [(row + i, col + j) for i in range(rows) for j in range(cols)]


def spread(config: Any, thread: int) -> Elements:
    """thread_m x thread_n elements, all one thread's width apart."""
    threads_m, threads_n = config.tile_m // config.thread_m, config.tile_n // config.thread_n
    row, col = thread // threads_n, thread % threads_n
    return [
        (row + i * threads_m, col + j * threads_n)
        for i in range(config.thread_m)
        for j in range(config.thread_n)
    ]


def split_vectors(config: Any, thread: int, width: int = 4) -> Elements:
    """Vectors of 16 bytes, neighbours of which belong to neighbouring threads."""
    threads_m, threads_n = config.tile_m // config.thread_m, config.tile_n // config.thread_n
    row, col = thread // threads_n * width, thread % threads_n * width
    return vectors(config, row, col, threads_m * width, threads_n * width, width)


def in_warp_tiles(config: Any, thread: int, width: int = 4) -> Elements:
    """The same within a warp's tile."""
    lanes_m, lanes_n = model.lanes_of(config)
    warp, lane = divmod(thread, WARP)
    warps_n = config.tile_n // config.warp_n
    row = warp // warps_n * config.warp_m + lane // lanes_n * width
    col = warp % warps_n * config.warp_n + lane % lanes_n * width
    return vectors(config, row, col, lanes_m * width, lanes_n * width, width)


def vectors(
    config: Any, row: int, col: int, row_group: int, col_group: int, width: int
) -> Elements:
    return [
        (row + i // width * row_group + i % width, col + j // width * col_group + j % width)
        for i in range(config.thread_m)
        for j in range(config.thread_n)
    ]


def rectangles(mask: np.ndarray) -> Iterator[tuple[int, int, int, int]]:
    """(row, column, height, width) of rectangles that cover a mask."""
    left = mask.copy()
    for row, col in np.argwhere(mask):
        if not left[row, col]:
            continue
        width = 1
        while col + width < left.shape[1] and left[row, col + width]:
            width += 1
        height = 1
        while row + height < left.shape[0] and left[row + height, col : col + width].all():
            height += 1
        left[row : row + height, col : col + width] = False
        yield int(row), int(col), height, width


def fill(axes: Axes, mask: np.ndarray, color: str) -> None:
    edge = 1.0 if color == THREAD else 0.0  # single elements of a large tile would vanish
    for row, col, height, width in rectangles(mask):
        axes.add_patch(Rectangle((col, row), width, height, color=color, linewidth=edge))


def box(axes: Axes, x: float, y: float, width: float, height: float, color: str = "none") -> None:
    axes.add_patch(Rectangle((x, y), width, height, facecolor=color, edgecolor=LINE, linewidth=0.8))


def label(axes: Axes, x: float, y: float, text: str, **options: Any) -> None:
    axes.text(x, y, text, **{"ha": "center", "va": "center", "fontsize": 8, **options})


def draw_ownership(
    axes: Axes, config: Any, owner: Callable[[Any, int], Elements], depth: int, title: str
) -> None:
    """A block's tile of the result, with its rows of a to the left and columns of b above.

    Thread 0 and the warp it belongs to are marked, with what they read at one k.
    """
    rows, cols = config.tile_m, config.tile_n
    gap = max(rows, cols) * 0.08
    shown = max(depth, max(rows, cols) // 10)
    thread, warp = (np.zeros((rows, cols), bool) for _ in range(2))
    for lane in range(WARP):
        for row, col in owner(config, lane):
            warp[row, col] = True
    for row, col in owner(config, 0):
        thread[row, col] = True
    a_x, b_y = -gap - shown, -gap - shown
    box(axes, 0, 0, cols, rows, BLOCK)
    box(axes, a_x, 0, shown, rows, BLOCK)
    box(axes, 0, b_y, cols, shown, BLOCK)
    step = max(shown / depth, shown / 6)  # one k
    for mask, color in ((warp, THE_WARP), (thread, THREAD)):
        fill(axes, mask, color)
        for row, _, height, _ in rectangles(mask.any(axis=1)[:, None]):
            axes.add_patch(Rectangle((a_x, row), step, height, color=color, linewidth=0))
        for _, col, _, width in rectangles(mask.any(axis=0)[None, :]):
            axes.add_patch(Rectangle((col, b_y), width, step, color=color, linewidth=0))
    for x, y, width, height in ((0, 0, cols, rows), (a_x, 0, shown, rows), (0, b_y, cols, shown)):
        box(axes, x, y, width, height)
    label(axes, cols / 2, rows + gap, f"tile of the result, {rows} x {cols}", va="top")
    where = f"{depth} k of" if depth > 1 else "one k of"
    label(axes, a_x - gap, rows / 2, f"{where} a", rotation=90)
    label(axes, cols + gap / 2, b_y + shown / 2, f"{where} b", ha="left")
    axes.set_xlim(a_x - 2 * gap, cols * 1.3)
    axes.set_ylim(rows + 3.2 * gap, b_y - gap)
    axes.set_aspect("equal")
    axes.axis("off")
    axes.set_title(title, fontsize=9)


def legend(axes: Axes, *entries: tuple[str, str]) -> None:
    handles = [Rectangle((0, 0), 1, 1, color=color) for color, _ in entries]
    axes.legend(
        handles,
        [text for _, text in entries],
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        ncols=len(entries),
        frameon=False,
        fontsize=8,
        handlelength=1.2,
    )


def ownership_figure(
    owner: Callable[[Any, int], Elements], detail: Callable[[Axes, str, Any], None] | None = None
) -> Callable[[str], Figure]:
    """A figure that shows who computes what, and a detail beside it."""

    def draw(name: str) -> Figure:
        config = kernel_file(name).KERNEL.configs[0]
        figure, axes = plt.subplots(1, 2 if detail else 1, figsize=(8 if detail else 4.4, 3.9))
        first = axes[0] if detail else axes
        draw_ownership(first, config, owner, model.depth_of(config), f"{name} {config}, float32")
        legend(first, (THREAD, "thread 0"), (THE_WARP, "its warp"), (BLOCK, "the block"))
        if detail:
            detail(axes[1], name, config)
        return figure

    return draw


def warp_requests(axes: Axes, name: str, config: Any) -> None:
    """Addresses of one load of a and of b by a warp: rows of memory of 128 bytes."""
    owner = one_down_rows if name == "naive" else one_along_columns
    places = [owner(config, lane)[0] for lane in range(WARP)]
    rows, cols = {row for row, _ in places}, {col for _, col in places}
    axes.set_title("one load of a warp, in lines of 128 bytes", fontsize=9)
    for column, (text, lines, lanes) in enumerate(
        (
            ("a", len(rows), WARP // len(rows)),
            ("b", 1, WARP if len(cols) == 1 else 1),
        )
    ):
        x = column * 54
        for line in range(lines):
            box(axes, x, line * 1.25, 32, 1, BLOCK)
            width = 1 if (text == "a" or len(cols) == 1) else 32
            axes.add_patch(
                Rectangle((x, line * 1.25), width, 1, color=THREAD if width == 1 else THE_WARP)
            )
        shared = f"{lanes} lanes want each word" if lanes > 1 else "each lane, a word of its own"
        lines_text = f"{lines} line{'s' if lines > 1 else ''}"
        label(axes, x + 16, -2.2, f"{text}: {lines_text}\n{shared}", fontsize=7)
    axes.set_xlim(-6, 92)
    axes.set_ylim(42, -5)
    axes.axis("off")


def tile_walk(axes: Axes, name: str, config: Any) -> None:
    """The block walks along k: one tile of a and of b in shared memory at a time."""
    axes.set_title("along k, one tile in shared memory at a time", fontsize=9)
    steps = 5
    for step in range(steps):
        shade = THE_WARP if step == 2 else BLOCK
        box(axes, step * 2, 3, 2, 4, shade)
        box(axes, 11.5, -9 + step * 2, 4, 2, shade)
    box(axes, 11.5, 3, 4, 4, MULTIPLY)
    label(axes, 5, 8, f"a: {config.tile_m} rows, {model.depth_of(config)} k at a time")
    label(axes, 13.5, -10, f"b: {config.tile_n} columns")
    label(axes, 13.5, 5, "result")
    uses = f"each element of a is used {config.tile_n} times,\neach of b {config.tile_m} times"
    label(axes, 4, -4, uses)
    axes.set_xlim(-1, 17)
    axes.set_ylim(9.5, -11)
    axes.set_aspect("equal")
    axes.axis("off")


def register_reuse(axes: Axes, name: str, config: Any) -> None:
    """One k of a thread: its column of a times its row of b."""
    rows, cols = model.tiles_of(config).reader
    axes.set_title("one thread, one k: reads against multiplications", fontsize=9)
    for i in range(rows):
        box(axes, -2, i, 1, 1, COPY)
        for j in range(cols):
            box(axes, j, i, 1, 1, MULTIPLY)
    for j in range(cols):
        box(axes, j, -2, 1, 1, COPY)
    text = f"{rows + cols} elements read,\n{rows * cols} multiply-adds"
    label(axes, cols / 2, rows + 1.2, text)
    label(axes, -1.5, -0.6, "a")
    label(axes, cols + 0.6, -1.5, "b")
    span = max(rows, cols, 6)
    axes.set_xlim(cols / 2 - span, cols / 2 + span)
    axes.set_ylim(rows + 2.5, -3.5)
    axes.set_aspect("equal")
    axes.axis("off")


def vector_reads(axes: Axes, name: str, config: Any) -> None:
    """Reads of one thread for one k: scalar loads against vectors of 16 bytes."""
    rows, cols = config.thread_m, config.thread_n
    axes.set_title("one thread, one k: instructions that read", fontsize=9)
    for line, (text, width) in enumerate((("4 bytes each", 1), ("16 bytes each", 4))):
        y = line * 5
        x = 0.0
        for count, color in ((rows, COPY), (cols, READ)):
            for _ in range(count // width):
                box(axes, x, y, width - 0.15, 1.2, color)
                if width > 1:
                    for element in range(1, width):
                        axes.plot([x + element] * 2, [y, y + 1.2], color=LINE, linewidth=0.4)
                x += width
            x += 0.8
        loads = rows // width + cols // width
        label(axes, (rows + cols) / 2, y + 2.2, f"{text}: {loads} instructions")
    label(axes, rows / 2, -1, f"{rows} of a")
    label(axes, rows + 0.8 + cols / 2, -1, f"{cols} of b")
    axes.set_xlim(-1, rows + cols + 2)
    axes.set_ylim(9, -2.5)
    axes.axis("off")


def bank_conflicts(axes: Axes, name: str, config: Any) -> None:
    """Hits of each bank when a warp stores one element of each of its units of a."""
    axes.set_title("a warp stores a row-major a, transposed: hits a bank", fontsize=9)
    layouts = {
        "plain": tiles.plain_layout(config.tile_m),
        "padded": tiles.padded_layout(config.tile_m, "float32"),
        "swizzled": tiles.swizzled_layout(config.tile_m, config.tile_k, "float32"),
    }
    width = 4
    units = config.tile_k // width
    for line, (text, layout) in enumerate(layouts.items()):
        hits: Counter[int] = Counter()
        for lane in range(WARP):
            outer, k = lane // units, lane % units * width
            column = outer ^ (k // width % layout.groups * layout.xor) if layout.xor else outer
            hits[(k * layout.row + column) % BANKS] += 1
        worst = max(hits.values())
        for bank in range(BANKS):
            for hit in range(hits[bank]):
                box(axes, bank, line * 7 - hit, 0.9, 0.9, THREAD if worst > 1 else MULTIPLY)
        passes = f"{worst} passes" if worst > 1 else "1 pass"
        label(axes, 16, line * 7 + 1.9, f"{text}: {len(hits)} of 32 banks, {passes}")
        axes.plot([0, BANKS], [line * 7 + 1] * 2, color=LINE, linewidth=0.6)
    axes.set_xlim(-1, 33)
    axes.set_ylim(18, -5)
    axes.axis("off")


def warp_shapes(axes: Axes, name: str, config: Any) -> None:
    """Reads of a warp for one k, with its threads in a strip and in a small matrix."""
    lanes_m, lanes_n = model.lanes_of(config)
    rows, cols = config.thread_m, config.thread_n
    strip_n = min(WARP, config.tile_n // cols)
    axes.set_title("what a warp reads for each k", fontsize=9)
    y = 0.0
    for text, shape in (
        ("in a strip", (WARP // strip_n, strip_n)),
        ("as a small matrix", (lanes_m, lanes_n)),
    ):
        height, width = shape[0] * rows, shape[1] * cols
        box(axes, 0, y, width, height, THE_WARP)
        axes.add_patch(Rectangle((-14, y), 6, height, color=COPY))
        axes.add_patch(Rectangle((0, y - 14), width, 6, color=COPY))
        elements = height + width
        label(
            axes,
            max(width, 64) + 8,
            y + height / 2,
            f"{text}: {shape[0]} x {shape[1]} threads\n{height} + {width} = {elements} elements",
            ha="left",
        )
        y += height + 40
    axes.set_xlim(-20, 270)
    axes.set_ylim(y, -24)
    axes.set_aspect("equal")
    axes.axis("off")


def draw_timeline(
    axes: Axes, lanes: list[tuple[str, list[tuple[float, float, str, str]]]], title: str
) -> None:
    """Lanes of (start, duration, colour, text) boxes over time."""
    end = max(start + duration for _, boxes in lanes for start, duration, _, _ in boxes)
    for y, (name, boxes) in enumerate(lanes):
        label(axes, -0.3, y + 0.4, name, ha="right")
        for start, duration, color, text in boxes:
            box(axes, start, y, duration, 0.8, color)
            label(axes, start + duration / 2, y + 0.4, text, fontsize=7)
    axes.annotate(
        "", (end + 0.4, len(lanes) + 0.3), (0, len(lanes) + 0.3), arrowprops={"arrowstyle": "->"}
    )
    label(axes, end, len(lanes) + 0.65, "time", fontsize=7)
    axes.set_xlim(-4.2, end + 0.6)
    axes.set_ylim(len(lanes) + 1, -0.4)
    axes.axis("off")
    axes.set_title(title, fontsize=9)


def double_buffer(name: str) -> Figure:
    """One buffer against two, with the next tile in registers on its way."""
    config = kernel_file(name).KERNEL.configs[0]
    figure, (before, after) = plt.subplots(2, 1, figsize=(8, 3.6))
    load, store, compute = 1.6, 0.8, 2.0
    single: list[tuple[float, float, str, str]] = []
    multiply: list[tuple[float, float, str, str]] = []
    time = 0.0
    for tile in range(3):
        single += [(time, load, COPY, f"load {tile}"), (time + load, store, READ, "store")]
        multiply.append((time + load + store, compute, MULTIPLY, f"multiply {tile}"))
        time += load + store + compute
    draw_timeline(
        before, [("global to shared", single), ("arithmetic", multiply)], "one buffer: in turn"
    )
    loads = [(0.0, load, COPY, "load 0")]
    stores = [(load, store, READ, "store 0")]
    multiplies = []
    time = load + store
    for tile in range(4):
        multiplies.append((time, compute, MULTIPLY, f"multiply {tile}"))
        if tile < 3:
            loads.append((time, load, COPY, f"load {tile + 1}"))
            stores.append((time + compute, store, READ, f"store {tile + 1}"))
        time += compute + store
    draw_timeline(
        after,
        [
            ("global to registers", loads),
            ("registers to shared", stores),
            ("arithmetic", multiplies),
        ],
        f"two buffers, {config}: the next tile travels while this one is multiplied",
    )
    return figure


def async_copy(name: str) -> Figure:
    """A ring of stages: cp.async fills those behind the one that is multiplied."""
    config = kernel_file(name).KERNEL.configs[0]
    stages = config.stages
    figure, axes = plt.subplots(figsize=(8, 0.6 * stages + 1.4))
    lanes = []
    for stage in range(stages):
        boxes = []
        for tile in range(stage, 2 * stages + 2, stages):
            # The copy overwrites what was multiplied one step before it starts.
            start = 0.12 * tile if tile < stages - 1 else float(tile - stages + 2)
            ready = float(tile + 1)
            boxes.append((start, ready - start - 0.03, COPY, f"copy {tile}"))
            boxes.append((ready, 0.97, MULTIPLY, f"use {tile}"))
        lanes.append((f"stage {stage}", boxes))
    draw_timeline(
        axes, lanes, f"{stages} stages of shared memory, {config}: copies go past the registers"
    )
    return figure


def ping_pong(name: str) -> Figure:
    """Fragments of the next k are read while those of this one are multiplied."""
    config = kernel_file(name).KERNEL.configs[0]
    figure, axes = plt.subplots(figsize=(8, 2.4))
    reads, multiplies = ([], []), []
    for k in range(6):
        reads[k % 2].append((float(k), 0.95, READ, f"read {'next 0' if k == 4 else k % 4}"))
        if k:
            text = f"multiply {(k - 1) % 4}" if k < 5 else "multiply 0"
            multiplies.append((float(k), 0.95, MULTIPLY, text))
    draw_timeline(
        axes,
        [
            ("fragments, even k", reads[0]),
            ("fragments, odd k", reads[1]),
            ("arithmetic", multiplies),
        ],
        f"two sets of fragments in registers, {config}: across the border of tiles too",
    )
    return figure


def tuned(name: str) -> Figure:
    """The thread tile, and the order in which blocks take tiles of the result."""
    file = kernel_file(name)
    config = file.KERNEL.configs[0]
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.9))
    draw_ownership(left, config, in_warp_tiles, model.depth_of(config), f"{name} {config}")
    legend(left, (THREAD, "thread 0"), (THE_WARP, "its warp"), (BLOCK, "the block"))
    group, tiles_m, tiles_n = file.SWIZZLE_ROWS, 16, 12
    wave = 40
    for index in range(tiles_m * tiles_n):
        first = index // (group * tiles_n)
        place = index - first * group * tiles_n
        row, col = first * group + place % group, place // group
        box(right, col, row, 1, 1, THE_WARP if index < wave else BLOCK)
        if index < 10 or index == wave - 1:
            label(right, col + 0.5, row + 0.5, str(index), fontsize=6)
    text = f"in groups of {group} rows: {wave} blocks need {group} rows of a\nand {wave // group}"
    label(right, tiles_n / 2, tiles_m + 1.2, f"{text} columns of b, not 4 and {tiles_n}")
    right.set_title("order of blocks over the result", fontsize=9)
    right.set_xlim(-1, tiles_n + 1)
    right.set_ylim(tiles_m + 2.4, -0.5)
    right.set_aspect("equal")
    right.axis("off")
    return figure


def tensor_core(name: str) -> Figure:
    """Lane of each element of mma.m16n8k8, by the PTX manual."""
    config = kernel_file(name).KERNEL.configs[0]
    figure, axes = plt.subplots(1, 3, figsize=(8, 3.1))
    # (columns of a label, lane of the element at row and column); rows 8 to 15 are as 0 to 7.
    grids: dict[str, tuple[int, Callable[[int, int], int]]] = {
        "a, 16 x 8: rows 0 to 7, 8 to 15 alike": (1, lambda row, k: row * 4 + k % 4),
        "b, 8 x 8": (1, lambda k, col: col * 4 + k % 4),
        "sums, 16 x 8: rows 0 to 7, 8 to 15 alike": (2, lambda row, col: row * 4 + col // 2),
    }
    for place, (title, (width, lane_of)) in zip(axes, grids.items(), strict=True):
        cells: dict[str, list[Outline]] = {}
        for row in range(8):
            for col in range(0, 8, width):
                lane = lane_of(row, col)
                color = THREAD if lane == 0 else THE_WARP if lane < 4 else BLOCK
                corners = [(col, row), (col + width, row), (col + width, row + 1), (col, row + 1)]
                cells.setdefault(color, []).append(Outline([*corners, corners[0]], closed=True))
                label(place, col + width / 2, row + 0.5, str(lane), fontsize=6)
        for color, paths in cells.items():  # one shape a colour keeps the file small
            shape = Outline.make_compound_path(*paths)
            place.add_patch(PathPatch(shape, facecolor=color, edgecolor=LINE, linewidth=0.8))
        place.set_title(title, fontsize=8)
        place.set_xlim(-0.2, 8.2)
        place.set_ylim(8.2, -0.2)
        place.set_aspect("equal")
        place.axis("off")
    figure.suptitle(f"mma.m16n8k8: the lane that holds each element; {name} {config}", fontsize=9)
    return figure


def wgmma(name: str) -> Figure:
    """Producer, ring of stages, consumers."""
    config = kernel_file(name).KERNEL.configs[0]
    figure, axes = plt.subplots(figsize=(8, 3.4))
    box(axes, 0, 1.2, 2.2, 1.4, COPY)
    label(axes, 1.1, 1.9, "producer:\none thread\nasks the TMA")
    for stage in range(config.stages):
        color = (MULTIPLY, READ, COPY, COPY)[min(stage, 3)]
        box(axes, 4 + stage * 1.5, 1.2, 1.35, 1.4, color)
        state = ("being read", "full")[stage] if stage < 2 else "being filled"
        label(axes, 4.68 + stage * 1.5, 1.9, f"stage {stage}\n{state}", fontsize=7)
    end = 4 + config.stages * 1.5
    for consumer in range(config.consumers):
        y = 0.3 + consumer * 2.2
        box(axes, end + 1.6, y, 3.6, 1, MULTIPLY)
        text = f"consumer {consumer}, 128 threads\nwgmma 64 x {config.tile_n}"
        label(axes, end + 3.4, y + 0.5, text, fontsize=7)
        axes.add_patch(arrow((end, 1.9), (end + 1.6, y + 0.5)))
    axes.add_patch(arrow((2.2, 1.9), (4, 1.9)))
    label(axes, 3.1, 1.55, '"full"', fontsize=7)
    axes.add_patch(arrow((end + 1.6, 3.4), (1.1, 2.6), "arc3,rad=-0.25"))
    label(axes, (end + 2) / 2, 4.35, 'barriers "empty": a stage may be filled again', fontsize=7)
    label(axes, 4 + config.stages * 0.75, 0.8, "a ring in shared memory, swizzled", fontsize=7)
    axes.set_xlim(-0.3, end + 5.4)
    axes.set_ylim(5, -0.2)
    axes.axis("off")
    axes.set_title(f"{name} {config}, {config.threads} threads", fontsize=9)
    return figure


def arrow(
    start: tuple[float, float], end: tuple[float, float], bend: str = "arc3"
) -> FancyArrowPatch:
    return FancyArrowPatch(
        start, end, arrowstyle="->", mutation_scale=10, color=LINE, connectionstyle=bend
    )


FIGURES: dict[str, Callable[[str], Figure]] = {
    "naive": ownership_figure(one_down_rows, warp_requests),
    "coalesced": ownership_figure(one_along_columns, warp_requests),
    "shared_tile": ownership_figure(one_along_columns, tile_walk),
    "thread_tile_1d": ownership_figure(adjacent, register_reuse),
    "thread_tile_2d": ownership_figure(spread, register_reuse),
    "vectorized": ownership_figure(adjacent, vector_reads),
    "conflict_free": ownership_figure(split_vectors, bank_conflicts),
    "warp_tile": ownership_figure(in_warp_tiles, warp_shapes),
    "double_buffer": double_buffer,
    "async_copy": async_copy,
    "ping_pong": ping_pong,
    "tuned": tuned,
    "tensor_core": tensor_core,
    "tensor_core_tf32": tensor_core,
    "wgmma": wgmma,
}


def roofline(kinds: tuple[str, ...], measured: list[Measured]) -> Figure:
    """Every rung's rate over its FLOP per byte of global memory; hollow, of shared memory."""
    figure, axes = plt.subplots(figsize=(8, 5.4))
    peaks = {
        f"{kind}, arithmetic units": model.PEAKS[kind] for kind in kinds if kind in model.PEAKS
    }
    halves = {"float16": "half precision", "bfloat16": "half precision"}
    peaks |= {
        f"{halves.get(kind, kind)}, tensor cores": model.TENSOR_PEAKS[kind]
        for kind in kinds
        if kind in model.TENSOR_PEAKS
    }
    top = max(peaks.values())
    x = np.logspace(-1.2 if top < 100 else 0.5, 3, 100)
    for text, rate in (
        (f"shared memory and L1, {model.SMEM_TBYTES_PER_S:.0f} TB/s", model.SMEM_TBYTES_PER_S),
        (f"device memory, {model.DRAM_TBYTES_PER_S} TB/s", model.DRAM_TBYTES_PER_S),
    ):
        axes.plot(x, np.minimum(x * rate, top), color=LINE, linewidth=1)
        start = 0.07 if top < 100 else 4
        axes.annotate(text, (start, start * rate * 1.15), fontsize=7, rotation=33, color=LINE)
    for text, peak in peaks.items():
        axes.axhline(peak, color=LINE, linewidth=1, linestyle="--")
        axes.annotate(f"{text}: {peak:g}", (x[0] * 1.1, peak * 1.05), fontsize=7, color=LINE)
    shown = sorted((p for p in measured if p.kind in kinds), key=lambda point: point.tflops)
    least = shown[0].tflops / 2.5
    label_y, spacing = 0.0, (2.4 * top / least) ** (1 / 36)
    for point in shown:
        x_global = model.global_intensity(point.config, point.kind)
        x_shared = model.shared_intensity(point.config, point.kind)
        if x_shared is not None:
            axes.plot([x_shared, x_global], [point.tflops] * 2, color=COPY, linewidth=0.7)
            axes.plot(x_shared, point.tflops, "o", mfc="white", mec=COPY, markersize=4)
        axes.plot(x_global, point.tflops, "o", color=THREAD, markersize=4)
        # Names stand in a column, a line apart.
        label_y = max(point.tflops, spacing * label_y)
        text = f"{point.rung} {point.name}" + (f" {point.kind}" if len(kinds) > 2 else "")
        axes.plot([x_global, 185], [point.tflops, label_y], color=LINE, linewidth=0.3)
        axes.annotate(text, (200, label_y), fontsize=6.5, va="center")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("FLOP per byte: filled, asked of global memory; hollow, of shared memory")
    axes.set_ylabel("TFLOP/s at m = n = k = 4096")
    axes.set_title(f"Roofline, {', '.join(kinds)}, NVIDIA H200", fontsize=9)
    axes.set_xlim(x[0], x[-1])
    axes.set_ylim(least, 2.4 * top)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure


ROOFLINES = {
    "roofline_float32": ("float32",),
    "roofline_float64": ("float64",),
    "roofline_reduced": ("tf32", "float16", "bfloat16"),
}


def draw_all(out: Path) -> list[Path]:
    """Draw every figure whose kernel is registered; returns the files."""
    style()
    out.mkdir(parents=True, exist_ok=True)
    measured = load_measured()
    figures: dict[str, Figure] = {}
    registered = {implementation.name for implementation in dxgemm.implementations()}
    for name, draw in FIGURES.items():
        if name in registered:
            figures[name] = draw(name)
    for name, kinds in ROOFLINES.items():
        if any(point.kind in kinds for point in measured):
            figures[name] = roofline(kinds, measured)
    paths = []
    for name, figure in figures.items():
        path = out / f"{name}.svg"
        figure.savefig(path, bbox_inches="tight", metadata={"Date": None, "Creator": None})
        plt.close(figure)
        paths.append(path)
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=FOLDER)
    for path in draw_all(parser.parse_args().out):
        print(path)


if __name__ == "__main__":
    matplotlib.use("svg")
    main()
