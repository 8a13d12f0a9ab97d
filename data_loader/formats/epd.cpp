// EPD: four fields of a FEN and operations. A position needs a result, as in c9 "1-0"; ce has its score in centipawns.
#include "formats/position_lines.h"

namespace nnue::data {

extern const DataFormat kEpd;

constinit const DataFormat kEpd{
    "epd",
    ".epd",
    "EPD with results, one position per line; read only",
    "'<position> … c9 \"1-0\";'",
    [](const Head& head) -> Match {
        const bool begins = head.is_text() && line_form(head.first_content_line()) == LineForm::kEpd;
        return {begins ? Match::kMarked : Match::kNo, {}};
    },
    [](ByteStream stream, const ReadOptions& options) -> std::unique_ptr<PositionReader> {
        return std::make_unique<PositionListReader>(kEpd, std::move(stream), options.on_bad, LineRange{},
                                                    options.settings);
    },
    [](InputFile file, const OpenOptions& options) -> std::unique_ptr<PositionFile> {
        return std::make_unique<LineChunks<PositionListReader, begins_listed_line>>(kEpd, std::move(file), options);
    },
    nullptr,
    0,
    0,
    0,
    false,
    true};
static const RegisteredFormat registered_epd(kEpd);

}  // namespace nnue::data
