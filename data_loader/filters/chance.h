// The coin of the filters: a pure function of the position's place, so threads and other filters do not change it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pipeline/random.h"

namespace nnue::data {

// True with this probability, for position `index` of the chunk with this key. `draw` distinguishes the draws of one
// position. The oldest filters have the numbers up to 10; every other filter has a large random number.
[[gnu::always_inline]] inline bool chance(std::uint64_t key, std::size_t index, std::uint64_t draw,
                                          double probability) {
    const std::uint64_t random = mix(key ^ mix(index * 11 + draw));
    return static_cast<double>(random >> 11) * 0x1p-53 < probability;
}

}  // namespace nnue::data
