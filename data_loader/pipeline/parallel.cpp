#include "pipeline/parallel.h"

#include <cmath>

#include "base/system.h"

namespace nnue::data {

int default_threads() {
    static const double quota = std::ceil(system::cpu_quota());
    return static_cast<int>(std::clamp<double>(std::thread::hardware_concurrency(), 1, std::max(quota, 1.0)));
}

}  // namespace nnue::data
