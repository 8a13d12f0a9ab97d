// montyformat's value records: games, each a head of 43 bytes and four bytes for each ply. They are read, not written.
#include <bit>

#include "chess/position.h"
#include "formats/games.h"

namespace nnue::data {

extern const DataFormat kMontyformat;

namespace {

struct MontyCodec {
    static constexpr std::size_t kHead = 43, kAlign = 1;

    static Entry decode_head(std::span<const std::uint8_t, kHead> bytes) {
        Entry e;
        Position& p = e.position;
        clear(p);
        // Black's squares, and three bits of a code for each square, the highest first; 0 is empty.
        const Bitboard black = load_le64(&bytes[0]);
        const Bitboard planes[3] = {load_le64(&bytes[24]), load_le64(&bytes[16]), load_le64(&bytes[8])};
        const Bitboard all = planes[0] | planes[1] | planes[2];
        if (black & ~all) throw FormatError("black squares without a piece");
        if (popcount(all) > kMaxPieces) wrong("pieces:", popcount(all), "at most 32");
        for (Bitboard rest = all; rest; rest &= rest - 1) {
            const int square = lowest(rest);
            const auto code = static_cast<unsigned>((planes[0] >> square & 1) | (planes[1] >> square & 1) << 1 |
                                                    (planes[2] >> square & 1) << 2);
            if (code > kKing + 1u) wrong(("piece code on " + format_square(square)).c_str(), code, "1 to 6");
            put(p, square, (code - 1) << 1 | static_cast<unsigned>(black >> square & 1));
        }
        check_board(p);
        check_range("side to move", bytes[32], 0, 1);
        p.side_to_move = bytes[32];
        check_range("en-passant square", bytes[33], 0, 63);
        if (bytes[33]) set_ep_square(p, bytes[33]);
        check_range("castling rights", bytes[34], 0, 15);
        p.rule50 = bytes[35];
        p.ply = ply_of(load_le16(&bytes[36]), p.side_to_move);
        // White Q 8, K 4, black q 2, k 1, and the files of their rooks in that order; all of them 0 means 0, 7, 0, 7.
        const bool standard = !(bytes[38] | bytes[39] | bytes[40] | bytes[41]);
        for (int i = 0; i < 4; ++i) {
            const unsigned file = standard ? (i % 2 ? 7 : 0) : bytes[38 + static_cast<std::size_t>(i)];
            if (file > 7) wrong("file of a castling rook", file, "0 to 7");
            if (!(bytes[34] & 8 >> i)) continue;
            const int color = i / 2, square = static_cast<int>(file) + (color == kWhite ? 0 : 56);
            if (code_at(p, square) != (kRook << 1 | static_cast<unsigned>(color))) {
                throw FormatError("a castling right without its rook on " + format_square(square));
            }
            p.castling |= bit(square);
            check_castling(p);
            const bool is_short = square > king_square(p, color);
            if (is_short != (i % 2 == 1)) {
                throw FormatError("a castling rook on the wrong side of its king: " + format_square(square));
            }
        }
        check_range("result", bytes[42], 0, 2);
        e.result = static_cast<std::int8_t>(p.side_to_move == kWhite ? bytes[42] - 1 : 1 - bytes[42]);
        return e;
    }
    static ReplayResult replay(Entry& e, const std::uint8_t* text, std::size_t most, Record* out, std::uint8_t* flags) {
        return kernels().replay_montyformat(e, text, most, out, flags);
    }
};

}  // namespace

constinit const DataFormat kMontyformat{
    "montyformat",
    ".monty",
    "montyformat's value records: games, 4 bytes per position; read only",
    nullptr,
    match_games<MontyCodec>,
    [](ByteStream stream, const ReadOptions& options) -> std::unique_ptr<PositionReader> {
        return std::make_unique<GameReader<MontyCodec>>(kMontyformat, std::move(stream), options.on_bad);
    },
    [](InputFile file, const OpenOptions& options) -> std::unique_ptr<PositionFile> {
        return std::make_unique<GameChunks<MontyCodec>>(kMontyformat, std::move(file), options);
    },
    nullptr};
static const RegisteredFormat registered_montyformat(kMontyformat);

}  // namespace nnue::data
