#include "chess/fen.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "chess/position.h"

namespace nnue::data {

namespace {

constexpr std::string_view kPieceLetters = "PpNnBbRrQqKk";

std::vector<std::string_view> split(std::string_view text) {
    std::vector<std::string_view> fields;
    constexpr std::string_view kSpace = " \t\r\n";
    for (std::size_t begin = text.find_first_not_of(kSpace); begin != std::string_view::npos;) {
        const std::size_t end = std::min(text.find_first_of(kSpace, begin), text.size());
        fields.push_back(text.substr(begin, end - begin));
        begin = text.find_first_not_of(kSpace, end);
    }
    return fields;
}

int parse_number(std::string_view text, const char* what, int low, int high) {
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size() || value < low || value > high) {
        throw FormatError(std::string(what) + " '" + std::string(text) + "', expected " + std::to_string(low) + " to " +
                          std::to_string(high));
    }
    return value;
}

void parse_board(std::string_view text, Position& p) {
    int rank = 7, file = 0, count = 0;
    for (const char c : text) {
        if (c == '/') {
            if (file != 8)
                throw FormatError("rank " + std::to_string(rank + 1) + " has " + std::to_string(file) +
                                  " squares, expected 8");
            if (--rank < 0) throw FormatError("more than 8 ranks");
            file = 0;
        } else if (c >= '1' && c <= '8') {
            file += c - '0';
        } else {
            const std::size_t code = kPieceLetters.find(c);
            if (code == std::string_view::npos) throw FormatError(std::string("unknown piece '") + c + "'");
            if (file > 7) throw FormatError("rank " + std::to_string(rank + 1) + " has more than 8 squares");
            if (++count > kMaxPieces) throw FormatError("more than 32 pieces");
            if (code >> 1 == kPawn && (rank == 0 || rank == 7))
                throw FormatError("a pawn on rank " + std::to_string(rank + 1));
            put(p, 8 * rank + file++, static_cast<unsigned>(code));
        }
        if (file > 8) throw FormatError("rank " + std::to_string(rank + 1) + " has more than 8 squares");
    }
    if (rank != 0 || file != 8)
        throw FormatError("the board ends on rank " + std::to_string(rank + 1) + " after " + std::to_string(file) +
                          " squares, expected 8 ranks of 8");
    if (popcount(p.types[kPawn]) > kMaxPawns) throw FormatError("more than 16 pawns");
    for (const int color : {kWhite, kBlack}) {
        const int kings = popcount(pieces(p, color, kKing));
        if (kings != 1) {
            throw FormatError(std::to_string(kings) + (color == kWhite ? " white" : " black") + " kings, expected 1");
        }
    }
}

// X-FEN and Shredder-FEN, mixed as they may be: K and Q name the outermost rook on that side of the king, a letter of a
// file names the rook there.
void parse_castling(std::string_view text, Position& p) {
    if (text == "-") return;
    for (const char c : text) {
        const int color = c >= 'a' ? kBlack : kWhite;
        const char letter = static_cast<char>(color == kBlack ? c - 'a' + 'A' : c);
        const bool names_file = letter >= 'A' && letter <= 'H';
        if (!names_file && letter != 'K' && letter != 'Q') {
            throw FormatError("castling '" + std::string(text) +
                              "', expected - or some of KQkq, or letters of the files of the rooks");
        }
        const int king = king_square(p, color), rank = color == kWhite ? 0 : 56;
        const Bitboard rooks = pieces(p, color, kRook) & Bitboard{0xff} << rank;
        const Bitboard left = rooks & below(king), right = rooks & ~below(king);
        Bitboard rook = 0;
        if ((king & 56) != rank) {
            // No rook then.
        } else if (names_file) {
            rook = rooks & bit(rank + letter - 'A');
        } else if (letter == 'K') {
            rook = right ? bit(highest(right)) : 0;
        } else {
            rook = left & (0 - left);
        }
        if (!rook) {
            throw FormatError(std::string("castling right ") + c + " without king and rook on rank " +
                              (color == kWhite ? "1" : "8") +
                              (names_file      ? std::string(", the rook on file ") + letter
                               : letter == 'K' ? ", the rook to the right of the king"
                                               : ", the rook to the left of the king"));
        }
        if ((rook < bit(king) ? left : right) & p.castling & ~rook) {
            throw FormatError("castling '" + std::string(text) + "', with two rooks on one side of a king");
        }
        p.castling |= rook;
    }
}

// The field of a FEN. X-FEN: KQkq, and the file of a rook that is not the outermost on its side of the king.
std::string format_castling(const Position& p, CastlingStyle style) {
    std::string text;
    for (const int color : {kWhite, kBlack}) {
        const int king = king_square(p, color), rank = color == kWhite ? 0 : 56;
        const Bitboard rooks = pieces(p, color, kRook) & Bitboard{0xff} << rank;
        for (const bool is_short : {true, false}) {
            const Bitboard wing = is_short ? ~below(king) : below(king);
            const Bitboard rook = p.castling & p.colors[color] & wing;
            if (!rook) continue;
            const bool outermost = is_short ? rook == bit(highest(rooks)) : rook == (rooks & (0 - rooks));
            char letter = static_cast<char>('A' + (lowest(rook) & 7));
            if (style == CastlingStyle::kXFen && outermost) letter = is_short ? 'K' : 'Q';
            text += static_cast<char>(color == kWhite ? letter : letter - 'A' + 'a');
        }
    }
    return text.empty() ? "-" : text;
}

void parse_ep(std::string_view text, Position& p) {
    if (text == "-") return;
    if (text.size() != 2 || text[0] < 'a' || text[0] > 'h' || (text[1] != '3' && text[1] != '6')) {
        throw FormatError("en-passant square '" + std::string(text) + "', expected - or a square of rank 3 or 6");
    }
    const int square = 8 * (text[1] - '1') + (text[0] - 'a');
    const bool right_rank = (text[1] == '6') == (p.side_to_move == kWhite);
    if (right_rank && ep_square_counts(p, square, p.side_to_move)) p.ep_square = static_cast<std::uint8_t>(square);
}

}  // namespace

