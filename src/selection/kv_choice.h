// What a compressed cache keeps: choices on plain arrays. Entries are numbered in order of position; of equal scores
// the earlier entry wins, so that every choice is determined.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace narrows {

using Entry = std::int32_t;

// The last `window` of all entries and, before them, those of the largest scores: `keep` in all, ascending. Only scores
// of entries before the window are read.
std::vector<Entry> keep_top(std::span<const float> score, std::int64_t window, std::int64_t keep);

// The first `sinks` entries and the last ones: `keep` in all.
std::vector<Entry> keep_ends(std::int64_t entries, std::int64_t sinks, std::int64_t keep);

// Each score replaced by the largest within width / 2 to either side.
std::vector<float> pool_max(std::span<const float> score, std::int64_t width);

// One head's claim in a joint allocation.
struct HeadClaim {
  std::vector<float> score;  // of its candidates, any order
  std::int64_t entry_bytes;
};

// How many candidates each head keeps. Candidates are taken in steps of `step` from the largest scores down, over all
// heads by score per byte, until `bytes` are used up; `least` of each head first.
std::vector<std::int64_t> allocate_jointly(std::span<const HeadClaim> heads, std::int64_t bytes, std::int64_t least,
                                           std::int64_t step);

// The same within a tolerance instead of a budget: candidates are dropped from the smallest scores up, in the same steps,
// as long as the scores of all that is dropped add up to at most `error`.
std::vector<std::int64_t> allocate_within(std::span<const HeadClaim> heads, double error, std::int64_t least,
                                          std::int64_t step);

// For each dropped key the most similar of the kept ones, if the cosine exceeds `threshold`, else -1. Keys [..][d].
std::vector<Entry> most_similar(std::span<const float> dropped, std::span<const float> kept, std::int64_t d,
                                float threshold);

// Which queries are kept as probes of the next compression: every one of the `dense` latest, and half as many for each
// doubling of their age. One that has gone is not needed again.
struct ProbeRule {
  std::int64_t dense = 0;  // a power of two; 0: none

  bool keeps(std::int64_t position, std::int64_t next) const;
  std::vector<std::int64_t> positions(std::int64_t length, std::int64_t next) const;  // below length, ascending
  std::int64_t most(std::int64_t next) const;  // at least as many as there are
};

// How the bytes of a cache are spread over time.
struct KvSchedule {
  double budget = 1;
  std::int64_t dense_bytes = 0;       // of one position in the dense cache
  std::int64_t entry_bytes = 0;       // of one entry in every head
  std::int64_t probe_bytes = 0;       // of one probe in every head
  ProbeRule probes;
  std::int64_t least_entries = 0;     // of a head

  // Positions until the compression that follows one at `position`: all of them lie at multiples of 64.
  std::int64_t block(std::int64_t position) const;
  // Where the block after `position` ends: the first one is long enough to hold more than the least entries.
  std::int64_t next_block(std::int64_t position) const;
  // Bytes of entries that may stay at `position`, such that at no length until the next compression the cache holds more
  // than the budget; negative if that cannot be.
  std::int64_t room(std::int64_t position) const;
  // Where to compress next, given the bytes of entries held at `position`, itself such a place or 0.
  std::int64_t next(std::int64_t position, std::int64_t held) const;
};

}  // namespace narrows
