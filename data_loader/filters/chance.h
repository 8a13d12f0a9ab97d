// The coin of the filters: a pure function of the position's place, so threads and other filters do not change it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pipeline/random.h"

namespace nnue::data {

// True with this probability, for position `index` of the chunk with this key. `draw` tells the draws of one position
// apart. The filters of the first release have the numbers up to 10; any other takes a large number of its own, drawn
// at random.
[[gnu::always_inline]] inline bool chance(std::uint64_t key, std::size_t index, std::uint64_t draw,
                                          double probability) {
    const std::uint64_t random = mix(key ^ mix(index * 11 + draw));
    return static_cast<double>(random >> 11) * 0x1p-53 < probability;
}

}  // namespace nnue::data
