// Marlinformat, records of 32 bytes.
#include <algorithm>

#include "chess/position.h"
#include "formats/codecs.h"
#include "formats/fixed_records.h"

namespace nnue::data {

namespace {
constexpr unsigned kMarlinUnmovedRook = 6;
}

Entry decode_marlinformat(std::span<const std::uint8_t, kMarlinformatSize> bytes) {
    Entry e;
    Position& p = e.position;
    clear(p);
    decode_nibbles(load_le64(&bytes[0]), &bytes[8], [&](int square, unsigned nibble) {
        unsigned type = nibble & 7;
        const unsigned color = nibble >> 3;
        if (type == kMarlinUnmovedRook) {
            p.castling |= bit(square);
            type = kRook;
        } else if (type > kKing) {
            wrong(("piece type on " + format_square(square)).c_str(), type, "0 to 6");
        }
        put(p, square, type << 1 | color);
    });
    check_board(p);
    check_castling(p);
    p.side_to_move = bytes[24] >> 7;
    const int ep = bytes[24] & 127;
    if (ep != kNoSquare && ep >> 3 != 2 && ep >> 3 != 5) {
        wrong("en-passant square", ep, "64 or a square of rank 3 or 6");
    }
    set_ep_square(p, ep);
    p.rule50 = bytes[25];
    p.ply = ply_of(load_le16(&bytes[26]), p.side_to_move);
    check_range("result", bytes[30], 0, 2);
    e.score = static_cast<std::int16_t>(load_le16(&bytes[28]));
    e.result = static_cast<std::int8_t>(bytes[30] - 1);
    if (p.side_to_move == kBlack) {
        e.score = negated(e.score);
        e.result = static_cast<std::int8_t>(-e.result);
    }
    return e;
}

void encode_marlinformat(const Entry& e, std::span<std::uint8_t, kMarlinformatSize> bytes, Losses& losses) {
    const Position& p = e.position;
    constexpr unsigned kMaxRule50 = 255;
    std::ranges::fill(bytes, std::uint8_t{0});
    store_le64(&bytes[0], occupied(p));
    int i = 0;
    for (Bitboard rest = occupied(p); rest; rest &= rest - 1, ++i) {
        const int square = lowest(rest);
        const unsigned code = code_at(p, square);
        const bool castles = p.castling >> square & 1;
        const unsigned type = castles ? kMarlinUnmovedRook : code >> 1;
        bytes[8 + i / 2] |= static_cast<std::uint8_t>((type | (code & 1) << 3) << (4 * (i & 1)));
    }
    bytes[24] = static_cast<std::uint8_t>(p.side_to_move << 7 | p.ep_square);
    bytes[25] = static_cast<std::uint8_t>(std::min<unsigned>(p.rule50, kMaxRule50));
    store_le16(&bytes[26], p.ply / 2 + 1u);
    store_le16(&bytes[28], static_cast<std::uint16_t>(white_view(e, losses)));
    bytes[30] = static_cast<std::uint8_t>(1 + (p.side_to_move == kBlack ? -e.result : e.result));
    count_moveless(e, losses);
    count_ply_parity(e, losses);
    losses.rule50 += p.rule50 > kMaxRule50;
}

namespace {

struct MarlinCodec {
    static constexpr std::size_t kSize = kMarlinformatSize, kSpareBegin = 31, kSpareEnd = 32;
    static constexpr bool kOnlyStandardCastling = false;
    static constexpr auto decode = decode_marlinformat;
    static constexpr auto encode = encode_marlinformat;
};

}  // namespace

extern const DataFormat kMarlinformat;
constinit const DataFormat kMarlinformat =
    fixed_record_format<MarlinCodec, kMarlinformat>("marlinformat", ".marlin", "Marlinformat, 32 bytes per position");
static const RegisteredFormat registered_marlinformat(kMarlinformat);

}  // namespace nnue::data
