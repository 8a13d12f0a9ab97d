#include "formats/position_file.h"

#include <algorithm>

namespace nnue::data {

std::unique_ptr<PositionFile> open_position_file(InputFile file, const OpenOptions& options) {
    std::vector<std::uint8_t> head(std::min<std::uint64_t>(file.size(), kFormatHead));
    file.read(0, head);
    const DataFormat& format = detect_format({head, head.size() == file.size()}, file.path());
    return format.open_file(std::move(file), options);
}

}  // namespace nnue::data
