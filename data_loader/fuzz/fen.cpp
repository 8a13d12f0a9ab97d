// A FEN and a UCI move: what is accepted makes a sound record and comes back as the same text.
#include "chess/fen.h"

#include <string_view>

#include "chess/game.h"
#include "chess/record.h"
#include "fuzz.h"

using namespace nnue::data;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const std::size_t line = text.find('\n');
    try {
        Entry e, again;
        e.position = parse_fen(text.substr(0, line));
        NNUE_FUZZ_CHECK(unpack(pack(e), again) == nullptr);
        NNUE_FUZZ_CHECK(same_position(e.position, again.position));
        NNUE_FUZZ_CHECK(format_fen(parse_fen(format_fen(e.position))) == format_fen(e.position));
        if (line != std::string_view::npos) {
            const Move move = parse_uci(e.position, text.substr(line + 1));
            NNUE_FUZZ_CHECK(move.is_null() || parse_uci(e.position, format_uci(move)) == move);
            if (!move.is_null() && is_legal(e.position, move)) NNUE_FUZZ_CHECK(play(e.position, move));
        }
    } catch (const FormatError&) {
    }
    return 0;
}
