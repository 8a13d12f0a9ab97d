"""nnue.h: boards with any number of pieces, moves with too many changes, units for several instruction sets in one
program, other headers of the project beside it, and its benchmark."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from engine_nets import NETS
from inference_support import ENGINE, ROOT, built, exported

pytestmark = [pytest.mark.compiler, pytest.mark.slow]

SANITIZED = "-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all"
CROWDED = """
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include "fen.h"
#include NNUE_NET_HEADER

// Random boards of 2 to 64 pieces of any kind, from one to the next: the update equals the refresh.
int main(int, char** argv) {
    const auto network = std::make_unique<nnue::Network<Net>>();
    std::string error;
    if (!network->load(argv[1], error)) return 1;
    std::mt19937 random(1);
    const auto accumulators = std::make_unique<nnue::Accumulator<Net>[]>(3);
    nnue::Cache<Net> cache;
    nnue::Stack<Net> stack(9);
    for (int game = 0; game < 40; ++game) {
        nnue::Board board;
        board.put(0, nnue::kKing, nnue::kWhite);
        board.put(63, nnue::kKing, nnue::kBlack);
        const unsigned kinds = game % 2 ? 5 : 1 + game / 2 % 5;  // only pawns, or all but kings
        const auto put = [&] {
            const int square = 1 + static_cast<int>(random() % 62);
            board.put(square, static_cast<nnue::Type>(random() % kinds), static_cast<nnue::Colour>(random() % 2));
        };
        for (int i = 0; i < 10 * game; ++i) put();
        network->refresh(board, accumulators[0]);
        stack.set(0, board);
        for (int ply = 0; ply < 8; ++ply) {
            const nnue::Board before = board;
            for (int i = 0; i < 3; ++i) put();
            board.clear(1 + static_cast<int>(random() % 62));
            board.black_to_move = !board.black_to_move;
            network->update(before, accumulators[0], board, accumulators[1], cache);
            network->refresh(board, accumulators[2]);
            if (std::memcmp(accumulators[1].values, accumulators[2].values, sizeof accumulators[1].values)) return 2;
            if (network->evaluate(accumulators[1], board) != network->evaluate(accumulators[2], board)) return 3;
            accumulators[0] = accumulators[1];
            // In the stack, the king's square also changes without a piece; not all plies are evaluated.
            nnue::Board other = board;
            if (random() % 2) other = stack.board(ply);
            other.king[random() % 2] = static_cast<std::uint8_t>(random() % 64);
            stack.set(ply + 1, other);
            if (random() % 2) continue;
            network->refresh(other, accumulators[2]);
            const auto& found = network->accumulator(stack, ply + 1);
            if (std::memcmp(found.values, accumulators[2].values, sizeof found.values)) return 4;
        }
    }
    return 0;
}
"""

TOO_MANY_CHANGES = """
#include <memory>
#include "fen.h"
#include NNUE_NET_HEADER

int main(int, char** argv) {
    const auto network = std::make_unique<nnue::Network<Net>>();
    std::string error;
    nnue::Board board;
    if (!network->load(argv[1], error) || !read_fen("4k3/8/8/8/8/8/8/RN2K1NR w KQ - 0 1", board, error)) return 1;
    const auto pieces = [&](auto visit) {
        for (int square = 0; square < 64; ++square) {
            if (board.piece[square] != nnue::Board::kEmpty) visit(board.piece[square], square);
        }
    };
    nnue::Material before, after;
    for (nnue::Material* one : {&before, &after}) {
        one->king[0] = 4, one->king[1] = 60;
        pieces([&](int code, int) { ++one->count[code]; });
    }
    const auto accumulators = std::make_unique<nnue::Accumulator<Net>[]>(3);
    network->refresh(before, pieces, accumulators[0]);
    nnue::Delta delta;
    for (int square = 8; square < 16; ++square) {
        board.put(square, nnue::kPawn, nnue::kWhite);
        ++after.count[0];
        delta.add(0, square);
    }
    network->update(before, accumulators[0], after, delta, pieces, accumulators[1]);
    network->refresh(after, pieces, accumulators[2]);
    const int expected = network->evaluate(accumulators[2], false, after);
    if (network->evaluate(accumulators[1], false, after) != expected) return 2;
    // More pieces than a table of buckets has entries.
    return network->evaluate(accumulators[1], false, 33) == network->evaluate(accumulators[1], false, 32) ? 0 : 3;
}
"""


KING_MOVES = """
#include <cstring>
#include <memory>
#include "fen.h"
#include NNUE_NET_HEADER

