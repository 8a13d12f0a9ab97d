// The text of what a macro stands for.
#pragma once

#define NNUE_STRINGIZE_IMPL(x) #x
#define NNUE_STRINGIZE(x) NNUE_STRINGIZE_IMPL(x)
