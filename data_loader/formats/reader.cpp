#include "formats/reader.h"

#include <algorithm>

namespace nnue::data {

std::unique_ptr<PositionReader> open_reader(ByteStream stream, const ReadOptions& options) {
    const auto head = stream.peek(kFormatHead);
    const Head seen{head.first(std::min(head.size(), kFormatHead)), head.size() < kFormatHead};
    return detect_format(seen, stream.path()).open_reader(std::move(stream), options);
}

}  // namespace nnue::data
