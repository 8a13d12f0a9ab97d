// Codecs, readers and writers of every format: golden bytes, round trips, and what happens to bytes that are wrong.
#include <sys/resource.h>

#include <csignal>
#include <cstdlib>

#include "formats/codecs.h"
#include "formats/position_file.h"
#include "formats/reader.h"
#include "formats/shuffle.h"
#include "formats/writer.h"
#include "games.h"
#include "pipeline/kernels.h"
#include "temporary_directory.h"

namespace nnue::data {
namespace {

using testing::NewFile;

constexpr const char* kFirst = "2kr3q/1ppn4/p2p1b1n/P2P1pNB/7P/4RP2/1PP3P1/1KB4Q b - - 0 17";
constexpr const char* kStart = testing::kStartFen;

Entry entry(const char* fen, const char* uci = "0000", int score = 0, int result = 0) {
    Entry e;
    e.position = parse_fen(fen);
    e.move = parse_uci(e.position, uci);
    e.score = static_cast<std::int16_t>(score);
    e.result = static_cast<std::int8_t>(result);
    return e;
}

bool is(const DataFormat* format, std::string_view name) {
    return name == format->name;
}

// Bytes of a position; 0 where they differ in size.
std::size_t record_size(const DataFormat* format) {
    return is(format, "bin") ? 40 : is(format, "bulletformat") || is(format, "marlinformat") ? 32 : 0;
}

template <class Bytes>
std::string hex(const Bytes& bytes) {
    std::string text;
    for (const std::uint8_t byte : bytes) {
        text += "0123456789abcdef"[byte >> 4];
        text += "0123456789abcdef"[byte & 15];
    }
    return text;
}

std::vector<Record> read_all(PositionReader& reader, std::size_t block = 100) {
    std::vector<Record> all, some(block);
    while (const std::size_t n = reader.read(some)) all.insert(all.end(), some.begin(), some.begin() + n);
    return all;
}

ByteStream open(const std::string& path) {
    return {path, open_file_source(path)};
}

std::string error_of(const auto& action) {
    try {
        action();
    } catch (const FormatError& e) {
        return e.what();
    }
    return "no error";
}

// --- codecs ----------------------------------------------------------------------------------------------------------

TEST(Codecs, GoldenBin) {
    const Entry e = entry(kFirst, "f5f4", -655, -1);
    std::array<std::uint8_t, kBinSize> bytes;
    Losses losses;
    encode_bin(e, bytes, losses);
    EXPECT_EQ(hex(bytes), "039d8b2cc60991a89a81208e020870024240a04002400400000000000000000071fd5d092100ffff");
    EXPECT_EQ(pack(decode_bin(bytes)), pack(e));
}

TEST(Codecs, GoldenBulletformat) {
    const Entry e = entry(kFirst, "f5f4", -655, -1);
    std::array<std::uint8_t, kBulletformatSize> bytes;
    Losses losses;
    encode_bulletformat(e, bytes, losses);
    EXPECT_EQ(hex(bytes), "8c0ea9e980304686350410001288908a8b88d8ca0000000071fd000201000000");
    EXPECT_EQ(losses.moves, 1u);
    EXPECT_EQ(losses.ply, 1u);
    EXPECT_EQ(losses.black_to_move, 1u);
    EXPECT_EQ(losses.castling + losses.en_passant + losses.rule50, 0u);
    const Entry back = decode_bulletformat(bytes);
    EXPECT_EQ(format_fen(back.position), "1kb4q/1pp3p1/4rp2/7p/p2p1Pnb/P2P1B1N/1PPN4/2KR3Q w - - 0 1");
    EXPECT_EQ(back.score, -655);
    EXPECT_EQ(back.result, -1);
    EXPECT_TRUE(back.move.is_null());
}

TEST(Codecs, MarlinformatByHand) {
    const Entry e = entry("r3k3/8/8/8/3pP3/8/8/4K2R b Kq e3 7 40", "d4e3", 123, 1);
    ASSERT_NE(e.position.ep_square, kNoSquare);
    std::array<std::uint8_t, kMarlinformatSize> bytes;
    Losses losses;
    encode_marlinformat(e, bytes, losses);
    // e1 K, h1 R unmoved; d4 p, e4 P; a8 r unmoved, e8 k. Score and result white's view.
    EXPECT_EQ(hex(bytes),
              "9000001800000011"
              "6508de00000000000000000000000000"
              "94072800"
              "85ff0000");
    EXPECT_EQ(pack(decode_marlinformat(bytes)), [&] {
        Entry moveless = e;
        moveless.move = {};
        return pack(moveless);
    }());
}

TEST(Codecs, TextAndPlainByHand) {
    const Entry e = entry(kFirst, "f5f4", -655, -1);
    Losses losses;
    std::string text, plain;
    encode_text(e, text, losses);
    EXPECT_EQ(text, std::string(kFirst) + " | 655 | 1.0\n");
    encode_plain(e, plain);
    EXPECT_EQ(plain, std::string("fen ") + kFirst + "\nmove f5f4\nscore -655\nply 33\nresult -1\ne\n");
}

TEST(Codecs, TextResultsAndSpacing) {
    const std::string white = "4k3/8/8/8/8/8/8/4K2Q w - - 3 9", black = "4k3/8/8/8/8/8/8/4K2Q b - - 3 9";
    for (const auto& [text, result] : {std::pair{"1.0", 1},
                                       {"1", 1},
                                       {"[1.0]", 1},
                                       {"0.5", 0},
                                       {"1/2", 0},
                                       {"[0.5]", 0},
                                       {"0.0", -1},
                                       {"0", -1},
                                       {"[0.0]", -1}}) {
        EXPECT_EQ(decode_text(white + " | 31 | " + text).result, result) << text;
        EXPECT_EQ(decode_text(black + "|31|" + text + "\r").result, -result) << text;
    }
    EXPECT_EQ(decode_text(white + " | +31 | 1").score, 31);
    EXPECT_EQ(decode_text(black + " | 31 | 1").score, -31);
    EXPECT_EQ(decode_text(black + " | -32768 | 1").score, 32767);
}

TEST(Codecs, PlainCastlingPromotionAndOrder) {
    PlainParser parser;
    const auto parse = [&](std::initializer_list<const char*> lines) {
        bool done = false;
        for (const char* line : lines) done = parser.add(line);
        EXPECT_TRUE(done);
        return parser.entry();
    };
    Entry e = parse({"fen r3k2r/8/8/8/8/8/8/R3K2R w KQkq - 0 1", "move e1g1", "score 5", "ply 0", "result 1", "e"});
    EXPECT_EQ(e.move, Move::make(kCastling, kE1, kH1));
    e = parse({"fen 4k3/P7/8/8/8/8/8/4K3 w - - 0 1", "result 0", "score -5", "move a7a8r", "ply 77", "e\r"});
    EXPECT_EQ(e.move, Move::make(kPromotion, 48, 56, 2));
    EXPECT_EQ(e.position.ply, 77);
    e = parse({"fen 4k3/P7/8/8/8/8/8/4K3 b - - 0 10", "", "score -5", "result 0", "e"});
    EXPECT_EQ(e.position.ply, 19);
    EXPECT_TRUE(e.move.is_null());
}

TEST(Codecs, EverythingThatAFormatCarriesComesBack) {
    std::uint64_t ep = 0, castling = 0;
    for (const Record& record : testing::random_games(1, 120, 200)) {
        Entry e;
        ASSERT_EQ(unpack(record, e), nullptr);
        ep += e.position.ep_square != kNoSquare;
        castling += e.move.kind() == kCastling;
        Entry moveless = e;
        moveless.move = {};
        Losses losses;

        std::array<std::uint8_t, kBinSize> bin;
        encode_bin(e, bin, losses);
        EXPECT_EQ(pack(decode_bin(bin)), record);
        std::string plain;
        encode_plain(e, plain);
        PlainParser parser;
        for (std::size_t begin = 0, end; begin < plain.size(); begin = end + 1) {
            end = plain.find('\n', begin);
            parser.add(std::string_view(plain).substr(begin, end - begin));
        }
        EXPECT_EQ(pack(parser.entry()), record);
        EXPECT_EQ(losses.moves + losses.castling + losses.en_passant + losses.rule50 + losses.ply + losses.scores, 0u);

        // A score that has no negative is cut; the other side's view of it comes back as −32767.
        if (e.score == INT16_MIN) continue;
        std::array<std::uint8_t, kMarlinformatSize> marlin;
        encode_marlinformat(e, marlin, losses);
        EXPECT_EQ(pack(decode_marlinformat(marlin)), pack(moveless));
        std::string text;
        encode_text(e, text, losses);
        EXPECT_EQ(pack(decode_text(std::string_view(text).substr(0, text.size() - 1))), pack(moveless));
        EXPECT_EQ(losses.moves, 2u);

        // bulletformat: the board, score and result, as white.
        std::array<std::uint8_t, kBulletformatSize> bullet;
        encode_bulletformat(e, bullet, losses);
        const Entry back = decode_bulletformat(bullet);
        const bool black = e.position.side_to_move == kBlack;
        for (int square = 0; square < 64; ++square) {
            const unsigned code = code_at(e.position, square ^ (black ? 56 : 0));
            EXPECT_EQ(code_at(back.position, square), code == kNoPiece ? code : code ^ (black ? 1u : 0u));
        }
        EXPECT_EQ(back.score, e.score);
        EXPECT_EQ(back.result, e.result);
    }
    EXPECT_GT(ep, 10u);
    EXPECT_GT(castling, 10u);
}

TEST(Codecs, WhatDoesNotFitIsCutAndCounted) {
    Entry e = entry("r3k3/8/8/8/3pP3/8/8/4K2R b Kq e3 0 1", "d4e3", -32768, 1);
    e.position.rule50 = 300;
    e.position.ply = 100;  // even, with black to move
    Losses losses;
    std::array<std::uint8_t, kBinSize> bin;
    encode_bin(e, bin, losses);
    EXPECT_EQ(decode_bin(bin).position.rule50, 127);
    EXPECT_EQ(decode_bin(bin).position.ply, 100);
    EXPECT_EQ(losses.rule50, 1u);
    std::array<std::uint8_t, kMarlinformatSize> marlin;
    encode_marlinformat(e, marlin, losses);
    EXPECT_EQ(decode_marlinformat(marlin).position.rule50, 255);
    EXPECT_EQ(decode_marlinformat(marlin).position.ply, 101);
    EXPECT_EQ(decode_marlinformat(marlin).score, -32767);
    EXPECT_EQ(losses.rule50, 2u);
    EXPECT_EQ(losses.ply, 1u);
    EXPECT_EQ(losses.scores, 1u);
    std::string text;
    encode_text(e, text, losses);
    EXPECT_NE(text.find(" | 32767 | 0.0"), std::string::npos);
    EXPECT_EQ(losses.scores, 2u);
    std::array<std::uint8_t, kBulletformatSize> bullet;
    encode_bulletformat(e, bullet, losses);
    EXPECT_EQ(decode_bulletformat(bullet).score, -32768);
    EXPECT_EQ(losses.castling, 1u);
    EXPECT_EQ(losses.en_passant, 1u);
    EXPECT_EQ(losses.rule50, 3u);
}

TEST(Codecs, AnEnPassantSquareThatTheRuleDoesNotKeepIsDropped) {
    Entry e = entry("4k3/8/8/8/4P3/8/8/4K3 b - - 0 1");
    e.position.ep_square = 20;  // e3, with no pawn to take
    Losses losses;
    std::array<std::uint8_t, kBinSize> bin;
    encode_bin(e, bin, losses);
    EXPECT_EQ(decode_bin(bin).position.ep_square, kNoSquare);
    std::array<std::uint8_t, kMarlinformatSize> marlin;
    encode_marlinformat(e, marlin, losses);
    EXPECT_EQ(marlin[24], 0x80 | 20);
    EXPECT_EQ(decode_marlinformat(marlin).position.ep_square, kNoSquare);
}

TEST(Codecs, BadBytesSayWhatWasFoundAndExpected) {
    const Entry e = entry(kStart, "e2e4", 10, 1);
    Losses losses;
    std::array<std::uint8_t, kBinSize> bin;
    const auto bin_error = [&](const auto& change) {
        encode_bin(e, bin, losses);
        change();
        return error_of([&] { decode_bin(bin); });
    };
    EXPECT_EQ(bin_error([&] { bin[37] = 64; }), "ply 16384, expected 0 to 16383");
    EXPECT_EQ(bin_error([&] { bin[38] = 3; }), "result 3, expected -1 to 1");
    EXPECT_EQ(bin_error([&] { bin[34] = 1, bin[35] = 0; }), "move a1b1 is not possible in " + std::string(kStart));
    EXPECT_EQ(bin_error([&] { std::fill_n(bin.begin(), 32, std::uint8_t{0}); }), "both kings on a1");
    EXPECT_EQ(bin_error([&] { std::fill_n(bin.begin() + 2, 30, std::uint8_t{0xff}); }),
              "piece type on a8 7, expected 0 to 4");
    std::array<std::uint8_t, kBulletformatSize> bullet;
    const auto bullet_error = [&](const auto& change) {
        encode_bulletformat(e, bullet, losses);
        change();
        return error_of([&] { decode_bulletformat(bullet); });
    };
    EXPECT_EQ(bullet_error([&] { bullet[0] = 0xfe; }), "piece nibble 31 is set, but only 31 squares are occupied");
    EXPECT_EQ(bullet_error([&] { bullet[5] = 1; }), "pieces: 33, expected at most 32");
    EXPECT_EQ(bullet_error([&] { bullet[8] = 0x17; }), "piece type on a1 7, expected 0 to 5");
    EXPECT_EQ(bullet_error([&] { bullet[8] = 0x10; }), "a pawn on a1");
    EXPECT_EQ(bullet_error([&] { bullet[8] = 0x15; }), "white kings: 2, expected 1");
    EXPECT_EQ(bullet_error([&] { bullet[26] = 9; }), "result 9, expected 0 to 2");
    EXPECT_EQ(bullet_error([&] { bullet[27] = 9; }), "own king's square 9, expected 4, where the board has it");
    EXPECT_EQ(bullet_error([&] { bullet[28] = 9; }), "opponent's king's square 9, expected 4, where the board has it");
    std::array<std::uint8_t, kMarlinformatSize> marlin;
    const auto marlin_error = [&](const auto& change) {
        encode_marlinformat(e, marlin, losses);
        change();
        return error_of([&] { decode_marlinformat(marlin); });
    };
    EXPECT_EQ(marlin_error([&] { marlin[8] = 0x66; }), "two castling rooks on one side of their king");
    EXPECT_EQ(marlin_error([&] { marlin[24] = 70; }), "en-passant square 70, expected 64 or a square of rank 3 or 6");
    EXPECT_EQ(marlin_error([&] { marlin[27] = 0xff; }), "full-move number 65281, expected 0 to 8192");
    EXPECT_EQ(marlin_error([&] { marlin[30] = 3; }), "result 3, expected 0 to 2");

    EXPECT_EQ(error_of([] { decode_text("8/8 | 3"); }), "2 fields in '8/8 | 3', expected <FEN> | <score> | <result>");
    EXPECT_EQ(error_of([] { decode_text(std::string(kStart) + " | 99999 | 1.0"); }),
              "score '99999', expected -32768 to 32767");
    EXPECT_EQ(error_of([] { decode_text(std::string(kStart) + " | 3 | win"); }),
              "result 'win', expected 1.0, 0.5 or 0.0, or 1-0, 1/2-1/2 or 0-1");
    EXPECT_EQ(error_of([] { PlainParser().add("score 3"); }),
              "'score 3', expected 'fen …', with which a position begins");
    PlainParser parser;
    parser.add(std::string("fen ") + kStart);
    EXPECT_EQ(error_of([&] { parser.add("hello there"); }),
              "'hello there', expected fen, move, score, ply, result or e");
    EXPECT_EQ(error_of([&] { parser.add("e"); }), "a position without 'score'");
    EXPECT_EQ(error_of([&] { parser.add(std::string("fen ") + kStart); }), "a second 'fen' in one position");
}

// --- readers and writers ---------------------------------------------------------------------------------------------

class Files : public testing::TemporaryDirectory {
  protected:
    // The path of a new file with this content.
    std::string file(std::string_view content = {}) {
        const std::string name = path(std::to_string(number_++));
        std::ofstream(name, std::ios::binary) << content;
        return name;
    }
    static std::string content(const std::string& name) {
        const std::vector<char> bytes = testing::bytes_of(name);
        return {bytes.begin(), bytes.end()};
    }

