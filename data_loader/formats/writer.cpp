#include "formats/writer.h"

#include <algorithm>
#include <cmath>

#include "chess/record.h"

namespace nnue::data {

std::unique_ptr<PositionWriter> open_writer(std::string_view format, const std::string& path, int fd,
                                            const WriterOptions& options) {
    const DataFormat& found = find_format(format);
    if (!found.open_writer) throw FormatError(path + ": the format " + found.name + " can be read, but not written");
    return found.open_writer(path, fd, options);
}

std::uint64_t scale_scores(std::span<Record> records, double factor) {
    std::uint64_t cut = 0;
    for (Record& record : records) {
        const int score = record_score(record.bytes.data());
        if (score == kScoreNone) continue;
        const double scaled = std::round(score * factor);
        const double kept = std::clamp(scaled, -32767.0, 32767.0);
        cut += kept != scaled;
        set_record_score(record, static_cast<int>(kept));
    }
    return cut;
}

}  // namespace nnue::data
