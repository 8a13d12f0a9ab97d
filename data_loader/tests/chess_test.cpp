// Attacks against a walk over the board, the en-passant rule, and records of random games.
#include <gtest/gtest.h>

#include "games.h"

namespace nnue::data {
namespace {

using testing::kStartFen;

Bitboard walk(int square, Bitboard occupied, std::initializer_list<std::pair<int, int>> directions) {
    Bitboard reached = 0;
    for (const auto& [df, dr] : directions) {
        for (int f = (square & 7) + df, r = (square >> 3) + dr; f >= 0 && f < 8 && r >= 0 && r < 8; f += df, r += dr) {
            reached |= bit(8 * r + f);
            if (occupied & bit(8 * r + f)) break;
        }
    }
    return reached;
}

TEST(Attacks, SlidersMatchAWalk) {
    std::mt19937_64 random(1);
    for (int i = 0; i < 20000; ++i) {
        const Bitboard occupied = random() & random();
        const int square = static_cast<int>(random() % 64);
        EXPECT_EQ(rook_attacks(square, occupied), walk(square, occupied, {{1, 0}, {-1, 0}, {0, 1}, {0, -1}}));
        EXPECT_EQ(bishop_attacks(square, occupied), walk(square, occupied, {{1, 1}, {-1, 1}, {1, -1}, {-1, -1}}));
    }
}

TEST(Attacks, PieceReachesIsABitOfThem) {
    std::mt19937_64 random(2);
    for (int i = 0; i < 2000; ++i) {
        const Bitboard occupied = random() & random();
        const int from = static_cast<int>(random() % 64);
        for (const PieceType type : {kKnight, kBishop, kRook, kQueen, kKing}) {
            Bitboard reached = 0;
            for (int to = 0; to < 64; ++to) reached |= piece_reaches(type, from, to, occupied) ? bit(to) : 0;
            ASSERT_EQ(reached, piece_attacks(type, from, occupied)) << from << ' ' << type;
        }
    }
}

TEST(Attacks, Leapers) {
    EXPECT_EQ(popcount(knight_attacks(0)), 2);
    EXPECT_EQ(popcount(knight_attacks(27)), 8);
    EXPECT_EQ(popcount(king_attacks(63)), 3);
    EXPECT_EQ(pawn_attacks(kWhite, 8), bit(17));
    EXPECT_EQ(pawn_attacks(kBlack, 55), bit(46));
    EXPECT_EQ(pawn_attacks(kWhite, 60), 0u);
}

TEST(Bits, SelectAndZigzag) {
    const Bitboard bits = 0x8000400000010005ULL;
    int k = 0;
    for (const int square : {0, 2, 16, 46, 63}) EXPECT_EQ(select_bit(bits, k++), square);
    for (int value = -32768; value <= 32767; ++value) ASSERT_EQ(unzigzag(zigzag(value)), value);
    EXPECT_EQ(zigzag(0), 0u);
    EXPECT_EQ(zigzag(-1), 1u);
    EXPECT_EQ(zigzag(1), 2u);
}

// data-formats: positions before the push; the data files do not exercise the rule.
struct EpCase {
    const char* fen;
    const char* push;
    const char* square;
};

void PrintTo(const EpCase& c, std::ostream* out) {
    *out << c.fen << ' ' << c.push;
}

class EnPassantRule : public ::testing::TestWithParam<EpCase> {};

TEST_P(EnPassantRule, AfterThePush) {
    const EpCase& c = GetParam();
    Position p = parse_fen(std::string(c.fen) + " - - 0 1");
    ASSERT_TRUE(play(p, parse_uci(p, c.push)));
    EXPECT_EQ(p.ep_square == kNoSquare ? "none" : format_square(p.ep_square), c.square);
}

INSTANTIATE_TEST_SUITE_P(Specification, EnPassantRule,
                         ::testing::Values(EpCase{"8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 w", "e2e4", "none"},
                                           EpCase{"8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 w", "g2g4", "none"},
                                           EpCase{"8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 b", "c7c5", "none"},
                                           EpCase{"4k3/8/8/8/3p4/8/4P3/4K3 w", "e2e4", "e3"},
                                           EpCase{"4k3/8/8/8/8/8/4P3/4K3 w", "e2e4", "none"},
                                           EpCase{"7k/8/8/4p3/3p4/8/2P5/B3K3 w", "c2c4", "c3"},
                                           EpCase{"7k/8/8/8/3p4/8/4P3/B3K3 w", "e2e4", "none"},
                                           EpCase{"7k/8/8/8/3p1p2/8/4P3/B3K3 w", "e2e4", "e3"},
                                           EpCase{"8/8/8/k7/3p4/8/4P3/4B1K1 w", "e2e4", "none"},
                                           EpCase{"3k4/8/8/8/3p4/8/4P3/3RK3 w", "e2e4", "none"}),
                         [](const auto& info) { return "case_" + std::to_string(info.index); });

TEST(Play, CastlingRightsAndCounters) {
    Position p = parse_fen("r3k2r/8/8/8/8/8/8/R3K2R w KQkq - 7 20");
    ASSERT_TRUE(play(p, parse_uci(p, "e1g1")));
    EXPECT_EQ(format_fen(p), "r3k2r/8/8/8/8/8/8/R4RK1 b kq - 8 20");
    ASSERT_TRUE(play(p, parse_uci(p, "a8a1")));
    EXPECT_EQ(format_fen(p), "4k2r/8/8/8/8/8/8/r4RK1 w k - 0 21");
    Position q = parse_fen("r3k2r/8/8/8/8/8/8/R3K2R b KQkq - 7 20");
    ASSERT_TRUE(play(q, parse_uci(q, "h8h1")));
    EXPECT_EQ(format_fen(q), "r3k3/8/8/8/8/8/8/R3K2r w Qq - 0 21");
    ASSERT_TRUE(play(q, parse_uci(q, "a1a8")));
    EXPECT_EQ(format_fen(q), "R3k3/8/8/8/8/8/8/4K2r b - - 0 21");
}

TEST(Play, EnPassantAndPromotion) {
    Position p = parse_fen("4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 2");
    const Move capture = parse_uci(p, "e5d6");
    EXPECT_EQ(capture.kind(), kEnPassant);
    ASSERT_TRUE(play(p, capture));
    EXPECT_EQ(format_fen(p), "4k3/8/3P4/8/8/8/8/4K3 b - - 0 2");
    Position q = parse_fen("3nk3/4P3/8/8/8/8/8/4K3 w - - 5 9");
    ASSERT_TRUE(play(q, parse_uci(q, "e7d8n")));
    EXPECT_EQ(format_fen(q), "3Nk3/8/8/8/8/8/8/4K3 b - - 0 9");
}

TEST(Play, TakingAKingIsRefused) {
    Position p = parse_fen("4k3/8/8/8/8/8/8/4RK2 w - - 0 1");
    EXPECT_FALSE(play(p, Move::make(kNormal, 4, 60)));
}

// Leaf counts of the move tree, known for these positions since long.
std::uint64_t perft(const Position& p, int depth) {
    if (depth == 0) return 1;
    std::uint64_t leaves = 0;
    for (const Move move : legal_moves(p)) {
        Position after = p;
        play(after, move);
        leaves += perft(after, depth - 1);
    }
    return leaves;
}

TEST(LegalMoves, Perft) {
    EXPECT_EQ(perft(parse_fen(kStartFen), 4), 197281u);
    EXPECT_EQ(perft(parse_fen("r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq - 0 1"), 3), 97862u);
    EXPECT_EQ(perft(parse_fen("8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 w - - 0 1"), 5), 674624u);
    EXPECT_EQ(perft(parse_fen("r3k2r/Pppp1ppp/1b3nbN/nP6/BBP1P3/q4N2/Pp1P2PP/R2Q1RK1 w kq - 0 1"), 4), 422333u);
    EXPECT_EQ(perft(parse_fen("rnbq1k1r/pp1Pbppp/2p5/8/2B5/8/PPP1NnPP/RNBQK2R w KQ - 1 8"), 3), 62379u);
}

TEST(Game, Outcomes) {
    const auto outcome = [](const char* fen, std::initializer_list<const char*> moves) {
        Game game(fen);
        for (const char* move : moves) game.play(move);
        return game.outcome();
    };
    EXPECT_EQ(outcome(kStartFen, {}), "");
    EXPECT_EQ(outcome(kStartFen, {"f2f3", "e7e5", "g2g4", "d8h4"}), "checkmate");
    EXPECT_EQ(outcome("7k/5Q2/8/8/8/8/8/K7 b - - 0 1", {}), "stalemate");
    EXPECT_EQ(outcome(kStartFen, {"g1f3", "g8f6", "f3g1", "f6g8", "g1f3", "g8f6", "f3g1"}), "");
    EXPECT_EQ(outcome(kStartFen, {"g1f3", "g8f6", "f3g1", "f6g8", "g1f3", "g8f6", "f3g1", "f6g8"}), "repetition");
    EXPECT_EQ(outcome("7k/8/8/8/8/8/R7/K7 w - - 98 80", {"a2b2"}), "");
    EXPECT_EQ(outcome("7k/8/8/8/8/8/R7/K7 w - - 98 80", {"a2b2", "h8g8"}), "fifty moves");
    EXPECT_EQ(outcome("7k/8/8/8/8/8/r7/K7 w - - 0 80", {"a1a2"}), "material");
    EXPECT_EQ(outcome("7k/8/8/8/8/2B5/5b2/K7 w - - 0 80", {}), "material");
    EXPECT_EQ(outcome("7k/8/8/8/8/2B5/4b3/K7 w - - 0 80", {}), "");
    EXPECT_EQ(outcome("7k/8/8/8/8/2N5/4n3/K7 w - - 0 80", {}), "");
}

TEST(Game, RecordsCarryTheResultOfTheSideToMove) {
    Game game(kStartFen);
    game.play("a2a3");
    game.record("e7e5", 12);
    game.record("b2b4", -7);
    EXPECT_THROW(game.record("b4b5", 0), FormatError);
    const std::vector<Record> records = game.records(1);
    ASSERT_EQ(records.size(), 2u);
    EXPECT_EQ(record_result(records[0].bytes.data()), -1);
    EXPECT_EQ(record_result(records[1].bytes.data()), 1);
    EXPECT_EQ(record_score(records[1].bytes.data()), -7);
    EXPECT_EQ(record_ply(records[0].bytes.data()), 1);
}

TEST(Move, UciRefusesWhatIsNotThere) {
    const Position p = parse_fen(kStartFen);
    for (const char* uci : {"e2e5", "e7e5", "e1g1", "e2e4q", "x2e4", "e2", "e2e9", "e2e4xx", "e2e4k"}) {
        EXPECT_THROW(parse_uci(p, uci), FormatError) << uci;
    }
    EXPECT_EQ(format_uci(parse_uci(p, "g1f3")), "g1f3");
    EXPECT_TRUE(parse_uci(p, "0000").is_null());
}

TEST(Record, RandomGamesRoundTrip) {
    std::mt19937 random(2);
    int castlings = 0, en_passants = 0, promotions = 0;
    for (int game = 0; game < 200; ++game) {
        for (const Record& record : testing::random_game(random, 120)) {
            Entry e;
            ASSERT_EQ(unpack(record, e), nullptr);
            ASSERT_EQ(pack(e), record);
            ASSERT_EQ(format_fen(parse_fen(format_fen(e.position))), format_fen(e.position));
            ASSERT_EQ(parse_uci(e.position, format_uci(e.move)), e.move);
            castlings += e.move.kind() == kCastling;
            en_passants += e.move.kind() == kEnPassant;
            promotions += e.move.kind() == kPromotion;
        }
    }
    EXPECT_GT(castlings, 20);
    EXPECT_GT(en_passants, 20);
    EXPECT_GT(promotions, 20);
}

TEST(Record, AnyBytesAreSafe) {
    std::mt19937 random(3);
    int sound = 0;
    for (int i = 0; i < 200000; ++i) {
        Entry e;
        e.position = parse_fen(i % 2 ? kStartFen : "4k3/8/8/8/3pP3/8/8/R3K3 b Q e3 0 1");
        Record record = pack(e);
        for (unsigned changes = 1 + random() % 3; changes > 0; --changes)
            record.bytes[random() % 32] ^= 1u << random() % 8;
        if (unpack(record, e)) continue;
        ++sound;
        ASSERT_EQ(pack(e), record);
        if (is_pseudo_legal(e.position, e.move)) play(e.position, e.move);
    }
    EXPECT_GT(sound, 1000);
}

}  // namespace
}  // namespace nnue::data
