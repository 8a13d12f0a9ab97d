// The feature sets by name and number, for callers that do not know the set at compile time.
#pragma once

#include <span>
#include <string_view>

namespace nnue::data {

// A set's place in FeatureSets (feature_sets.h).
enum class FeatureSetId : int {};

struct FeatureSetInfo {
    FeatureSetId id;
    const char* name;
    int num_features;
    int max_active;   // entries of a row
    int num_virtual;  // virtual rows of a factoriser: row r shares virtual row r mod num_virtual; 0: none
};

std::span<const FeatureSetInfo> feature_sets();
const FeatureSetInfo& feature_set(FeatureSetId id);

// Throws FormatError, with the names there are, for an unknown one.
const FeatureSetInfo& feature_set(std::string_view name);

}  // namespace nnue::data
