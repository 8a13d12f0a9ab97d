// A chess position for the player: the board of nnue.h with bitboards, legal moves, also of Chess960, and keys.
#pragma once

#include <cctype>
#include <sstream>
#include <string>
#include <vector>

#include "fen.h"

using Bits = std::uint64_t;

constexpr Bits bit(int square) {
    return Bits{1} << square;
}

// Takes the lowest bit out of `bits` and returns its square.
inline int pop(Bits& bits) {
    const int square = nnue::lowest_bit(bits);
    bits &= bits - 1;
    return square;
}

// Castling goes from the king's square to the rook's.
struct Move {
    enum Kind : std::uint8_t { kNormal, kCastling, kEnPassant };

    std::uint8_t from = 0, to = 0, promoted = nnue::kPawn;  // kPawn: no promotion
    Kind kind = kNormal;

    bool operator==(const Move& other) const {
        return from == other.from && to == other.to && promoted == other.promoted && kind == other.kind;
    }
    bool operator!=(const Move& other) const { return !(*this == other); }
    explicit operator bool() const { return from != to; }
    // All fields in 16 bits; 0 for no move.
    std::uint16_t packed() const {
        const int special = kind == kNormal ? promoted : 4 + kind;
        return static_cast<std::uint16_t>(from | to << 6 | special << 12);
    }
};

struct MoveList {
    static constexpr int kMost = 1024;  // more than any 30 queens have
    Move moves[kMost];
    int scores[kMost];
    int count = 0;

    void add(Move move) {
        if (count < kMost) moves[count++] = move;
    }
    // Swaps the move with the highest score to place `first`.
    Move pick(int first) {
        int best = first;
        for (int i = first + 1; i < count; ++i) best = scores[i] > scores[best] ? i : best;
        std::swap(moves[first], moves[best]);
        std::swap(scores[first], scores[best]);
        return moves[first];
    }
};

struct Keys {
    std::uint64_t piece[12][64] = {}, castling[64] = {}, en_passant[8] = {}, black = 0;

    constexpr Keys() {
        std::uint64_t state = 0;
        const auto next = [&] {  // splitmix64
            std::uint64_t x = state += 0x9e3779b97f4a7c15;
            x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
            x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
            return x ^ (x >> 31);
        };
        for (auto& squares : piece) {
            for (auto& key : squares) key = next();
        }
        for (auto& key : castling) key = next();
        for (auto& key : en_passant) key = next();
        black = next();
    }
};
inline constexpr Keys kKeys{};

struct Position {
    static constexpr int kNone = 64;

    nnue::Board board;
    Bits type[6] = {}, colour[2] = {};
    std::uint64_t key = 0;
    std::uint8_t rook[2][2] = {{kNone, kNone}, {kNone, kNone}};  // that may castle: of each colour, towards a and h
    std::uint8_t en_passant = kNone;                             // only if a pawn can capture there
    int rule50 = 0;                                              // plies since a capture or a pawn's move

    int us() const { return board.black_to_move; }
    Bits occupied() const { return colour[0] | colour[1]; }
    Bits of(int a_type, int a_colour) const { return type[a_type] & colour[a_colour]; }
    int type_at(int square) const { return board.piece[square] >> 1; }
    bool is_empty(int square) const { return board.piece[square] == nnue::Board::kEmpty; }

    // The pieces of both sides that attack a square.
    Bits attackers(int square, Bits all) const {
        using namespace nnue;
        return (detail::kAttacks.pawn[kBlack][square] & of(kPawn, kWhite)) |
               (detail::kAttacks.pawn[kWhite][square] & of(kPawn, kBlack)) |
               (detail::kAttacks.knight[square] & type[kKnight]) | (detail::kAttacks.king[square] & type[kKing]) |
               (bishop_attacks(square, all) & (type[kBishop] | type[kQueen])) |
               (rook_attacks(square, all) & (type[kRook] | type[kQueen]));
    }
    bool is_attacked(int square, int by) const { return (attackers(square, occupied()) & colour[by]) != 0; }
    bool in_check() const { return is_attacked(board.king[us()], us() ^ 1); }

