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
#include "pipeline/random.h"

namespace nnue::data {

namespace {

// A position that is being decided on.
struct Candidate {
    const Record& record;
    std::uint8_t flags;
    int score, result, ply;
    std::uint64_t key;  // of the chunk
    std::size_t index;  // in it

    // True with this probability. `draw` tells the draws of one position apart. The filters of the first release have
    // the numbers up to 10; any other takes a large number of its own, drawn at random.
    [[gnu::always_inline]] bool chance(std::uint64_t draw, double probability) const {
        const std::uint64_t random = mix(key ^ mix(index * 11 + draw));
        return static_cast<double>(random >> 11) * 0x1p-53 < probability;
    }
};

struct Knot {
    double x, y;
};

double soft_ply_acceptance(int ply, int full) {
    const Knot knots[] = {{0, .1}, {6, .15}, {10, .25}, {18, .75}, {static_cast<double>(full), 1}};
    if (ply >= full) return 1;
    for (std::size_t i = 1; i < std::size(knots); ++i) {
        if (ply <= knots[i].x) {
            const Knot& a = knots[i - 1];
            return a.y + (knots[i].y - a.y) * (ply - a.x) / (knots[i].x - a.x);
        }
    }
    return 1;
}

// The desired density of piece counts: the natural cubic spline through (0, 0) (8, .4) (16, 1) (24, 1) (32, .75).
std::array<double, 33> desired_piece_counts() {
    constexpr int kKnots = 5;
    constexpr double kStep = 8, y[kKnots] = {0, .4, 1, 1, .75};
    // Second derivatives m, m[0] = m[4] = 0: m[i−1] + 4 m[i] + m[i+1] = 6 (y[i−1] − 2 y[i] + y[i+1]) / h², by
    // elimination.
    double m[kKnots] = {}, diagonal[kKnots] = {}, right[kKnots] = {};
    for (int i = 1; i < kKnots - 1; ++i) {
        diagonal[i] = 4;
        right[i] = 6 * (y[i - 1] - 2 * y[i] + y[i + 1]) / (kStep * kStep);
        if (i > 1) {
            diagonal[i] -= 1 / diagonal[i - 1];
            right[i] -= right[i - 1] / diagonal[i - 1];
        }
    }
    for (int i = kKnots - 2; i > 0; --i) m[i] = (right[i] - m[i + 1]) / diagonal[i];
    std::array<double, 33> density{};
    for (int n = 0; n <= 32; ++n) {
        const int i = std::min(n / 8, kKnots - 2);
        const double b = (n - 8 * i) / kStep, a = 1 - b;
        density[static_cast<std::size_t>(n)] = std::max(
            0.0, a * y[i] + b * y[i + 1] + ((a * a * a - a) * m[i] + (b * b * b - b) * m[i + 1]) * kStep * kStep / 6);
    }
    return density;
}

class PieceCountEqualiser {
  public:
    // Counts a position that passed the earlier filters, and returns the probability to keep it.
    double accept(int pieces) {
        static const std::array<double, 33> desired = desired_piece_counts();
        const auto n = static_cast<std::size_t>(pieces);
        observed_[n] += 1;
        total_ += 1;
        ++seen_;
        constexpr std::uint64_t kPeriod = 10000;
        const bool refit =
            seen_ == 100 || seen_ == 500 || seen_ == 1000 || seen_ == 2500 || seen_ == 5000 || seen_ % kPeriod == 0;
        if (refit) {
            constexpr double kLeast = 1 - 0.975;
            double most = 0;
            for (std::size_t i = 0; i < desired.size(); ++i) {
                if (desired[i] > 0) most = std::max(most, observed_[i] / total_ / desired[i]);
            }
            alpha_ = kLeast * most;
        }
        const double probability = alpha_ == 0 ? 1 : std::min(1.0, alpha_ * desired[n] / (observed_[n] / total_));
        if (seen_ % kPeriod == 0) {
            for (double& count : observed_) count /= 2;
            total_ /= 2;
        }
        return probability;
    }

