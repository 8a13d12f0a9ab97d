// SPDX-FileCopyrightText: 2026 The torch-nnue developers
// SPDX-License-Identifier: MIT
//
// A net of the preset `buckets` in C11: SCReLU, king and output buckets, no hidden layers.
//
//     nnue export runs/buckets net.bin --format raw
//     cc -std=c11 -O3 engine.c -o engine
//     ./engine net.bin < FENS     one score per line, as `nnue eval --json` prints them
//
// The part up to `read_fen` is the inference: copy it into your engine. For another net of this kind, change the sizes,
// or pass all four with -D. `kind: simple` has one king bucket, one output bucket and no mirror.
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#ifndef HIDDEN
#define HIDDEN 1024
#define KING_BUCKETS 8
#define OUTPUT_BUCKETS 8
#define MIRROR 1  // 1: a king on the files e to h is mirrored to d to a
#endif
enum { QA = 255, QB = 64, SCALE = 400 };  // SCALE: engine units of an output of 1.0, the recipe's score_scale

// The bucket of a king on the files a to d, by rank.
static const uint8_t kings[8][4] = {{0, 1, 2, 3}, {4, 4, 5, 5}, {6, 6, 6, 6}, {6, 6, 6, 6},
                                    {7, 7, 7, 7}, {7, 7, 7, 7}, {7, 7, 7, 7}, {7, 7, 7, 7}};

// The raw file: i16, little-endian, then zeros up to a multiple of 64 bytes.
static struct {
    int16_t weights[768 * KING_BUCKETS][HIDDEN];
    int16_t bias[HIDDEN];
    int16_t output_weights[OUTPUT_BUCKETS][2][HIDDEN];
    int16_t output_bias[OUTPUT_BUCKETS];
} net;

// Returns 1 if the file has the size of this net. For targets with little-endian integers, such as x86-64 and arm64.
static int load(const char* path) {
    FILE* file = fopen(path, "rb");
    if (!file) return 0;
    char rest[64];
    size_t size = fread(&net, 1, sizeof net, file);
    size += fread(rest, 1, sizeof rest, file);
    fclose(file);
    return size == (sizeof net + 63) / 64 * 64;
}

// Both perspectives, White's first. One per ply of the search.
typedef struct {
    int16_t values[2][HIDDEN];
} Accumulator;

// `type` P N B R Q K = 0 … 5, `colour` white 0, black 1, squares from a1 = 0; `king` belongs to `perspective`.
static int feature(int perspective, int king, int type, int colour, int square) {
    const int flip = (perspective ? 56 : 0) ^ (MIRROR && king % 8 > 3 ? 7 : 0);
    const int bucket = KING_BUCKETS > 1 ? kings[(king ^ flip) / 8][(king ^ flip) % 8 % 4] : 0;
    return 768 * bucket + 64 * (type + 6 * (colour ^ perspective)) + (square ^ flip);
}

// Adds (sign 1) or removes (sign -1) a feature. A move changes two to four features of each perspective. If the move
// changes a king's bucket or half of the board, refresh that perspective instead.
static void change(Accumulator* accumulator, int perspective, int index, int sign) {
    int16_t* values = accumulator->values[perspective];
    for (int i = 0; i < HIDDEN; ++i) values[i] = (int16_t)(values[i] + sign * net.weights[index][i]);
}

// `board` has 2 · type + colour for each square, or 15 for an empty one.
static void refresh(Accumulator* accumulator, int perspective, const uint8_t board[64]) {
    const uint8_t* king = memchr(board, 10 + perspective, 64);
    memcpy(accumulator->values[perspective], net.bias, sizeof net.bias);
    for (int square = 0; square < 64; ++square) {
        const int piece = board[square];
        if (piece == 15) continue;
        change(accumulator, perspective, feature(perspective, (int)(king - board), piece / 2, piece % 2, square), 1);
    }
}

// Engine units, from the side to move's view. `pieces` counts the kings too.
static int evaluate(const Accumulator* accumulator, int black_to_move, int pieces) {
    const int bucket = (pieces - 2) / ((32 + OUTPUT_BUCKETS - 1) / OUTPUT_BUCKETS);
    int64_t sum = 0;
    for (int side = 0; side < 2; ++side) {
        const int16_t* values = accumulator->values[side ^ black_to_move];
        for (int i = 0; i < HIDDEN; ++i) {
            const int64_t clipped = values[i] < 0 ? 0 : values[i] > QA ? QA : values[i];
            sum += clipped * clipped * net.output_weights[bucket][side][i];
        }
    }
    return (int)((sum / QA + net.output_bias[bucket]) * SCALE / (QA * QB));
}

// The rest is the program. Returns the number of pieces; 0 if the line is no position.
static int read_fen(const char* fen, uint8_t board[64], int* black_to_move) {
    static const char letters[] = "PpNnBbRrQqKk";
    int rank = 7, file = 0, pieces = 0, kings_of[2] = {0, 0};
    memset(board, 15, 64);
    for (; *fen && *fen != ' '; ++fen) {
        const char* found = strchr(letters, *fen);
        if (found && file < 8) {
            const int piece = (int)(found - letters);
            board[8 * rank + file++] = (uint8_t)piece;
            if (piece >= 10) ++kings_of[piece - 10];
            ++pieces;
        } else if (*fen >= '1' && *fen <= '8' && file + *fen - '0' <= 8) {
            file += *fen - '0';
        } else if (*fen == '/' && file == 8 && rank > 0) {
            --rank;
            file = 0;
        } else {
            return 0;
        }
    }
    if (rank != 0 || file != 8 || *fen != ' ' || (fen[1] != 'w' && fen[1] != 'b')) return 0;
    *black_to_move = fen[1] == 'b';
    return kings_of[0] == 1 && kings_of[1] == 1 && pieces <= 32 ? pieces : 0;
}

int main(int argc, char** argv) {
    static Accumulator accumulator;
    char line[256];
    uint8_t board[64];
    if (argc != 2) {
        fprintf(stderr, "usage: engine NET < FENS\n");
        return 2;
    }
    if (!load(argv[1])) {
        fprintf(stderr, "engine: error: %s: no net of this size\n", argv[1]);
        return 1;
    }
    for (int number = 1, black_to_move; fgets(line, sizeof line, stdin); ++number) {
        if (line[0] == '#' || line[strspn(line, " \t\r\n")] == 0) continue;
        const int pieces = read_fen(line, board, &black_to_move);
        if (pieces == 0) {
            fprintf(stderr, "engine: error: line %d: no position: expected a FEN with one king each\n", number);
            return 1;
        }
        for (int perspective = 0; perspective < 2; ++perspective) refresh(&accumulator, perspective, board);
        printf("%d\n", evaluate(&accumulator, black_to_move, pieces));
    }
    return 0;
}
