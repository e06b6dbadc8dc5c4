// Which SIMD instruction set the kernels run on.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace narrows {

// Names of the compiled sets that this machine supports, best first: "AMX" (AVX3_DL, and AMX for products with several
// tokens), "AVX3_DL" (AVX-512 with VNNI), "AVX3", "AVX2", "SSE4".
std::vector<std::string> dispatch_targets();

// The one in use.
std::string dispatch_target();

// Whether kernels for AVX3_DL may use AMX.
bool use_amx();

// Restricts the kernels to `name` from now on; not while kernels run. "" lifts the restriction. The environment
// variable NARROWS_TARGET does the same at start. Throws Error if the machine or the build lacks it.
void set_dispatch_target(std::string_view name);

}  // namespace narrows
