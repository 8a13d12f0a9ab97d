// Feature sets against sums over real positions that were printed by others, and against the definition of threats and
// pawn pairs written down once more, square by square.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "chess/fen.h"
#include "features/feature_sets.h"
#include "features/record_scan.h"
#include "formats/binpack.h"
#include "games.h"
#include "pipeline/kernels.h"

namespace nnue::data {
namespace {

using namespace testing;

// Every basic set, the sums that nets use, one in another order, and piece-square sets that are declared by their name.
const std::vector<std::string> kSets = [] {
    std::vector<std::string> names = basic_feature_sets();
    for (const char* name :
         {"HalfKAv2_hm+Full_Threats_v10", "HalfKAv2_hm+Full_Threats_v16+PP_3Wide", "PP_3Wide+HalfKP+Full_Threats_v14",
          "PP_3Wide+Chess768", "PieceSquare(planes=10)", "PieceSquare(planes=11,order=interleaved)",
          "PieceSquare(mirror=e-h,kings=0.0.1.1.0.0.1.1.2.2.2.2.2.2.2.2.3.3.3.3.3.3.3.3.3.3.3.3.3.3.3.3)",
          "Full_Threats_v16+PieceSquare(planes=10,mirror=a-d)"}) {
        names.emplace_back(name);
    }
    return names;
}();

// Memory for the rows of n positions.
struct Rows {
    std::vector<std::int32_t> white, black;
    std::vector<std::int16_t> counts, score;
    std::vector<std::int8_t> result;
    std::vector<std::uint8_t> black_to_move, piece_count, material;

    Rows(std::size_t n, const FeatureSet& set)
        : white(n * static_cast<std::size_t>(set.max_active), 12345),
          black(white),
          counts(n),
          score(n),
          result(n),
          black_to_move(n),
          piece_count(n),
          material(n) {}
    BatchRows batch() {
        return {white.data(), black.data(),  counts.data(),      black_to_move.data(),
                score.data(), result.data(), piece_count.data(), material.data()};
    }
    bool operator==(const Rows&) const = default;
};

// The features in one row: what stands before the first −1. Nothing but −1 may follow it.
std::vector<int> features_of(const std::vector<std::int32_t>& rows, std::size_t row, int max_active) {
    const auto begin = rows.begin() + static_cast<std::ptrdiff_t>(row) * max_active, end = begin + max_active;
    const auto stop = std::find(begin, end, -1);
    EXPECT_TRUE(std::all_of(stop, end, [](int x) { return x == -1; }));
    return {begin, stop};
}

// ---- the definition, once more --------------------------------------------------------------------------------------

struct Version {
    const char* name;
    std::vector<int> n;
    std::vector<std::vector<int>> map;  // by attacker and victim
    bool pushes;
};

const std::vector<int> kNone{-1, -1, -1, -1, -1, -1}, kPawnRow{0, 1, -1, 2, -1, -1}, kFour{0, 1, 2, 3, -1, -1},
    kFive{0, 1, 2, 3, 4, -1}, kSix{0, 1, 2, 3, 4, 5}, kFourAndKing{0, 1, 2, 3, -1, 4};
const std::vector<Version> kVersions{
    {"Full_Threats_v10", {6, 12, 10, 10, 12, 8}, {kPawnRow, kSix, kFourAndKing, kFourAndKing, kSix, kFour}, false},
    {"Full_Threats_v11", {6, 10, 8, 8, 10, 8}, {kPawnRow, kFive, kFour, kFour, kFive, kFour}, false},
    {"Full_Threats_v12", {6, 10, 8, 8, 10, 0}, {kPawnRow, kFive, kFour, kFour, kFive, kNone}, false},
    {"Full_Threats_v14", {6, 10, 8, 8, 10, 0}, {kPawnRow, kFive, kFour, kFour, kFive, kNone}, true},
    {"Full_Threats_v16", {4, 10, 8, 8, 10, 0}, {{-1, 0, -1, 1, -1, -1}, kFive, kFour, kFour, kFive, kNone}, false}};

using Board = std::map<int, int>;  // piece codes by square

// Every square that the piece would attack from `from`, own pieces moving up; blocked by `board`. With `pushes` a pawn
// also reaches the square ahead.
std::vector<int> attacked(int type, bool enemy, int from, const Board& board, bool pushes) {
    std::vector<std::pair<int, int>> steps;
    const int up = enemy ? -1 : 1;
    const std::vector<std::pair<int, int>> straight{{1, 0}, {-1, 0}, {0, 1}, {0, -1}},
        diagonal{{1, 1}, {1, -1}, {-1, 1}, {-1, -1}};
    if (type == kPawn) {
        if (from < 8 || from >= 56) return {};
        steps = {{-1, up}, {1, up}};
        if (pushes) steps.push_back({0, up});
    } else if (type == kKnight) {
        steps = {{1, 2}, {2, 1}, {-1, 2}, {-2, 1}, {1, -2}, {2, -1}, {-1, -2}, {-2, -1}};
    } else {
        if (type != kBishop) steps.insert(steps.end(), straight.begin(), straight.end());
        if (type != kRook) steps.insert(steps.end(), diagonal.begin(), diagonal.end());
    }
    const bool slides = type == kBishop || type == kRook || type == kQueen;
    std::vector<int> squares;
    for (const auto& [df, dr] : steps) {
        for (int f = (from & 7) + df, r = (from >> 3) + dr; f >= 0 && f < 8 && r >= 0 && r < 8; f += df, r += dr) {
            squares.push_back(8 * r + f);
            if (!slides || board.contains(8 * r + f)) break;
        }
    }
    std::sort(squares.begin(), squares.end());
    return squares;
}

struct Reference {
    const Version& version;
    std::map<std::pair<int, int>, int> base, total;             // by (enemy, type)
    std::map<std::tuple<int, int, int>, int> offset;            // by (enemy, type, square)
    std::map<std::tuple<int, int, int>, std::vector<int>> set;  // the same
    int dims = 0;

