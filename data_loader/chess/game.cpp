#include "chess/game.h"

#include <algorithm>

#include "chess/fen.h"
#include "chess/record.h"
#include "chess/san.h"

namespace nnue::data {

namespace {

bool leaves_king_safe(const Position& p, Move move) {
    Position after = p;
    return play(after, move) && !is_attacked(after, king_square(after, p.side_to_move), after.side_to_move);
}

// Neither side can mate by any sequence of moves: bare kings, one minor piece, or bishops of one colour of squares.
bool is_dead(const Position& p) {
    if (p.types[kPawn] | p.types[kRook] | p.types[kQueen]) return false;
    const int minors = popcount(p.types[kKnight] | p.types[kBishop]);
    constexpr Bitboard kDarkSquares = 0xaa55aa55aa55aa55ULL;
    const Bitboard bishops = p.types[kBishop];
    return minors <= 1 || (!p.types[kKnight] && (!(bishops & kDarkSquares) || !(bishops & ~kDarkSquares)));
}

}  // namespace

bool is_legal(const Position& p, Move move) {
    if (!is_pseudo_legal(p, move)) return false;
    if (move.kind() == kCastling && !is_castling_legal(p, move)) return false;
    return leaves_king_safe(p, move);
}

std::vector<Move> legal_moves(const Position& p) {
    std::vector<Move> moves;
    const int us = p.side_to_move;
    const auto consider = [&](Move move) {
        if (is_legal(p, move)) moves.push_back(move);
    };
    for (Bitboard own = p.colors[us]; own; own &= own - 1) {
        const int from = lowest(own);
        const PieceType type = type_at(p, from);
        Bitboard destinations =
            type == kPawn ? pawn_destinations(p, from) : piece_attacks(type, from, occupied(p)) & ~p.colors[us];
        for (; destinations; destinations &= destinations - 1) {
            const int to = lowest(destinations);
            if (type == kPawn && from >> 3 == (us == kWhite ? 6 : 1)) {
                for (int piece = 0; piece < 4; ++piece) consider(Move::make(kPromotion, from, to, piece));
            } else {
                consider(Move::make(type == kPawn && to == p.ep_square ? kEnPassant : kNormal, from, to));
            }
        }
        if (type == kKing) {
            for (Bitboard rooks = p.castling & p.colors[us]; rooks; rooks &= rooks - 1) {
                consider(Move::make(kCastling, from, lowest(rooks)));
            }
        }
    }
    return moves;
}

Game::Game(std::string_view fen, bool chess960) : chess960_(chess960), history_{parse_fen(fen)} {}

std::string Game::fen() const {
    return format_fen(position(), chess960_ ? CastlingStyle::kShredder : CastlingStyle::kXFen);
}

std::string Game::uci(Move move) const {
    return format_uci(move, chess960_);
}

Move Game::checked_move(std::string_view uci) const {
    const Move move = parse_uci(position(), uci);
    if (!is_legal(position(), move)) {
        throw FormatError("move '" + std::string(uci) + "' is not legal in " + fen());
    }
    return move;
}

void Game::advance(Move move) {
    Position next = position();
    nnue::data::play(next, move);
    history_.push_back(next);
    moves_.push_back(move);
}

void Game::play(std::string_view uci) {
    advance(checked_move(uci));
}

void Game::record(std::string_view uci, int score) {
    const Move move = checked_move(uci);
    entries_.push_back({position(), move, static_cast<std::int16_t>(score), 0});
    advance(move);
}

std::string Game::outcome() const {
    const Position& p = position();
    if (legal_moves().empty()) return in_check(p) ? "checkmate" : "stalemate";
    if (p.rule50 >= 100) return "fifty moves";
    if (is_dead(p)) return "material";
    int seen = 0;
    const std::size_t reversible = std::min<std::size_t>(history_.size(), std::size_t{p.rule50} + 1);
    for (std::size_t i = history_.size() - reversible; i < history_.size(); ++i) seen += same_position(history_[i], p);
    return seen >= 3 ? "repetition" : "";
}

std::vector<std::string> Game::san_moves() const {
    std::vector<std::string> texts;
    for (std::size_t i = 0; i < moves_.size(); ++i) texts.push_back(format_san(history_[i], moves_[i]));
    return texts;
}

std::vector<Record> Game::records(int result) const {
    std::vector<Record> records;
    for (Entry entry : entries_) {
        entry.result = static_cast<std::int8_t>(entry.position.side_to_move == kWhite ? result : -result);
        records.push_back(pack(entry));
    }
    return records;
}

}  // namespace nnue::data
