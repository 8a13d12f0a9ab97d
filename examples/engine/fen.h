// A FEN's first two fields as a board.
#pragma once

#include <cstring>
#include <string>

#include "nnue.h"

// False, with the reason in `error`, for an invalid position.
inline bool read_fen(const std::string& fen, nnue::Board& board, std::string& error) {
    board = nnue::Board();
    const char* const letters = "PpNnBbRrQqKk";
    int rank = 7, file = 0, kings[2] = {0, 0};
    std::size_t at = 0;
    for (; at < fen.size() && fen[at] != ' '; ++at) {
        const char c = fen[at];
        if (c == '/') {
            if (file != 8 || rank == 0) break;
            --rank;
            file = 0;
        } else if (c >= '1' && c <= '8') {
            file += c - '0';
        } else if (const char* found = c ? std::strchr(letters, c) : nullptr; found && file < 8) {
            const int code = static_cast<int>(found - letters);
            board.put(8 * rank + file++, static_cast<nnue::Type>(code >> 1), static_cast<nnue::Colour>(code & 1));
            if (code >> 1 == nnue::kKing) ++kings[code & 1];
        } else {
            break;
        }
        if (file > 8) break;
    }
    const bool complete = rank == 0 && file == 8 && at + 1 < fen.size() && fen[at] == ' ';
    if (!complete || (fen[at + 1] != 'w' && fen[at + 1] != 'b') || kings[0] != 1 || kings[1] != 1 ||
        board.pieces() > 32) {
        error = "no position: expected a FEN with eight ranks, one king each and the side to move";
        return false;
    }
    board.black_to_move = fen[at + 1] == 'b';
    return true;
}
