// `.bin`: PackedSfenValue, records of 40 bytes.
#include <algorithm>
#include <iterator>

#include "chess/position.h"
#include "formats/codecs.h"
#include "formats/fixed_records.h"

namespace nnue::data {

namespace {

// Bits of a 32-byte block, the lowest first; beyond it they are 0.
class BitReader {
  public:
    explicit BitReader(const std::uint8_t* bytes) {
        for (int i = 0; i < 4; ++i) words_[i] = load_le64(bytes + 8 * i);
    }
    // The next 64 bits.
    std::uint64_t peek() const {
        const int word = at_ >> 6, shift = at_ & 63;
        return words_[word] >> shift | words_[word + 1] << 1 << (63 - shift);
    }
    void skip(int count) { at_ += count; }
    unsigned take(int count) {
        const auto bits = static_cast<unsigned>(peek()) & ((1u << count) - 1);
        at_ += count;
        return bits;
    }

  private:
    std::uint64_t words_[7] = {};  // even 62 pieces would fit into six
    int at_ = 0;
};

class BitWriter256 {
  public:
    void put(unsigned value, int count) {
        const int word = at_ >> 6, shift = at_ & 63;
        words_[word] |= std::uint64_t{value} << shift;
        if (shift + count > 64) words_[word + 1] |= std::uint64_t{value} >> (64 - shift);
        at_ += count;
    }
    void skip(int count) { at_ += count; }
    void store(std::uint8_t* bytes) const {
        for (int i = 0; i < 4; ++i) store_le64(bytes + 8 * i, words_[i]);
    }

  private:
    std::uint64_t words_[5] = {};  // a position takes at most 229 bits
    int at_ = 0;
};

// The squares of `.bin`: a8 … h8, a7 … h1 without those of the kings, numbered from 0.
class BinSquares {
  public:
    static constexpr int kCount = 62;
    BinSquares(int white_king, int black_king)
        : first_(std::min(flipped(white_king), flipped(black_king))),
          second_(std::max(flipped(white_king), flipped(black_king))) {}
    int square(int i) const {
        i += i >= first_;
        i += i >= second_;
        return flipped(i);
    }

