// Logits of whole texts, and how far two of them lie apart.
#pragma once
#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "narrows/narrows.h"

namespace narrows {

// After every token, stepped `piece` at a time.
inline std::vector<float> logits_in_pieces(Session& session, std::span<const TokenId> ids, std::size_t piece) {
  const auto vocab = static_cast<std::size_t>(session.model()->vocab_size());
  std::vector<float> all(ids.size() * vocab);
  for (std::size_t at = 0; at < ids.size(); at += piece) {
    const auto part = ids.subspan(at, std::min(piece, ids.size() - at));
    session.step_all(part, std::span(all).subspan(at * vocab, part.size() * vocab));
  }
  return all;
}

// ‖a - b‖ / ‖b‖
inline double relative_difference(std::span<const float> a, std::span<const float> b) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    size += double{b[i]} * b[i];
  }
  return std::sqrt(difference / size);
}

}  // namespace narrows
