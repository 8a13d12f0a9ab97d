#include "formats/huffman.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>
#include <queue>
#include <utility>

namespace nnue::data {

static_assert(std::endian::native == std::endian::little, "numbers of files are little-endian");

namespace {

constexpr std::size_t kBlock = 131072, kHuffmanHeader = kHuffmanMagic.size() + 12;
constexpr std::int64_t kMostRange = 1 << 24;
constexpr std::size_t kMostCodes = 1 << kMaxCodeLength;

// How many codes there are of each length.
using LengthCounts = std::array<std::uint32_t, 64>;

// The first code of each length.
std::array<std::uint32_t, kMaxCodeLength + 1> first_codes(const LengthCounts& counts) {
    std::array<std::uint32_t, kMaxCodeLength + 1> first{};
    for (std::size_t length = 1; length <= kMaxCodeLength; ++length) {
        first[length] = (first[length - 1] + (length > 1 ? counts[length - 1] : 0)) << 1;
    }
    return first;
}

// The code lengths of symbols with these frequencies, most frequent first; at least two symbols.
std::vector<std::uint8_t> code_lengths(const std::vector<std::uint64_t>& frequencies) {
    const std::size_t n = frequencies.size();
    using Node = std::pair<std::uint64_t, std::uint32_t>;  // weight, number: leaves, then joins
    std::priority_queue<Node, std::vector<Node>, std::greater<>> open;
    for (std::size_t i = 0; i < n; ++i) open.emplace(frequencies[i], static_cast<std::uint32_t>(i));
    std::vector<std::uint32_t> parent(2 * n - 1);
    for (std::size_t next = n; next < 2 * n - 1; ++next) {
        const Node one = open.top();
        open.pop();
        const Node other = open.top();
        open.pop();
        parent[one.second] = parent[other.second] = static_cast<std::uint32_t>(next);
        open.emplace(one.first + other.first, static_cast<std::uint32_t>(next));
    }
    std::vector<std::uint8_t> depth(2 * n - 1);
    LengthCounts counts{};
    for (std::size_t node = 2 * n - 2; node-- > 0;) {
        depth[node] = static_cast<std::uint8_t>(depth[parent[node]] + 1);
        if (node < n) ++counts[std::min<std::size_t>(depth[node], 63)];
    }
    for (std::size_t deep = 63; deep > kMaxCodeLength; --deep) {
        while (counts[deep] > 0) {
            std::size_t high = deep - 2;
            while (counts[high] == 0) --high;
            counts[deep] -= 2;
            counts[deep - 1] += 1;
            counts[high] -= 1;
            counts[high + 1] += 2;
        }
    }
    std::vector<std::uint8_t> lengths;
    lengths.reserve(n);
    for (std::size_t length = 1; length <= kMaxCodeLength; ++length) {
        lengths.insert(lengths.end(), counts[length], static_cast<std::uint8_t>(length));
    }
    return lengths;
}

template <class T>
void append(std::vector<std::uint8_t>& out, T value) {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(&value);
    out.insert(out.end(), bytes, bytes + sizeof value);
}

template <class Int>
bool encode_block(std::span<const Int> values, std::vector<std::uint8_t>& out) {
    const auto [low_at, high_at] = std::minmax_element(values.begin(), values.end());
    const std::int64_t low = *low_at, high = *high_at;
    if (high - low + 1 > kMostRange) return false;
    const auto range = static_cast<std::size_t>(high - low + 1);
    std::vector<std::uint64_t> frequency(range);
    for (const Int value : values) ++frequency[static_cast<std::size_t>(value - low)];
    std::vector<std::uint32_t> symbols;
    for (std::size_t s = 0; s < range; ++s) {
        if (frequency[s] > 0) symbols.push_back(static_cast<std::uint32_t>(s));
    }
    if (symbols.size() > kMostCodes) return false;
    std::stable_sort(symbols.begin(), symbols.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return frequency[a] > frequency[b]; });
    std::vector<std::uint8_t> lengths(range);
    if (symbols.size() == 1) {
        lengths[symbols[0]] = 1;
    } else {
        std::vector<std::uint64_t> sorted;
        for (const std::uint32_t s : symbols) sorted.push_back(frequency[s]);
        const std::vector<std::uint8_t> found = code_lengths(sorted);
        for (std::size_t i = 0; i < symbols.size(); ++i) lengths[symbols[i]] = found[i];
    }
    LengthCounts counts{};
    for (const std::uint8_t length : lengths) counts[length] += length > 0;
    auto next = first_codes(counts);
    std::vector<std::uint32_t> codes(range);
    std::uint64_t bits = 0;
    for (std::size_t s = 0; s < range; ++s) {
        if (lengths[s] == 0) continue;
        codes[s] = next[lengths[s]]++;
        bits += frequency[s] * lengths[s];
    }
    out.insert(out.end(), kHuffmanMagic.begin(), kHuffmanMagic.end());
    append(out, static_cast<std::int32_t>(low));
    append(out, static_cast<std::int32_t>(high));
    append(out, static_cast<std::uint32_t>((bits + 7) / 8));
    out.insert(out.end(), lengths.begin(), lengths.end());
    std::uint64_t word = 0;
    int held = 0;
    for (const Int value : values) {
        const auto s = static_cast<std::size_t>(value - low);
        word = word << lengths[s] | codes[s];
        held += lengths[s];
        for (; held >= 8; held -= 8) out.push_back(static_cast<std::uint8_t>(word >> (held - 8)));
    }
    if (held > 0) out.push_back(static_cast<std::uint8_t>(word << (8 - held)));
    return true;
}

// The next symbol of the payload: the value, and its number of bits.
struct Code {
    std::int32_t value;
    std::int32_t length;
};

std::string number(std::int64_t value) {
    return std::to_string(value);
}

}  // namespace