    void put(int code, int square) {
        board.put(square, static_cast<nnue::Type>(code >> 1), static_cast<nnue::Colour>(code & 1));
        type[code >> 1] |= bit(square);
        colour[code & 1] |= bit(square);
        key ^= kKeys.piece[code][square];
    }
    void remove(int square) {
        const int code = board.piece[square];
        board.clear(square);
        type[code >> 1] ^= bit(square);
        colour[code & 1] ^= bit(square);
        key ^= kKeys.piece[code][square];
    }

    // Computes the position after a pseudo-legal move. False if it leaves the own king attacked.
    bool after(Move move, Position& next) const {
        next = *this;
        next.play(move);
        return !next.is_attacked(next.board.king[us()], us() ^ 1);
    }
    void play(Move move) {
        const int mover = us(), code = board.piece[move.from], home = mover ? 56 : 0;
        pass();
        ++rule50;
        if (move.kind == Move::kCastling) {
            const bool to_h = move.to > move.from;
            remove(move.from);
            remove(move.to);
            put(2 * nnue::kKing + mover, home + (to_h ? 6 : 2));
            put(2 * nnue::kRook + mover, home + (to_h ? 5 : 3));
        } else {
            if (!is_empty(move.to)) {
                remove(move.to);
                rule50 = 0;
            }
            if (move.kind == Move::kEnPassant) remove(move.to ^ 8);
            remove(move.from);
            put(move.promoted == nnue::kPawn ? code : 2 * move.promoted + mover, move.to);
        }
        if (code >> 1 == nnue::kPawn) {
            rule50 = 0;
            if ((move.from ^ move.to) == 16) set_en_passant((move.from + move.to) / 2);
        }
        for (int side = 0; side < 2; ++side) {
            for (std::uint8_t* square = rook[side]; square < rook[side] + 2; ++square) {
                if (*square == kNone) continue;
                const bool moved =
                    (code >> 1 == nnue::kKing && side == mover) || *square == move.from || *square == move.to;
                if (!moved) continue;
                key ^= kKeys.castling[*square];
                *square = kNone;
            }
        }
    }
    // A null move.
    void pass() {
        if (en_passant != kNone) key ^= kKeys.en_passant[en_passant & 7];
        en_passant = kNone;
        board.black_to_move = !board.black_to_move;
        key ^= kKeys.black;
    }

    // Adds pseudo-legal moves: captures and promotions to queens, or else all others, too.
    void list(MoveList& moves, bool only_captures) const {
        using namespace nnue;
        const Bits own = colour[us()], enemy = colour[us() ^ 1] & ~type[kKing], all = occupied();
        const Bits targets = only_captures ? enemy : ~own & ~type[kKing];
        list_pawns(moves, only_captures);
        for (const int piece : {kKnight, kBishop, kRook, kQueen, kKing}) {
            for (Bits left = of(piece, us()); left;) {
                const int from = pop(left);
                for (Bits to = attacks_of(piece, us(), from, all) & targets; to;) moves.add(made(from, pop(to)));
            }
        }
        if (only_captures) return;
        for (const int rook_square : rook[us()]) {
            if (rook_square != kNone && can_castle(rook_square)) {
                moves.add(made(board.king[us()], rook_square, kPawn, Move::kCastling));
            }
        }
    }
    bool is_quiet(Move move) const {
        return move.kind == Move::kCastling ||
               (move.kind == Move::kNormal && is_empty(move.to) && move.promoted != nnue::kQueen);
    }
    // Whether no sequence of moves ends in a mate: kings with at most one knight or bishop.
    bool is_dead() const {
        const Bits minor = type[nnue::kKnight] | type[nnue::kBishop];
        return (type[nnue::kPawn] | type[nnue::kRook] | type[nnue::kQueen]) == 0 && nnue::bit_count(minor) <= 1;
    }
    bool has_pieces(int side) const {  // other than pawns
        return (colour[side] & ~type[nnue::kPawn] & ~type[nnue::kKing]) != 0;
    }