  private:
    int first_, second_;
};

// Moves of `.bin`: flag 1 promotion, 2 en passant, 3 castling.
constexpr MoveKind kBinFlags[4] = {kNormal, kPromotion, kEnPassant, kCastling};

Move decode_bin_move(unsigned bits) {
    if (bits == 0) return {};
    const int to = bits & 63, from = bits >> 6 & 63, promotion = bits >> 12 & 3;
    return Move::make(kBinFlags[bits >> 14], from, to, promotion);
}

unsigned encode_bin_move(Move move) {
    if (move.is_null()) return 0;
    const auto flag =
        static_cast<unsigned>(std::find(std::begin(kBinFlags), std::end(kBinFlags), move.kind()) - kBinFlags);
    return static_cast<unsigned>(move.to()) | static_cast<unsigned>(move.from()) << 6 | (move.bits & 3u) << 12 |
           flag << 14;
}

}  // namespace

Entry decode_bin(std::span<const std::uint8_t, kBinSize> bytes) {
    Entry e;
    Position& p = e.position;
    clear(p);
    BitReader in(bytes.data());
    p.side_to_move = static_cast<std::uint8_t>(in.take(1));
    const int white_king = static_cast<int>(in.take(6)), black_king = static_cast<int>(in.take(6));
    if (white_king == black_king) throw FormatError("both kings on " + format_square(white_king));
    put(p, white_king, kKing << 1 | kWhite);
    put(p, black_king, kKing << 1 | kBlack);
    const BinSquares squares(white_king, black_king);
    int count = 2;
    for (int i = 0; i < BinSquares::kCount;) {
        const std::uint64_t bits = in.peek();
        // Skips empty squares up to the next piece.
        const int empty = std::min(bits ? lowest(bits) : 64, BinSquares::kCount - i);
        i += empty;
        in.skip(empty);
        if (i == BinSquares::kCount) break;
        const unsigned piece = in.take(5), type = piece >> 1 & 7;
        const int square = squares.square(i++);
        if (type > kQueen) wrong(("piece type on " + format_square(square)).c_str(), type, "0 to 4");
        if (++count > kMaxPieces) throw FormatError("more than 32 pieces");
        put(p, square, type << 1 | piece >> 4);
    }
    check_board(p);
    constexpr struct { int king, rook; } kRights[] = {{kE1, kH1}, {kE1, kA1}, {kE8, kH8}, {kE8, kA8}};
    for (int i = 0; i < 4; ++i) {
        const auto [king, rook] = kRights[i];
        if (!in.take(1)) continue;
        if (code_at(p, king) != (kKing << 1 | unsigned(i / 2)) || code_at(p, rook) != (kRook << 1 | unsigned(i / 2))) {
            throw FormatError(std::string("castling right ") + "KQkq"[i] + " without king on " + format_square(king) +
                              " and rook on " + format_square(rook));
        }
        p.castling |= bit(rook);
    }
    if (in.take(1)) set_ep_square(p, static_cast<int>(in.take(6)));
    p.rule50 = static_cast<std::uint16_t>(in.take(6));
    in.take(16);  // the full-move number: the ply below is more exact
    p.rule50 |= static_cast<std::uint16_t>(in.take(1) << 6);

    e.score = static_cast<std::int16_t>(load_le16(&bytes[32]));
    const int ply = load_le16(&bytes[36]), result = static_cast<std::int8_t>(bytes[38]);
    check_range("ply", ply, 0, kMaxPly);
    check_range("result", result, -1, 1);
    p.ply = static_cast<std::uint16_t>(ply);
    e.result = static_cast<std::int8_t>(result);
    e.move = decode_bin_move(load_le16(&bytes[34]));
    check_move(p, e.move);
    return e;
}

void encode_bin(const Entry& e, std::span<std::uint8_t, kBinSize> bytes, Losses& losses) {
    const Position& p = e.position;
    constexpr unsigned kMaxRule50 = 127;
    check_standard_castling(p, "bin");
    BitWriter256 out;
    out.put(p.side_to_move, 1);
    out.put(static_cast<unsigned>(king_square(p, kWhite)), 6);
    out.put(static_cast<unsigned>(king_square(p, kBlack)), 6);
    // Flipping the ranks, a byte swap, puts the squares into the order of the bits.
    const Bitboard kings = __builtin_bswap64(p.types[kKing]), others = __builtin_bswap64(occupied(p)) & ~kings;
    int at = 0;
    for (Bitboard rest = others; rest; rest &= rest - 1) {
        const int i = lowest(rest);
        const unsigned code = code_at(p, flipped(i));
        out.skip(i - at - popcount(kings & below(i) & ~below(at)));  // empty squares are zeros
        out.put(1 | code >> 1 << 1 | (code & 1) << 4, 5);
        at = i + 1;
    }
    out.skip(64 - at - (at < 64 ? popcount(kings & ~below(at)) : 0));
    out.put(castling_rights(p), 4);  // K, Q, k, q, the order of CastlingRight
    const bool has_ep = p.ep_square != kNoSquare;
    out.put(has_ep, 1);
    if (has_ep) out.put(p.ep_square, 6);
    losses.rule50 += p.rule50 > kMaxRule50;
    const unsigned rule50 = std::min<unsigned>(p.rule50, kMaxRule50);
    out.put(rule50 & 63, 6);
    out.put(p.ply / 2 + 1, 16);
    out.put(rule50 >> 6, 1);
    out.store(bytes.data());
    store_le16(&bytes[32], static_cast<std::uint16_t>(e.score));
    store_le16(&bytes[34], encode_bin_move(e.move));
    store_le16(&bytes[36], p.ply);
    bytes[38] = static_cast<std::uint8_t>(e.result);
    bytes[39] = 0xff;
}

namespace {

struct BinCodec {
    static constexpr std::size_t kSize = kBinSize, kSpareBegin = 39, kSpareEnd = 40;
    static constexpr bool kOnlyStandardCastling = true;
    static constexpr auto decode = decode_bin;
    static constexpr auto encode = encode_bin;
};

}  // namespace

extern const DataFormat kBin;
constinit const DataFormat kBin =
    fixed_record_format<BinCodec, kBin>("bin", ".bin", "PackedSfenValue, 40 bytes per position");
static const RegisteredFormat registered_bin(kBin);

}  // namespace nnue::data
