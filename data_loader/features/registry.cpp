#include "features/registry.h"

#include <string>

#include "chess/fen.h"
#include "features/feature_sets.h"

namespace nnue::data {

std::span<const FeatureSetInfo> feature_sets() {
    return FeatureSets::kInfos;
}

const FeatureSetInfo& feature_set(FeatureSetId id) {
    return FeatureSets::kInfos[static_cast<int>(id)];
}

const FeatureSetInfo& feature_set(std::string_view name) {
    std::string names;
    for (const FeatureSetInfo& info : FeatureSets::kInfos) {
        if (name == info.name) return info;
        names += (names.empty() ? "" : ", ") + std::string(info.name);
    }
    throw FormatError("unknown feature set '" + std::string(name) + "', expected one of " + names);
}

}  // namespace nnue::data
