#include "formats/writer.h"

#include <algorithm>
#include <cmath>

#include "chess/record.h"

namespace nnue::data {

namespace {

// A nibble of 15 is a black king that is to move.
bool black_to_move(const std::uint8_t* record) {
    const auto has = [](std::uint64_t n) { return n & n >> 1 & n >> 2 & n >> 3 & 0x1111111111111111; };
    return (has(load_be64(record + 8)) | has(load_be64(record + 16))) != 0;
}

}  // namespace

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
        double kept = std::clamp(scaled, -32767.0, 32767.0);
        if (kept == kScoreNone) kept = kScoreNone - 1;  // a score must not become none
        cut += kept != scaled;
        set_record_score(record, static_cast<int>(kept));
    }
    return cut;
}

std::uint64_t turn_view(std::span<Record> records, Viewed what, bool white, bool black) {
    std::uint64_t cut = 0;
    for (Record& record : records) {
        const std::uint8_t* bytes = record.bytes.data();
        if (!(black_to_move(bytes) ? black : white)) continue;
        if (what == Viewed::kResults) {
            set_record_ply_result(record, record_ply(bytes), -record_result(bytes));
        } else if (const int score = record_score(bytes); score != kScoreNone) {
            cut += score == INT16_MIN;
            set_record_score(record, score == INT16_MIN ? INT16_MAX : -score);
        }
    }
    return cut;
}

std::uint64_t ScoreChanges::apply(std::span<Record> records) const {
    std::uint64_t cut = 0;
    if (turn_white_scores || turn_black_scores) {
        cut += turn_view(records, Viewed::kScores, turn_white_scores, turn_black_scores);
    }
    if (turn_white_results || turn_black_results) {
        turn_view(records, Viewed::kResults, turn_white_results, turn_black_results);
    }
    if (scale != 1) cut += scale_scores(records, scale);
    return cut;
}

}  // namespace nnue::data
