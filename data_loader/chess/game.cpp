#include "chess/game.h"

#include <algorithm>
#include <optional>

#include "chess/fen.h"
#include "chess/record.h"

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

// The squares of a rank from `a` to `b`, both included.
Bitboard span_of(int a, int b) {
    return ((bit(std::max(a, b)) << 1) - 1) & ~(bit(std::min(a, b)) - 1);
}

int rank_of_castling(const Position& p) {
    return p.side_to_move == kWhite ? 0 : 56;
}

Position without_castling(Position p) {
    p.castling = 0;
    return p;
}

}  // namespace

bool is_legal(const Position& p, Move move) {
    if (!is_pseudo_legal(p, move)) return false;
    if (move.kind() == kCastling) {
        const int from = move.from(), step = move.to() > from ? 1 : -1;
        for (int square = from + step; square != move.to(); square += step) {
            if (occupied(p) & bit(square)) return false;
        }
        for (int square = from; square != from + 2 * step; square += step) {
            if (is_attacked(p, square, p.side_to_move ^ 1)) return false;
        }
    }
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
            if (own_castling(p) & 2) consider(Move::make(kCastling, from, from - 4));
            if (own_castling(p) & 1) consider(Move::make(kCastling, from, from + 3));
        }
    }
    return moves;
}

Game::Game(std::string_view fen, bool chess960) : chess960_(chess960) {
    if (!chess960) {
        history_.push_back(parse_fen(fen));
        return;
    }
    // The third field is read here.
    std::size_t begin = 0, end = 0;
    for (int field = 0; field < 3; ++field) {
        begin = std::min(fen.find_first_not_of(" \t", end), fen.size());
        end = std::min(fen.find_first_of(" \t", begin), fen.size());
    }
    history_.push_back(parse_fen(std::string(fen.substr(0, begin)) + "-" + std::string(fen.substr(end))));
    parse_castling(fen.substr(begin, end - begin));
}

void Game::parse_castling(std::string_view text) {
    if (text == "-") return;
    Position& p = history_.back();
    for (const char c : text) {
        const int color = c >= 'a' ? kBlack : kWhite, rank = color == kWhite ? 0 : 56;
        const char letter = static_cast<char>(color == kBlack ? c - 'a' + 'A' : c);
        const int king = king_square(p, color);
        const Bitboard rooks = pieces(p, color, kRook) & (Bitboard{0xff} << rank);
        std::optional<int> rook;
        if (king >> 3 == rank >> 3) {
            if (letter == 'K' || letter == 'Q') {  // the outermost rook on that side
                const Bitboard side = letter == 'K' ? rooks & ~below(king) : rooks & below(king);
                if (side) rook = letter == 'K' ? highest(side) : lowest(side);
            } else if (letter >= 'A' && letter <= 'H' && rooks & bit(rank + (letter - 'A'))) {
                rook = rank + (letter - 'A');
            }
        }
        if (!rook) {
            throw FormatError("castling '" + std::string(text) +
                              "', expected - or some of KQkq, or files of rooks on the rank of their king");
        }
        const int index = 2 * color + (*rook < king);
        rooks_[static_cast<std::size_t>(index)] = *rook;
        p.castling |= static_cast<std::uint8_t>(1 << index);
    }
}

std::string Game::fen() const {
    const Position& p = position();
    if (!chess960_ || !p.castling) return format_fen(p);
    std::string castling;
    for (std::size_t i = 0; i < 4; ++i) {
        if (p.castling >> i & 1) castling += static_cast<char>((i < 2 ? 'A' : 'a') + (rooks_[i] & 7));
    }
    std::string fen = format_fen(without_castling(p));
    return fen.replace(fen.find(' ') + 3, 1, castling);
}

std::string Game::uci(Move move) const {
    return chess960_ && move.kind() == kCastling ? format_square(move.from()) + format_square(move.to())
                                                 : format_uci(move);
}

bool Game::can_castle(const Position& p, bool is_long) const {
    const int us = p.side_to_move, rank = rank_of_castling(p);
    if (!(own_castling(p) >> is_long & 1)) return false;
    const int king = king_square(p, us), rook = rooks_[static_cast<std::size_t>(2 * us + is_long)];
    const Bitboard way = span_of(king, rank + (is_long ? 2 : 6));
    if ((way | span_of(rook, rank + (is_long ? 3 : 5))) & occupied(p) & ~bit(king) & ~bit(rook)) return false;
    for (Bitboard squares = way; squares; squares &= squares - 1) {
        if (is_attacked(p, lowest(squares), us ^ 1)) return false;
    }
    const Position next = after(p, Move::make(kCastling, king, rook));  // the rook may have covered the king
    return !is_attacked(next, king_square(next, us), us ^ 1);
}

std::vector<Move> Game::legal_moves() const {
    return legal_moves(position());
}

std::vector<Move> Game::legal_moves(const Position& p) const {
    if (!chess960_) return nnue::data::legal_moves(p);
    std::vector<Move> moves = nnue::data::legal_moves(without_castling(p));
    for (const bool is_long : {false, true}) {
        if (can_castle(p, is_long)) {
            const int rook = rooks_[static_cast<std::size_t>(2 * p.side_to_move + is_long)];
            moves.push_back(Move::make(kCastling, king_square(p, p.side_to_move), rook));
        }
    }
    return moves;
}

