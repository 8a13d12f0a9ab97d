// One position to and from the bytes of each format but binpack. Pure functions; files and streams are reader.h's and
// writer.h's. Layouts to the byte: docs/data-formats.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "chess/fen.h"
#include "chess/types.h"

namespace nnue::data {

enum class Format { kBinpack, kBin, kBulletformat, kMarlinformat, kText, kPlain };

struct FormatInfo {
    Format id;
    const char* name;
    std::size_t record_size;  // bytes of a position; 0 where they differ in size
    bool is_text;             // lines
};

std::span<const FormatInfo> formats();
const FormatInfo& format_info(Format format);

// Throws FormatError, with the names there are, for an unknown one.
const FormatInfo& format_info(std::string_view name);

// In how many positions something was dropped or changed because the format has no room for it.
struct Losses {
    std::uint64_t moves = 0;          // the move
    std::uint64_t castling = 0;       // castling rights
    std::uint64_t en_passant = 0;     // the en-passant square
    std::uint64_t rule50 = 0;         // the rule-50 counter: dropped, or cut to the largest value there is
    std::uint64_t ply = 0;            // the ply: dropped, or moved by one where its parity is not the side to move's
    std::uint64_t black_to_move = 0;  // read back with the colours swapped, as white to move
    std::uint64_t scores = 0;         // −32768, cut to −32767 where the view changes

    void operator+=(const Losses& other);
};

// Every decoder throws FormatError with the reason, what was found and what was expected; it accepts exactly what makes
// a sound record, with a move that is pseudo-legal or none. En-passant squares that the en-passant rule of binpack does
// not keep are dropped.

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
    // Has a position begun that "e" has not ended?
    bool inside() const { return seen_ != 0; }
    // Forgets the position that has begun.
    void reset() { seen_ = 0; }

  private:
    Entry entry_;
    unsigned seen_ = 0;  // one bit a key
};

// A whole number in decimal from `low` to `high`; FormatError names `what`.
int parse_integer(std::string_view text, const char* what, int low, int high);

}  // namespace nnue::data
