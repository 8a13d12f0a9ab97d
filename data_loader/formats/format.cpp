#include "formats/format.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "formats/codec.h"

namespace nnue::data {

namespace {

constexpr const char* kFormatOfEmptyFiles = "binpack";

// In a function, since a format's file may be initialised before this one.
std::vector<const DataFormat*>& registered_formats() {
    static std::vector<const DataFormat*> all;
    return all;
}

}  // namespace

// Which file is initialised first depends on the linker, so the list is kept in the order of names.
RegisteredFormat::RegisteredFormat(const DataFormat& format) {
    std::vector<const DataFormat*>& all = registered_formats();
    const std::string_view name = format.name;
    const auto place = std::ranges::find_if(all, [&](const DataFormat* other) { return other->name >= name; });
    if (place != all.end() && (*place)->name == name) std::abort();
    all.insert(place, &format);
}

std::span<const DataFormat* const> formats() {
    return registered_formats();
}

const DataFormat& find_format(std::string_view name) {
    std::string names;
    for (const DataFormat* format : formats()) {
        if (name == format->name) return *format;
        names += (names.empty() ? "" : ", ") + std::string(format->name);
    }
    throw FormatError("unknown format " + quoted(name) + ", expected one of " + names);
}

std::string_view Head::text() const {
    const std::string_view all(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    constexpr std::string_view kMark = "\xef\xbb\xbf";  // UTF-8's byte-order mark
    return all.substr(all.starts_with(kMark) ? kMark.size() : 0);
}

bool Head::is_text() const {
    const std::string_view begin = text().substr(0, 4096);
    if (begin.empty() || static_cast<unsigned char>(begin[0]) >= 0x80) return begin.empty();
    return std::ranges::all_of(begin, [](char c) {
        const auto byte = static_cast<unsigned char>(c);
        return (byte >= ' ' && byte != 0x7f) || c == '\n' || c == '\r' || c == '\t';
    });
}

std::string_view Head::first_line() const {
    const std::string_view all = text();
    const std::size_t begin = std::min(all.find_first_not_of(" \t\r\n"), all.size());
    return all.substr(begin, all.find('\n', begin) - begin);
}

std::string_view Head::first_content_line() const {
    const std::string_view all = text();
    for (std::size_t at = 0; at < all.size();) {
        const std::size_t end = std::min(all.find('\n', at), all.size());
        const std::string_view line = trimmed(all.substr(at, end - at));
        if (!line.empty() && !line.starts_with('#') && !line.starts_with("//")) return line;
        at = end + 1;
    }
    return {};
}

namespace {

// A Polyglot book: 16 bytes each, sorted by the key of the position, big-endian.
bool is_polyglot(std::span<const std::uint8_t> bytes) {
    const std::size_t entries = bytes.size() / 16;
    if (entries < 2) return false;
    for (std::size_t i = 0; i < entries; ++i) {
        const std::uint8_t* entry = &bytes[16 * i];
        if (i > 0 && std::lexicographical_compare(entry, entry + 8, entry - 16, entry - 8)) return false;
        const unsigned move = entry[8] << 8 | entry[9];
        if (move >> 12 > 4 || (move >> 6 & 63) == (move & 63)) return false;
    }
    return true;
}

// Files of other kinds that people pass to a data tool: their first bytes, and what to do with them.
struct OtherKind {
    std::string_view begins, words;
};
constexpr OtherKind kOtherKinds[] = {
    {"PK\x03\x04", "a zip archive: unpack it"},
    {"7z\xbc\xaf\x27\x1c", "a 7z archive: unpack it"},
    {"Rar!", "a rar archive: unpack it"},
    {std::string_view("\xfd"
                      "7zXZ\0",
                      6),
     "compressed with xz: unpack it with `xz -d`"},
    {"\x04\x22\x4d\x18", "compressed with lz4: unpack it with `lz4 -d`"},
    {"PAR1", "a Parquet file: export its positions as lines of <FEN> | <score> | <result>"},
    {"ARROW1", "an Arrow file: export its positions as lines of <FEN> | <score> | <result>"},
    {"SQLite format 3", "a SQLite database: export its positions as lines of <FEN> | <score> | <result>"},
    {"\x93NUMPY", "a NumPy array: write its positions as lines of <FEN> | <score> | <result>"},
    {"%PDF", "a PDF file"},
    {"{\\rtf", "a formatted text (RTF): save it as plain text"},
    {"\x1f\x8b\x08", "compressed twice with gzip: unpack it with `gzip -d`"},
    {"BZh", "compressed twice, with bzip2 inside: unpack it with `bzip2 -d`"},
    {"\x28\xb5\x2f\xfd", "compressed twice, with zstd inside: unpack it with `zstd -d`"},
    {"\x1f\x9d", "compressed with compress: unpack it with `gzip -d`"},
    {std::string_view("\x5d\0\0", 3), "compressed with lzma: unpack it with `xz -d`"},
    {"\x89HDF", "an HDF5 file: export its positions as lines of <FEN> | <score> | <result>"},
    {"\x89PNG", "a picture"},
    {"\x7f"
     "ELF",
     "a program"},
    {"<?xml", "XML: write its positions as lines of <FEN> | <score> | <result>"},
    {"<!DOCTYPE", "a web page: download the file itself"},
    {"<!doctype", "a web page: download the file itself"},
    {"<html", "a web page: download the file itself"},
    {"version https://git-lfs", "a pointer of Git LFS: fetch the file itself with `git lfs pull`"},
};

// The kind of such a file, "" for all others.
std::string other_kind(const Head& head) {
    const std::string_view all = head.text();
    for (const auto& [begins, words] : kOtherKinds) {
        if (all.starts_with(begins)) return std::string(words);
    }
    constexpr std::size_t kTarMark = 257;
    if (all.size() > kTarMark && all.substr(kTarMark).starts_with("ustar")) return "a tar archive: unpack it";
    if (all.size() > 10 && all.substr(8).starts_with("{\"")) return "a safetensors file, such as a checkpoint";
    // Nets of Stockfish and of this project: a version, a hash, and the size of a text, which is below 65,536.
    for (const std::string_view version : {"\x16\x2f\xf3\x7a", "\x20\x2f\xf3\x7a", "\xfa\x8a\x44\x6a", "\x01STN"}) {
        if (all.size() > 12 && all.starts_with(version) && all[10] == 0 && all[11] == 0) return "a net";
    }
    const std::string_view line = head.first_line();
    if (line.starts_with('{') || line.starts_with('[')) {
        if (line.find("\"fen\"") != std::string_view::npos && line.find("\"evals\"") != std::string_view::npos) {
            return "Lichess's evaluations as JSON, which have no results of games; expected games or positions with "
                   "results";
        }
        return "JSON: write its positions as lines of <FEN> | <score> | <result>";
    }
    return is_polyglot(head.bytes) ? "a Polyglot book, expected games in PGN or positions as lines of FEN or EPD" : "";
}

}  // namespace

const DataFormat& detect_format(const Head& head, const std::string& path) {
    if (head.bytes.empty()) return find_format(kFormatOfEmptyFiles);
    if (head.bytes.size() >= 2 && head.bytes[0] + head.bytes[1] == 0xff + 0xfe && head.bytes[0] >= 0xfe) {
        throw FormatError(path + ": text in UTF-16, expected UTF-8: convert it with `iconv -f UTF-16 -t UTF-8`");
    }
    const bool is_text = head.is_text();
    std::vector<const DataFormat*> sound, cut;
    std::string failures, lines;
    for (const DataFormat* format : formats()) {
        const Match match = format->match(head);
        if (match.kind == Match::kMarked) return *format;
        if (format->line) {
            lines += (lines.empty() ? "neither " : " nor ") + std::string(format->line) + " (" + format->name + ")";
        } else if (match.kind == Match::kMaybe) {
            sound.push_back(format);
        } else if (match.kind == Match::kCut) {
            cut.push_back(format);
        } else if (!match.why_not.empty()) {
            failures += (failures.empty() ? "" : "; ") + std::string(format->name) + ": " + match.why_not;
        }
    }
    if (const std::string other = other_kind(head); !other.empty() && sound.size() != 1) {
        const bool has_advice = other.find(':') != other.npos || other.find("expected") != other.npos;
        throw FormatError(path + ": " + other + (has_advice ? "" : ", expected a file of positions or games"));
    }
    if (is_text) throw FormatError(path + ": lines of text, but " + lines);
    if (sound.empty()) sound = cut;
    if (sound.size() == 1) return *sound[0];
    if (sound.empty()) {
        throw FormatError(path + ": in no known format (" + failures +
                          "); for a damaged file: `nnue data convert --from FORMAT --skip-bad`");
    }
    throw FormatError(path + ": could be " + sound[0]->name + " or " + sound[1]->name +
                      ": convert it with `nnue data convert --from FORMAT`");
}

void Losses::operator+=(const Losses& other) {
    for (const LossRow& row : loss_rows()) this->*row.count += other.*row.count;
}

std::span<const LossRow> loss_rows() {
    static constexpr LossRow kRows[] = {
        {"moves", &Losses::moves, "without their move"},
        {"castling", &Losses::castling, "without castling rights"},
        {"en_passant", &Losses::en_passant, "without their en-passant square"},
        {"rule50", &Losses::rule50, "with the rule-50 counter dropped or clipped"},
        {"ply", &Losses::ply, "with the ply dropped or shifted by one"},
        {"black_to_move", &Losses::black_to_move, "with Black to move, turned into White's view"},
        {"scores", &Losses::scores, "with a score of -32768 clipped"},
        {"chess960", &Losses::chess960, "left out, with castling rights of Chess960"},
        {"left_out", &Losses::left_out, "left out, as the format needs a legal move for each"},
        {"spare", &Losses::spare, "with spare bytes dropped that were not 0"},
    };
    return kRows;
}

}  // namespace nnue::data
