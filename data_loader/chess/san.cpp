#include "chess/san.h"

#include <string>

#include "chess/game.h"
#include "chess/position.h"

namespace nnue::data {

namespace {

[[noreturn]] void fail(const Position& p, std::string_view san, const char* what) {
    throw FormatError("move '" + std::string(san.substr(0, 16)) + "' " + what + " " + format_fen(p));
}

// "e2e4", "e1-g1", "e7e8=Q" as UCI has it; "" for other notations.
std::string as_uci(std::string_view san) {
    std::string uci;
    for (const char c : san) {
        if (c == '-' || c == 'x' || c == '=' || c == ':') continue;
        uci += uci.size() == 4 && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    }
    const auto is_square = [&](std::size_t at) {
        return uci[at] >= 'a' && uci[at] <= 'h' && uci[at + 1] >= '1' && uci[at + 1] <= '8';
    };
    return (uci.size() == 4 || uci.size() == 5) && is_square(0) && is_square(2) ? uci : "";
}

}  // namespace

std::string format_san(const Position& p, Move move) {
    const int from = move.from(), to = move.to();
    const PieceType type = type_at(p, from);
    std::string text;
    if (move.kind() == kCastling) {
        text = to > from ? "O-O" : "O-O-O";
    } else {
        const bool captures = (occupied(p) & bit(to)) != 0 || move.kind() == kEnPassant;
        if (type == kPawn) {
            if (captures) text += format_square(from)[0];
        } else {
            text += "PNBRQK"[type];
            bool others = false, same_file = false, same_rank = false;
            for (const Move other : legal_moves(p)) {
                if (other.kind() == kCastling || other.to() != to || other.from() == from ||
                    type_at(p, other.from()) != type)
                    continue;
                others = true;
                same_file |= (other.from() & 7) == (from & 7);
                same_rank |= other.from() >> 3 == from >> 3;
            }
            const std::string square = format_square(from);
            if (others && (!same_file || same_rank)) text += square[0];
            if (others && same_file) text += square[1];
        }
        if (captures) text += 'x';
        text += format_square(to);
        if (move.kind() == kPromotion) text += {'=', "PNBRQK"[move.promotion()]};
    }
    Position next = p;
    play(next, move);
    if (in_check(next)) text += legal_moves(next).empty() ? '#' : '+';
    return text;
}

Move parse_san(const Position& p, std::string_view san) {
    const std::string_view whole = san;
    // Signs such as "+", "!?", "+-", "+/=" and "±", and the mark of en passant.
    const auto take_signs = [&] {
        while (!san.empty() && (std::string_view("+#!?=-/").find(san.back()) != san.npos ||
                                static_cast<unsigned char>(san.back()) >= 0x80))
            san.remove_suffix(1);
    };
    take_signs();
    for (const std::string_view mark : {"e.p.", "ep"}) {
        if (san.ends_with(mark)) san.remove_suffix(mark.size());
    }
    take_signs();
    const int us = p.side_to_move;
    if (const std::string uci = as_uci(san); !uci.empty()) {
        const Move move = parse_uci(p, uci);
        if (!is_legal(p, move)) fail(p, whole, "is not legal in");
        return move;
    }
    if (san == "o-o") san = "O-O";
    if (san == "o-o-o") san = "O-O-O";
    if (san == "O-O" || san == "0-0" || san == "O-O-O" || san == "0-0-0") {
        const Bitboard left = below(king_square(p, us));
        const Bitboard rook = p.castling & p.colors[us] & (san.size() == 3 ? ~left : left);
        if (!rook) fail(p, whole, "without the right to castle so in");
        const Move move = Move::make(kCastling, king_square(p, us), lowest(rook));
        if (!is_legal(p, move)) fail(p, whole, "is not legal in");
        return move;
    }
    constexpr std::string_view kPieces = "PNBRQK";
    int promotion = -1;
    std::string_view rest = san;
    if (rest.size() >= 3) {
        const std::size_t piece = std::string_view("NBRQnbrq").find(rest.back());
        const char before = rest[rest.size() - 2];
        if (piece != std::string_view::npos && (std::string_view("=/18").find(before) != rest.npos)) {
            promotion = static_cast<int>(piece % 4);
            rest.remove_suffix(before == '=' || before == '/' ? 2 : 1);
        }
    }
    PieceType type = kPawn;
    if (!rest.empty() && kPieces.find(rest.front()) != std::string_view::npos) {
        type = static_cast<PieceType>(kPieces.find(rest.front()));
        rest.remove_prefix(1);
    }
    if (rest.size() < 2) fail(p, whole, "is not a move in");
    const int file = rest[rest.size() - 2] - 'a', rank = rest.back() - '1';
    if (file < 0 || file > 7 || rank < 0 || rank > 7) fail(p, whole, "is not a move in");
    const int to = 8 * rank + file;
    rest.remove_suffix(2);
    Bitboard origins = p.colors[us];
    bool has_file = false, has_rank = false;
    for (const char c : rest) {
        if (c >= 'a' && c <= 'h' && !has_file) {
            has_file = true;
            origins &= 0x0101010101010101ULL << (c - 'a');
        } else if (c >= '1' && c <= '8' && !has_rank) {
            has_rank = true;
            origins &= Bitboard{0xff} << 8 * (c - '1');
        } else if (c != 'x' && c != '-' && c != ':') {
            fail(p, whole, "is not a move in");
        }
    }
    origins &= p.types[type];
    Move found;
    int count = 0;
    for (; origins; origins &= origins - 1) {
        const int from = lowest(origins);
        const PieceType mover = type_at(p, from);
        Move move = Move::make(kNormal, from, to);
        if (mover == kPawn) {
            if (from >> 3 == (us == kWhite ? 6 : 1)) {
                if (promotion < 0) continue;
                move = Move::make(kPromotion, from, to, promotion);
            } else if (promotion >= 0) {
                continue;
            } else if (to == p.ep_square && ((from ^ to) & 7)) {
                move = Move::make(kEnPassant, from, to);
            }
        }
        if (!is_legal(p, move)) continue;
        found = move;
        ++count;
    }
    if (count > 1) fail(p, whole, ("names " + std::to_string(count) + " legal moves in").c_str());
    if (found.is_null()) fail(p, whole, "is not legal in");
    return found;
}

}  // namespace nnue::data
