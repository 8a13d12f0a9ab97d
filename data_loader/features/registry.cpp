#include "features/registry.h"

#include <string>

#include "chess/fen.h"
#include "features/feature_sets.h"

namespace nnue::data {

namespace {

template <class Set>
constexpr FeatureSetInfo info() {
    return {Set::kId, Set::kName, Set::kNumFeatures, Set::kMaxActive, Set::kNumVirtual};
}

// In the order of FeatureSetId.
constexpr FeatureSetInfo kInfos[] = {info<Chess768>(), info<HalfKP>(),     info<HalfKA>(),
                                     info<HalfKAv2>(), info<HalfKAv2Hm>(), info<HalfKAv2Hm11>()};

}  // namespace

std::span<const FeatureSetInfo> feature_sets() {
    return kInfos;
}

const FeatureSetInfo& feature_set(FeatureSetId id) {
    return kInfos[static_cast<int>(id)];
}

const FeatureSetInfo& feature_set(std::string_view name) {
    std::string names;
    for (const FeatureSetInfo& info : kInfos) {
        if (name == info.name) return info;
        names += (names.empty() ? "" : ", ") + std::string(info.name);
    }
    throw FormatError("unknown feature set '" + std::string(name) + "', expected one of " + names);
}

}  // namespace nnue::data
