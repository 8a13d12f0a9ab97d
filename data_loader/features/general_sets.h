// The built-in sets that are four functions (general_set.h) without a faster form of their own. To add one, write its
// struct in a header of its own, with its name as `static constexpr const char* kName`, include that here and add the
// struct to the list: the data pipeline, the operator on CPU and the kernel on CUDA then have it.
#pragma once

#include "features/general_set.h"

namespace nnue::data {

template <class... Sets>
struct GeneralSetList {
    // visit.template operator()<Set>() for every set.
    template <class Visit>
    static void for_each([[maybe_unused]] Visit&& visit) {
        (visit.template operator()<Sets>(), ...);
    }
};

using GeneralSets = GeneralSetList<>;

}  // namespace nnue::data
