// FENs to records and back, with the checks that untrusted text needs.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "chess/fen.h"
#include "chess/types.h"

namespace nnue::data {

// The record of a position without a move, with score and result from the side to move's view. Throws FormatError that
// quotes the FEN.
Record record_from_fen(std::string_view fen, std::int16_t score = 0, std::int8_t result = 0);

// A record as position, move, score and result. Throws FormatError "record <number>: <why>" for one that is not sound.
Entry entry_from_record(const Record& record, std::size_t number = 0);

// The FEN of a record's position, before its move. Throws as entry_from_record.
std::string fen_from_record(const Record& record, std::size_t number = 0);

}  // namespace nnue::data
