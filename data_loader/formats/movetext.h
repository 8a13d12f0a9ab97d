// The bitstream of a binpack chain: the moves and scores of the plies after its stem. docs/binpack.md, "Movetext".
#pragma once

#include <cstddef>

#include "chess/record.h"

namespace nnue::data {
inline namespace NNUE_ISA {

// Bits that hold any of 0 … n − 1; n ≥ 1.
inline int index_width(int n) {
    return highest(static_cast<Bitboard>(2 * (n - 1) + 1));
}

// Bytes past the end of a payload that must be readable: one ply is decoded from one 8-byte load.
inline constexpr std::size_t kPayloadPadding = 16;

namespace detail {

// Up to 57 bits of the stream, the next one on top.
struct Window {
    Bitboard bits;
    int used = 0;

    unsigned take(int width) {
        const auto value = static_cast<unsigned>(bits >> 1 >> (63 - width));
        bits <<= width;
        used += width;
        return value;
    }

    // One to four groups of (continue bit, nibble), lowest nibble first; without a branch, as their number is noise.
    // False if a fifth group would follow.
    bool take_score(unsigned& value) {
        const auto g = static_cast<unsigned>(bits >> 44);
        const unsigned c1 = g >> 19 & 1, c2 = c1 & g >> 14, c3 = c2 & g >> 9;
        const int groups = static_cast<int>(1 + c1 + (c2 & 1) + (c3 & 1));
        const unsigned nibbles = (g >> 15 & 15) | (g >> 10 & 15) << 4 | (g >> 5 & 15) << 8 | (g & 15) << 12;
        value = nibbles & ((1u << (4 * groups)) - 1);
        bits <<= 5 * groups;
        used += 5 * groups;
        return !(c3 & g >> 4 & 1);
    }
};

// Reads the move of the side to move; a null move where the index names none.
inline Move take_move(const Position& p, Window& window) {
    const int us = p.side_to_move;
    const Bitboard own = p.colors[us];
    const int own_count = popcount(own);
    const auto k = static_cast<int>(window.take(index_width(own_count)));
    if (k >= own_count) return {};
    const int from = select_bit(own, k);
    const PieceType type = type_at(p, from);
    if (type == kPawn) {
        const Bitboard destinations = pawn_destinations(p, from);
        const int count = popcount(destinations);
        if (count == 0) return {};
        if (from >> 3 == (us == kWhite ? 6 : 1)) {
            const auto id = static_cast<int>(window.take(index_width(4 * count)));
            return id >= 4 * count ? Move{} : Move::make(kPromotion, from, select_bit(destinations, id / 4), id % 4);
        }
        const auto id = static_cast<int>(window.take(index_width(count)));
        if (id >= count) return {};
        const int to = select_bit(destinations, id);
        return Move::make(to == p.ep_square ? kEnPassant : kNormal, from, to);
    }
    const Bitboard destinations = piece_attacks(type, from, occupied(p)) & ~own;
    const int count = popcount(destinations);
    const unsigned rights = type == kKing ? own_castling(p) : 0;
    const int choices = count + popcount(rights);
    if (choices == 0) return {};
    const auto id = static_cast<int>(window.take(index_width(choices)));
    if (id < count) return Move::make(kNormal, from, select_bit(destinations, id));
    if (id >= choices) return {};
    const bool is_long = id == count && (rights & 2);
    const Move castling = Move::make(kCastling, from, is_long ? from - 4 : from + 3);
    return castling_path_free(p, castling) ? castling : Move{};
}

}  // namespace detail

// Decodes the `count` plies after `e`, the entry of the stem, from the bitstream that lies in [text, text + size), into
// out[0 … count), and their flags, unless that is null. Sets `used` to the bytes read, and adds to `unscored` the
// number of plies whose score is kScoreNone. Returns nullptr, or what is wrong: the output is then incomplete.
inline const char* decode_movetext(Entry& e, const std::uint8_t* text, std::size_t size, std::size_t count, Record* out,
                                   std::uint8_t* flags, std::size_t& used, std::size_t& unscored) {
    if (!is_pseudo_legal(e.position, e.move))
        return "a chain that continues after a move that its stem's position does not have";
    const std::size_t end = 8 * size;
    std::size_t at = 0;
    for (std::size_t i = 0; i < count; ++i) {
        if (!play(e.position, e.move)) return "a move that takes a king";
        detail::Window window{load_be64(text + at / 8) << (at % 8)};
        e.move = detail::take_move(e.position, window);
        if (e.move.is_null()) return "a move index beyond the moves of its position";
        unsigned score;
        if (!window.take_score(score)) return "a score of more than four groups";
        at += static_cast<std::size_t>(window.used);
        if (at > end) return "a chain that runs past the end of its chunk";
        e.score = static_cast<std::int16_t>(unzigzag(score) - e.score);
        unscored += e.score == kScoreNone;
        e.result = static_cast<std::int8_t>(-e.result);
        out[i] = pack(e);
        if (flags) flags[i] = position_flags(e);
    }
    used = (at + 7) / 8;
    return nullptr;
}

// Appends bits, the highest first, to bytes of the caller.
class BitWriter {
  public:
    // Goes on after the first `bits` bits of `bytes`.
    BitWriter(std::uint8_t* bytes, std::size_t bits) : bytes_(bytes), bits_(bits) {}

    void put(unsigned value, int width) {
        for (int i = width - 1; i >= 0; --i, ++bits_) {
            if (bits_ % 8 == 0) bytes_[bits_ / 8] = 0;
            bytes_[bits_ / 8] |= static_cast<std::uint8_t>((value >> i & 1) << (7 - bits_ % 8));
        }
    }
    std::size_t bits() const { return bits_; }

  private:
    std::uint8_t* bytes_;
    std::size_t bits_;
};

// Writes a pseudo-legal move of the side to move.
inline void put_move(BitWriter& writer, const Position& p, Move move) {
    const int us = p.side_to_move, from = move.from();
    const Bitboard own = p.colors[us];
    const auto rank_in = [](Bitboard set, int square) { return static_cast<unsigned>(popcount(set & below(square))); };
    writer.put(rank_in(own, from), index_width(popcount(own)));
    const PieceType type = type_at(p, from);
    if (type == kPawn) {
        const Bitboard destinations = pawn_destinations(p, from);
        const unsigned index = rank_in(destinations, move.to());
        if (move.kind() == kPromotion) {
            writer.put(4 * index + (move.bits & 3), index_width(4 * popcount(destinations)));
        } else {
            writer.put(index, index_width(popcount(destinations)));
        }
        return;
    }
    const Bitboard destinations = piece_attacks(type, from, occupied(p)) & ~own;
    const unsigned rights = type == kKing ? own_castling(p) : 0;
    const int count = popcount(destinations);
    unsigned index = rank_in(destinations, move.to());
    if (move.kind() == kCastling) {
        index = static_cast<unsigned>(count) + (move.to() > from && (rights & 2) ? 1 : 0);
    }
    writer.put(index, index_width(count + popcount(rights)));
}

inline void put_score(BitWriter& writer, unsigned value) {
    do {
        writer.put((value > 15 ? 16 : 0) | (value & 15), 5);
        value >>= 4;
    } while (value);
}

}  // namespace NNUE_ISA
}  // namespace nnue::data
