// A whole file in one format, NNUE_FUZZ_FORMAT, or in the one that is detected: positions that are sound, or one
// FormatError. With bad data left out too, positions without results, and the games of PGN.
#include <cstring>
#include <string_view>
#include <vector>

#include "chess/position.h"
#include "chess/record.h"
#include "formats/pgn_games.h"
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

void read_games(ByteStream stream) {
    PgnGameReader reader(std::move(stream), find_format("pgn"));
    PgnGame game;
    while (reader.next(game)) {
        for (const PgnPly& ply : game.plies) NNUE_FUZZ_CHECK(is_pseudo_legal(ply.before, ply.move));
        NNUE_FUZZ_CHECK(!game.where.empty());
    }
}

}  // namespace

// The first byte sets whether bad data is left out, and what a reader takes.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    // A small block: cheaper to allocate, and every boundary comes into the middle of something.
    ByteStream stream("input", std::make_unique<MemorySource>(data + 1, size - 1), 100);
    ReadOptions options(data[0] & 1 ? OnBad::kSkip : OnBad::kError);
    if (data[0] & 2) options.settings["results"] = "optional";
    if (data[0] & 4) options.settings["score_view"] = "white";
    if (data[0] & 8) options.settings["score_unit"] = "cp";
    constexpr std::string_view kFormat = NNUE_FUZZ_FORMAT;
    try {
        if constexpr (kFormat == "any") {
            read_all(*open_reader(std::move(stream), options));
        } else if (kFormat == "pgn" && data[0] & 16) {
            read_games(std::move(stream));
        } else {
            read_all(*find_format(kFormat).open_reader(std::move(stream), options));
        }
    } catch (const FormatError& error) {
        NNUE_FUZZ_CHECK(std::strlen(error.what()) > 0);
    }
    return 0;
}
