#include "formats/leb128.h"

#include <limits>
#include <utility>

namespace nnue::data {

namespace {

constexpr unsigned kMore = 0x80, kSign = 0x40, kBits = 0x7F;

std::string hex(std::span<const std::uint8_t> bytes) {
    std::string text;
    for (const unsigned byte : bytes) {
        text += "0123456789abcdef"[byte >> 4];
        text += "0123456789abcdef"[byte & 15];
    }
    return text;
}

// Whether the last of several bytes only repeats the sign, which bit 6 of the byte before it states already.
bool is_needless(unsigned last, unsigned before) {
    return last == ((before & kSign) ? kBits : 0);
}

std::size_t length_of(std::int32_t value) {
    // n bytes hold −2^(7n−1) … 2^(7n−1) − 1.
    const auto magnitude = static_cast<std::uint32_t>(value < 0 ? ~value : value);
    return std::size_t{1} + (magnitude >> 6 != 0) + (magnitude >> 13 != 0) + (magnitude >> 20 != 0) +
           (magnitude >> 27 != 0);
}

}  // namespace

template <class Int>
LebProgress leb128_decode(std::span<const std::uint8_t> payload, std::size_t offset, std::span<Int> out) {
    const std::uint8_t* const bytes = payload.data();
    std::size_t at = offset;
    for (std::size_t element = 0; element < out.size(); ++element) {
        const std::size_t begin = at;
        const auto refuse = [&](std::string reason) { return LebProgress{begin, element, std::move(reason)}; };
        std::int64_t value = 0;
        unsigned byte = kMore, shift = 0;
        for (; byte & kMore; shift += 7) {
            if (at == payload.size()) return refuse("the payload ends within a number");
            byte = bytes[at++];
            if (shift < 7 * kMaxLebBytes) value |= std::int64_t{byte & kBits} << shift;
        }
        const std::size_t length = at - begin;
        if (length > kMaxLebBytes) {
            return refuse("a number of " + std::to_string(length) + " bytes, expected at most " +
                          std::to_string(kMaxLebBytes));
        }
        if (length > 1 && is_needless(byte, bytes[at - 2])) {
            return refuse(hex(payload.subspan(begin, length)) + " is not the shortest form of its number");
        }
        if (byte & kSign) value -= std::int64_t{1} << shift;
        if (value < std::numeric_limits<Int>::min() || value > std::numeric_limits<Int>::max()) {
            return refuse("value " + std::to_string(value) + " does not fit int" + std::to_string(8 * sizeof(Int)));
        }
        out[element] = static_cast<Int>(value);
    }
    return {at, out.size(), {}};
}

template <class Int>
std::size_t leb128_size(std::span<const Int> values) {
    std::size_t size = 0;
    for (const Int value : values) size += length_of(value);
    return size;
}

template <class Int>
void leb128_encode(std::span<const Int> values, std::uint8_t* out) {
    for (const Int number : values) {
        std::int32_t value = number;
        for (std::size_t left = length_of(value); left > 1; --left) {
            *out++ = static_cast<std::uint8_t>(value | kMore);
            value >>= 7;
        }
        *out++ = static_cast<std::uint8_t>(value & kBits);
    }
}

#define NNUE_LEB128(type)                                                                                  \
    template LebProgress leb128_decode<type>(std::span<const std::uint8_t>, std::size_t, std::span<type>); \
    template std::size_t leb128_size<type>(std::span<const type>);                                         \
    template void leb128_encode<type>(std::span<const type>, std::uint8_t*)
NNUE_LEB128(std::int8_t);
NNUE_LEB128(std::int16_t);
NNUE_LEB128(std::int32_t);
#undef NNUE_LEB128

}  // namespace nnue::data
