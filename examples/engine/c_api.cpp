#include "c_api.h"

#include NNUE_NET_HEADER

namespace {

nnue::Network<Net> network;

nnue::Board board_of(const std::uint8_t* codes) {
    nnue::Board board;
    for (int square = 0; square < 64; ++square) {
        const std::uint8_t code = codes[square];
        if (code < 12) board.put(square, static_cast<nnue::Type>(code >> 1), static_cast<nnue::Colour>(code & 1));
    }
    return board;
}

nnue::Accumulator<Net>& of(void* accumulator) {
    return *static_cast<nnue::Accumulator<Net>*>(accumulator);
}
const nnue::Accumulator<Net>& of(const void* accumulator) {
    return *static_cast<const nnue::Accumulator<Net>*>(accumulator);
}

}  // namespace

int nnue_load(const void* data, size_t size) {
#if defined(__cpp_exceptions)
    try {
        return network.load(data, size);
    } catch (...) {  // of a lack of memory; no exception may reach a caller in another language
        return 0;
    }
#else
    return network.load(data, size);
#endif
}
size_t nnue_accumulator_size(void) {
    return sizeof(nnue::Accumulator<Net>);
}
void nnue_refresh(const uint8_t* board, void* accumulator) {
    network.refresh(board_of(board), of(accumulator));
}
void nnue_update(const uint8_t* before, const void* old, const uint8_t* after, void* accumulator) {
    network.update(board_of(before), of(old), board_of(after), of(accumulator));
}
int nnue_evaluate(const uint8_t* board, int black_to_move, const void* accumulator) {
    nnue::Board position = board_of(board);
    position.black_to_move = black_to_move != 0;
    return network.evaluate(of(accumulator), position);
}
