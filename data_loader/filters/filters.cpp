#include "filters/filters.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <tuple>
#include <utility>

#include "chess/fen.h"
#include "chess/record.h"
#include "features/feature_sets.h"
#include "filters/chance.h"

namespace nnue::data {

namespace {

// A position that is being decided on.
struct Candidate {
    const Record& record;
    std::uint8_t flags;
    int score, result, ply;
    std::uint64_t key;  // of the chunk
    std::size_t index;  // in it

    [[gnu::always_inline]] bool chance(std::uint64_t draw, double probability) const {
        return data::chance(key, index, draw, probability);
    }
};

// ---- the filters -----------------------------------------------------------------------------------------------
//
// A filter is made anew for each chunk. drops() is called, in the order of the list, until one filter drops the
// position; `value` is the user's setting. observe(), if there is one, is then called for every position, dropped or
// not. A filter that needs the user's curves gets them as a third argument.

constexpr FilterRow flag_row(const char* name, bool preset, const char* doc) {
    return {name, FilterType::kBool, 0, preset ? 1.0 : 0.0, 0, 1, doc, false, true, false};
}

constexpr FilterRow int_row(const char* name, double off, double most, const char* doc) {
    return {name, FilterType::kInt, off, off, off, most, doc, false, true, false};
}

struct NoScore {
    static constexpr FilterRow kRow = [] {
        FilterRow row = flag_row("no_score", true, "drop positions without a score (32002)");
        row.drops_scored = false;
        return row;
    }();
    static bool drops(const Candidate& c, double) { return c.score == kScoreNone; }
};

struct MaxScore {
    static constexpr FilterRow kRow = int_row("max_score", 0, 32767, "drop positions with a larger |score|; 0: off");
    static bool drops(const Candidate& c, double value) { return std::abs(c.score) > value; }
};

struct PlaceholderZero {
    static constexpr FilterRow kRow =
        flag_row("placeholder_zero", false, "drop a zero score in a decided game right after a large one");
    bool drops(const Candidate& c, double) const {
        return c.score == 0 && c.result != 0 && c.ply > last_ply && std::abs(last_score) > 100;
    }
    void observe(const Candidate& c) {
        if (c.score == kScoreNone) return;
        last_ply = c.ply;
        last_score = c.score;
    }
    int last_ply = 0, last_score = 0;  // of the entry before that had a score
};

struct MinPly {
    static constexpr FilterRow kRow = int_row("min_ply", -1, 16383, "drop positions up to this ply; -1: off");
    static bool drops(const Candidate& c, double value) { return c.ply <= value; }
};

struct RandomSkip {
    static constexpr FilterRow kRow{"random_skip",
                                    FilterType::kFloat,
                                    0,
                                    0,
                                    0,
                                    1e9,
                                    "keep one in random_skip + 1 positions, at random",
                                    false,
                                    true,
                                    false};
    static bool drops(const Candidate& c, double value) { return !c.chance(4, 1 / (value + 1)); }
};

struct Quiet {
    static constexpr FilterRow kRow = [] {
        FilterRow row = flag_row("quiet", false, "drop positions in check and those whose move captures");
        row.uses_flags = true;
        return row;
    }();
    static bool drops(const Candidate& c, double) { return c.flags != 0; }
};

struct MinPieces {
    static constexpr FilterRow kRow = int_row("min_pieces", 0, 32, "drop positions with fewer pieces; 0: off");
    static bool drops(const Candidate& c, double value) {
        return popcount(record_occupancy(c.record.bytes.data())) < value;
    }
};

struct Tactical {
    static constexpr FilterRow kRow = [] {
        FilterRow row = flag_row("tactical", false, "drop positions whose move captures (also en passant) or promotes");
        row.uses_flags = true;
        return row;
    }();
    static bool drops(const Candidate& c, double) {
        const MoveKind kind = Move{record_move(c.record.bytes.data())}.kind();
        return (c.flags & kFlagCapture) || kind == kPromotion || kind == kEnPassant;
    }
};

struct InCheck {
    static constexpr FilterRow kRow = [] {
        FilterRow row = flag_row("in_check", false, "drop positions in check");
        row.uses_flags = true;
        return row;
    }();
    static bool drops(const Candidate& c, double) { return c.flags & kFlagInCheck; }
};

struct CastlingMoves {
    static constexpr FilterRow kRow = flag_row("castling", false, "drop positions whose move castles");
    static bool drops(const Candidate& c, double) {
        return Move{record_move(c.record.bytes.data())}.kind() == kCastling;
    }
};

struct MaxIncorrectness {
    static constexpr FilterRow kRow =
        int_row("max_eval_incorrectness", -1, 32767,
                "drop drawn positions with a larger |score|, and decided ones with as much for the loser; -1: off");
    static bool drops(const Candidate& c, double value) {
        return c.result == 0 ? std::abs(c.score) > value : c.result * c.score < -value;
    }
};

struct WdlMaterial {
    static constexpr FilterRow kRow = flag_row(
        "wdl_material", false, "keep with the probability that a model of score and material gives the result");
    static bool drops(const Candidate& c, double) {
        constexpr std::uint64_t kDraw = 0x6d6174657269616c;
        return !c.chance(kDraw, wdl_material_model(c.score, c.record)[static_cast<std::size_t>(c.result + 1)]);
    }
};

struct Wdl {
    static constexpr FilterRow kRow =
        flag_row("wdl", false, "keep with the probability that a model of score and ply gives the result");
    static bool drops(const Candidate& c, double) {
        return !c.chance(6, wdl_model(c.score, c.ply)[static_cast<std::size_t>(c.result + 1)]);
    }
};

struct MinMaterial {
    static constexpr FilterRow kRow = int_row(
        "min_material", 0, INT32_MAX, "drop positions with a smaller |material balance|; a pawn is 208; 0: off");
    static bool drops(const Candidate& c, double value) { return std::abs(material_balance(c.record)) < value; }
};

struct SoftPly {
    static constexpr FilterRow kRow = int_row(
        "soft_ply", 0, 16383, "keep early plies with a probability that grows to 1 at this ply, usually 20; 0: off");
    static bool drops(const Candidate& c, double value, const FilterOptions& options) {
        return !c.chance(8, soft_ply_chance(options.curve(kSoftPlyKnots), c.ply, value));
    }
};

struct PieceCounts {
    static constexpr FilterRow kRow = [] {
        FilterRow row =
            flag_row("piece_counts", false, "drop positions at random until piece counts follow piece_counts_curve");
        row.is_last = true;
        return row;
    }();
    static bool drops(const Candidate&, double) { return false; }  // piece_counts.h
};

// The filters in their order. To add one, write it above and name it here.
using AllFilters =
    std::tuple<NoScore, MaxScore, PlaceholderZero, MinPly, RandomSkip, Quiet, MinPieces, Tactical, InCheck,
               CastlingMoves, MaxIncorrectness, Wdl, WdlMaterial, MinMaterial, SoftPly, PieceCounts>;
constexpr std::size_t kNumFilters = std::tuple_size_v<AllFilters>;

constexpr std::array<FilterRow, kNumFilters> kTable = []<std::size_t... i>(std::index_sequence<i...>) {
    return std::array<FilterRow, kNumFilters>{std::tuple_element_t<i, AllFilters>::kRow...};
}
(std::make_index_sequence<kNumFilters>());

constexpr double kSoftPlyPreset[] = {0, .1, 6, .15, 10, .25, 18, .75};
constexpr double kPieceCountsPreset[] = {0, .4, 1, 1, .75};

// In the order of FilterCurve.
constexpr FilterCurveRow kCurves[kNumFilterCurves] = {
    {"soft_ply_knots", 2, kSoftPlyPreset,
     "share that soft_ply keeps, as a list of [ply, share]: straight lines between the points and up to 1 at the ply "
     "of "
     "soft_ply; before the first point its share"},
    {"piece_counts_curve", 1, kPieceCountsPreset,
     "desired weights of 0, 8, 16, 24 and 32 pieces for piece_counts, with a cubic through them"},
};

std::string names(const auto& rows) {
    std::string list;
    for (const auto& row : rows) list += (list.empty() ? "" : ", ") + std::string(row.name);
    return list;
}

}  // namespace

std::span<const FilterRow> filters() {
    return kTable;
}

std::span<const FilterCurveRow> filter_curves() {
    return kCurves;
}

double soft_ply_chance(std::span<const double> knots, int ply, double full) {
    if (ply >= full || knots.empty()) return 1;
    if (ply <= knots[0]) return std::clamp(knots[1], 0.0, 1.0);
    // If several lines cover this ply, the first one counts.
    for (std::size_t i = 0; i < knots.size(); i += 2) {
        const bool last = i + 2 == knots.size();
        const double x0 = knots[i], y0 = knots[i + 1], x1 = last ? full : knots[i + 2], y1 = last ? 1 : knots[i + 3];
        if (x0 <= ply && ply <= x1 && x0 < x1) return std::clamp(y0 + (y1 - y0) * (ply - x0) / (x1 - x0), 0.0, 1.0);
    }
    return 1;
}

FilterOptions::FilterOptions() {
    for (const FilterRow& row : kTable) values_.push_back(row.off);
    for (const FilterCurveRow& row : kCurves) curves_.emplace_back(row.preset.begin(), row.preset.end());
}

void FilterOptions::set(std::string_view name, double value) {
    for (std::size_t i = 0; i < kNumFilters; ++i) {
        const FilterRow& row = kTable[i];
        if (name != row.name) continue;
        if (!(value >= row.least && value <= row.most)) {
            throw FormatError("filter " + std::string(name) + " is " + std::to_string(value) + ", expected " +
                              std::to_string(row.least) + " to " + std::to_string(row.most));
        }
        values_[i] = value;
        return;
    }
    throw FormatError("unknown filter '" + std::string(name) + "', expected one of " + names(kTable));
}

void FilterOptions::set_curve(std::string_view name, std::vector<double> numbers) {
    for (std::size_t i = 0; i < kNumFilterCurves; ++i) {
        if (name != kCurves[i].name) continue;
        const std::size_t preset = kCurves[i].preset.size(), group = kCurves[i].group;
        const bool fits = group > 1 ? !numbers.empty() && numbers.size() % group == 0 : numbers.size() == preset;
        if (!fits || !std::ranges::all_of(numbers, [](double x) { return std::isfinite(x); })) {
            throw FormatError("filter " + std::string(name) + " has " + std::to_string(numbers.size()) +
                              " numbers, expected " + (group > 1 ? "pairs" : std::to_string(preset)));
        }
        curves_[i] = std::move(numbers);
        return;
    }
    throw FormatError("unknown filter curve '" + std::string(name) + "', expected one of " + names(kCurves));
}

bool FilterOptions::keeps_piece_counts() const {
    return values_.back() != 0;
}

bool FilterOptions::drops_any(std::size_t unscored) const {
    for (std::size_t i = 0; i < kNumFilters; ++i) {
        if (is_on(i) && !kTable[i].is_last && (kTable[i].drops_scored || unscored > 0)) return true;
    }
    return false;
}

bool FilterOptions::needs_flags() const {
    for (std::size_t i = 0; i < kNumFilters; ++i) {
        if (is_on(i) && kTable[i].uses_flags) return true;
    }
    return false;
}

FilterCounts& FilterCounts::operator+=(const FilterCounts& other) {
    read += other.read;
    kept += other.kept;
    dropped_by_user += other.dropped_by_user;
    if (dropped.empty()) dropped.resize(kNumFilters);
    for (std::size_t i = 0; i < other.dropped.size(); ++i) dropped[i] += other.dropped[i];
    return *this;
}

void FilterCounts::drop_by_piece_counts(std::uint64_t positions) {
    if (dropped.empty()) dropped.resize(kNumFilters);
    dropped.back() += positions;
    kept -= positions;
}

void FilterCounts::drop_by_user(std::uint64_t positions) {
    dropped_by_user += positions;
    kept -= positions;
}

void compute_flags(std::span<const Record> records, std::uint8_t* flags) {
    Entry e;
    for (const Record& record : records) {
        unpack(record, e);
        *flags++ = position_flags(e);
    }
}

std::array<double, 3> wdl_model(int score, int ply) {
    const double m = std::min(240, ply) / 64.0;
    const double a = ((-3.68389304 * m + 30.07065921) * m - 60.52878723) * m + 149.53378557;
    const double b = 1.5 * (((-2.0181857 * m + 15.85685038) * m - 29.83452023) * m + 47.59078827);
    const double x = std::clamp(100.0 * score / 208, -2000.0, 2000.0);
    const double win = 1 / (1 + std::exp((a - x) / b)), loss = 1 / (1 + std::exp((a + x) / b));
    return {loss, 1 - win - loss, win};
}

std::array<double, 3> wdl_material_model(int score, const Record& record) {
    constexpr int kValues[] = {1, 3, 3, 5, 9, 0};
    const Pieces p = pieces_of_record(record.bytes.data());
    int material = 0;
    for (int i = 0; i < p.count; ++i) material += kValues[p.code[i] >> 1];
    const double m = std::clamp(material, 17, 78) / 58.0;
    const double a = ((6.87155862 * m - 39.65226391) * m + 90.68460352) * m + 170.66996364;
    const double b = 1.5 * (((-7.19890710 * m + 56.13947185) * m - 139.91091183) * m + 182.81007427);
    const double win = 1 / (1 + std::exp((a - score) / b)), loss = 1 / (1 + std::exp((a + score) / b));
    return {loss, std::max(0.0, 1 - win - loss), win};
}

int material_balance(const Record& record) {
    constexpr int kValues[] = {208, 781, 825, 1276, 2538, 0};
    const Pieces p = pieces_of_record(record.bytes.data());
    int white = 0;
    for (int i = 0; i < p.count; ++i) white += (p.code[i] & 1 ? -1 : 1) * kValues[p.code[i] >> 1];
    return p.black_to_move ? -white : white;
}

std::size_t filter_records(const FilterOptions& options, std::uint64_t key, std::span<Record> records,
                           const std::uint8_t* flags, FilterCounts& counts, std::uint8_t* kept_mask) {
    // One bit for each filter, and the values of those that have one, so that all of it stays in registers.
    unsigned on = 0;
    double values[kNumFilters];
    for (std::size_t i = 0; i < kNumFilters; ++i) on |= unsigned{options.is_on(i)} << i, values[i] = options.value(i);
    static constexpr std::uint8_t kNoFlags = 0;
    const std::size_t step = options.needs_flags() ? 1 : 0;
    if (step == 0) flags = &kNoFlags;
    std::uint64_t dropped[kNumFilters + 1] = {};  // the last: kept
    Record* kept = records.data();
    // Written out for each filter by the compiler, so that one that is off costs a test.
    [&]<std::size_t... filter>(std::index_sequence<filter...>) __attribute__((always_inline)) {
        AllFilters all;
        for (std::size_t i = 0; i < records.size(); ++i, flags += step) {
            const Record& record = records[i];
            const std::uint8_t* r = record.bytes.data();
            const Candidate candidate{record, *flags, record_score(r), record_result(r), record_ply(r), key, i};
            std::size_t dropped_by = 0;
            const auto drops = [&](auto& one, double value) __attribute__((always_inline)) {
                if constexpr (requires { one.drops(candidate, value, options); }) {
                    return one.drops(candidate, value, options);
                } else {
                    return one.drops(candidate, value);
                }
            };
            (void)(((on >> filter & 1 && drops(std::get<filter>(all), values[filter])) || (++dropped_by, false)) ||
                   ...);
            const auto observe = [&](auto& one) __attribute__((always_inline)) {
                if constexpr (requires { one.observe(candidate); }) one.observe(candidate);
            };
            (observe(std::get<filter>(all)), ...);
            ++dropped[dropped_by];
            if (kept_mask) kept_mask[i] = dropped_by == kNumFilters;
            if (dropped_by == kNumFilters) *kept++ = record;
        }
    }
    (std::make_index_sequence<kNumFilters>());
    counts.read += records.size();
    counts.kept += dropped[kNumFilters];
    counts.dropped.resize(kNumFilters);
    for (std::size_t i = 0; i < kNumFilters; ++i) counts.dropped[i] += dropped[i];
    return dropped[kNumFilters];
}

}  // namespace nnue::data
