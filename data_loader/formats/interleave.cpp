#include "formats/interleave.h"

#include <algorithm>
#include <cmath>

#include "pipeline/random.h"

namespace nnue::data {

namespace {
constexpr std::uint64_t kInterleaveUse = 0x6d6978;  // keeps its randomness apart from other uses of the seed
}

Interleaver::Interleaver(const std::vector<std::string>& inputs, const std::string& output, int fd, std::uint64_t seed,
                         const std::vector<double>& weights)
    : output_(output, fd), base_(make_key({kInterleaveUse, seed})) {
    if (!weights.empty() && weights.size() != inputs.size()) {
        throw FormatError(std::to_string(weights.size()) + " weights for " + std::to_string(inputs.size()) +
                          " files, expected one for each");
    }
    for (const std::string& path : inputs) {
        Input& input = inputs_.emplace_back(Input{open_position_file(InputFile(path))});
        const DataFormat &format = input.file->format(), &first = inputs_[0].file->format();
        if (&format != &first) {
            throw FormatError(path + ": " + format.name + ", expected " + first.name + " as " + inputs[0] +
                              ": only files of one format can be mixed; `nnue data convert` converts it");
        }
        input.chunks = input.file->num_chunks();
        input.left = input.chunks == 0 ? 0 : input.file->file().size();
        if (const double weight = weights.empty() ? 1 : weights[inputs_.size() - 1]; weight != 1 && input.chunks) {
            input.per_chunk = std::max<std::uint64_t>(input.left / input.chunks, 1);
            input.chunks = static_cast<std::size_t>(std::llround(weight * static_cast<double>(input.chunks)));
            input.left = input.chunks * input.per_chunk;
        }
        size_ += input.left;
    }
    left_ = size_;
}

std::uint64_t Interleaver::step() {
    if (left_ == 0) return 0;
    std::uint64_t at = mix(base_ ^ chunks_) % left_;
    std::size_t i = 0;
    while (at >= inputs_[i].left) at -= inputs_[i++].left;
    Input& input = inputs_[i];
    input.file->read_chunk(input.next++ % input.file->num_chunks(), buffer_);
    output_.write(buffer_);
    ++chunks_;
    // A chunk of lines may be empty, and may be longer than the file by the end of its last line.
    const bool last = input.next == input.chunks;
    const std::uint64_t size = input.per_chunk ? input.per_chunk : buffer_.size();
    const std::uint64_t done = last ? input.left : std::min<std::uint64_t>(size, input.left - 1);
    input.left -= done;
    left_ -= done;
    return done;
}

}  // namespace nnue::data
