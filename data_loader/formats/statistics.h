// Counts and histograms of a set of positions, for `nnue data info`.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "chess/types.h"

namespace nnue::data {

struct Statistics {
    static constexpr int kScoreBins = 65, kScoreBinWidth = 100;  // bin i: scores around 100·(i − 32), the ends open
    static constexpr int kPlyBins = 64, kPlyBinWidth = 8;        // the last bin open

    std::uint64_t positions = 0;
    std::uint64_t castlings = 0, en_passants = 0, promotions = 0, null_moves = 0;
    std::uint64_t captures = 0;  // the destination holds an enemy piece: no en passant
    std::uint64_t in_check = 0;
    std::uint64_t quiet = 0;  // not in check, no capture, a score
    std::uint64_t score_none = 0, score_zero = 0;
    std::uint64_t wins = 0, draws = 0, losses = 0;  // of the side to move
    std::uint64_t black_to_move = 0, ep_squares = 0;
    std::array<std::uint64_t, 4> castling_rights{};  // K Q k q
    std::int64_t sum_score = 0, sum_result = 0;
    std::uint64_t sum_ply = 0, sum_pieces = 0, sum_rule50 = 0, sum_move = 0;
    int min_score = 0, max_score = 0, max_ply = 0, max_rule50 = 0;
    std::array<std::uint64_t, kScoreBins> score_histogram{};
    std::array<std::uint64_t, kPlyBins> ply_histogram{};
    std::array<std::uint64_t, 33> piece_histogram{};
    std::array<std::array<std::uint64_t, 64>, 2> king_squares{};  // by colour

    // Throws FormatError for a record that is not sound.
    void add(std::span<const Record> records);
    // Adds the counts of other positions.
    void join(const Statistics& other);
};

}  // namespace nnue::data
