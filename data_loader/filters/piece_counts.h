// The piece-count filter: thins positions so that their piece counts follow a desired distribution.
//
// It is separate from the other filters because its result depends on all positions before, over the whole run. So it
// works on one chunk after the other, in their order, while the others work on many chunks at once.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "chess/types.h"

namespace nnue::data {

inline constexpr std::size_t kNumPieceCounts = 33;  // 0 to 32

// The desired weight of each piece count: a cubic Hermite spline through the points at 0, 8, 16, 24 and 32 pieces. The
// slope at an inner point is half the difference of its neighbours, at an end the difference to the neighbour.
struct PieceCountWeights {
    explicit PieceCountWeights(std::span<const double> curve);

    std::array<double, kNumPieceCounts> weights{};
    double sum = 0;
};

// The state of the filter: how often each count came, with a half-life, and how strongly it thins.
class PieceCountState {
  public:
    PieceCountState() = default;
    // Restores the result of numbers(). FormatError for anything else.
    explicit PieceCountState(std::span<const double> numbers);

    std::vector<double> numbers() const;

    // Counts a position and returns the probability to keep it.
    double accept(std::size_t pieces, const PieceCountWeights& wanted);

    double alpha() const { return alpha_; }

  private:
    std::array<double, kNumPieceCounts> observed_{};
    double total_ = 0;  // the sum of observed_
    double alpha_ = 1;
    std::uint64_t seen_ = 0;  // positions; above 20,000 it is reduced by 10,000, which changes no result
};

// Moves the kept records to the front of `records` and returns their number. `key` belongs to their chunk;
// `kept`, unless null, gets 1 for each kept record and 0 for the others.
std::size_t filter_piece_counts(std::span<const double> curve, std::uint64_t key, std::span<Record> records,
                                PieceCountState& state, std::uint8_t* kept = nullptr);

}  // namespace nnue::data
