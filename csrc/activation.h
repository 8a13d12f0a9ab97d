// How an accumulator a is activated. Let c be a, clipped to [0, bound]. The result is a, c, c², or c[j] · c[j + N / 2].
#pragma once

namespace nnue {

enum class Activation : int { kIdentity = 0, kCReLU = 1, kSCReLU = 2, kPairwise = 3 };

}  // namespace nnue