  private:
    int number_ = 0;
};

TEST_F(Files, EveryFormatIsWrittenDetectedAndRead) {
    const std::vector<Record> records = testing::random_games(2, 20, 200);
    for (const DataFormat* info : formats()) {
        if (!info->open_writer) continue;
        const std::string path = file();
        const auto writer = info->open_writer(path, NewFile(path), {});
        writer->write(records);
        writer->finish();
        EXPECT_EQ(writer->positions(), records.size());
        for (const std::size_t block : {std::size_t{1}, std::size_t{77}, std::size_t{100'000}}) {
            const auto reader = open_reader(open(path));
            EXPECT_EQ(&reader->format(), info) << info->name;
            const std::vector<Record> back = read_all(*reader, block);
            ASSERT_EQ(back.size(), records.size()) << info->name << ", blocks of " << block;
            EXPECT_EQ(reader->offset(), content(path).size());
            if (is(info, "binpack") || is(info, "bin") || is(info, "plain")) {
                EXPECT_TRUE(back == records) << info->name;
            }
        }
    }
}

TEST_F(Files, OnePositionIsEnoughToTellTheFormat) {
    const std::vector<Record> one(1, pack(entry(kFirst, "f5f4", -655, -1)));
    for (const DataFormat* info : formats()) {
        if (!info->open_writer) continue;
        const std::string path = file();
        const auto writer = info->open_writer(path, NewFile(path), {});
        writer->write(one);
        writer->finish();
        EXPECT_EQ(&open_reader(open(path))->format(), info) << info->name;
    }
}

TEST_F(Files, WhatIsInNoFormatSaysWhy) {
    const auto error = [&](std::string_view bytes) {
        const std::string path = file(bytes);
        return error_of([&] { open_reader(open(path)); }).substr(path.size());
    };
    EXPECT_TRUE(read_all(*open_reader(open(file()))).empty());
    EXPECT_EQ(error("hello\nworld\n"),
              ": lines of text, but neither '<position> … c9 \"1-0\";' (epd) nor '[Event \"…\"]' (pgn) nor 'fen …' "
              "(plain) nor '<FEN> | <score> | <result>' (text)");
    EXPECT_NE(error(std::string(1000, '\xee')).find(": in no known format (bin: offset 0: position 0: "),
              std::string::npos);
}

TEST_F(Files, ChunksGiveWhatTheStreamGives) {
    const std::vector<Record> records = testing::random_games(3, 4, 40);
    for (const DataFormat* format : formats()) {
        if (!format->open_writer) continue;
        const std::string name = file();
        auto writer = format->open_writer(name, NewFile(name), {});
        writer->write(records);
        writer->finish();
        const std::vector<Record> expected = read_all(*open_reader(open(name)));
        for (const std::size_t size : {1, 7, 64, 1000, 100'000}) {
            const auto chunks = open_position_file(InputFile(name), {OnBad::kError, size, size, {}});
            EXPECT_EQ(&chunks->format(), format);
            std::vector<Record> all;
            std::vector<std::uint8_t> scratch, flags;
            RecordBuffer chunk;
            for (std::size_t i = 0; i < chunks->num_chunks(); ++i) {
                chunks->decode(i, scratch, chunk, &flags);
                all.insert(all.end(), chunk.data(), chunk.data() + chunk.size());
            }
            EXPECT_EQ(all, expected) << format->name << " in chunks of " << size;
        }
    }
}

// Two positions, and two lines of text that cross the boundary of the chunks.
TEST_F(Files, BadChunksNameChunkAndOffset) {
    std::vector<std::uint8_t> scratch;
    RecordBuffer chunk;
    const std::string line = std::string(kStart) + " | 1 | 1.0\n";
    const std::string text = file(line + line + "nonsense | 1 | 1.0\n");
    const auto chunks = open_position_file(InputFile(text), {OnBad::kError, 1, 100, {}});
    EXPECT_EQ(chunks->num_chunks(), 2u);
    chunks->decode(0, scratch, chunk);
    EXPECT_EQ(chunk.size(), 2u);
    const std::string error = error_of([&] { chunks->decode(1, scratch, chunk); });
    EXPECT_TRUE(error.starts_with(text + ": offset " + std::to_string(2 * line.size()) + ": chunk 1: ")) << error;

    const std::string name = file();
    auto writer = find_format("bin").open_writer(name, NewFile(name), {});
    writer->write(std::vector<Record>(3, pack(entry(kStart))));
    writer->finish();
    const std::string bytes = content(name), cut = file(bytes.substr(0, 2 * kBinSize + 5));
    EXPECT_EQ(error_of([&] { open_position_file(InputFile(cut)); }),
              cut + ": offset 80: a record of 5 bytes, expected 40: the file is truncated");
    // Beyond what the format is recognised by.
    std::string many;
    for (int i = 0; i < 1000; ++i) many += bytes;
    many[2500 * kBinSize + 38] = 9;
    const std::string bad = file(many);
    const auto records = open_position_file(InputFile(bad), {OnBad::kError, 1000, 1, {}});
    records->decode(1, scratch, chunk);
    EXPECT_EQ(error_of([&] { records->decode(2, scratch, chunk); }),
              bad + ": offset 100000: chunk 2, position 2500: result 9, expected -1 to 1");
}

TEST_F(Files, ErrorsNameThePlace) {
    const std::vector<Record> records = testing::random_games(3, 1, 200);
    for (const DataFormat* info : formats()) {
        if (!info->open_writer) continue;
        if (!record_size(info)) continue;
        const std::string good = file();
        const auto writer = info->open_writer(good, NewFile(good), {});
        writer->write(records);
        writer->finish();
        std::string bytes = content(good);
        const std::size_t at = 50 * record_size(info);
        bytes[at + (is(info, "bin") ? 38 : is(info, "bulletformat") ? 26 : 30)] = 7;
        const std::string bad = file(bytes);
        const std::string message = error_of([&] { read_all(*info->open_reader(open(bad), OnBad::kError)); });
        EXPECT_TRUE(message.starts_with(bad + ": offset " + std::to_string(at) + ": position 50: result 7")) << message;
        const auto skipping = info->open_reader(open(bad), OnBad::kSkip);
        EXPECT_EQ(read_all(*skipping).size(), records.size() - 1);
        EXPECT_EQ(skipping->skipped(), 1u);
        EXPECT_EQ(skipping->first_skipped(), message);

        const std::string truncated = file(std::string_view(content(good)).substr(0, content(good).size() - 5));
        const std::string end = error_of([&] { read_all(*info->open_reader(open(truncated), OnBad::kError)); });
        EXPECT_NE(end.find("a record of " + std::to_string(record_size(info) - 5) + " bytes, expected " +
                           std::to_string(record_size(info))),
                  std::string::npos)
            << end;
    }
    const std::string line = std::string(kStart) + " | 3 | 0.5\n";
    const std::string text = file(line + "\n" + line + "oops | 1 | 1\n" + line);
    EXPECT_EQ(error_of([&] { read_all(*open_reader(open(text))); }),
              text + ": line 4: 1 field, expected board, side, castling, en passant and at most two counters");
    const auto skipping = open_reader(open(text), OnBad::kSkip);
    EXPECT_EQ(read_all(*skipping).size(), 3u);
    EXPECT_EQ(skipping->skipped(), 1u);

    const std::string position = std::string("fen ") + kStart + "\nscore 1\nresult 0\ne\n";
    const std::string plain =
        file(position + "fen " + kStart + "\nscore x\nresult 0\ne\n" + position + "fen " + kStart);
    EXPECT_EQ(error_of([&] { read_all(*open_reader(open(plain))); }),
              plain + ": line 6: score 'x', expected a whole number from -32768 to 32767");
    const auto plain_skipping = open_reader(open(plain), OnBad::kSkip);
    EXPECT_EQ(read_all(*plain_skipping).size(), 2u);
    EXPECT_EQ(plain_skipping->skipped(), 2u);  // the score, and the end inside a position

    const std::string endless = file(std::string(10'000, 'x') + "|");
    EXPECT_EQ(error_of([&] { read_all(*find_format("text").open_reader(open(endless), OnBad::kError)); }),
              endless + ": line 1: a line of more than 4096 characters");
}

TEST_F(Files, BinpackReaderReportsChunkAndOffset) {
    const std::vector<Record> records = testing::random_games(4, 15, 200);
    const std::string one = file();
    const auto writer = find_format("binpack").open_writer(one, NewFile(one), {});
    writer->write(records);
    writer->finish();
    const std::string chunk = content(one);
    std::string twice = chunk + chunk;
    twice[chunk.size() + 8 + 8] = '\x77';  // a piece of the first position of chunk 1
    const std::string bad = file(twice);
    const std::string message = error_of([&] { read_all(*open_reader(open(bad))); });
    EXPECT_TRUE(
        message.starts_with(bad + ": offset " + std::to_string(chunk.size() + 8) + ": chunk 1, chain at its byte 0: "))
        << message;
    const auto skipping = open_reader(open(bad), OnBad::kSkip);
    EXPECT_TRUE(read_all(*skipping) == records);
    EXPECT_EQ(skipping->skipped(), 1u);

    const std::string truncated = file(std::string_view(chunk).substr(0, chunk.size() - 1));
    EXPECT_NE(error_of([&] { read_all(*open_reader(open(truncated))); }).find("it is truncated"), std::string::npos);
    const std::string tail = file(chunk + "BIN");
    EXPECT_NE(error_of([&] {
                  read_all(*open_reader(open(tail)));
              }).find(": chunk 1 has a header of 3 bytes, expected 8: the file is truncated"),
              std::string::npos);
    const std::string huge = file(std::string("BINP\xff\xff\xff\xff", 8) + chunk);
    EXPECT_NE(error_of([&] { read_all(*open_reader(open(huge))); }).find("more than 100 MiB"), std::string::npos);
}

// Bytes of a good file with some changed: every reader ends, with records that are sound or with an error of one line.
TEST_F(Files, ReadersSurviveAnyBytes) {
    std::mt19937 random(5);
    const std::vector<Record> records = testing::random_games(5, 1, 60);
    for (const DataFormat* info : formats()) {
        if (!info->open_writer) continue;
        const std::string good = file();
        const auto writer = info->open_writer(good, NewFile(good), {});
        writer->write(records);
        writer->finish();
        const std::string bytes = content(good);
        class StringSource final : public ByteSource {
          public:
            explicit StringSource(std::string bytes) : bytes_(std::move(bytes)) {}
            std::size_t read(std::span<std::uint8_t> out) override {
                const std::size_t n = std::min(out.size(), bytes_.size() - at_);
                std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(at_), n, out.begin());
                at_ += n;
                return n;
            }

          private:
            std::string bytes_;
            std::size_t at_ = 0;
        };
        for (int round = 0; round < 1000; ++round) {
            std::string changed = bytes;
            for (unsigned i = 0; i < 1 + random() % 8; ++i)
                changed[random() % changed.size()] = static_cast<char>(random());
            if (round % 4 == 0) changed.resize(random() % changed.size());
            for (const OnBad on_bad : {OnBad::kError, OnBad::kSkip}) {
                std::string message;
                try {
                    const auto reader =
                        info->open_reader(ByteStream("file", std::make_unique<StringSource>(changed)), on_bad);
                    for (const Record& record : read_all(*reader)) {
                        Entry e;
                        ASSERT_EQ(unpack(record, e), nullptr);
                        ASSERT_TRUE(e.move.is_null() || is_pseudo_legal(e.position, e.move) || is(info, "binpack"));
                    }
                } catch (const FormatError& e) {
                    message = e.what();
                    EXPECT_TRUE(message.starts_with("file: ")) << message;
                    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
                }
            }
        }
    }
}

TEST_F(Files, ADiskThatIsFullIsOneError) {
    const std::vector<Record> records = testing::random_games(7, 10, 100);
    std::signal(SIGXFSZ, SIG_IGN);
    rlimit before;
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
    for (const DataFormat* info : formats()) {
        if (!info->open_writer) continue;
        const rlimit small{1000, before.rlim_max};
        ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
        const std::string message = error_of([&] {
            const auto writer = info->open_writer(path("out"), NewFile(path("out")), {});
            writer->write(records);
            writer->finish();
        });
        ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
        EXPECT_EQ(message, path("out") + ": cannot write: File too large") << info->name;
    }
    EXPECT_EQ(error_of([] { find_format("bin").open_writer("closed", -1, {}); }),
              "closed: cannot write: Bad file descriptor");
}

TEST(Scores, AreScaledRoundedAndCut) {
    std::vector<Record> records;
    for (const int score : {0, 3, -3, 100, -100, 30'000, -30'000, kScoreNone}) {
        records.push_back(pack(entry(kStart, "e2e4", score)));
    }
    EXPECT_EQ(scale_scores(records, 1.5), 2u);
    std::vector<int> scores;
    for (const Record& record : records) scores.push_back(record_score(record.bytes.data()));
    EXPECT_EQ(scores, (std::vector<int>{0, 5, -5, 150, -150, 32'767, -32'767, kScoreNone}));
}

TEST(Shuffle, CanBeInterruptedWhileItSorts) {
    struct Interruption {};
    for (const std::size_t memory : {std::size_t{1} << 30, std::size_t{1} << 22}) {
        ExternalShuffle shuffle(1, memory, std::filesystem::temp_directory_path());
        const std::vector<Record> records(100'000);
        shuffle.add(records);
        int calls = 0;
        shuffle.poll = [&] {
            if (++calls == 2) throw Interruption{};
        };
        std::vector<Record> out(10);
        EXPECT_THROW(shuffle.read(out), Interruption);
    }
}

// Real data: the bytes that come back are those of the source.
TEST_F(Files, RealDataGoesThroughEveryLosslessFormat) {
    const std::string source_path = NNUE_SAMPLES "/train.binpack";
    const std::vector<Record> records = read_all(*open_reader(open(source_path)), 65'536);
    ASSERT_EQ(records.size(), 300'093u);
    const std::string source = content(source_path);
    for (const char* format : {"binpack", "bin", "plain"}) {
        const std::string between = file(), again = file();
        auto writer = find_format(format).open_writer(between, NewFile(between), {});
        writer->write(records);
        writer->finish();
        writer = find_format("binpack").open_writer(again, NewFile(again), {});
        writer->write(read_all(*open_reader(open(between)), 65'536));
        writer->finish();
        EXPECT_TRUE(content(again) == source) << format;
    }
}

// The fast decoder of a game's start gives what the other one gives, or leaves it to that one.
TEST(Viriformat, FastHeadsAreThoseOfMarlinformat) {
    std::mt19937_64 random(3);
    int sound = 0;
    for (int i = 0; i < 20000; ++i) {
        Entry e = entry(i % 3 == 0 ? kStart : i % 3 == 1 ? kFirst : "4k3/8/8/8/3pP3/8/8/R3K2R b KQ e3 0 10");
        e.result = static_cast<std::int8_t>(i % 3 - 1);
        std::array<std::uint8_t, kMarlinformatSize> bytes;
        Losses losses;
        encode_marlinformat(e, bytes, losses);
        for (std::size_t n = random() % 3; n > 0; --n) {
            bytes[random() % bytes.size()] ^= static_cast<std::uint8_t>(1 << random() % 8);
        }
        for (const Kernels* k : all_kernels()) {
            Entry fast;
            if (!k->decode_viriformat_head(bytes.data(), fast)) continue;
            ++sound;
            Entry slow = decode_marlinformat(bytes);
            slow.score = 0;
            ASSERT_EQ(pack(fast), pack(slow)) << k->isa << ' ' << i;
        }
    }
    EXPECT_GT(sound, 3000);
}

}  // namespace
}  // namespace nnue::data
