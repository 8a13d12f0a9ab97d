// The payload of a binpack chunk: every build of the decoder must give the same sound positions and the same error, and
// what was read must be written and read again unchanged.
#include <cstring>
#include <vector>

#include "formats/movetext.h"
#include "fuzz.h"
#include "pipeline/kernels.h"

using namespace nnue::data;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static std::vector<Record> first(1 << 17), again(1 << 17);
    static std::vector<std::uint8_t> flags(1 << 17);
    std::vector<std::uint8_t> payload(size + kPayloadPadding);
    if (size) std::memcpy(payload.data(), data, size);
    DecodeResult expected;
    for (const Kernels* k : all_kernels()) {
        std::vector<Record>& out = k == all_kernels().front() ? first : again;
        const DecodeResult result = k->decode_chains(payload.data(), size, 0, out.data(), flags.data(), out.size());
        if (k == all_kernels().front()) {
            expected = result;
            continue;
        }
        NNUE_FUZZ_CHECK(result.positions == expected.positions && result.offset == expected.offset);
        NNUE_FUZZ_CHECK((result.error == nullptr) == (expected.error == nullptr));
        NNUE_FUZZ_CHECK(std::memcmp(first.data(), again.data(), sizeof(Record) * result.positions) == 0);
    }
    Entry e;
    for (std::size_t i = 0; i < expected.positions; ++i) {
        NNUE_FUZZ_CHECK(unpack(first[i], e) == nullptr);
        NNUE_FUZZ_CHECK(pack(e) == first[i]);
        NNUE_FUZZ_CHECK(flags[i] == position_flags(e));
        // A move that was read from movetext has an index, and it is the one that the writer would give it.
        if (is_pseudo_legal(e.position, e.move)) {
            std::uint8_t bits[16] = {};
            BitWriter writer(bits, 0);
            put_move(writer, e.position, e.move);
            detail::Window window{load_be64(bits)};
            NNUE_FUZZ_CHECK(detail::take_move(e.position, window) == e.move);
        }
    }
    return 0;
}
