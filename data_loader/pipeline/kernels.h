// The hot loops behind one table of functions, compiled for every CPU and again for newer x86 ones; the best build that
// this CPU can run is chosen at the first call. NNUE_DATA_ISA=baseline, avx2 or avx2_bmi2 requests another.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "chess/types.h"
#include "features/batch_layout.h"
#include "features/feature_set.h"

namespace nnue::data {

struct DecodeResult {
    std::size_t positions = 0, chains = 0, single_chains = 0;  // single: of one position
    std::size_t unscored = 0;                                  // positions whose score is kScoreNone
    std::size_t offset = 0;       // where in the payload to go on, or the chain that is wrong
    const char* error = nullptr;  // what is wrong with it
};

struct ReplayResult {
    std::size_t positions = 0, unscored = 0;
    bool ended = false;           // by the entry after the last position
    const char* error = nullptr;  // what is wrong with the entry after the last position
};

using DigestLanes = std::array<std::uint64_t, 32>;

struct Kernels {
    const char* isa;

    // Decodes the 32 bytes that a game of viriformat begins with, a position without its score. False: something in
    // them is rare or wrong, and decode_marlinformat() is to decide.
    bool (*decode_viriformat_head)(const std::uint8_t* bytes, Entry& e);

    // Decode up to `most` entries of a game, which begins with the position `e`, its result the side to move's; all
    // that is written is sound and its move legal. `flags` as for decode_chains.
    ReplayResult (*replay_viriformat)(Entry& e, const std::uint8_t* text, std::size_t most, Record* out,
                                      std::uint8_t* flags);
    ReplayResult (*replay_montyformat)(Entry& e, const std::uint8_t* text, std::size_t most, Record* out,
                                       std::uint8_t* flags);

    // Decodes the chains of a binpack payload from `offset` on into `out`, until fewer than 34 bytes are left or the
    // next chain does not fit into `capacity`. kPayloadPadding bytes after the payload must be readable. All that is
    // written is sound. `flags`, unless null, gets a sum of RecordFlag for each position.
    DecodeResult (*decode_chains)(const std::uint8_t* payload, std::size_t size, std::size_t offset, Record* out,
                                  std::uint8_t* flags, std::size_t capacity);

    // Expands n records, record order[i] into row i (order may be null: record i). The records must be sound. Appended
    // parts of the set are left out; expand_positions (expand.h) expands everything.
    void (*expand)(const Record* records, const std::uint32_t* order, std::size_t n, const FeatureSet& set,
                   const BatchRows& rows);

    // Entries first … first + count − 1 of the random permutation of [0, n) that `key` names.
    void (*permute)(std::uint32_t n, std::uint64_t key, std::size_t first, std::size_t count, std::uint32_t* out);

    // Copies record order[i] to out[i].
    void (*gather)(const Record* records, const std::uint32_t* order, std::size_t n, Record* out);

    // Adds blocks of sizeof(DigestLanes) bytes to a digest (formats/chunk_digest.h); the same lanes for every build.
    void (*digest)(DigestLanes& lanes, const std::uint8_t* bytes, std::size_t blocks);
};

const Kernels& kernels();

// Every build that this CPU can run, the plain one first and the best one last.
std::span<const Kernels* const> all_kernels();

}  // namespace nnue::data
