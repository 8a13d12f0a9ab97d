// One position to and from the bytes of each format, as pure functions for tests. A format does not need them to work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "chess/types.h"
#include "formats/format.h"

namespace nnue::data {

// `.bin`: PackedSfenValue, 40 bytes.
inline constexpr std::size_t kBinSize = 40;
Entry decode_bin(std::span<const std::uint8_t, kBinSize> bytes);
void encode_bin(const Entry& entry, std::span<std::uint8_t, kBinSize> bytes, Losses& losses);

// bulletformat's ChessBoard, 32 bytes. It is side-to-move relative: read back, white is to move.
inline constexpr std::size_t kBulletformatSize = 32;
Entry decode_bulletformat(std::span<const std::uint8_t, kBulletformatSize> bytes);
void encode_bulletformat(const Entry& entry, std::span<std::uint8_t, kBulletformatSize> bytes, Losses& losses);

// Marlinformat, 32 bytes.
inline constexpr std::size_t kMarlinformatSize = 32;
Entry decode_marlinformat(std::span<const std::uint8_t, kMarlinformatSize> bytes);
void encode_marlinformat(const Entry& entry, std::span<std::uint8_t, kMarlinformatSize> bytes, Losses& losses);

// A line "<FEN> | <score> | <result>", score and result white's view, without its end.
Entry decode_text(std::string_view line);
void encode_text(const Entry& entry, std::string& out, Losses& losses);

// The lines of one position in the plain format of the Stockfish tools, from "fen …" to "e".
void encode_plain(const Entry& entry, std::string& out);

// Puts those lines back together.
class PlainParser {
  public:
    // Takes the next line; true if it ended a position, which is then in entry().
    bool add(std::string_view line);
    const Entry& entry() const { return entry_; }
    // Whether a position has begun that no "e" has ended yet.
    bool inside() const { return seen_ != 0; }
    // Forgets the position that has begun.
    void reset() { seen_ = 0; }

  private:
    Entry entry_;
    unsigned seen_ = 0;  // one bit per key
};

}  // namespace nnue::data
