#include "filters/piece_counts.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "chess/fen.h"
#include "chess/record.h"
#include "filters/chance.h"

namespace nnue::data {

namespace {

constexpr std::uint64_t kPeriod = 10'000;  // positions between two fits, and the half-life of the histogram
constexpr double kLeast = 0.025;           // what is kept of the most over-represented count
constexpr std::uint64_t kDraw = 9;

bool fits_at(std::uint64_t seen) {
    return seen == 100 || seen == 500 || seen == 1000 || seen == 2500 || seen == 5000 || seen % kPeriod == 0;
}

}  // namespace

PieceCountWeights::PieceCountWeights(std::span<const double> curve) {
    constexpr std::size_t kKnots = 5, kStep = 8;
    if (curve.size() != kKnots) {
        throw FormatError("piece_counts_curve has " + std::to_string(curve.size()) + " numbers, expected 5");
    }
    std::array<double, kKnots> slope;  // for each kStep pieces
    for (std::size_t i = 0; i < kKnots; ++i) {
        const std::size_t before = i > 0 ? i - 1 : 0, after = std::min(i + 1, kKnots - 1);
        slope[i] = (curve[after] - curve[before]) / static_cast<double>(after - before);
    }
    for (std::size_t n = 0; n < weights.size(); ++n) {
        const std::size_t i = std::min(n / kStep, kKnots - 2);
        const double t = static_cast<double>(n - kStep * i) / kStep, t2 = t * t, t3 = t2 * t;
        const double weight = (2 * t3 - 3 * t2 + 1) * curve[i] + (t3 - 2 * t2 + t) * slope[i] +
                              (3 * t2 - 2 * t3) * curve[i + 1] + (t3 - t2) * slope[i + 1];
        weights[n] = n > 0 ? std::max(0.0, weight) : weight;
    }
    if (std::ranges::all_of(weights, [](double weight) { return weight <= 0; })) weights.fill(1);
    sum = std::accumulate(weights.begin(), weights.end(), 0.0);
}

PieceCountState::PieceCountState(std::span<const double> numbers) {
    const bool whole = numbers.size() == observed_.size() + 3 &&
                       std::ranges::all_of(numbers, [](double x) { return std::isfinite(x) && x >= 0; }) &&
                       numbers.back() < 2 * kPeriod;
    if (!whole) {
        throw FormatError("state of piece_counts: damaged: expected " + std::to_string(observed_.size() + 3) +
                          " numbers from 0 on, the last one below " + std::to_string(2 * kPeriod));
    }
    std::ranges::copy(numbers.first(observed_.size()), observed_.begin());
    total_ = numbers[observed_.size()];
    alpha_ = numbers[observed_.size() + 1];
    seen_ = static_cast<std::uint64_t>(numbers.back());
}

std::vector<double> PieceCountState::numbers() const {
    std::vector<double> all(observed_.begin(), observed_.end());
    all.insert(all.end(), {total_, alpha_, static_cast<double>(seen_)});
    return all;
}

double PieceCountState::accept(std::size_t pieces, const PieceCountWeights& wanted) {
    const auto& [weights, sum] = wanted;
    observed_[pieces] += 1;
    total_ += 1;
    ++seen_;
    const auto ratio = [&](std::size_t n) { return total_ * weights[n] / (sum * observed_[n]); };
    if (fits_at(seen_)) {
        double least = 0;
        for (std::size_t n = 0; n < weights.size(); ++n) {
            if (observed_[n] > 0 && weights[n] > 0 && (least == 0 || ratio(n) < least)) least = ratio(n);
        }
        if (least > 0) alpha_ = kLeast / least;
    }
    const double probability = weights[pieces] > 0 ? std::min(1.0, alpha_ * ratio(pieces)) : 0;
    if (seen_ % kPeriod == 0) {
        for (double& count : observed_) count /= 2;
        total_ /= 2;
        if (seen_ == 2 * kPeriod) seen_ = kPeriod;
    }
    return probability;
}

std::size_t filter_piece_counts(std::span<const double> curve, std::uint64_t key, std::span<Record> records,
                                PieceCountState& state, std::uint8_t* kept_mask) {
    const PieceCountWeights weights(curve);
    std::size_t kept = 0;
    for (std::size_t i = 0; i < records.size(); ++i) {
        const auto pieces = static_cast<std::size_t>(popcount(record_occupancy(records[i].bytes.data())));
        const bool keeps = chance(key, i, kDraw, state.accept(pieces, weights));
        if (kept_mask) kept_mask[i] = keeps;
        if (keeps) records[kept++] = records[i];
    }
    return kept;
}

}  // namespace nnue::data
