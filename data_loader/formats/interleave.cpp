#include "formats/interleave.h"

#include "pipeline/random.h"

namespace nnue::data {

namespace {
constexpr std::uint64_t kInterleaveUse = 0x6d6978;  // keeps its randomness apart from other uses of the seed
}

Interleaver::Interleaver(const std::vector<std::string>& inputs, const std::string& output, int fd, std::uint64_t seed)
    : output_(output, fd), base_(make_key({kInterleaveUse, seed})) {
    for (const std::string& path : inputs) {
        Input& input = inputs_.emplace_back(Input{BinpackFile(path), InputFile(path)});
        input.left = input.file.size();
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
    const BinpackChunk chunk = input.file.chunks()[input.next++];
    const std::uint64_t size = kBinpackHeader + chunk.size;
    buffer_.resize(size);
    input.bytes.read(chunk.offset - kBinpackHeader, buffer_);
    output_.write(buffer_);
    input.left -= size;
    left_ -= size;
    ++chunks_;
    return size;
}

}  // namespace nnue::data
