// Included before highway.h by every file with kernels: the instruction sets to compile for.
// The build's baseline is x86-64-v2, which is Highway's SSE4 without AES and carry-less products; no kernel uses those.
#pragma once
#define HWY_WANT_AVX3_DL 1
#define HWY_DISABLE_PCLMUL_AES 1
