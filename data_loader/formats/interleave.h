// Several files of one format mixed chunk by chunk into one, without decoding them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "formats/position_file.h"

namespace nnue::data {

// The next chunk comes from a file that is drawn by its share of the bytes left, so the mixture is even from beginning
// to end. Each file keeps its own order. The result is a function of (seed, files, weights) alone.
//
// With weights, a file is drawn by its weight times the share of its own bytes that is left, and read so often that all
// end together: a weight of 2.5 writes its chunks twice, and the first half of them once more; 0.1 the first tenth.
class Interleaver {
  public:
    // Copies to the open file `fd`, which stays the caller's; `output` is its name, for messages. Throws FormatError
    // naming the file for one that is damaged, or in another format than the first.
    Interleaver(const std::vector<std::string>& inputs, const std::string& output, int fd, std::uint64_t seed,
                const std::vector<double>& weights = {});

    // Copies one chunk; returns by how many bytes the work has got on, 0 after the last one.
    std::uint64_t step();

    std::uint64_t size() const { return size_; }      // of all inputs
    std::uint64_t chunks() const { return chunks_; }  // copied

  private:
    struct Input {
        std::unique_ptr<PositionFile> file;
        std::size_t next = 0;         // chunk
        std::uint64_t left = 0;       // bytes
        std::size_t chunks = 0;       // to read, over all passes
        std::uint64_t per_chunk = 0;  // bytes that a chunk counts as, where there are weights; 0: its own
    };
    std::vector<Input> inputs_;
    OutputFile output_;
    std::uint64_t base_, size_ = 0, left_ = 0, chunks_ = 0;
    std::vector<std::uint8_t> buffer_;
};

}  // namespace nnue::data
