// The content of a file's chunks when they were first decoded. Every later decoding is compared with it, in this
// process and, through a checkpoint, in those that continue the run, so that a file that changes is never trained on
// unnoticed.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "formats/file.h"

namespace nnue::data {

class Contents {
  public:
    // Where in the order of a shard a chunk was decoded: at this place of an epoch's order.
    struct Place {
        std::uint64_t shard = 0, epoch = 0, chunk = 0;
    };

    static constexpr std::uint64_t kUnknown = 0, kBad = 1;  // kBad: of a chunk that cannot be decoded

    explicit Contents(std::size_t chunks) : num_chunks_(chunks) {}

    // Remembers the digest of a chunk, or compares it with what is remembered. Throws ContentChanged, naming `path`.
    void check(const std::string& path, std::size_t chunk, std::uint64_t digest, Place place);

    // Writes the digests of all chunks before these places, one for each shard, and of those that were kept earlier;
    // kUnknown for the others. What threads have read ahead is left out, so the result depends only on the places.
    void keep(std::span<const Place> until, std::span<std::uint64_t> kept);

    // Continues with digests that another process kept: those of all chunks, or nothing.
    void restore(std::span<const std::uint64_t> digests);

    std::size_t num_chunks() const { return num_chunks_; }

  private:
    // Only when it is needed: a sparse file has more chunks than memory has room for, until the pipeline refuses it.
    void allocate();

    std::size_t num_chunks_;
    std::mutex mutex_;
    std::vector<std::uint64_t> digests_;
    std::vector<Place> places_;  // the first one, unless the chunk is kept
    std::vector<bool> kept_;
};

}  // namespace nnue::data
