// A target with a fault, which a thousand mutations of FENs must find: the test of driver.cpp.
#include <algorithm>

#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    NNUE_FUZZ_CHECK(std::count(data, data + size, 'K') < 3);
    return 0;
}
