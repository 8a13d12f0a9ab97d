#include "chess/texts.h"

#include "chess/record.h"

namespace nnue::data {

Record record_from_fen(std::string_view fen, std::int16_t score, std::int8_t result) {
    try {
        Entry entry;
        entry.position = parse_fen(fen);
        entry.score = score;
        entry.result = result;
        return pack(entry);
    } catch (const FormatError& error) {
        throw FormatError("FEN '" + std::string(fen) + "': " + error.what());
    }
}

Entry entry_from_record(const Record& record, std::size_t number) {
    Entry entry;
    if (const char* error = unpack(record, entry)) {
        throw FormatError("record " + std::to_string(number) + ": " + error);
    }
    return entry;
}

std::string fen_from_record(const Record& record, std::size_t number) {
    return format_fen(entry_from_record(record, number).position);
}

}  // namespace nnue::data