    explicit Reference(const Version& v) : version(v) {
        for (const int enemy : {0, 1}) {
            for (int type = 0; type < 6; ++type) {
                int sum = 0;
                for (int square = 0; square < 64; ++square) {
                    offset[{enemy, type, square}] = sum;
                    set[{enemy, type, square}] = attacked(type, enemy, square, {}, v.pushes);
                    sum += static_cast<int>(set[{enemy, type, square}].size());
                }
                total[{enemy, type}] = sum;
                base[{enemy, type}] = dims;
                dims += sum * v.n[static_cast<std::size_t>(type)];
            }
        }
    }

    std::vector<int> features(const Board& real, int perspective) const {
        const int king = std::find_if(real.begin(), real.end(), [&](const auto& p) {
                             return p.second == 2 * kKing + perspective;
                         })->first;
        const int o = (perspective ? 56 : 0) ^ ((king & 7) >= 4 ? 7 : 0);
        Board board;
        for (const auto& [square, code] : real) board[square ^ o] = code ^ perspective;
        std::vector<int> result;
        for (const auto& [from, attacker] : board) {
            const int a = attacker & 1, type = attacker >> 1;
            for (const int to : attacked(type, a, from, board, version.pushes)) {
                if (!board.contains(to)) continue;
                const int v = board.at(to) & 1, victim = board.at(to) >> 1;
                const bool ahead = type == kPawn && (to & 7) == (from & 7);
                if (ahead && victim != kPawn) continue;
                // Beside pushes, no version that has them leaves out captures of pawns.
                const int m = version.map[static_cast<std::size_t>(type)][static_cast<std::size_t>(victim)];
                if (m < 0) continue;
                if (type == victim && !(type == kPawn && a == v) && from < to) continue;
                const std::vector<int>& squares = set.at({a, type, from});
                const int rank =
                    static_cast<int>(std::lower_bound(squares.begin(), squares.end(), to) - squares.begin());
                result.push_back(base.at({a, type}) +
                                 (v * (version.n[static_cast<std::size_t>(type)] / 2) + m) * total.at({a, type}) +
                                 offset.at({a, type, from}) + rank);
            }
        }
        std::sort(result.begin(), result.end());
        return result;
    }
};

std::vector<int> pawn_pairs(const Board& real, int perspective) {
    const int king = std::find_if(real.begin(), real.end(), [&](const auto& p) {
                         return p.second == 2 * kKing + perspective;
                     })->first;
    const int o = (perspective ? 56 : 0) ^ ((king & 7) >= 4 ? 7 : 0);
    std::vector<std::pair<int, int>> pawns;  // number, file
    for (const auto& [square, code] : real) {
        if (code < 2) pawns.push_back({48 * ((code & 1) != perspective) + (square ^ o) - 8, square & 7});
    }
    std::vector<int> result;
    for (const auto& [high, file] : pawns) {
        for (const auto& [low, other] : pawns) {
            if (low < high && std::abs(file - other) <= 1) result.push_back(high * (high - 1) / 2 + low);
        }
    }
    std::sort(result.begin(), result.end());
    return result;
}

// Random games, and boards with pieces anywhere: up to 30 beside the kings.
std::vector<Record> positions() {
    std::vector<Record> records = random_games(11, 12, 160);
    std::mt19937 random(12);
    while (records.size() < 2500) {
        Entry entry{};
        Position& p = entry.position;
        const unsigned pieces = random() % 31;
        const unsigned crowded = random() % 3;  // mostly pawns; mostly queens and knights; anything
        Bitboard taken = 0;
        for (unsigned i = 0; i < pieces + 2; ++i) {
            const int square = static_cast<int>(random() % 64);
            if (taken & bit(square)) continue;
            int type = static_cast<int>(random() % 5);
            if (crowded == 0 && random() % 2) type = kPawn;
            if (crowded == 1) type = random() % 2 ? kQueen : kKnight;
            if (i < 2) type = kKing;
            if (type == kPawn && (square < 8 || square >= 56)) type = kRook;
            const unsigned color = i < 2 ? i : random() % 2;
            if (i < 2 && (p.types[kKing] & p.colors[color])) continue;
            taken |= bit(square);
            p.colors[color] |= bit(square);
            p.types[static_cast<std::size_t>(type)] |= bit(square);
        }
        if (popcount(p.types[kKing]) != 2 || popcount(p.types[kPawn]) > kMaxPawns) continue;
        p.side_to_move = static_cast<std::uint8_t>(random() % 2);
        records.push_back(pack(entry));
    }
    return records;
}

Board board_of(const Record& record) {
    Entry entry;
    EXPECT_EQ(unpack(record, entry), nullptr);
    Board board;
    for (int square = 0; square < 64; ++square) {
        for (int type = 0; type < 6; ++type) {
            if (!(entry.position.types[static_cast<std::size_t>(type)] >> square & 1)) continue;
            board[square] = 2 * type + static_cast<int>(entry.position.colors[kBlack] >> square & 1);
        }
    }
    return board;
}

Rows expand(const std::vector<Record>& records, const FeatureSet& set, const Kernels& build = kernels()) {
    Rows rows(records.size(), set);
    build.expand(records.data(), nullptr, records.size(), set, rows.batch());
    return rows;
}

void expect_features(std::vector<int> found, const std::vector<int>& expected) {
    std::sort(found.begin(), found.end());
    ASSERT_EQ(found, expected);
}

TEST(Threats, MatchTheDefinition) {
    const std::vector<Record> records = positions();
    for (const Version& version : kVersions) {
        const FeatureSet& set = feature_set(version.name);
        const Reference reference(version);
        ASSERT_EQ(reference.dims, set.num_features) << version.name;
        const Rows rows = expand(records, set);
        for (std::size_t i = 0; i < records.size(); ++i) {
            const Board board = board_of(records[i]);
            const auto white = features_of(rows.white, i, set.max_active);
            const auto black = features_of(rows.black, i, set.max_active);
            ASSERT_EQ(rows.counts[i], static_cast<int>(white.size()));
            ASSERT_EQ(rows.counts[i], static_cast<int>(black.size()));
            expect_features(white, reference.features(board, 0));
            expect_features(black, reference.features(board, 1));
        }
    }
}

TEST(PawnPairs, MatchTheDefinition) {
    const std::vector<Record> records = positions();
    const FeatureSet& set = feature_set("PP_3Wide");
    const Rows rows = expand(records, set);
    std::size_t most = 0;
    for (std::size_t i = 0; i < records.size(); ++i) {
        const Board board = board_of(records[i]);
        expect_features(features_of(rows.white, i, set.max_active), pawn_pairs(board, 0));
        expect_features(features_of(rows.black, i, set.max_active), pawn_pairs(board, 1));
        most = std::max(most, features_of(rows.white, i, set.max_active).size());
    }
    EXPECT_GT(most, 30u);
}

// The boards with the most threats that tools/threat_bound.cpp has found in each version, of any pieces.
TEST(Threats, NoneIsLeftOutWhereThereAreMost) {
    const std::map<std::string, std::pair<const char*, int>> boards{
        {"Full_Threats_v10", {"8/3R1B2/2QNk1q1/1qNqnqN1/1NRNqnQN/1qnQnQ1r/2rKrNq1/3qN3", 151}},
        {"Full_Threats_v11", {"3R1r2/2qNqnK1/1RNrnRnr/2QnQNq1/1qNrnRNR/3nQnk1/3R1R2/8", 146}},
        {"Full_Threats_v12", {"3qnr2/1NQnQNq1/1qnqNqn1/RnQNRNq1/1QnQNq1K/2rNQ3/8/7k", 138}},
        {"Full_Threats_v14", {"4k3/2rNq3/1qnQnRN1/1NqnQnq1/1rnQNRNQ/2QnQNq1/3rnR2/3K4", 138}},
        {"Full_Threats_v16", {"8/3R1q2/3NQn2/KQNqnqNR/2QNQnQ1/1QnqnRNq/k1qnqN2/3r1q2", 138}}};
    for (const Version& version : kVersions) {
        const auto& [board, threats] = boards.at(version.name);
        Entry entry{};
        entry.position = parse_fen(std::string(board) + " w - - 0 1");
        const std::vector<Record> records{pack(entry)};
        for (const std::string& name : {std::string(version.name), "HalfKAv2_hm+" + std::string(version.name)}) {
            const FeatureSet& set = feature_set(name);
            const int pieces = name == version.name ? 0 : popcount(occupied(entry.position));
            for (const Kernels* build : all_kernels()) {
                Rows rows(2, set);
                build->expand(records.data(), nullptr, 1, set, rows.batch());
                EXPECT_EQ(static_cast<int>(features_of(rows.white, 0, set.max_active).size()), pieces + threats);
                EXPECT_EQ(rows.white[static_cast<std::size_t>(set.max_active)], 12345) << name;
                EXPECT_EQ(rows.black[static_cast<std::size_t>(set.max_active)], 12345) << name;
            }
        }
        const FeatureSet& set = feature_set(version.name);
        const Rows rows = expand(records, set);
        const Reference reference(version);
        expect_features(features_of(rows.black, 0, set.max_active), reference.features(board_of(records[0]), 1));
    }
}

// 16 pawns on three files have as many pairs as a row has entries; with more pawns there would be more.
TEST(PawnPairs, NoneIsLeftOutWhereThereAreMost) {
    Entry entry{};
    entry.position = parse_fen("k7/PPP5/ppp5/PPP5/ppp5/PP6/pp6/K7 w - - 0 1");
    const FeatureSet& set = feature_set("PP_3Wide");
    const Rows rows = expand({pack(entry)}, set);
    expect_features(features_of(rows.white, 0, set.max_active), pawn_pairs(board_of(pack(entry)), 0));
    EXPECT_EQ(rows.counts[0], set.max_active);

    put(entry.position, 18, kPawn << 1 | kWhite);
    const Record crowded = pack(entry);
    EXPECT_STREQ(unpack(crowded, entry), "more than 16 pawns");
    std::uint64_t nibbles[2];
    std::memcpy(nibbles, &crowded.bytes[8], sizeof nibbles);
    EXPECT_EQ(scan_record(record_occupancy(crowded.bytes.data()), nibbles[0], nibbles[1], 0).fault,
              RecordFault::kTooManyPawns);
}

TEST(FeatureSets, ACombinedRowIsItsPartsOneAfterTheOther) {
    const std::vector<Record> records = positions();
    for (const std::string& name : kSets) {
        const FeatureSet& set = feature_set(name);
        if (name.find('+') == std::string::npos) continue;
        std::vector<std::vector<int>> white(records.size()), black(records.size());
        int first_feature = 0, max_active = 0;
        for (std::size_t at = 0; at <= name.size();) {
            const std::size_t end = std::min(name.find('+', at), name.size());
            const FeatureSet& part = feature_set(name.substr(at, end - at));
            const Rows rows = expand(records, part);
            for (std::size_t i = 0; i < records.size(); ++i) {
                for (const int x : features_of(rows.white, i, part.max_active)) white[i].push_back(first_feature + x);
                for (const int x : features_of(rows.black, i, part.max_active)) black[i].push_back(first_feature + x);
            }
            first_feature += part.num_features;
            max_active += part.max_active;
            at = end + 1;
        }
        EXPECT_EQ(first_feature, set.num_features) << name;
        EXPECT_EQ(max_active, set.max_active) << name;
        const Rows rows = expand(records, set);
        for (std::size_t i = 0; i < records.size(); ++i) {
            ASSERT_EQ(features_of(rows.white, i, set.max_active), white[i]) << name;
            ASSERT_EQ(features_of(rows.black, i, set.max_active), black[i]) << name;
            ASSERT_EQ(rows.counts[i], static_cast<int>(white[i].size())) << name;
        }
    }
}

TEST(FeatureSets, EveryBuildGivesTheSameBits) {
    const std::vector<Record> records = positions();
    for (const std::string& set_name : kSets) {
        const FeatureSet& set = feature_set(set_name);
        const Rows expected = expand(records, set, *all_kernels().front());
        for (const Kernels* build : all_kernels()) {
            EXPECT_EQ(expand(records, set, *build), expected) << set.name << ' ' << build->isa;
        }
    }
}

// Pawns on the first and last rank, which readers refuse but an operator without checks may meet.
TEST(FeatureSets, PawnsWhereNoneCanBeGiveNoPairs) {
    Entry entry{};
    Position& p = entry.position;
    p.types[kKing] = bit(4) | bit(60);
    p.types[kPawn] = bit(1) | bit(10) | bit(58) | bit(49) | bit(2);
    p.colors = {bit(4) | bit(1) | bit(10) | bit(58), bit(60) | bit(49) | bit(2)};
    const Record record = pack(entry);
    for (const std::string& set_name : kSets) {
        const FeatureSet& set = feature_set(set_name);
        const Rows rows = expand({record}, set);
        for (const auto* side : {&rows.white, &rows.black}) {
            for (const int x : features_of(*side, 0, set.max_active)) EXPECT_LT(x, set.num_features) << set.name;
        }
    }
    EXPECT_EQ(features_of(expand({record}, feature_set("PP_3Wide")).white, 0, 96).size(), 1u);
}

std::string refusal(const char* name) {
    try {
        feature_set(name);
    } catch (const FormatError& error) {
        return error.what();
    }
    return "taken";
}

TEST(FeatureSets, AWrongNameSaysWhatIsWrong) {
    EXPECT_EQ(refusal("Full_Threats").find("unknown feature set 'Full_Threats', expected one of Chess768, "), 0u);
    EXPECT_EQ(refusal("HalfKP+Foo").find("unknown feature set 'Foo' in 'HalfKP+Foo', expected one of Chess768, "), 0u);
    EXPECT_EQ(refusal("").find("unknown feature set ''"), 0u);
    EXPECT_EQ(refusal("HalfKP+HalfKP"), "feature set 'HalfKP+HalfKP': has 'HalfKP' twice");
    const auto inside = [](const char* fields) {
        const std::string name = "PieceSquare(" + std::string(fields) + ")";
        return refusal(name.c_str()).substr(("feature set '" + name + "': ").size());
    };
    EXPECT_EQ(inside("planes=9"), "planes is '9', expected one of 12, 11, 10");
    EXPECT_EQ(inside("buckets=4"), "has 'buckets=4', expected planes=, order=, mirror=, kings=, states= or virtual=");
    EXPECT_EQ(inside("kings=0.1.x"), "kings has 'x', expected king buckets from 0 to 63");
    EXPECT_EQ(inside("kings=0.1"), "kings has 2 buckets, expected 64, or 32 where the board is mirrored");
    EXPECT_EQ(refusal("PieceSquare(planes=12"), "feature set 'PieceSquare(planes=12': expected a ')' at its end");
    const std::string gap = "kings=" + [] {
        std::string text = "2";
        for (int i = 1; i < 64; ++i) text += ".0";
        return text;
    }();
    EXPECT_EQ(inside(gap.c_str()), "kings does not use bucket 1 of 0 to 2");
}

// Built-in sets, declared once more by their name.
TEST(FeatureSets, DeclaredSetsEqualBuiltInOnes) {
    const std::vector<Record> records = positions();
    std::string every_square, hm;
    for (int square = 0; square < 64; ++square) {
        every_square += (square ? "." : "") + std::to_string(square);
        // Files e to h from rank 1 on: h8 is bucket 0.
        if (square < 32) hm += (square ? "." : "") + std::to_string(4 * (7 - square / 4) + 3 - square % 4);
    }
    const std::pair<std::string, std::string> same[] = {
        {"Chess768", "PieceSquare(planes=12)"},
        {"HalfKAv2", "PieceSquare(planes=11,order=interleaved,kings=" + every_square + ")"},
        {"HalfKAv2_hm", "PieceSquare(planes=12,order=interleaved,mirror=e-h,kings=" + hm + ")"},
        {"HalfKAv2_hm_11", "PieceSquare(planes=11,order=interleaved,mirror=e-h,kings=" + hm + ")"},
    };
    for (const auto& [built_in, declared] : same) {
        const FeatureSet &one = feature_set(built_in), &other = feature_set(declared);
        EXPECT_EQ(one.num_features, other.num_features) << built_in;
        EXPECT_EQ(one.max_active, other.max_active) << built_in;
        EXPECT_EQ(one.parts[0].bucket_size, other.parts[0].bucket_size) << built_in;
        EXPECT_EQ(one.parts[0].num_virtual, other.parts[0].num_virtual) << built_in;
        EXPECT_EQ(expand(records, one), expand(records, other)) << built_in;
    }
}

// A mirrored map of 64 buckets reads the same 32 squares as one of 32; without kings, rows are those with kings, less
// the kings' entries.
TEST(FeatureSets, DeclaredSetsMirrorAndLeaveOutKings) {
    const std::vector<Record> records = positions();
    std::string half, full;
    for (int square = 0; square < 32; ++square) half += (square ? "." : "") + std::to_string(square / 4 % 3);
    for (int square = 0; square < 64; ++square) full += (square ? "." : "") + std::to_string(square / 8 % 3);
    for (const char* mirror : {"a-d", "e-h"}) {
        const std::string head = std::string("PieceSquare(mirror=") + mirror + ",kings=";
        EXPECT_EQ(expand(records, feature_set(head + half + ")")), expand(records, feature_set(head + full + ")")));
    }
    const FeatureSet &with = feature_set("PieceSquare(planes=12,order=interleaved)"),
                     &without = feature_set("PieceSquare(planes=10,order=interleaved)");
    EXPECT_EQ(without.max_active, 30);
    const Rows all = expand(records, with), less = expand(records, without);
    for (std::size_t i = 0; i < records.size(); ++i) {
        std::vector<int> expected;
        for (const int x : features_of(all.white, i, 32)) {
            if (x < 640) expected.push_back(x);
        }
        ASSERT_EQ(features_of(less.white, i, 30), expected);
        ASSERT_EQ(less.counts[i], static_cast<int>(expected.size()));
    }
}

// Count, sum and sum of squares of the indices over a whole file, white's rows and black's.
struct Golden {
    const char* set;
    std::uint64_t count, white_sum, white_squares, black_sum, black_squares;
};

void expect_sums(const std::string& path, const std::vector<Golden>& goldens) {
    const BinpackFile file(path);
    std::vector<std::uint8_t> payload;
    RecordBuffer records;
    std::map<std::string, Golden> sums;
    for (std::size_t chunk = 0; chunk < file.chunks().size(); ++chunk) {
        file.decode(chunk, payload, records);
        for (const Golden& golden : goldens) {
            const FeatureSet& set = feature_set(golden.set);
            Rows rows(records.size(), set);
            kernels().expand(records.data(), nullptr, records.size(), set, rows.batch());
            Golden& sum = sums[golden.set];
            for (std::size_t i = 0; i < rows.white.size(); ++i) {
                ASSERT_EQ(rows.white[i] < 0, rows.black[i] < 0);
                if (rows.white[i] < 0) continue;
                const auto white = static_cast<std::uint64_t>(rows.white[i]);
                const auto black = static_cast<std::uint64_t>(rows.black[i]);
                ++sum.count;
                sum.white_sum += white, sum.white_squares += white * white;
                sum.black_sum += black, sum.black_squares += black * black;
            }
        }
    }
    for (const Golden& golden : goldens) {
        const Golden& sum = sums[golden.set];
        EXPECT_EQ(sum.count, golden.count) << golden.set;
        EXPECT_EQ(sum.white_sum, golden.white_sum) << golden.set;
        EXPECT_EQ(sum.white_squares, golden.white_squares) << golden.set;
        EXPECT_EQ(sum.black_sum, golden.black_sum) << golden.set;
        EXPECT_EQ(sum.black_squares, golden.black_squares) << golden.set;
    }
}

TEST(FeatureSets, GoldenSumsOfTheSample) {
    expect_sums(NNUE_SAMPLES "/val.binpack",
                {{"HalfKAv2_hm", 647854, 14503117756, 329043898456686, 14496551079, 328831857175675},
                 {"HalfKAv2_hm_11", 647854, 13305970812, 276961803086190, 13299962535, 276783876458363},
                 {"HalfKAv2", 647854, 3363335137, 29725933809681, 3319714001, 29446318849985},
                 {"HalfKP", 587636, 2691032423, 20478911063955, 1996512527, 15653375017655},
                 {"Full_Threats_v12", 637466, 15335850680, 576727522940358, 15522827157, 584956228193603},
                 {"Full_Threats_v16", 537546, 13562743281, 518688714540383, 13709794518, 525616765146152}});
}

// The specification's own sums, over positions that are not in the project.
TEST(FeatureSets, GoldenSums) {
    const char* shared = std::getenv("NNUE_SHARED");
    const std::string path = std::string(shared ? shared : "../shared") + "/data/small.binpack";
    if (!std::filesystem::exists(path)) GTEST_SKIP() << "no " << path << " (set NNUE_SHARED)";
    expect_sums(path, {{"HalfKAv2_hm", 8421849, 183968492124, 4104292148683330, 184577328755, 4130236057964507},
                       {"HalfKAv2_hm_11", 8421849, 168786558428, 3454741425227586, 169344343987, 3476545223379291},
                       {"HalfKAv2", 8421849, 51020854747, 568258375755179, 50557899443, 558368509706363},
                       {"HalfKP", 7552007, 39589738482, 371223651598310, 26701111552, 268931407320090},
                       {"Full_Threats_v12", 7707209, 185239871243, 6966463202396685, 185986150250, 7031299811983088},
                       {"Full_Threats_v16", 6540793, 164116646014, 6273765099029292, 166343401381, 6382342839405303}});
}

}  // namespace
}  // namespace nnue::data
