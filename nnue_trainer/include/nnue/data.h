// The data library, nnue::data in CMake and in C++: readers and writers of all formats, filters, shuffling, batches of
// index rows, feature sets, records and FENs, the integer evaluator. It needs neither torch nor Python. docs/cpp.md is
// the guide; each header below documents its part.
//
// Errors are exceptions: FormatError, one line that names the file and what was found and expected. Objects are used by
// one thread at a time unless their header states otherwise; free functions may be called from any thread.
#pragma once

// Positions: 32-byte records, boards, FENs and moves.
#include "chess/fen.h"
#include "chess/texts.h"
#include "chess/types.h"

// Files: formats, readers, writers, and what tools do with streams of records.
#include "formats/duplicates.h"
#include "formats/format.h"
#include "formats/interleave.h"
#include "formats/open.h"
#include "formats/profile.h"
#include "formats/reader.h"
#include "formats/shuffle.h"
#include "formats/split.h"
#include "formats/statistics.h"
#include "formats/validation.h"
#include "formats/writer.h"

// Filters and feature sets.
#include "features/batch_layout.h"
#include "features/feature_set.h"
#include "filters/filters.h"
#include "filters/piece_counts.h"

// Batches for training, and evaluation with the integers of a net.
#include "evaluate/evaluator.h"
#include "pipeline/expand.h"
#include "pipeline/loader.h"
#include "pipeline/pipeline.h"
