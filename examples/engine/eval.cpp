// eval NET < FENS: one line per position, its score in engine units from the side to move's view. They
// equal those of `nnue eval --json`. Compile for a net with: make -C examples/engine eval NET=net.bin
#include <cstdio>
#include <iostream>
#include <string>

#include "fen.h"
#include NNUE_NET_HEADER

int main(int argc, char** argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: eval NET < FENS\n");
        return 2;
    }
    nnue::Network<Net> network;
    std::string line, error;
    if (!network.load(argv[1], error)) {
        std::fprintf(stderr, "eval: error: %s\n", error.c_str());
        return 1;
    }
    nnue::Accumulator<Net> accumulator;
    nnue::Board board;
    for (int number = 1; std::getline(std::cin, line); ++number) {
        if (line.find_first_not_of(" \t\r") == std::string::npos || line[0] == '#') continue;
        if (!read_fen(line, board, error)) {
            std::fprintf(stderr, "eval: error: line %d: %s\n", number, error.c_str());
            return 1;
        }
        network.refresh(board, accumulator);
        std::printf("%d\n", network.evaluate(accumulator, board));
    }
    return 0;
}
