// Signed LEB128, as the blocks of net files hold it: 7 bits per byte, low bits first, bit 7 set on every byte but the
// last, bit 6 of the last byte the sign. A number has exactly as many bytes as it needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace nnue::data {

// Bytes of one number: those of nets have 32 bits at most.
constexpr int kMaxLebBytes = 5;

// Where decoding has come to. If `reason` is not empty, the number that begins at byte `offset` and would have been
// number `element` of the output is refused.
struct LebProgress {
    std::size_t offset;
    std::size_t element;
    std::string reason;
};

// Reads numbers from byte `offset` of the payload on until `out` is full. int8, int16, int32.
template <class Int>
LebProgress leb128_decode(std::span<const std::uint8_t> payload, std::size_t offset, std::span<Int> out);

// The number of bytes that the numbers take.
template <class Int>
std::size_t leb128_size(std::span<const Int> values);

// Writes the numbers into exactly that many bytes.
template <class Int>
void leb128_encode(std::span<const Int> values, std::uint8_t* out);

}  // namespace nnue::data
