// Which positions are trained on: the filters of the field, in the field's order. docs/data.md, "Filters".
//
// A decision is a function of (key, number of the position in its chunk), so threads and other filters do not change
// it. State (the entry before, the histogram of piece counts) starts anew with each chunk, for the same reason.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "chess/types.h"

namespace nnue::data {

struct FilterOptions {
    bool no_score = false;          // drop positions whose score is kScoreNone
    int max_score = 0;              // drop |score| beyond it; 0: off
    bool placeholder_zero = false;  // drop a zero score that only means "not computed"
    int min_ply = -1;               // drop ply ≤ this; −1: off
    double random_skip = 0;         // keep one of this + 1, at random
    bool quiet = false;             // drop positions in check and moves that capture
    bool wdl = false;               // keep with the probability that the score gives to the result
    int min_material = 0;           // drop |material balance| below it
    int soft_ply = 0;               // early plies are kept with a probability that reaches 1 at this ply; 0: off
    bool piece_counts = false;      // even out the histogram of piece counts

    bool operator==(const FilterOptions&) const = default;
    // Can they drop any of a chunk's positions, of which `unscored` have no score? If not, they need not be run.
    bool drops_any(std::size_t unscored) const {
        FilterOptions others = *this;
        others.no_score = no_score && unscored > 0;
        return others != FilterOptions{};
    }
    bool needs_flags() const { return quiet; }
};

// Index of each filter in the counts of what it dropped.
enum FilterId {
    kNoScore,
    kMaxScore,
    kPlaceholderZero,
    kMinPly,
    kRandomSkip,
    kQuiet,
    kWdl,
    kMinMaterial,
    kSoftPly,
    kPieceCounts,
    kUserFilter,
    kNumFilters
};
inline constexpr const char* kFilterNames[kNumFilters] = {
    "no_score", "max_score",    "placeholder_zero", "min_ply",      "random_skip", "quiet",
    "wdl",      "min_material", "soft_ply",         "piece_counts", "user_filter"};

struct FilterCounts {
    std::uint64_t read = 0, kept = 0;
    std::array<std::uint64_t, kNumFilters> dropped{};

    FilterCounts& operator+=(const FilterCounts& other);
};

// The flags (RecordFlag) of sound records.
void compute_flags(std::span<const Record> records, std::uint8_t* flags);

// Moves what is kept to the front of `records` and returns how many that is. `flags` may be null unless needs_flags().
std::size_t filter_records(const FilterOptions& options, std::uint64_t key, std::span<Record> records,
                           const std::uint8_t* flags, FilterCounts& counts);

// Probability of loss, draw and win (index result + 1) for a score at a ply, both of the side to move.
std::array<double, 3> wdl_model(int score, int ply);

// Material of the side to move less the other's, in internal units.
int material_balance(const Record& record);

}  // namespace nnue::data
