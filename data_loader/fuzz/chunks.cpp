// A whole file read in chunks, as the pipeline does, against the same file read as a stream: the same positions, or an
// error both ways. Chunks are tiny, so that every boundary comes into the middle of something.
#include <filesystem>
#include <vector>

#include "base/system.h"
#include "chess/record.h"
#include "formats/position_file.h"
#include "formats/reader.h"
#include "fuzz.h"

using namespace nnue::data;

namespace {

bool read_stream(const InputFile& file, std::vector<Record>& out) {
    try {
        const auto reader = open_reader(ByteStream("input", open_file_source(file, 0), 100));
        std::size_t n = 0;
        do {
            out.resize(n + 64);
            n += reader->read(std::span(out).subspan(n));
        } while (n == out.size());
        out.resize(n);
        return true;
    } catch (const FormatError&) {
        return false;
    }
}

bool read_chunks(int fd, std::size_t records, std::size_t bytes, std::vector<Record>& out) {
    static std::vector<std::uint8_t> scratch, flags;
    static RecordBuffer chunk;
    Entry e;
    try {
        const auto file = open_position_file(InputFile("input", fd), {OnBad::kError, records, bytes, {}});
        for (std::size_t i = 0; i < file->num_chunks(); ++i) {
            file->decode(i, scratch, chunk, &flags);
            for (std::size_t k = 0; k < chunk.size(); ++k) {
                NNUE_FUZZ_CHECK(unpack(chunk.data()[k], e) == nullptr);
                NNUE_FUZZ_CHECK(flags[k] == position_flags(e));
                out.push_back(chunk.data()[k]);
            }
        }
        return true;
    } catch (const FormatError&) {
        return false;
    }
}

}  // namespace

// The first byte sets the size of the chunks.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const nnue::system::File input =
        nnue::system::create_nameless(std::filesystem::temp_directory_path().string());
    if (size == 0) return 0;
    NNUE_FUZZ_CHECK(input && nnue::system::resize(input, size - 1));
    NNUE_FUZZ_CHECK(nnue::system::write_at(input, 0, {data + 1, size - 1}).bytes == size - 1);
    std::vector<Record> stream, chunks;
    const bool sound = read_stream(InputFile("input", input.descriptor()), stream);
    NNUE_FUZZ_CHECK(read_chunks(input.descriptor(), 1 + data[0] % 3, 60 + data[0], chunks) == sound);
    NNUE_FUZZ_CHECK(!sound || stream == chunks);
    return 0;
}
