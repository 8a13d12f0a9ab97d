// Parts of a feature set whose features are appended to rows that the built-in parts have been written to: sets from
// outside this library, and built-in ones that are four functions and no more (general_set.h).
//
// Only plain data, because a set that was compiled from a user's header is in another shared library.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nnue::data {

// The description of a set; the fields mean the same as in FeaturePart.
struct SetDescription {
    std::int32_t num_features;
    std::int32_t max_active;
    std::int32_t bucket_size;
    std::int32_t num_virtual;
};

// The rows of n positions, left-packed and filled up with −1. Features are appended to each row after its last entry.
struct AppendRows {
    std::int32_t* white;
    std::int32_t* black;
    std::int16_t* counts;  // entries of the longer row of each position
    std::int32_t length;   // of a row
    std::int32_t first_feature;
};

// The first error in the rows that a set gives.
enum class SetFault : std::int32_t { kNone, kRange, kTooMany, kBuckets };

struct BadRow {
    std::int64_t position = -1;  // the first that is wrong; −1: none
    std::int32_t perspective = 0;
    SetFault fault = SetFault::kNone;
    std::int32_t value = 0;  // the index, or how many features
};

// The object that a library made from a user's header exports, under the name `nnue_feature_set`.
struct CompiledSet {
    std::uint32_t version;  // kCompiledSetVersion
    SetDescription is;
    // Appends the features of n sound records.
    BadRow (*append)(const std::uint8_t* records, std::size_t n, AppendRows rows);
};
inline constexpr std::uint32_t kCompiledSetVersion = 1;

}  // namespace nnue::data
