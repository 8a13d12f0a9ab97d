// A whole file in any format, by content and by name: positions that are sound, or one FormatError.
#include <cstring>
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

// The first byte says how to read the rest.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    const unsigned choice = data[0] % 14;
    ByteStream stream("input", std::make_unique<MemorySource>(data + 1, size - 1));
    const OnBad on_bad = choice & 1 ? OnBad::kSkip : OnBad::kError;
    try {
        if (choice >= 12) {
            read_all(*open_reader(std::move(stream), on_bad));
        } else {
            read_all(*open_reader(static_cast<Format>(choice / 2), std::move(stream), on_bad));
        }
    } catch (const FormatError& error) {
        NNUE_FUZZ_CHECK(std::strlen(error.what()) > 0);
    }
    return 0;
}