    // Whether the exchange of pieces on the target square gains at least `threshold`, of 100 for a pawn.
    static constexpr int kValues[6] = {100, 320, 330, 500, 950, 0};
    bool exchange_gains(Move move, int threshold) const {
        if (move.kind != Move::kNormal || move.promoted != nnue::kPawn) return threshold <= 0;
        int balance = (is_empty(move.to) ? 0 : kValues[type_at(move.to)]) - threshold;
        if (balance < 0) return false;
        balance -= kValues[type_at(move.from)];
        if (balance >= 0) return true;
        Bits all = (occupied() ^ bit(move.from)) | bit(move.to);
        Bits attacking = attackers(move.to, all) & all;
        const Bits diagonal = type[nnue::kBishop] | type[nnue::kQueen],
                   straight = type[nnue::kRook] | type[nnue::kQueen];
        int side = us() ^ 1;
        for (;; side ^= 1) {  // the side that would lose now takes back with its least piece
            const Bits own = attacking & colour[side];
            if (!own) break;
            int least = 0;
            while (!(own & type[least])) ++least;
            if (least == nnue::kKing && (attacking & colour[side ^ 1])) break;
            all ^= bit(nnue::lowest_bit(own & type[least]));
            if (least == nnue::kPawn || least == nnue::kBishop || least == nnue::kQueen) {
                attacking |= nnue::bishop_attacks(move.to, all) & diagonal;
            }
            if (least == nnue::kRook || least == nnue::kQueen) attacking |= nnue::rook_attacks(move.to, all) & straight;
            attacking &= all;
            balance = -balance - 1 - kValues[least];
            if (balance >= 0) {
                side ^= 1;
                break;
            }
        }
        return side != us();
    }

    // False, with the reason in `error`, for a FEN that is not a legal position. Castling: KQkq, or files of rooks.
    bool read(const std::string& fen, std::string& error) {
        *this = Position();
        nnue::Board found;
        if (!read_fen(fen, found, error)) return false;
        for (int square = 0; square < 64; ++square) {
            if (found.piece[square] != nnue::Board::kEmpty) put(found.piece[square], square);
        }
        board.black_to_move = found.black_to_move;
        if (board.black_to_move) key ^= kKeys.black;
        std::istringstream fields(fen);
        std::string pieces, side, castling = "-", passing = "-";
        fields >> pieces >> side >> castling >> passing >> rule50;
        rule50 = std::min(std::max(rule50, 0), 200);
        error = "";
        if (type[nnue::kPawn] & 0xff000000000000ff) error = "a pawn on the first or last rank";
        if (is_attacked(board.king[us() ^ 1], us())) error = "the side to move can take the king";
        for (const char letter : castling) {
            if (letter != '-' && !allow(letter))
                error = std::string("castling ") + letter + " without its king and rook";
        }
        if (passing.size() == 2 && passing[0] >= 'a' && passing[0] <= 'h' && passing[1] == (us() ? '3' : '6')) {
            const int square = 8 * (passing[1] - '1') + passing[0] - 'a';
            const int pawn = square ^ 8;
            if (is_empty(square) && board.piece[pawn] == 2 * nnue::kPawn + (us() ^ 1)) {
                set_en_passant(square);
            }
        }
        return error.empty();
    }

  private:
    static Move made(int from, int to, int promoted = nnue::kPawn, Move::Kind kind = Move::kNormal) {
        return {static_cast<std::uint8_t>(from), static_cast<std::uint8_t>(to), static_cast<std::uint8_t>(promoted),
                kind};
    }

    // After a pawn's two steps, for the side that is now to move: the square counts only if a capture there is legal,
    // as the rule of repetition has it.
    void set_en_passant(int square) {
        for (Bits from = nnue::detail::kAttacks.pawn[us() ^ 1][square] & of(nnue::kPawn, us()); from;) {
            Position next;
            if (!after(made(pop(from), square, nnue::kPawn, Move::kEnPassant), next)) continue;
            en_passant = static_cast<std::uint8_t>(square);
            key ^= kKeys.en_passant[square & 7];
            return;
        }
    }

