// What is done to an accumulator a. With c = a clipped to [0, bound], the result is a itself, c, c², or c[j] · c[j + N
// / 2].
#pragma once

namespace nnue {

enum class Activation : int { kIdentity = 0, kCReLU = 1, kSCReLU = 2, kPairwise = 3 };

}  // namespace nnue