  private:
    std::array<double, 33> observed_{};
    double total_ = 0, alpha_ = 0;
    std::uint64_t seen_ = 0;
};

// ---- the filters -----------------------------------------------------------------------------------------------
//
// A filter is made anew for each chunk. drops() is asked, in the order of the list, until one filter drops the
// position; `value` is what the user has set. observe(), where there is one, sees every position after that, dropped or
// not.

constexpr FilterRow flag_row(const char* name, bool preset, const char* doc) {
    return {name, FilterType::kBool, 0, preset ? 1.0 : 0.0, 0, 1, doc, false, true};
}

constexpr FilterRow int_row(const char* name, double off, double most, const char* doc) {
    return {name, FilterType::kInt, off, off, off, most, doc, false, true};
}

struct NoScore {
    static constexpr FilterRow kRow = [] {
        FilterRow row = flag_row("no_score", true,
                                 "drop positions without a score (32002), which say nothing of how good they are");
        row.drops_scored = false;
        return row;
    }();
    static bool drops(const Candidate& c, double) { return c.score == kScoreNone; }
};

struct MaxScore {
    static constexpr FilterRow kRow = int_row("max_score", 0, 32767, "drop |score| beyond it; 0: off");
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
    static constexpr FilterRow kRow = int_row("min_ply", -1, 16383, "drop plies up to it; -1: off");
    static bool drops(const Candidate& c, double value) { return c.ply <= value; }
};

struct RandomSkip {
    static constexpr FilterRow kRow{
        "random_skip", FilterType::kFloat, 0, 0, 0, 1e9, "keep one position of random_skip + 1", false, true};
    static bool drops(const Candidate& c, double value) { return !c.chance(4, 1 / (value + 1)); }
};

struct Quiet {
    static constexpr FilterRow kRow = [] {
        FilterRow row = flag_row("quiet", false, "drop positions in check and moves that capture");
        row.uses_flags = true;
        return row;
    }();
    static bool drops(const Candidate& c, double) { return c.flags != 0; }
};

struct Wdl {
    static constexpr FilterRow kRow =
        flag_row("wdl", false, "keep with the probability that a model gives to the result, from score and ply");
    static bool drops(const Candidate& c, double) {
        return !c.chance(6, wdl_model(c.score, c.ply)[static_cast<std::size_t>(c.result + 1)]);
    }
};

struct MinMaterial {
    static constexpr FilterRow kRow =
        int_row("min_material", 0, INT32_MAX, "drop |material balance| below it, a pawn is 208; 0: off");
    static bool drops(const Candidate& c, double value) { return std::abs(material_balance(c.record)) < value; }
};

struct SoftPly {
    static constexpr FilterRow kRow = int_row(
        "soft_ply", 0, 16383, "keep early plies with a probability that grows to 1 at this ply, usually 20; 0: off");
    static bool drops(const Candidate& c, double value) {
        return !c.chance(8, soft_ply_acceptance(c.ply, static_cast<int>(value)));
    }
};

struct PieceCounts {
    static constexpr FilterRow kRow = flag_row("piece_counts", false, "even out the histogram of piece counts");
    bool drops(const Candidate& c, double) {
        return !c.chance(9, equaliser.accept(popcount(record_occupancy(c.record.bytes.data()))));
    }
    PieceCountEqualiser equaliser;
};

// The filters in their order. To add one, write it above and name it here.
using AllFilters =
    std::tuple<NoScore, MaxScore, PlaceholderZero, MinPly, RandomSkip, Quiet, Wdl, MinMaterial, SoftPly, PieceCounts>;
constexpr std::size_t kNumFilters = std::tuple_size_v<AllFilters>;

constexpr std::array<FilterRow, kNumFilters> kTable = []<std::size_t... i>(std::index_sequence<i...>) {
    return std::array<FilterRow, kNumFilters>{std::tuple_element_t<i, AllFilters>::kRow...};
}
(std::make_index_sequence<kNumFilters>());

}  // namespace

std::span<const FilterRow> filters() {
    return kTable;
}

FilterOptions::FilterOptions() {
    for (const FilterRow& row : kTable) values_.push_back(row.off);
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
    throw FormatError("no filter is called '" + std::string(name) + "'");
}

bool FilterOptions::drops_any(std::size_t unscored) const {
    for (std::size_t i = 0; i < kNumFilters; ++i) {
        if (is_on(i) && (kTable[i].drops_scored || unscored > 0)) return true;
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

int material_balance(const Record& record) {
    constexpr int kValues[] = {208, 781, 825, 1276, 2538, 0};
    const Pieces p = pieces_of_record(record.bytes.data());
    int white = 0;
    for (int i = 0; i < p.count; ++i) white += (p.code[i] & 1 ? -1 : 1) * kValues[p.code[i] >> 1];
    return p.black_to_move ? -white : white;
}

std::size_t filter_records(const FilterOptions& options, std::uint64_t key, std::span<Record> records,
                           const std::uint8_t* flags, FilterCounts& counts) {
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
            (void)(((on >> filter & 1 && std::get<filter>(all).drops(candidate, values[filter])) ||
                    (++dropped_by, false)) ||
                   ...);
            const auto observe = [&](auto& one) __attribute__((always_inline)) {
                if constexpr (requires { one.observe(candidate); }) one.observe(candidate);
            };
            (observe(std::get<filter>(all)), ...);
            ++dropped[dropped_by];
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