std::vector<std::size_t> huffman_blocks(std::size_t n) {
    const std::size_t base = n / std::max<std::size_t>(1, n / kBlock);
    std::vector<std::size_t> sizes;
    for (std::size_t left = n; left > 0; left -= sizes.back()) sizes.push_back(left < 2 * base ? left : base);
    return sizes;
}

template <class Int>
std::vector<std::uint8_t> huffman_encode(std::span<const Int> values) {
    std::vector<std::uint8_t> out;
    std::size_t begin = 0;
    for (const std::size_t size : huffman_blocks(values.size())) {
        if (!encode_block(values.subspan(begin, size), out)) return {};
        begin += size;
    }
    return out;
}

template <class Int>
HuffmanProgress huffman_decode(std::span<const std::uint8_t> bytes, std::span<Int> out) {
    std::size_t at = 0, element = 0;
    std::vector<Code> table(kMostCodes);
    for (const std::size_t size : huffman_blocks(out.size())) {
        const auto refuse = [&](std::size_t offset, std::string reason) {
            return HuffmanProgress{offset, element, std::move(reason)};
        };
        if (bytes.size() - at < kHuffmanHeader) return refuse(at, "the bytes end within the head of a block");
        if (std::memcmp(bytes.data() + at, kHuffmanMagic.data(), kHuffmanMagic.size()) != 0) {
            return refuse(at, "expected " + std::string(kHuffmanMagic));
        }
        std::int32_t low, high;
        std::uint32_t payload;
        std::memcpy(&low, bytes.data() + at + kHuffmanHeader - 12, 4);
        std::memcpy(&high, bytes.data() + at + kHuffmanHeader - 8, 4);
        std::memcpy(&payload, bytes.data() + at + kHuffmanHeader - 4, 4);
        const std::int64_t range = std::int64_t{high} - low + 1;
        if (range < 1 || range > kMostRange) {
            return refuse(at + kHuffmanHeader - 12, "values from " + number(low) + " to " + number(high) +
                                                        ", expected a range of 1 to " + number(kMostRange));
        }
        if (low < std::numeric_limits<Int>::min() || high > std::numeric_limits<Int>::max()) {
            return refuse(at + kHuffmanHeader - 12, "values from " + number(low) + " to " + number(high) +
                                                        ", which do not fit int" + number(8 * sizeof(Int)));
        }
        const auto values = static_cast<std::size_t>(range);
        const std::size_t lengths_at = at + kHuffmanHeader;
        if (bytes.size() - lengths_at < values || bytes.size() - lengths_at - values < payload) {
            return refuse(lengths_at, "the bytes end within a block");
        }
        const std::span lengths = bytes.subspan(lengths_at, values);
        LengthCounts counts{};
        std::uint64_t kraft = 0;
        std::size_t symbols = 0;
        for (std::size_t s = 0; s < values; ++s) {
            const unsigned length = lengths[s];
            if (length > kMaxCodeLength) {
                return refuse(lengths_at + s,
                              "a code of " + number(length) + " bits, expected at most " + number(kMaxCodeLength));
            }
            if (length == 0) continue;
            ++counts[length];
            ++symbols;
            kraft += kMostCodes >> length;
        }
        if (lengths.front() == 0 || lengths.back() == 0) {
            return refuse(lengths_at, "the smallest or the largest value does not occur");
        }
        if (symbols == 1 ? counts[1] != 1 : kraft != kMostCodes) {
            return refuse(lengths_at, "code lengths that make no complete code");
        }
        auto next = first_codes(counts);
        std::fill(table.begin(), table.end(), Code{0, 0});
        for (std::size_t s = 0; s < values; ++s) {
            const unsigned length = lengths[s];
            if (length == 0) continue;
            const std::size_t width = kMostCodes >> length;
            const std::size_t first = std::size_t{next[length]++} * width;
            std::fill_n(
                table.begin() + static_cast<std::ptrdiff_t>(first), width,
                Code{static_cast<std::int32_t>(low + static_cast<std::int64_t>(s)), static_cast<std::int32_t>(length)});
        }
        const std::size_t codes_at = lengths_at + values;
        const std::span codes = bytes.subspan(codes_at, payload);
        std::uint64_t word = 0;
        std::int64_t held = 0, used = 0;
        std::size_t taken = 0;
        for (std::size_t i = 0; i < size; ++i, ++element) {
            while (held < kMaxCodeLength) {  // zeros after the payload; what is used is compared with its length
                word = word << 8 | (taken < codes.size() ? codes[taken] : 0);
                ++taken;
                held += 8;
            }
            const Code& code = table[word >> (held - kMaxCodeLength) & (kMostCodes - 1)];
            used += code.length;
            if (code.length == 0 || used > 8 * static_cast<std::int64_t>(payload)) {
                const std::size_t where = codes_at + static_cast<std::size_t>(used / 8);
                return refuse(where, code.length == 0 ? "a code of no value" : "the payload ends within a code");
            }
            held -= code.length;
            out[element] = static_cast<Int>(code.value);
        }
        if (8 * static_cast<std::int64_t>(payload) - used >= 8) {
            return refuse(
                codes_at + static_cast<std::size_t>(used / 8 + (used % 8 != 0)),
                "codes end after " + number(used) + " bits, but the payload has " + number(payload) + " bytes");
        }
        if (used % 8 != 0 && (codes.back() & (0xFF >> used % 8)) != 0) {
            return refuse(codes_at + payload - 1, "bits after the last code, expected zeros");
        }
        at = codes_at + payload;
    }
    if (at != bytes.size())
        return {at, element, number(static_cast<std::int64_t>(bytes.size() - at)) + " bytes too many"};
    return {at, element, {}};
}

#define NNUE_HUFFMAN(type)                                                                         \
    template HuffmanProgress huffman_decode<type>(std::span<const std::uint8_t>, std::span<type>); \
    template std::vector<std::uint8_t> huffman_encode<type>(std::span<const type>)
NNUE_HUFFMAN(std::int8_t);
NNUE_HUFFMAN(std::int16_t);
NNUE_HUFFMAN(std::int32_t);
#undef NNUE_HUFFMAN

}  // namespace nnue::data
