"""The nets of Stockfish, SFNNv1 … SFNNv18 and the small net.

They are one family: a feature transformer seen from both sides, then three layers, in one, eight or 32 stacks. A
row of facts, `Design`, distinguishes one net from another; sizes, hashes, file layout, scales, float model and integer
forward follow from it (`stockfish_net.py`, `stockfish_model.py`). A new version is one more class with its row; a new
property becomes a field of `Design`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from nnue_trainer.nets.base import NETS
from nnue_trainer.nets.stockfish_design import V2020, V2021, V2026, Design
from nnue_trainer.nets.stockfish_net import StockfishNet, Width, default_width
from nnue_trainer.schema import section

# Where the files of two nets look alike (SFNNv4 and SFNNv5), the reader takes the later net. The docstring of a class
# describes what is new in the version; its `Design` is the same for the program.


@NETS.register("sfnnv1")
@section
class SfnnV1(StockfishNet):
    """HalfKP → 256×2 → 32 → 32 → 1 (Stockfish 12, 13)."""

    releases: ClassVar = "12 and 13"
    design: ClassVar = Design(
        ("HalfKP",), ("raw", "leb"), V2020, l2=32, stacks=1, psqt=False, pairwise=False, skip=0, squared=False,
        sums_parts=True,
    )  # fmt: skip
    l1: Width = 256


@NETS.register("sfnnv2")
@section
class SfnnV2(StockfishNet):
    """HalfKAv2 → 512×2, 8 PSQT columns → 8 stacks of 16 → 32 → 1 (Stockfish 14)."""

    releases: ClassVar = "14"
    design: ClassVar = replace(SfnnV1.design, sets=("HalfKAv2",), version=V2021, l2=16, stacks=8, psqt=True)
    l1: Width = 512


@NETS.register("sfnnv3")
@section
class SfnnV3(StockfishNet):
    """HalfKAv2_hm → 1024×2 → 8 → 32 → 1 (Stockfish 14.1)."""

    releases: ClassVar = "14.1"
    design: ClassVar = replace(SfnnV2.design, sets=("HalfKAv2_hm_11",), l2=8)
    l1: Width = 1024


@NETS.register("sfnnv4")
@section
class SfnnV4(StockfishNet):
    """HalfKAv2_hm → 1024 pairwise → 15+1 → 32 → 1 (Stockfish 15)."""

    releases: ClassVar = "15"
    design: ClassVar = replace(SfnnV3.design, l2=16, pairwise=True, skip=1)
    l1: Width = 1024


@NETS.register("sfnnv5")
@section
class SfnnV5(StockfishNet):
    """HalfKAv2_hm → l1 pairwise, + 8 PSQT columns → 8 stacks of 15+1 → [x², x] 30 → 32 → 1 (Stockfish 15.1).

    Early versions named all later nets of this shape so; `l1` distinguishes them: 1536 is SFNNv6, 2048 SFNNv7, 2560
    SFNNv8, 3072 SFNNv9, 128 the small net.
    """

    releases: ClassVar = "15.1"
    design: ClassVar = replace(SfnnV4.design, squared=True)
    l1: Width = 1024
    """outputs of the feature transformer per perspective, a multiple of 32: 1024 SFNNv5, 1536 SFNNv6, 2048 SFNNv7,
    2560 SFNNv8, 3072 SFNNv9, 128 the small net"""

    @property
    def _of_version(self) -> Design:
        return self._version().design

    @property
    def name(self) -> str:
        name = self._version().kind if self.l1 in self._widths() else f"sfnnv5-l1-{self.l1}"
        return name + self._sizes_in_name()

    @property
    def _releases(self) -> str:
        return self._version().releases

    @property
    def unreadable(self) -> str | None:
        if self.l1 in self._widths():
            return self._unread_layers()
        read = ", ".join(f"{l1} ({version.kind})" for l1, version in sorted(self._widths().items()))
        return f"l1 is {self.l1}, which no Stockfish reads; expected one of {read}"

    def _version(self) -> type[StockfishNet]:
        return self._widths().get(self.l1, SfnnV6)

    @staticmethod
    def _widths() -> dict[int, type[StockfishNet]]:
        return {default_width(v): v for v in (SfnnV5, SfnnV6, SfnnV7, SfnnV8, SfnnV9, Small128)}


@NETS.register("sfnnv6")
@section
class SfnnV6(StockfishNet):
    """SFNNv5 with 1536 (Stockfish 16)."""

    releases: ClassVar = "16"
    design: ClassVar = replace(SfnnV5.design, layouts=("leb", "raw"))
    l1: Width = 1536


@NETS.register("sfnnv7")
@section
class SfnnV7(StockfishNet):
    """SFNNv5 with 2048."""

    design: ClassVar = SfnnV6.design
    l1: Width = 2048


@NETS.register("sfnnv8")
@section
class SfnnV8(StockfishNet):
    """SFNNv5 with 2560 (Stockfish 16.1)."""

    releases: ClassVar = "16.1"
    design: ClassVar = SfnnV6.design
    l1: Width = 2560


@NETS.register("sfnnv9")
@section
class SfnnV9(StockfishNet):
    """SFNNv5 with 3072 (Stockfish 17, 17.1, which double the feature transformer in 16 bits)."""

    releases: ClassVar = "17 and 17.1"
    design: ClassVar = replace(SfnnV8.design, doubled=True, sums_parts=False)
    l1: Width = 3072


@NETS.register("small128")
@section
class Small128(StockfishNet):
    """SFNNv5 with 128: the small net of Stockfish 16.1 … 18."""

    releases: ClassVar = "16.1 to 18, as their small net"
    design: ClassVar = SfnnV9.design
    l1: Width = 128


@NETS.register("sfnnv10")
@section
class SfnnV10(StockfishNet):
    """Threats + HalfKAv2_hm → 1024 pairwise → 15+1 → [x², x] 30 → 32 → 1 (Stockfish 18)."""

    releases: ClassVar = "18"
    design: ClassVar = replace(
        SfnnV9.design, sets=("Full_Threats_v10", "HalfKAv2_hm_11"), layouts=("thr1 first hash", "thr0 first hash"),
        doubled=False, transformer_one=255, clip=255, product_shift=9,
    )  # fmt: skip
    l1: Width = 1024


@NETS.register("sfnnv11")
@section
class SfnnV11(StockfishNet):
    """SFNNv10 without threats to kings."""

    design: ClassVar = replace(
        SfnnV10.design, sets=("Full_Threats_v11", "HalfKAv2_hm_11"), layouts=("thr1 first hash",)
    )
    l1: Width = 1024


@NETS.register("sfnnv12")
@section
class SfnnV12(StockfishNet):
    """SFNNv11 without threats by kings."""

    design: ClassVar = replace(SfnnV11.design, sets=("Full_Threats_v12", "HalfKAv2_hm_11"))
    l1: Width = 1024


@NETS.register("sfnnv13")
@section
class SfnnV13(StockfishNet):
    """SFNNv12 with a first layer of 31+1."""

    design: ClassVar = replace(SfnnV12.design, l2=32, layouts=("thr1", "thr1 first hash"))
    l1: Width = 1024


@NETS.register("sfnnv14")
@section
class SfnnV14(StockfishNet):
    """SFNNv13 with threats of pawns that include the square ahead of them."""

    design: ClassVar = replace(SfnnV13.design, sets=("Full_Threats_v14", "HalfKAv2_hm_11"), layouts=("thr1",))
    l1: Width = 1024


@NETS.register("sfnnv14.1")
@section
class SfnnV14b(StockfishNet):
    """SFNNv14 with scales that are powers of two."""

    design: ClassVar = replace(
        SfnnV14.design, version=V2026, layouts=("thr2",), transformer_one=256, one=128, fc0_scale=128,
        output_scale=128 * 128,
    )  # fmt: skip
    l1: Width = 1024


@NETS.register("sfnnv15")
@section
class SfnnV15(StockfishNet):
    """SFNNv14.1 with [x², x] after both layers, both also inputs of the output layer: 32 → 64 → 32 → 64, 128 → 1."""

    design: ClassVar = replace(SfnnV14b.design, skip=2, dual=True, shared_fc0=True)
    l1: Width = 1024


@NETS.register("sfnnv16")
@section
class SfnnV16(StockfishNet):
    """Threats except pawns on pawns + pawn pairs + HalfKAv2_hm, layers as SFNNv15 (Stockfish 19)."""

    releases: ClassVar = "19"
    design: ClassVar = replace(
        SfnnV15.design, sets=("Full_Threats_v16", "PP_3Wide", "HalfKAv2_hm_11"), layouts=("thr2", "huffman")
    )
    l1: Width = 1024


@NETS.register("sfnnv17")
@section
class SfnnV17(StockfishNet):
    """SFNNv16 without PSQT columns."""

    design: ClassVar = replace(SfnnV16.design, psqt=False)
    l1: Width = 1024


@NETS.register("sfnnv18")
@section
class SfnnV18(StockfishNet):
    """SFNNv17 with K32Q2 in bytes for HalfKAv2_hm, and 32 stacks by pieces and queens: from public sources of October
    2026; no published net has been read."""

    design: ClassVar = replace(
        SfnnV17.design, sets=("Full_Threats_v16", "PP_3Wide", "K32Q2_11"), stacks=32,
        layouts=("raw", "thr2", "huffman"), queens=True, narrow=("K32Q2_11",), zlib=True,
    )  # fmt: skip
    l1: Width = 1024