// A king's move to another bucket on its half of the board refreshes the sum of the sets with buckets, and only updates
// the sum of threats and pawn pairs: an error in the old accumulator remains in the latter.
int main(int, char** argv) {
    using Accumulator = nnue::Accumulator<Net>;
    static_assert(Accumulator::kRows == 4);
    const auto network = std::make_unique<nnue::Network<Net>>();
    std::string error;
    nnue::Board before;
    const char* fen = "4k3/pp3ppp/2n5/8/8/2N5/PP6/R5K1 w - - 0 1";
    if (!network->load(argv[1], error) || !read_fen(fen, before, error)) return 1;
    const auto accumulators = std::make_unique<Accumulator[]>(3);
    int moves = 0;
    for (const int to : {5, 7, 13, 14, 15}) {
        nnue::Board after = before;
        after.clear(before.king[0]);
        after.put(to, nnue::kKing, nnue::kWhite);
        nnue::Material was, is;
        for (const int colour : {0, 1}) was.king[colour] = before.king[colour], is.king[colour] = after.king[colour];
        if (!nnue::Network<Net>::needs_refresh(was, is, 0)) continue;
        ++moves;
        network->refresh(before, accumulators[0]);
        for (auto& row : accumulators[0].values) row[0] = static_cast<std::int16_t>(row[0] + 7);
        network->update(before, accumulators[0], after, accumulators[1]);
        network->refresh(after, accumulators[2]);
        const auto difference = [&](int row) {
            return accumulators[1].values[row][0] - accumulators[2].values[row][0];
        };
        if (difference(0) != 0 || difference(1) != 7 || difference(2) != 7 || difference(3) != 7) return 2;
    }
    return moves ? 0 : 3;
}
"""


def run(source: str, net: Path, *flags: str) -> int:
    """Compiles a program for a net with sanitizers; its exit status."""
    unit = net.parent / "program.cpp"
    unit.write_text(source)
    command = [
        "g++",
        "-std=c++17",
        "-Wall",
        *SANITIZED.split(),
        *flags,
        f"-I{ENGINE}",
        f'-DNNUE_NET_HEADER="{net.with_suffix(".h")}"',
    ]
    done = subprocess.run([*command, unit, "-o", unit.with_suffix("")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    done = subprocess.run([unit.with_suffix(""), net], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode


@pytest.mark.parametrize("flags", ["-march=native", "-DNNUE_PLAIN"])
def test_boards_with_any_number_of_pieces(flags: str, tmp_path: Path) -> None:
    net = exported({**NETS["layered"], "hidden": 32}, tmp_path)
    assert run(CROWDED, net, flags) == 0


def test_a_move_with_too_many_changes_is_refreshed(tmp_path: Path) -> None:
    net = exported({**NETS["queens"], "output_buckets": {"count": 8, "rule": "bullet"}, "hidden": 16}, tmp_path)
    assert run(TOO_MANY_CHANGES, net) == 0


def test_a_king_refreshes_only_the_sum_of_its_buckets(tmp_path: Path) -> None:
    net = exported({**NETS["layered"], "hidden": 32}, tmp_path)
    assert run(KING_MOVES, net, "-march=native") == 0


def test_units_for_two_instruction_sets_share_no_function(tmp_path: Path) -> None:
    net = exported(NETS["simple"], tmp_path)
    (tmp_path / "unit.cpp").write_text(
        f'#include "{net.with_suffix(".h")}"\n'
        "int score(const nnue::Network<Net>& network, const nnue::Board& board) {\n"
        "    static nnue::Accumulator<Net> accumulator;\n"
        "    network.refresh(board, accumulator);\n"
        "    return network.evaluate(accumulator, board);\n}\n"
    )
    found: list[set[str]] = []
    targets = ("-march=icelake-client", "-march=icelake-client -mno-avx512vbmi2", "-mavx512f -mavx512bw", "-mavx2")
    for flags in (*targets, "-DNNUE_PLAIN -mavx512f", "-DNNUE_PLAIN"):
        command = ["g++", "-std=c++17", "-O0", *flags.split(), f"-I{ENGINE}", "-c", "unit.cpp", "-o", "unit.o"]
        subprocess.run(command, cwd=tmp_path, check=True)
        listed = subprocess.run(["nm", "-C", "unit.o"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        symbols = {line.split(maxsplit=2)[-1] for line in listed.splitlines() if " nnue::" in line or "score(" in line}
        assert len(symbols) > 10
        assert not any(symbols & others for others in found)
        found.append(symbols)


def test_the_operators_header_may_be_included_too(tmp_path: Path) -> None:
    net = exported(NETS["simple"], tmp_path)
    for order in (("csrc/activation.h", net.with_suffix(".h")), (net.with_suffix(".h"), "csrc/activation.h")):
        includes = "".join(f'#include "{ROOT / path}"\n' for path in order)
        assert run(f"{includes}int main() {{ return Net::kHidden != 40; }}\n", net) == 0


@pytest.mark.parametrize("name", ["simple", "sfnnv5", "sfnnv18"])
def test_the_benchmark_is_for_every_net(name: str, tmp_path: Path) -> None:
    net = exported(NETS[name], tmp_path)
    (tmp_path / "fens").write_text("4k3/8/8/8/8/8/4P3/4K3 w - - 0 1\n4k3/8/8/8/4P3/8/8/4K3 b - - 0 1\n")
    program = built("bench", net, "-O1")
    with (tmp_path / "fens").open() as lines:
        done = subprocess.run([program, net], stdin=lines, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 positions, 1 of them one move after the last" in done.stdout
    assert "evaluations per second" in done.stdout
