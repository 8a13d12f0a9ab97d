"""The nets of tests/engine and tools/check_inference.py, by name: one for each part of `nnue.h`."""

from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
EXTENDING = HERE.parents[1] / "examples" / "extending"
INCLUDES = f"-I{EXTENDING} -I{HERE}"
"""of the sets in headers"""
MY_NET = EXTENDING / "my_net.py"
KINGS = [0, 1, 2, 2] + [1] * 4 + [2] * 24
BYTES = {"first": {"product_shift": 9, "unbucketed_type": "i8"}, "output": {"type": "i8", "bias_type": "i32"}}

NETS: dict[str, dict[str, Any]] = {
    "simple": {"kind": "simple", "hidden": 40},
    "crelu of all boards": {
        "kind": "layered",
        "inputs": [{"kings": list(range(64)), "planes": 10}, "HalfKAv2", "Chess768"],
        "hidden": 24,
        "activation": "crelu",
        "output_buckets": {"count": 3, "rule": "table", "table": [0] * 10 + [2] * 12 + [1] * 11},
        "layers": [{"outputs": 5, "activation": "none"}, {"outputs": 4, "shift": 7, "clip": 100, "skip": "last"}],
    },
    "buckets": {
        "kind": "layered",
        "inputs": {"kings": KINGS, "mirror": "a-d"},
        "hidden": 1024,
        "psqt": True,
        "output_buckets": {"count": 8, "rule": "bullet"},
    },
    "layered": {
        "kind": "layered",
        "inputs": [{"kings": KINGS, "mirror": "e-h", "planes": 11}, "Full_Threats_v16", "PP_3Wide"],
        "hidden": 64,
        "activation": "pairwise",
        "psqt": True,
        "output_buckets": {"count": 4},
        "layers": [
            {"outputs": 16, "activation": "dual", "skip": "last", "type": "i8", "to_output": True},
            {"outputs": 12, "activation": "screlu", "scale": 128},
            {"outputs": 6, "activation": "crelu", "type": "i8", "skip": "difference", "skip_activated": True},
        ],
        "quantisation": BYTES,
    },
    "whole products": {
        "kind": "layered",
        "inputs": ["HalfKAv2_hm", "Full_Threats_v14"],
        "hidden": 48,
        "activation": "pairwise",
        "layers": [{"outputs": 8, "activation": "screlu", "type": "i8"}, {"outputs": 8, "activation": "dual"}],
    },
    "queens": {
        "kind": "layered",
        "inputs": [{"kings": KINGS, "mirror": "e-h", "states": ["oQ:1", "eQ:1"]}, "K32Q2"],
        "hidden": 144,
        "psqt": True,
        "output_buckets": {"count": 32, "rule": "queens"},
        "quantisation": {"first": {"scale": 256}},
    },
    "squared relu": {
        "kind": "layered",
        "hidden": 40,
        "quantisation": {"first": {"scale": 64, "clip": 32767, "limit": 1000}},
    },
    "products beyond 16 bits": {
        "kind": "layered",
        "inputs": ["HalfKAv2_hm_11", "Full_Threats_v10"],
        "hidden": 16,
        "quantisation": {"output": {"scale": 512}},
    },
    "floats behind bytes": {
        "kind": "layered",
        "inputs": [{"kings": KINGS, "mirror": "e-h", "order": "interleaved-enemy-first"}],
        "hidden": 64,
        "activation": "pairwise",
        "output_buckets": {"count": 5, "rule": "weights", "weights": [0, 1, 1, 2, 4, 1, 2, 2, 3, 5]},
        "layers": [
            {"outputs": 16, "activation": "dual", "type": "i8", "bias_type": "f32", "skip": "difference"},
            {"outputs": 12, "activation": "screlu", "type": "f32", "to_output": True},
            {"outputs": 6, "activation": "crelu", "type": "f32", "clip": 6},
        ],
        "quantisation": {"first": {"product_shift": 9}, "output": {"type": "f32"}},
    },
    "floats of White's view": {
        "kind": "layered",
        "inputs": [{"order": "enemy-first", "planes": 11}],
        "hidden": 24,
        "perspectives": "white",
        "layers": [{"outputs": 6, "activation": "none", "type": "f32"}],
        "quantisation": {"output": {"type": "f32"}},
    },
    "win, draw, loss": {
        "kind": "layered",
        "inputs": {"kings": KINGS, "mirror": "a-d"},
        "hidden": 64,
        "head": "wdl",
        "output_buckets": {"count": 8, "rule": "bullet"},
    },
    "win, draw, loss in floats of White's view": {
        "kind": "layered",
        "hidden": 24,
        "head": "wdl",
        "perspectives": "white",
        "layers": [{"outputs": 6, "activation": "none", "type": "f32"}],
        "quantisation": {"output": {"type": "f32"}},
    },
    "buckets by kings and passed pawns": {
        "kind": "layered",
        "inputs": {"kings": KINGS, "mirror": "a-d"},
        "hidden": 64,
        "output_buckets": {
            "count": 6,
            "rule": "squares",
            "squares": {
                "K": [1] * 16 + [0] * 48,
                "k": [2 * (square % 8 > 3) for square in range(64)],
                "P": [0] * 32 + [4] * 32,
            },
            "table": [0, 1, 2, 3, 4, 4, 4, 4, 5],
        },
    },
    "the mover's view": {"kind": "layered", "hidden": 48, "activation": "crelu", "perspectives": "mover"},
    "sfnnv18": {"kind": "sfnnv18", "l1": 64},
    "sfnnv9": {"kind": "sfnnv9", "l1": 64},
    "sfnnv18 with other layers": {"kind": "sfnnv18", "l1": 64, "l2": 24, "l3": 20},
    "sfnnv5": {"kind": "sfnnv5", "l1": 64},
    "sfnnv5 with other stacks": {
        "kind": "sfnnv5",
        "l1": 64,
        "output_buckets": {"count": 6, "rule": "table", "table": [(5 * (i // 16) + i % 16) % 6 for i in range(528)]},
    },
    "sfnnv1": {"kind": "sfnnv1", "l1": 64},
    "kings without mirroring": {"kind": "layered", "inputs": ["HalfKP", "HalfKA"], "hidden": 40},
    "Full_Threats_v2": {
        "kind": "layered",
        "inputs": [{"kings": KINGS, "mirror": "e-h"}, "Full_Threats_v2"],
        "hidden": 32,
        "psqt": True,
    },
    "K16Q2": {"kind": "layered", "inputs": "K16Q2", "hidden": 32},
    "a set in Python": {
        "kind": "layered",
        "inputs": f"HalfKAv2_hm + {EXTENDING}/my_features.py:KingDistance",
        "hidden": 32,
        "psqt": True,
    },
    "states in Python": {
        "kind": "layered",
        "inputs": f"{HERE}/counting_sets.py:ByRooks + Chess768",
        "hidden": 32,
        "psqt": True,
    },
    "activations beyond 16 bits": {"kind": f"{HERE}/wide_net.py:Wide"},
    "a net of a user": {"kind": f"{MY_NET}:TwoLayers", "hidden": 32},
}
IN_HEADERS: dict[str, dict[str, Any]] = {
    "a set in a header": {
        "kind": "layered",
        "inputs": f"HalfKAv2_hm + {EXTENDING}/my_features.h:Neighbours",
        "hidden": 32,
    },
    "counted pieces in a header": {
        "kind": "layered",
        "inputs": f"Chess768 + {HERE}/counting_sets.h:ByQueens",
        "hidden": 32,
    },
}

# A feature set in a header, for `HEADER`:SeesThrough.
SEES_THROUGH = """
#include "features/general_set.h"

// Buckets by the own king's half of the board and by queens of the enemy; each piece with the next three pieces on its
// file.
struct SeesThrough {
    using Bitboard = nnue::data::Bitboard;
    using CodePlanes = nnue::data::CodePlanes;
    static constexpr int kNumFeatures = 4 * 12 * 13 * 15, kMaxActive = 32 * 4;
    static constexpr int kBucketSize = 12 * 13 * 15, kNumVirtual = 12 * 13 * 15;

    NNUE_HOST_DEVICE static int orientation(int perspective, int king) {
        return (perspective ? 56 : 0) ^ ((king & 7) < 4 ? 7 : 0);
    }
    NNUE_HOST_DEVICE static int offset(int perspective, int king, const CodePlanes& board) {
        const bool has_queen = board.of(9 ^ perspective) != 0;
        return kBucketSize * (2 * ((king ^ (perspective ? 56 : 0)) > 31) + has_queen);
    }
    NNUE_HOST_DEVICE static Bitboard partners(const CodePlanes& board, int, int square) {
        Bitboard found = nnue::data::bit(square);
        int seen = 0;
        for (int to = square + 8; to < 64 && seen < 3; to += 8) {
            if (board.code_at(to) == 12) continue;
            found |= nnue::data::bit(to);
            ++seen;
        }
        return found;
    }
    NNUE_HOST_DEVICE static int index(int piece, int from, int partner, int to) {
        if (piece == 10 && from == to) return -1;
        return 15 * (13 * piece + partner) + (to - from) / 8 + 7;
    }
};
"""
