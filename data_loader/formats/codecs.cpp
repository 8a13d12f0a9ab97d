#include "formats/codecs.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>

#include "chess/position.h"
#include "chess/record.h"

namespace nnue::data {

namespace {

constexpr std::array<FormatInfo, 6> kFormats{{{Format::kBinpack, "binpack", 0, false},
                                              {Format::kBin, "bin", kBinSize, false},
                                              {Format::kBulletformat, "bulletformat", kBulletformatSize, false},
                                              {Format::kMarlinformat, "marlinformat", kMarlinformatSize, false},
                                              {Format::kText, "text", 0, true},
                                              {Format::kPlain, "plain", 0, true}}};

constexpr int kMaxPly = 16383;  // 14 bits of a record

std::uint16_t load_le16(const std::uint8_t* p) {
    return static_cast<std::uint16_t>(p[0] | p[1] << 8);
}
void store_le16(std::uint8_t* p, unsigned value) {
    p[0] = static_cast<std::uint8_t>(value);
    p[1] = static_cast<std::uint8_t>(value >> 8);
}
std::uint64_t load_le64(const std::uint8_t* p) {
    std::uint64_t value = 0;
    for (int i = 7; i >= 0; --i) value = value << 8 | p[i];
    return value;
}
void store_le64(std::uint8_t* p, std::uint64_t value) {
    for (int i = 0; i < 8; ++i) p[i] = static_cast<std::uint8_t>(value >> 8 * i);
}

constexpr int flipped(int square) {
    return square ^ 56;
}

[[noreturn]] void wrong(const char* what, long long found, const std::string& expected) {
    throw FormatError(std::string(what) + " " + std::to_string(found) + ", expected " + expected);
}

void check_range(const char* what, int found, int low, int high) {
    if (found < low || found > high) wrong(what, found, std::to_string(low) + " to " + std::to_string(high));
}

// One king each, pawns where pawns can be: what every other function relies on.
void check_board(const Position& p) {
    for (const int color : {kWhite, kBlack}) {
        const int kings = popcount(pieces(p, color, kKing));
        if (kings != 1) wrong(color == kWhite ? "white kings:" : "black kings:", kings, "1");
    }
    if (const Bitboard bad = p.types[kPawn] & 0xff000000000000ffULL) {
        throw FormatError("a pawn on " + format_square(lowest(bad)));
    }
    if (const int pawns = popcount(p.types[kPawn]); pawns > kMaxPawns) wrong("pawns:", pawns, "at most 16");
}

void check_castling(const Position& p) {
    constexpr struct {
        CastlingRight right;
        Color color;
        int king, rook;
    } kRights[] = {{kWhiteShort, kWhite, kE1, kH1},
                   {kWhiteLong, kWhite, kE1, kA1},
                   {kBlackShort, kBlack, kE8, kH8},
                   {kBlackLong, kBlack, kE8, kA8}};
    for (int i = 0; i < 4; ++i) {
        const auto& r = kRights[i];
        if ((p.castling & r.right) &&
            !((pieces(p, r.color, kKing) & bit(r.king)) && (pieces(p, r.color, kRook) & bit(r.rook)))) {
            throw FormatError(std::string("castling right ") + "KQkq"[i] + " without king on " + format_square(r.king) +
                              " and rook on " + format_square(r.rook));
        }
    }
}

// Keeps the en-passant square of a file if binpack's rule does.
void set_ep_square(Position& p, int square) {
    const int rank = p.side_to_move == kWhite ? 5 : 2;
    if (square < kNoSquare && square >> 3 == rank && ep_square_counts(p, square, p.side_to_move)) {
        p.ep_square = static_cast<std::uint8_t>(square);
    }
}

void check_move(const Position& p, Move move) {
    if (!move.is_null() && !is_pseudo_legal(p, move)) {
        throw FormatError("move " + format_uci(move) + " is not possible in " + format_fen(p));
    }
}

// The ply that a full-move number stands for; programs that count from 0 mean 1 by it.
std::uint16_t ply_of(unsigned full_move, int side_to_move) {
    check_range("full-move number", static_cast<int>(full_move), 0, (kMaxPly + 1) / 2);
    return static_cast<std::uint16_t>(2 * (std::max(full_move, 1u) - 1) + (side_to_move == kBlack));
}

// The same number for the other side.
std::int16_t negated(std::int16_t score) {
    return static_cast<std::int16_t>(score == INT16_MIN ? INT16_MAX : -score);
}

std::int16_t white_view(const Entry& e, Losses& losses) {
    if (e.position.side_to_move == kWhite) return e.score;
    losses.scores += e.score == INT16_MIN;
    return negated(e.score);
}

void count_moveless(const Entry& e, Losses& losses) {
    losses.moves += !e.move.is_null();
}

// For formats that hold the full-move number instead of the ply.
void count_ply_parity(const Entry& e, Losses& losses) {
    losses.ply += (e.position.ply & 1) != e.position.side_to_move;
}

// Bits of a 32-byte block, the lowest first; beyond it they are 0.
class BitReader {
  public:
    explicit BitReader(const std::uint8_t* bytes) {
        for (int i = 0; i < 4; ++i) words_[i] = load_le64(bytes + 8 * i);
    }
    // The next 64.
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
    std::uint64_t words_[7] = {};  // a position of 62 pieces, were there one, would end in the sixth
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

// The 16 piece bytes of bulletformat and Marlinformat: one nibble an occupied square, the low one first.
template <class Put>
void decode_nibbles(Bitboard occupied, const std::uint8_t* nibbles, Put&& put_piece) {
    const int count = popcount(occupied);
    if (count > kMaxPieces) wrong("pieces:", count, "at most 32");
    for (int i = 0; occupied; occupied &= occupied - 1, ++i) {
        put_piece(lowest(occupied), nibbles[i / 2] >> (4 * (i & 1)) & 15u);
    }
    for (int i = count; i < kMaxPieces; ++i) {
        if (nibbles[i / 2] >> (4 * (i & 1)) & 15) {
            throw FormatError("piece nibble " + std::to_string(i) + " is set, but only " + std::to_string(count) +
                              " squares are occupied");
        }
    }
}

std::string_view trimmed(std::string_view text) {
    constexpr std::string_view kSpace = " \t\r";
    const std::size_t begin = text.find_first_not_of(kSpace);
    if (begin == std::string_view::npos) return {};
    return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

// Text of a file for a message: printable, and not too long.
std::string quoted(std::string_view text) {
    constexpr std::size_t kMost = 80;
    std::string result = "'";
    for (const char c : text.substr(0, kMost)) result += c >= ' ' && c <= '~' ? c : '?';
    return result + (text.size() > kMost ? "…'" : "'");
}

}  // namespace

std::span<const FormatInfo> formats() {
    return kFormats;
}

const FormatInfo& format_info(Format format) {
    return kFormats[static_cast<std::size_t>(format)];
}

const FormatInfo& format_info(std::string_view name) {
    std::string names;
    for (const FormatInfo& info : kFormats) {
        if (name == info.name) return info;
        names += (names.empty() ? "" : ", ") + std::string(info.name);
    }
    throw FormatError("unknown format " + quoted(name) + ", expected one of " + names);
}

void Losses::operator+=(const Losses& other) {
    for (const auto field : {&Losses::moves, &Losses::castling, &Losses::en_passant, &Losses::rule50, &Losses::ply,
                             &Losses::black_to_move, &Losses::scores}) {
        this->*field += other.*field;
    }
}

int parse_integer(std::string_view text, const char* what, int low, int high) {
    int value = 0;
    const std::string_view digits = text.starts_with('+') && !text.starts_with("+-") ? text.substr(1) : text;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc{} || end != digits.data() + digits.size() || value < low || value > high) {
        throw FormatError(std::string(what) + " " + quoted(text) + ", expected " + std::to_string(low) + " to " +
                          std::to_string(high));
    }
    return value;
}

// --- .bin ------------------------------------------------------------------------------------------------------------

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
        // The empty squares up to the next piece, as far as they go.
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
    // The bits are K, Q, k, q, the order of CastlingRight.
    p.castling = static_cast<std::uint8_t>(in.take(4));
    check_castling(p);
    if (in.take(1)) set_ep_square(p, static_cast<int>(in.take(6)));
    p.rule50 = static_cast<std::uint16_t>(in.take(6));
    in.take(16);  // the full-move number: the ply below says more
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
    out.put(p.castling, 4);
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

// --- bulletformat ----------------------------------------------------------------------------------------------------

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

// --- Marlinformat ----------------------------------------------------------------------------------------------------

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
            const int a_file = color == kWhite ? kA1 : kA8, h_file = color == kWhite ? kH1 : kH8;
            if (square != a_file && square != h_file) {
                throw FormatError("a rook that may castle on " + format_square(square) + ", expected " +
                                  format_square(a_file) + " or " + format_square(h_file));
            }
            p.castling |= static_cast<std::uint8_t>((square == h_file ? kWhiteShort : kWhiteLong) << 2 * color);
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
        const bool castles =
            (square == kA1 && (p.castling & kWhiteLong)) || (square == kH1 && (p.castling & kWhiteShort)) ||
            (square == kA8 && (p.castling & kBlackLong)) || (square == kH8 && (p.castling & kBlackShort));
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

// --- text ------------------------------------------------------------------------------------------------------------

Entry decode_text(std::string_view line) {
    std::string_view fields[3];
    int count = 0;
    for (std::size_t begin = 0; begin != std::string_view::npos;) {
        const std::size_t bar = line.find('|', begin);
        if (count < 3) {
            fields[count] =
                trimmed(line.substr(begin, bar == std::string_view::npos ? std::string_view::npos : bar - begin));
        }
        ++count;
        begin = bar == std::string_view::npos ? bar : bar + 1;
    }
    if (count != 3) {
        throw FormatError(std::to_string(count) + " fields in " + quoted(line) +
                          ", expected <FEN> | <score> | <result>");
    }
    Entry e;
    e.position = parse_fen(fields[0]);
    e.score = static_cast<std::int16_t>(parse_integer(fields[1], "score", INT16_MIN, INT16_MAX));
    std::string_view result = fields[2];
    if (result.size() >= 2 && result.front() == '[' && result.back() == ']') {
        result = trimmed(result.substr(1, result.size() - 2));
    }
    if (result == "1.0" || result == "1") {
        e.result = 1;
    } else if (result == "0.5" || result == "1/2") {
        e.result = 0;
    } else if (result == "0.0" || result == "0") {
        e.result = -1;
    } else {
        throw FormatError("result " + quoted(fields[2]) + ", expected 1.0, 0.5 or 0.0");
    }
    if (e.position.side_to_move == kBlack) {
        e.score = negated(e.score);
        e.result = static_cast<std::int8_t>(-e.result);
    }
    return e;
}

void encode_text(const Entry& e, std::string& out, Losses& losses) {
    constexpr const char* kResults[] = {"0.0", "0.5", "1.0"};
    out += format_fen(e.position);
    out += " | ";
    out += std::to_string(white_view(e, losses));
    out += " | ";
    out += kResults[1 + (e.position.side_to_move == kBlack ? -e.result : e.result)];
    out += '\n';
    count_moveless(e, losses);
    count_ply_parity(e, losses);
}

// --- plain -----------------------------------------------------------------------------------------------------------

void encode_plain(const Entry& e, std::string& out) {
    out += "fen " + format_fen(e.position);
    out += "\nmove " + format_uci(e.move);
    out += "\nscore " + std::to_string(e.score);
    out += "\nply " + std::to_string(e.position.ply);
    out += "\nresult " + std::to_string(e.result);
    out += "\ne\n";
}

bool PlainParser::add(std::string_view line) {
    enum Key : unsigned { kFen = 1, kMove = 2, kScore = 4, kPly = 8, kResult = 16 };
    line = trimmed(line);
    if (line.empty()) return false;
    const std::size_t space = std::min(line.find_first_of(" \t"), line.size());
    const std::string_view key = line.substr(0, space), value = trimmed(line.substr(space));
    const auto once = [&](Key bit) {
        if (seen_ & bit) throw FormatError("a second '" + std::string(key) + "' in one position");
        seen_ |= bit;
    };
    if (key == "fen") {
        once(kFen);
        entry_ = {};
        entry_.position = parse_fen(value);
    } else if (!(seen_ & kFen)) {
        throw FormatError(quoted(line) + ", expected 'fen …', with which a position begins");
    } else if (key == "move") {
        once(kMove);
        entry_.move = parse_uci(entry_.position, value);
    } else if (key == "score") {
        once(kScore);
        entry_.score = static_cast<std::int16_t>(parse_integer(value, "score", INT16_MIN, INT16_MAX));
    } else if (key == "ply") {
        once(kPly);
        entry_.position.ply = static_cast<std::uint16_t>(parse_integer(value, "ply", 0, kMaxPly));
    } else if (key == "result") {
        once(kResult);
        entry_.result = static_cast<std::int8_t>(parse_integer(value, "result", -1, 1));
    } else if (line == "e") {
        for (const auto& [bit, name] : {std::pair{kScore, "score"}, std::pair{kResult, "result"}}) {
            if (!(seen_ & bit)) throw FormatError(std::string("a position without '") + name + "'");
        }
        seen_ = 0;
        return true;
    } else {
        throw FormatError(quoted(line) + ", expected fen, move, score, ply, result or e");
    }
    return false;
}

}  // namespace nnue::data
