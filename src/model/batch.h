// The tokens of one forward pass: runs of tokens, each continuing a sequence.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "narrows/model.h"

namespace narrows {

// What an attention policy remembers of one sequence. Policies derive their own.
class SequenceCache {
 public:
  virtual ~SequenceCache() = default;
  virtual std::int64_t length() const = 0;  // positions held
  // Forgets what follows the first `length` positions, or more where those can no longer be had (pages that fell out
  // of a sliding window): length() tells, and the caller computes the rest anew.
  virtual void truncate(std::int64_t length) = 0;
  virtual std::size_t bytes() const = 0;       // memory held
  virtual std::size_t bytes_read() const = 0;  // keys and values that the next token reads
  bool long_context = false;  // made for more than ModelSpec::original_context positions
};

struct Run {
  SequenceCache* cache;
  std::span<const TokenId> tokens;
  std::int64_t position;   // of the first token
  std::int64_t first_row;  // of the batch's matrices
};

struct Batch {
  std::vector<Run> runs;
  std::int64_t rows = 0;                // tokens of all runs
  std::vector<std::int64_t> positions;  // [rows]

  void add(SequenceCache* cache, std::span<const TokenId> tokens, std::int64_t position) {
    runs.push_back({cache, tokens, position, rows});
    for (std::size_t i = 0; i < tokens.size(); ++i) positions.push_back(position + static_cast<std::int64_t>(i));
    rows += static_cast<std::int64_t>(tokens.size());
  }
};

}  // namespace narrows
