// bulletformat's ChessBoard, records of 32 bytes. It is side-to-move relative: read back, white is to move.
#include <algorithm>

#include "chess/position.h"
#include "formats/codecs.h"
#include "formats/fixed_records.h"

namespace nnue::data {

Entry decode_bulletformat(std::span<const std::uint8_t, kBulletformatSize> bytes) {
    Entry e;
    Position& p = e.position;
    clear(p);
    decode_nibbles(load_le64(&bytes[0]), &bytes[8], [&](int square, unsigned nibble) {
        if ((nibble & 7) > kKing) {
            wrong(("piece type on " + format_square(square)).c_str(), nibble & 7, "0 to 5");
        }
        put(p, square, (nibble & 7) << 1 | nibble >> 3);
    });
    check_board(p);
    const int own = king_square(p, kWhite), other = flipped(king_square(p, kBlack));
    if (bytes[27] != own) wrong("own king's square", bytes[27], std::to_string(own) + ", where the board has it");
    if (bytes[28] != other) {
        wrong("opponent's king's square", bytes[28], std::to_string(other) + ", where the board has it");
    }
    check_range("result", bytes[26], 0, 2);
    e.score = static_cast<std::int16_t>(load_le16(&bytes[24]));
    e.result = static_cast<std::int8_t>(bytes[26] - 1);
    return e;
}

void encode_bulletformat(const Entry& e, std::span<std::uint8_t, kBulletformatSize> bytes, Losses& losses) {
    const Position& p = e.position;
    const unsigned us = p.side_to_move;
    const int flip = us == kBlack ? 56 : 0;
    std::ranges::fill(bytes, std::uint8_t{0});
    // Flipping the ranks is a byte swap of the board.
    const Bitboard all = flip ? __builtin_bswap64(occupied(p)) : occupied(p);
    store_le64(&bytes[0], all);
    int i = 0;
    for (Bitboard rest = all; rest; rest &= rest - 1, ++i) {
        const unsigned code = code_at(p, lowest(rest) ^ flip);
        bytes[8 + i / 2] |= static_cast<std::uint8_t>((code >> 1 | ((code & 1) ^ us) << 3) << (4 * (i & 1)));
    }
    store_le16(&bytes[24], static_cast<std::uint16_t>(e.score));
    bytes[26] = static_cast<std::uint8_t>(e.result + 1);
    bytes[27] = static_cast<std::uint8_t>(king_square(p, static_cast<int>(us)) ^ flip);
    bytes[28] = static_cast<std::uint8_t>(king_square(p, static_cast<int>(us ^ 1)) ^ flip ^ 56);
    count_moveless(e, losses);
    losses.castling += p.castling != 0;
    losses.en_passant += p.ep_square != kNoSquare;
    losses.rule50 += p.rule50 != 0;
    losses.ply += p.ply != 0;
    losses.black_to_move += us == kBlack;
}

namespace {

struct BulletCodec {
    static constexpr std::size_t kSize = kBulletformatSize, kSpareBegin = 29, kSpareEnd = 32;
    static constexpr bool kOnlyStandardCastling = false;
    static constexpr auto decode = decode_bulletformat;
    static constexpr auto encode = encode_bulletformat;
};

}  // namespace

extern const DataFormat kBulletformat;
constinit const DataFormat kBulletformat = fixed_record_format<BulletCodec, kBulletformat>(
    "bulletformat", ".bullet", "bulletformat's ChessBoard, 32 bytes per position");
static const RegisteredFormat registered_bulletformat(kBulletformat);

}  // namespace nnue::data
