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

void parse_castling(std::string_view text, Position& p) {
    if (text == "-") return;
    struct Right {
        char letter;
        CastlingRight right;
        int king, rook;
    };
    constexpr Right kRights[] = {{'K', kWhiteShort, kE1, kH1},
                                 {'Q', kWhiteLong, kE1, kA1},
                                 {'k', kBlackShort, kE8, kH8},
                                 {'q', kBlackLong, kE8, kA8}};
    for (const char c : text) {
        const auto* right =
            std::find_if(std::begin(kRights), std::end(kRights), [c](const Right& r) { return r.letter == c; });
        if (right == std::end(kRights))
            throw FormatError("castling '" + std::string(text) + "', expected - or some of KQkq");
        const int color = right->king == kE1 ? kWhite : kBlack;
        if (!(pieces(p, color, kKing) & bit(right->king)) || !(pieces(p, color, kRook) & bit(right->rook))) {
            throw FormatError(std::string("castling right ") + c + " without king on " + format_square(right->king) +
                              " and rook on " + format_square(right->rook));
        }
        p.castling |= right->right;
    }
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
    const std::vector<std::string_view> fields = split(fen);
    if (fields.size() < 4 || fields.size() > 6) {
        throw FormatError(std::to_string(fields.size()) +
                          " fields, expected board, side, castling, en passant and at most two counters");
    }
    Position p;
    clear(p);
    parse_board(fields[0], p);
    if (fields[1] != "w" && fields[1] != "b")
        throw FormatError("side to move '" + std::string(fields[1]) + "', expected w or b");
    p.side_to_move = fields[1] == "b" ? kBlack : kWhite;
    parse_castling(fields[2], p);
    parse_ep(fields[3], p);
    if (fields.size() > 4) p.rule50 = static_cast<std::uint16_t>(parse_number(fields[4], "rule-50 counter", 0, 65535));
    // Some programs count moves from 0; 8192 is where the 14 bits of the ply end.
    const int number = fields.size() > 5 ? parse_number(fields[5], "move number", 0, 8192) : 1;
    p.ply = static_cast<std::uint16_t>(2 * std::max(number - 1, 0) + (p.side_to_move == kBlack));
    return p;
}

std::string format_fen(const Position& p) {
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
    if (!p.castling) fen += '-';
    for (int i = 0; i < 4; ++i) {
        if (p.castling >> i & 1) fen += "KQkq"[i];
    }
    fen += ' ';
    fen += p.ep_square == kNoSquare ? "-" : format_square(p.ep_square);
    return fen + ' ' + std::to_string(p.rule50) + ' ' + std::to_string(p.ply / 2 + 1);
}

std::string format_uci(Move move) {
    if (move.is_null()) return "0000";
    int to = move.to();
    if (move.kind() == kCastling) to = to > move.from() ? move.from() + 2 : move.from() - 2;
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
        if (code_at(p, to) == (unsigned{kRook} << 1 | p.side_to_move)) {
            move = Move::make(kCastling, from, to);
        } else if (to - from == 2 || from - to == 2) {
            move = Move::make(kCastling, from, to > from ? from + 3 : from - 4);
        }
    }
    if (!is_pseudo_legal(p, move))
        throw FormatError("move '" + std::string(uci) + "' is not legal in " + format_fen(p));
    return move;
}

}  // namespace nnue::data
