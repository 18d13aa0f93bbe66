"""Parts of an emulated float32 and their layout, for `decompose` and `emulated_float32`."""

from __future__ import annotations

from dataclasses import dataclass

from dxgemm.handwritten.parts.wgmma_ring import ROW_BYTES

ALIGNMENT_BYTES = 16  # of each row of parts, as TMA wants
PADDING = 256  # factors are padded to a multiple of so many, more than any tile has
WIDTH = 4  # elements that are split at a time
STATUS_ITEMS = 2  # numbers in the status of a block of `decompose`
UNFIT = 2**31 - 1  # weak elements of a line that cannot be split: more than any k has
LARGEST = 80  # a line can be split if its largest element is in [2**-80, 2**80)


@dataclass(frozen=True)
class Scheme:
    """A float32 as a sum of parts, the largest first, and the products of parts that are summed.

    Attributes:
        kind: kind of wgmma: "f16", "bf16" or "tf32".
        parts: number of parts of a float32.
        small_products: (part of a, part of b) besides (0, 0), the smallest first.
        shift: exponent of two by which the sum of small_products is too large.
    """

    kind: str
    parts: int
    small_products: tuple[tuple[int, int], ...]
    shift: int = 0

    @property
    def item_bytes(self) -> int:
        return 4 if self.kind == "tf32" else 2

    @property
    def stage_k(self) -> int:
        """k of a stage."""
        return ROW_BYTES // self.item_bytes

    @property
    def element(self) -> str:
        """Name of the parts' type in tensor maps."""
        return {"f16": "float16", "bf16": "bfloat16", "tf32": "tfloat32"}[self.kind]


_TWO_PARTS = ((0, 1), (1, 0))
_THREE_PARTS = ((0, 2), (1, 1), (2, 0), (0, 1), (1, 0))
SCHEMES = {
    "f16x3": Scheme("f16", 2, _TWO_PARTS, shift=12),
    "f16x3_one_sum": Scheme("f16", 2, _TWO_PARTS),
    "tf32x3": Scheme("tf32", 2, _TWO_PARTS),
    "bf16x6": Scheme("bf16", 3, _THREE_PARTS),
    "bf16x9": Scheme("bf16", 3, ((2, 2), (1, 2), (2, 1), *_THREE_PARTS)),
}


CHOSEN = "f16x3"  # what `decompose` makes


@dataclass(frozen=True)
class PartsLayout:
    """A part of one matrix: `rows` of `inner` items, `row_items` apart; parts follow each other."""

    inner: int
    rows: int
    row_items: int

    @property
    def items(self) -> int:
        return self.rows * self.row_items


def parts_layout(scheme: Scheme, innermost: str, along: int, k: int) -> PartsLayout:
    """Layout of an operand's parts, K-major ("k") or MN-major; `along` is m of a, or n of b."""
    inner, rows = (k, along) if innermost == "k" else (along, k)
    width = ALIGNMENT_BYTES // scheme.item_bytes
    return PartsLayout(inner, rows, -(-inner // width) * width)