std::string format_square(int square) {
    return {static_cast<char>('a' + (square & 7)), static_cast<char>('1' + (square >> 3))};
}

Position parse_fen(std::string_view fen) {
    // Lists of positions often end their lines with a semicolon, and some tools write a counter that is unknown as "-".
    fen = fen.substr(0, fen.find_last_not_of(" \t\r\n;") + 1);
    const std::vector<std::string_view> fields = split(fen);
    if (fields.size() < 4 || fields.size() > 6) {
        throw FormatError(std::to_string(fields.size()) + (fields.size() == 1 ? " field" : " fields") +
                          ", expected board, side, castling, en passant and at most two counters");
    }
    Position p;
    clear(p);
    parse_board(fields[0], p);
    if (fields[1] != "w" && fields[1] != "b")
        throw FormatError("side to move '" + std::string(fields[1]) + "', expected w or b");
    p.side_to_move = fields[1] == "b" ? kBlack : kWhite;
    parse_castling(fields[2], p);
    parse_ep(fields[3], p);
    const auto has_counter = [&](std::size_t at) { return fields.size() > at && fields[at] != "-"; };
    if (has_counter(4)) p.rule50 = static_cast<std::uint16_t>(parse_number(fields[4], "rule-50 counter", 0, 65535));
    // Some programs count moves from 0; 8192 is where the 14 bits of the ply end.
    const int number = has_counter(5) ? parse_number(fields[5], "move number", 0, 8192) : 1;
    p.ply = static_cast<std::uint16_t>(2 * std::max(number - 1, 0) + (p.side_to_move == kBlack));
    return p;
}

std::string format_fen(const Position& p, CastlingStyle style) {
    std::string fen;
    for (int rank = 7; rank >= 0; --rank) {
        int empty = 0;
        for (int file = 0; file < 8; ++file) {
            const unsigned code = code_at(p, 8 * rank + file);
            if (code == kNoPiece) {
                ++empty;
                continue;
            }
            if (empty) fen += static_cast<char>('0' + empty);
            empty = 0;
            fen += kPieceLetters[code];
        }
        if (empty) fen += static_cast<char>('0' + empty);
        if (rank) fen += '/';
    }
    fen += p.side_to_move == kWhite ? " w " : " b ";
    fen += format_castling(p, style);
    fen += ' ';
    fen += p.ep_square == kNoSquare ? "-" : format_square(p.ep_square);
    return fen + ' ' + std::to_string(p.rule50) + ' ' + std::to_string(p.ply / 2 + 1);
}

std::string format_uci(Move move, bool chess960) {
    if (move.is_null()) return "0000";
    int to = move.to();
    const bool standard = (move.from() & 7) == (kE1 & 7) && ((to & 7) == 0 || (to & 7) == 7);
    if (move.kind() == kCastling && standard && !chess960) to = castled_king(move);
    std::string uci = format_square(move.from()) + format_square(to);
    if (move.kind() == kPromotion) uci += "nbrq"[move.bits & 3];
    return uci;
}

Move parse_uci(const Position& p, std::string_view uci) {
    const auto square = [&](std::size_t at) {
        const int file = uci[at] - 'a', rank = uci[at + 1] - '1';
        return file < 0 || file > 7 || rank < 0 || rank > 7 ? kNoSquare : 8 * rank + file;
    };
    if (uci == "0000") return {};
    if (uci.size() != 4 && uci.size() != 5) throw FormatError("move '" + std::string(uci) + "', expected UCI notation");
    const int from = square(0), to = square(2);
    if (from == kNoSquare || to == kNoSquare)
        throw FormatError("move '" + std::string(uci) + "', expected UCI notation");
    Move move = Move::make(kNormal, from, to);
    if (uci.size() == 5) {
        const std::size_t promotion = std::string_view("nbrq").find(uci[4]);
        if (promotion == std::string_view::npos)
            throw FormatError("move '" + std::string(uci) + "' promotes to no known piece");
        move = Move::make(kPromotion, from, to, static_cast<int>(promotion));
    } else if (code_at(p, from) >> 1 == kPawn && to == p.ep_square && (pawn_attacks(p.side_to_move, from) & bit(to))) {
        move = Move::make(kEnPassant, from, to);
    } else if (code_at(p, from) >> 1 == kKing) {
        if (p.castling & p.colors[p.side_to_move] & bit(to)) {
            move = Move::make(kCastling, from, to);
        } else if ((from == kE1 || from == kE8) && (to - from == 2 || from - to == 2)) {
            move = Move::make(kCastling, from, to > from ? from + 3 : from - 4);
        }
    }
    if (!is_pseudo_legal(p, move))
        throw FormatError("move '" + std::string(uci) + "' is not legal in " + format_fen(p));
    return move;
}

}  // namespace nnue::data
