// The binpack reader and writer: round trips, the rules for joining chains, and files that are not what they should be.
#include "formats/binpack.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "formats/movetext.h"
#include "games.h"
#include "pipeline/kernels.h"
#include "temporary_directory.h"

namespace nnue::data {
namespace {

using namespace testing;

class Binpack : public TemporaryDirectory {};

std::vector<Record> read_all(const std::string& path, ChainCounts* counts = nullptr) {
    const BinpackFile file(path);
    std::vector<Record> all;
    std::vector<std::uint8_t> payload;
    RecordBuffer records;
    for (std::size_t chunk = 0; chunk < file.chunks().size(); ++chunk) {
        file.decode(chunk, payload, records, counts);
        all.insert(all.end(), records.records().begin(), records.records().end());
    }
    return all;
}

TEST_F(Binpack, WriteReadEqual) {
    const std::vector<Record> records = random_games(1, 300, 150);
    write_binpack(path("a"), records);
    ChainCounts counts;
    EXPECT_EQ(read_all(path("a"), &counts), records);
    EXPECT_EQ(counts.chains, 300u);
    write_binpack(path("b"), read_all(path("a")));
    EXPECT_EQ(bytes_of(path("a")), bytes_of(path("b")));
}

TEST_F(Binpack, SinglePositionChains) {
    const std::vector<Record> records = random_games(2, 20, 60);
    write_binpack(path("a"), records, false);
    EXPECT_EQ(std::filesystem::file_size(path("a")), 8 + 34 * records.size());
    ChainCounts counts;
    EXPECT_EQ(read_all(path("a"), &counts), records);
    EXPECT_EQ(counts.single, records.size());
}

TEST_F(Binpack, ChunksAreFlushedAtAMebibyte) {
    const std::vector<Record> games = random_games(3, 4, 100);
    std::vector<Record> records;
    while (34 * records.size() < 3 << 20) records.insert(records.end(), games.begin(), games.end());
    write_binpack(path("a"), records, false);
    const BinpackFile file(path("a"));
    ASSERT_GT(file.chunks().size(), 1u);
    EXPECT_EQ(file.chunks()[0].size, (1u << 20) / 34 * 34 + 34);
    EXPECT_EQ(read_all(path("a")), records);
}

TEST_F(Binpack, BothInstructionSetsDecodeAlike) {
    write_binpack(path("a"), random_games(4, 100, 150));
    const std::vector<char> bytes = bytes_of(path("a"));
    std::vector<std::uint8_t> payload(bytes.begin() + 8, bytes.end());
    const std::size_t size = payload.size();
    payload.resize(size + kPayloadPadding);
    const std::vector<Record> expected = read_all(path("a"));
    for (const Kernels* k : all_kernels()) {
        std::vector<Record> out(expected.size());
        EXPECT_EQ(k->decode_chains(payload.data(), size, 0, out.data(), nullptr, out.size()).error, nullptr);
        EXPECT_EQ(out, expected) << k->isa;
    }
}

// An entry of another game, ply, or state must start a new chain although the board could go on.
TEST_F(Binpack, WhatBreaksAChain) {
    Entry first, second;
    first.position = parse_fen("4k3/8/8/8/3p4/8/4P3/R3K3 w Q - 3 10");
    first.move = parse_uci(first.position, "e2e4");
    first.score = 20;
    first.result = 1;
    second.position = first.position;
    play(second.position, first.move);
    second.move = parse_uci(second.position, "d4e3");
    second.score = -30;
    second.result = -1;
    const auto chains = [&](const Entry& next) {
        write_binpack(path("a"), {pack(first), pack(next)});
        ChainCounts counts;
        EXPECT_EQ(read_all(path("a"), &counts), (std::vector<Record>{pack(first), pack(next)}));
        return counts.chains;
    };
    EXPECT_EQ(chains(second), 1u);
    Entry other = second;
    other.result = 0;
    EXPECT_EQ(chains(other), 2u) << "result";
    other = second;
    other.position.ply += 2;
    EXPECT_EQ(chains(other), 2u) << "ply";
    other = second;
    other.position.castling = 0;
    EXPECT_EQ(chains(other), 2u) << "castling";
    other = second;
    other.position.ep_square = kNoSquare;
    other.move = parse_uci(other.position, "d4d3");
    EXPECT_EQ(chains(other), 2u) << "en passant";
    other = second;
    other.move = Move{};
    EXPECT_EQ(chains(other), 2u) << "null move";
}

// Rule 50 is not compared, and what is read is what the moves make of it: castling counts on.
TEST_F(Binpack, Rule50IsRecomputed) {
    Entry first, second;
    first.position = parse_fen("4k3/8/8/8/8/8/8/4K2R w K - 11 10");
    first.move = parse_uci(first.position, "e1g1");
    second.position = first.position;
    play(second.position, first.move);
    second.move = parse_uci(second.position, "e8e7");
    EXPECT_EQ(second.position.rule50, 12);
    Entry wrong = second;
    wrong.position.rule50 = 99;
    write_binpack(path("a"), {pack(first), pack(wrong)});
    EXPECT_EQ(read_all(path("a")), (std::vector<Record>{pack(first), pack(second)}));
}

TEST_F(Binpack, AScoreDifferenceMayWrap) {
    Entry first, second;
    first.position = parse_fen(testing::kStartFen);
    first.move = parse_uci(first.position, "e2e4");
    first.score = 32002;
    second.position = first.position;
    play(second.position, first.move);
    second.move = parse_uci(second.position, "e7e5");
    second.score = 32002;
    write_binpack(path("a"), {pack(first), pack(second)});
    EXPECT_EQ(read_all(path("a")), (std::vector<Record>{pack(first), pack(second)}));
}

TEST_F(Binpack, WriterRefusesWhatCannotBeIndexed) {
    Entry e;
    e.position = parse_fen(testing::kStartFen);
    e.move = Move::make(kNormal, 12, 36);  // e2e5
    BinpackWriter writer(path("a"), NewFile(path("a")));
    EXPECT_THROW(writer.add(pack(e)), FormatError);
    Record nonsense{};
    EXPECT_THROW(writer.add(nonsense), FormatError);
}

std::string error_of(const std::string& path) {
    try {
        read_all(path);
    } catch (const FormatError& error) {
        return error.what();
    }
    return "";
}

TEST_F(Binpack, ErrorsNameFileAndOffset) {
    EXPECT_NE(error_of(path("missing")).find("missing: No such file"), std::string::npos);
    EXPECT_NE(error_of(directory_.string()).find("not a regular file"), std::string::npos);
    write_binpack(path("a"), random_games(7, 50, 100));
    const std::vector<char> good = bytes_of(path("a"));

    auto bad = good;
    bad[1] = 'X';
    write_bytes(path("b"), bad);
    EXPECT_NE(error_of(path("b")).find("b: offset 0: chunk 0 does not start with 'BINP'"), std::string::npos);

    bad = good;
    bad.resize(good.size() - 1);
    write_bytes(path("b"), bad);
    EXPECT_NE(error_of(path("b")).find("b: offset 0: chunk 0 claims a payload of"), std::string::npos);

    bad = good;
    bad.insert(bad.end(), {'B', 'I', 'N'});
    write_bytes(path("b"), bad);
    EXPECT_NE(error_of(path("b")).find("offset " + std::to_string(good.size()) + ": chunk 1 has a header of 3 bytes"),
              std::string::npos);

    bad = good;
    bad[7] = 0x7f;
    write_bytes(path("b"), bad);
    EXPECT_NE(error_of(path("b")).find("more than 100 MiB"), std::string::npos);

    bad = good;
    std::fill_n(bad.begin() + 8, 8, 0x7f);  // too many pieces
    write_bytes(path("b"), bad);
    EXPECT_NE(error_of(path("b")).find("b: offset 8: chunk 0, chain at its byte 0: more than 32 pieces"),
              std::string::npos);

    bad = good;
    bad[8 + 24] = bad[8 + 25] = 0;  // a null move, and more to come
    write_bytes(path("b"), bad);
    EXPECT_NE(error_of(path("b")).find("continues after a move"), std::string::npos);
}

TEST_F(Binpack, AFileThatShrinksIsAnError) {
    write_binpack(path("a"), random_games(8, 50, 100));
    const BinpackFile file(path("a"));
    std::filesystem::resize_file(path("a"), 100);
    std::vector<std::uint8_t> payload;
    RecordBuffer records;
    EXPECT_THROW(file.decode(0, payload, records), FormatError);
}

// Whatever the bytes: either an error or sound records, in every build of the decoder.
TEST_F(Binpack, AnyBytesAreSafe) {
    write_binpack(path("a"), random_games(9, 6, 120));
    const std::vector<char> bytes = bytes_of(path("a"));
    const std::vector<std::uint8_t> good(bytes.begin() + 8, bytes.end());
    std::mt19937 random(4);
    int errors = 0;
    std::vector<Record> out(70000);  // the longest chain and more
    for (int i = 0; i < 20000; ++i) {
        std::vector<std::uint8_t> payload = good;
        if (random() % 4 == 0) payload.resize(random() % payload.size());
        for (unsigned changes = random() % 4; changes > 0 && !payload.empty(); --changes) {
            payload[random() % payload.size()] = static_cast<std::uint8_t>(random());
        }
        const std::size_t size = payload.size();
        payload.resize(size + kPayloadPadding);
        DecodeResult first;
        for (const Kernels* k : all_kernels()) {
            const DecodeResult result = k->decode_chains(payload.data(), size, 0, out.data(), nullptr, out.size());
            Entry e;
            for (std::size_t j = 0; j < result.positions; ++j) ASSERT_EQ(unpack(out[j], e), nullptr);
            if (k == all_kernels().front()) {
                first = result;
                errors += result.error != nullptr;
            } else {
                ASSERT_EQ(result.positions, first.positions);
                ASSERT_STREQ(result.error ? result.error : "", first.error ? first.error : "");
            }
        }
    }
    EXPECT_GT(errors, 5000);
}

}  // namespace
}  // namespace nnue::data
