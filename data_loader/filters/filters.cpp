#include "filters/filters.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "chess/record.h"
#include "features/feature_sets.h"
#include "pipeline/random.h"

namespace nnue::data {

namespace {

// A number in [0, 1) for one position and one filter.
double uniform(std::uint64_t key, std::size_t index, FilterId filter) {
    return static_cast<double>(mix(key ^ mix(index * kNumFilters + filter)) >> 11) * 0x1p-53;
}

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
    // Takes note of a position that passed the earlier filters; the probability to keep it.
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

}  // namespace

FilterCounts& FilterCounts::operator+=(const FilterCounts& other) {
    read += other.read;
    kept += other.kept;
    for (std::size_t i = 0; i < dropped.size(); ++i) dropped[i] += other.dropped[i];
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

std::size_t filter_records(const FilterOptions& o, std::uint64_t key, std::span<Record> records,
                           const std::uint8_t* flags, FilterCounts& counts) {
    PieceCountEqualiser equaliser;
    int last_ply = 0, last_score = 0;  // of the entry before that had a score
    std::size_t kept = 0;
    counts.read += records.size();
    for (std::size_t i = 0; i < records.size(); ++i) {
        const std::uint8_t* r = records[i].bytes.data();
        const int score = record_score(r), result = record_result(r), ply = record_ply(r);
        const bool placeholder = score == 0 && result != 0 && ply > last_ply && std::abs(last_score) > 100;
        if (score != kScoreNone) {
            last_ply = ply;
            last_score = score;
        }
        const auto chance = [&](FilterId filter, double probability) { return uniform(key, i, filter) < probability; };
        int dropped_by = -1;
        if (o.no_score && score == kScoreNone) {
            dropped_by = kNoScore;
        } else if (o.max_score > 0 && std::abs(score) > o.max_score) {
            dropped_by = kMaxScore;
        } else if (o.placeholder_zero && placeholder) {
            dropped_by = kPlaceholderZero;
        } else if (ply <= o.min_ply) {
            dropped_by = kMinPly;
        } else if (o.random_skip > 0 && !chance(kRandomSkip, 1 / (o.random_skip + 1))) {
            dropped_by = kRandomSkip;
        } else if (o.quiet && flags[i]) {
            dropped_by = kQuiet;
        } else if (o.wdl && !chance(kWdl, wdl_model(score, ply)[static_cast<std::size_t>(result + 1)])) {
            dropped_by = kWdl;
        } else if (o.min_material > 0 && std::abs(material_balance(records[i])) < o.min_material) {
            dropped_by = kMinMaterial;
        } else if (o.soft_ply > 0 && !chance(kSoftPly, soft_ply_acceptance(ply, o.soft_ply))) {
            dropped_by = kSoftPly;
        } else if (o.piece_counts && !chance(kPieceCounts, equaliser.accept(popcount(record_occupancy(r))))) {
            dropped_by = kPieceCounts;
        }
        if (dropped_by < 0) {
            records[kept++] = records[i];
        } else {
            ++counts.dropped[static_cast<std::size_t>(dropped_by)];
        }
    }
    counts.kept += kept;
    return kept;
}

}  // namespace nnue::data
