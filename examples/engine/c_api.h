/* The inference behind functions that every language can call: for engines in Rust, C, Zig, Go. docs/engine-rust.md.
 *
 * A board is 64 bytes, a1 first: 2 * type + colour (P N B R Q K = 0 ... 5, white 0, black 1), or 15 where it is empty.
 * An accumulator is nnue_accumulator_size() bytes at a multiple of 64. All functions but nnue_load may be called from
 * many threads at a time. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The raw file, which is copied. 0 if its size is not that of the net this was compiled for, or without memory for the
 * copy, else 1. */
int nnue_load(const void* data, size_t size);
size_t nnue_accumulator_size(void);
void nnue_refresh(const uint8_t* board, void* accumulator);
/* From the accumulator `old` of the board `before` that of `after`, which may not lie in the same place. */
void nnue_update(const uint8_t* before, const void* old, const uint8_t* after, void* accumulator);
/* Engine units, side to move's view. */
int nnue_evaluate(const uint8_t* board, int black_to_move, const void* accumulator);

#ifdef __cplusplus
}
#endif