Move Game::checked_move(std::string_view uci) const {
    const Position& p = position();
    const auto is_castling_of_960 = [&] {  // the king of the side to move goes to a rook of its own
        if (uci.size() != 4) return false;
        const std::string from = format_square(king_square(p, p.side_to_move));
        return uci.substr(0, 2) == from && (format_square(rooks_[2u * p.side_to_move]) == uci.substr(2) ||
                                            format_square(rooks_[2u * p.side_to_move + 1]) == uci.substr(2));
    };
    if (chess960_ && own_castling(p) && is_castling_of_960()) {
        for (const Move move : legal_moves()) {
            if (move.kind() == kCastling && this->uci(move) == uci) return move;
        }
    }
    const Position plain = chess960_ ? without_castling(p) : p;
    const Move move = parse_uci(plain, uci);
    if (!is_legal(plain, move)) {
        throw FormatError("move '" + std::string(uci) + "' is not legal in " + fen());
    }
    return move;
}

Position Game::after(const Position& p, Move move) const {
    Position next = chess960_ ? without_castling(p) : p;
    if (!chess960_) {
        nnue::data::play(next, move);
        return next;
    }
    const int us = p.side_to_move, from = move.from(), to = move.to();
    if (move.kind() == kCastling) {
        const int rank = rank_of_castling(p);
        const bool is_long = to < from;
        next.types[kKing] ^= bit(from) ^ bit(rank + (is_long ? 2 : 6));
        next.types[kRook] ^= bit(to) ^ bit(rank + (is_long ? 3 : 5));
        next.colors[us] =
            (next.colors[us] & ~bit(from) & ~bit(to)) | bit(rank + (is_long ? 2 : 6)) | bit(rank + (is_long ? 3 : 5));
        next.ep_square = kNoSquare;
        next.side_to_move ^= 1;
        ++next.ply;
        ++next.rule50;
    } else {
        nnue::data::play(next, move);
    }
    next.castling = p.castling;
    if (from == king_square(p, us)) next.castling &= static_cast<std::uint8_t>(~(3 << 2 * us));
    for (std::size_t i = 0; i < 4; ++i) {
        if (rooks_[i] == from || rooks_[i] == to) next.castling &= static_cast<std::uint8_t>(~(1 << i));
    }
    return next;
}

void Game::advance(Move move) {
    history_.push_back(after(position(), move));
    moves_.push_back(move);
}

void Game::play(std::string_view uci) {
    advance(checked_move(uci));
}

void Game::record(std::string_view uci, int score) {
    if (chess960_) throw FormatError("a game of Chess960 has no records");
    const Move move = checked_move(uci);
    entries_.push_back({position(), move, static_cast<std::int16_t>(score), 0});
    advance(move);
}

std::string Game::outcome() const {
    const Position& p = position();
    if (legal_moves(p).empty()) return in_check(p) ? "checkmate" : "stalemate";
    if (p.rule50 >= 100) return "fifty moves";
    if (is_dead(p)) return "material";
    int seen = 0;
    const std::size_t reversible = std::min<std::size_t>(history_.size(), std::size_t{p.rule50} + 1);
    for (std::size_t i = history_.size() - reversible; i < history_.size(); ++i) seen += same_position(history_[i], p);
    return seen >= 3 ? "repetition" : "";
}

std::string Game::san(const Position& p, Move move) const {
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
    const Position next = after(p, move);
    if (in_check(next)) text += legal_moves(next).empty() ? '#' : '+';
    return text;
}

std::vector<std::string> Game::san_moves() const {
    std::vector<std::string> texts;
    for (std::size_t i = 0; i < moves_.size(); ++i) texts.push_back(san(history_[i], moves_[i]));
    return texts;
}

Move Game::parse_san(std::string_view san) const {
    const Position& p = position();
    std::string text;
    for (const char c : san) {
        if (std::string_view("+#!?=x").find(c) == std::string_view::npos) text += c == '0' ? 'O' : c;
    }
    std::vector<Move> found;
    for (const Move move : legal_moves()) {
        const int from = move.from();
        if (move.kind() == kCastling) {
            if (text == (move.to() > from ? "O-O" : "O-O-O")) found.push_back(move);
            continue;
        }
        // The origin stands in full, by its file, its rank, or not at all.
        const std::string square = format_square(from), piece(type_at(p, from) != kPawn, "PNBRQK"[type_at(p, from)]);
        std::string rest = format_square(move.to());
        if (move.kind() == kPromotion) rest += "PNBRQK"[move.promotion()];
        for (const std::string& origin : {std::string(), square.substr(0, 1), square.substr(1), square}) {
            if (text == piece + origin + rest) found.push_back(move);
        }
    }
    if (found.size() != 1) {
        throw FormatError("move '" + std::string(san) + "' names " + std::to_string(found.size()) + " legal moves in " +
                          fen());
    }
    return found.front();
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
