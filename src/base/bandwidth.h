// How fast this machine reads memory.
#pragma once

namespace narrows {

// Bytes per second at which `threads` threads (0: every core) together stream through a buffer far larger
// than the caches: the best of several passes. Takes about a third of a second and 512 MB.
double measure_read_bandwidth(int threads = 0);

}  // namespace narrows
