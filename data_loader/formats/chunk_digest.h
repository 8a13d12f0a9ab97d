// The digest of a chunk, taken piece by piece just after its decoder, while the bytes are in the first cache: from
// memory it would take five times as long.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "pipeline/kernels.h"
#include "pipeline/random.h"

namespace nnue::data {

// It depends on the bytes alone, not on how they come. It detects accidents: two chunks with the same digest can be
// made on purpose.
class ChunkDigest {
  public:
    // `result` gets the digest in `finish`; null: nothing is computed.
    explicit ChunkDigest(std::uint64_t* result) : result_(result) {
        for (std::size_t i = 0; result_ && i < lanes_.size(); ++i) lanes_[i] = mix(i);
    }

    // The first n bytes of the chunk are decoded. `bytes` is its beginning, which may have moved.
    void reached(const std::uint8_t* bytes, std::size_t n) {
        constexpr std::size_t kPiece = 4 << 10;  // so that calls cost little
        if (result_ && n - done_ >= kPiece) add(bytes, n);
    }
    // The chunk has n bytes.
    void finish(const std::uint8_t* bytes, std::size_t n) {
        if (!result_) return;
        add(bytes, n);
        if (done_ < n) {
            std::uint8_t last[kBlock] = {};
            std::memcpy(last, bytes + done_, n - done_);
            kernels().digest(lanes_, last, 1);
        }
        *result_ = mix(n);
        for (const std::uint64_t lane : lanes_) *result_ = mix(*result_ ^ lane);
    }

  private:
    static constexpr std::size_t kBlock = sizeof(DigestLanes);

    void add(const std::uint8_t* bytes, std::size_t n) {
        const std::size_t blocks = (n - done_) / kBlock;
        kernels().digest(lanes_, bytes + done_, blocks);
        done_ += blocks * kBlock;
    }

    std::uint64_t* result_;
    std::size_t done_ = 0;  // bytes
    DigestLanes lanes_;
};

}  // namespace nnue::data
