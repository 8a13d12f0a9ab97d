// The built-in sets that are four functions (general_set.h) and have no faster form. To add one, write its struct in a
// new header, with its name as `static constexpr const char* kName`, include that header here and add the struct to the
// list: the data pipeline, the operator on CPU and the kernel on CUDA then have it. The list is needed because the
// compilers for the CPU and for CUDA instantiate every set. tests/data/test_built_in_general_set.py adds one.
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