    bool allow(char letter) {
        const int side = std::islower(static_cast<unsigned char>(letter)) ? 1 : 0, home = side ? 56 : 0;
        const int king = board.king[side], upper = std::toupper(static_cast<unsigned char>(letter));
        const Bits rooks = of(nnue::kRook, side) & (Bits{0xff} << home);
        if (king >> 3 != home >> 3) return false;
        int square = kNone;
        if (upper == 'K' && rooks >> king) square = nnue::highest_bit(rooks);
        if (upper == 'Q' && rooks & (bit(king) - 1)) square = nnue::lowest_bit(rooks);
        if (upper >= 'A' && upper <= 'H' && rooks & bit(home + upper - 'A')) square = home + upper - 'A';
        if (square == kNone) return false;
        std::uint8_t& of_side = rook[side][square > king];
        if (of_side == kNone) key ^= kKeys.castling[square];
        of_side = static_cast<std::uint8_t>(square);
        return true;
    }

    bool can_castle(int rook_square) const {
        const int home = us() ? 56 : 0, king = board.king[us()];
        const int king_to = home + (rook_square > king ? 6 : 2), rook_to = home + (rook_square > king ? 5 : 3);
        const auto between = [](int a, int b) { return (bit(std::max(a, b)) << 1) - bit(std::min(a, b)); };
        const Bits others = occupied() ^ bit(king) ^ bit(rook_square);
        if ((between(king, king_to) | between(rook_square, rook_to)) & others) return false;
        for (Bits path = between(king, king_to); path;) {
            if (is_attacked(pop(path), us() ^ 1)) return false;
        }
        return true;
    }

    void list_pawns(MoveList& moves, bool only_captures) const {
        using namespace nnue;
        const int ahead = us() ? -8 : 8;
        const Bits enemy = colour[us() ^ 1] & ~type[kKing];
        const auto add = [&](int from, int to) {
            if (to > 7 && to < 56) {
                moves.add(made(from, to));
                return;
            }
            moves.add(made(from, to, kQueen));
            if (only_captures) return;
            for (const int piece : {kKnight, kRook, kBishop}) moves.add(made(from, to, piece));
        };
        for (Bits left = of(kPawn, us()); left;) {
            const int from = pop(left), one = from + ahead;
            const Bits attacked = detail::kAttacks.pawn[us()][from];
            for (Bits to = attacked & enemy; to;) add(from, pop(to));
            if (en_passant != kNone && attacked & bit(en_passant)) {
                moves.add(made(from, en_passant, kPawn, Move::kEnPassant));
            }
            if (!is_empty(one) || (only_captures && one > 7 && one < 56)) continue;
            add(from, one);
            const int start = us() ? 6 : 1;
            if (!only_captures && from >> 3 == start && is_empty(one + ahead)) moves.add(made(from, one + ahead));
        }
    }
};

// The legal moves.
inline std::vector<Move> legal_moves(const Position& position) {
    MoveList list;
    position.list(list, false);
    std::vector<Move> legal;
    Position next;
    for (int i = 0; i < list.count; ++i) {
        if (position.after(list.moves[i], next)) legal.push_back(list.moves[i]);
    }
    return legal;
}

// A move in UCI.
inline std::string text_of(Move move, bool chess960) {
    if (!move) return "0000";
    int to = move.to;
    if (move.kind == Move::kCastling && !chess960) to = (move.to & 56) + (move.to > move.from ? 6 : 2);
    std::string text;
    for (const int square : {static_cast<int>(move.from), to}) {
        text += static_cast<char>('a' + (square & 7));
        text += static_cast<char>('1' + (square >> 3));
    }
    if (move.promoted != nnue::kPawn) text += "pnbrq"[move.promoted];
    return text;
}

// The number of positions after `depth` plies.
inline std::uint64_t perft(const Position& position, int depth) {
    const std::vector<Move> moves = legal_moves(position);
    if (depth <= 1) return depth < 1 ? 1 : moves.size();
    std::uint64_t total = 0;
    Position next;
    for (const Move move : moves) {
        position.after(move, next);
        total += perft(next, depth - 1);
    }
    return total;
}
