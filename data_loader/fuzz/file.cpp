// A whole file in one format, NNUE_FUZZ_FORMAT, or in the one that is detected: positions that are sound, or one
// FormatError. With bad data left out too.
#include <cstring>
#include <string_view>
#include <vector>

#include "chess/record.h"
#include "formats/reader.h"
#include "fuzz.h"

using namespace nnue::data;

namespace {

class MemorySource : public ByteSource {
  public:
    MemorySource(const std::uint8_t* data, std::size_t size) : data_(data), left_(size) {}

    std::size_t read(std::span<std::uint8_t> out) override {
        const std::size_t n = std::min(out.size(), left_);
        if (n) std::memcpy(out.data(), data_, n);
        data_ += n;
        left_ -= n;
        return n;
    }

  private:
    const std::uint8_t* data_;
    std::size_t left_;
};

void read_all(PositionReader& reader) {
    std::vector<Record> block(256);
    Entry e;
    while (const std::size_t n = reader.read(block)) {
        for (std::size_t i = 0; i < n; ++i) NNUE_FUZZ_CHECK(unpack(block[i], e) == nullptr);
    }
}

}  // namespace

// The first byte sets whether bad data is left out.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    // A small block: cheaper to allocate, and every boundary comes into the middle of something.
    ByteStream stream("input", std::make_unique<MemorySource>(data + 1, size - 1), 100);
    const OnBad on_bad = data[0] & 1 ? OnBad::kSkip : OnBad::kError;
    constexpr std::string_view kFormat = NNUE_FUZZ_FORMAT;
    try {
        if constexpr (kFormat == "any") {
            read_all(*open_reader(std::move(stream), on_bad));
        } else {
            read_all(*find_format(kFormat).open_reader(std::move(stream), on_bad));
        }
    } catch (const FormatError& error) {
        NNUE_FUZZ_CHECK(std::strlen(error.what()) > 0);
    }
    return 0;
}
