// Huffman-coded arrays, as a proposal for Stockfish's nets has them (docs/net-files.md, "Containers").
//
// An array is cut into blocks of about 131,072 elements. A block is the magic, the smallest and the largest value
// (i32), the number of payload bytes (u32), the code length of each value from the smallest to the largest (u8, 0 where
// it does not occur), and the codes, most significant bit first, the last byte filled up with zeros. Codes are
// canonical.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nnue::data {

constexpr std::string_view kHuffmanMagic = "COMPRESSED_HUFFMAN";
constexpr int kMaxCodeLength = 16;

// The error, if `reason` is not empty, at byte `offset`, where element `element` was expected.
struct HuffmanProgress {
    std::size_t offset;
    std::size_t element;
    std::string reason;
};

// The numbers of elements of the blocks of an array of n.
std::vector<std::size_t> huffman_blocks(std::size_t n);

// Reads an array that takes exactly these bytes. int8, int16, int32.
template <class Int>
HuffmanProgress huffman_decode(std::span<const std::uint8_t> bytes, std::span<Int> out);

// The bytes of an array, with the code lengths that the reference writer chooses. Values of a block must lie less than
// 2^24 apart and be at most 65,536 different ones; otherwise the result is empty.
template <class Int>
std::vector<std::uint8_t> huffman_encode(std::span<const Int> values);

}  // namespace nnue::data
