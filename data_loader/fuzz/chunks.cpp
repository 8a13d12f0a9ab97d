// A whole file read in chunks, as the pipeline does, against the same file read as a stream: the same positions, or an
// error both ways. Chunks are tiny, so that every boundary comes into the middle of something.
#include <sys/mman.h>
#include <unistd.h>

#include <vector>

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
    static const int fd = memfd_create("input", MFD_CLOEXEC);
    if (size == 0) return 0;
    NNUE_FUZZ_CHECK(fd >= 0 && ftruncate(fd, 0) == 0 &&
                    pwrite(fd, data + 1, size - 1, 0) == static_cast<ssize_t>(size - 1));
    std::vector<Record> stream, chunks;
    const bool sound = read_stream(InputFile("input", fd), stream);
    NNUE_FUZZ_CHECK(read_chunks(fd, 1 + data[0] % 3, 60 + data[0], chunks) == sound);
    NNUE_FUZZ_CHECK(!sound || stream == chunks);
    return 0;
}
