#include "tokenizer/special_tokens.h"

#include <algorithm>
#include <map>

namespace narrows {

namespace {

bool is_special(TokenKind kind) {
  return kind == TokenKind::Control || kind == TokenKind::Unknown || kind == TokenKind::UserDefined;
}

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

}  // namespace

SpecialTokens::SpecialTokens(const Vocabulary& vocabulary) : nodes_(1) {
  std::size_t bytes = 0;
  for (std::size_t id = 0; id < vocabulary.size(); ++id) {
    if (is_special(vocabulary.kinds[id])) bytes += vocabulary.spellings[id].size();
  }
  next_ = FlatMap<std::uint32_t>(bytes);
  std::vector<std::uint64_t> edges;  // the edge that leads to node i + 1
  for (std::size_t id = 0; id < vocabulary.size(); ++id) {
    if (!is_special(vocabulary.kinds[id])) continue;
    const std::string& spelling = vocabulary.spellings[id];
    Node properties;
    properties.token = static_cast<TokenId>(id);
    properties.user_defined = vocabulary.kinds[id] == TokenKind::UserDefined;
    properties.strip_after = vocabulary.strip_after_special && spelling != "<unk>" && spelling != "<s>" &&
                             spelling != "<|endoftext|>";
    add(spelling, properties, edges);
  }
  link(edges);
}

void SpecialTokens::add(std::string_view spelling, const Node& properties,
                        std::vector<std::uint64_t>& edges) {
  std::uint32_t node = kRoot;
  for (const char c : spelling) {
    const std::uint64_t key = edge(node, static_cast<unsigned char>(c));
    if (const std::uint32_t* child = next_.find(key)) {
      node = *child;
      continue;
    }
    const auto child = static_cast<std::uint32_t>(nodes_.size());
    next_.insert(key, child);
    edges.push_back(key);
    nodes_.emplace_back();
    nodes_[child].length = nodes_[node].length + 1;
    node = child;
  }
  begins_[static_cast<unsigned char>(spelling[0])] = true;
  const std::uint32_t length = nodes_[node].length;
  nodes_[node] = properties;
  nodes_[node].length = length;
}

// Failures lead to shorter strings, so nodes are linked in the order of their length.
void SpecialTokens::link(const std::vector<std::uint64_t>& edges) {
  std::vector<std::uint32_t> order(edges.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i + 1;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return nodes_[a].length < nodes_[b].length; });
  for (const std::uint32_t i : order) {
    const auto parent = static_cast<std::uint32_t>(edges[i - 1] >> 8);
    const auto byte = static_cast<unsigned char>(edges[i - 1]);
    Node& node = nodes_[i];
    node.failure = parent == kRoot ? kRoot : step(nodes_[parent].failure, byte);
    node.output = node.token != kNoToken ? i : nodes_[node.failure].output;
  }
}

std::uint32_t SpecialTokens::step(std::uint32_t node, unsigned char byte) const {
  while (true) {
    if (const std::uint32_t* child = next_.find(edge(node, byte))) return *child;
    if (node == kRoot) return kRoot;
    node = nodes_[node].failure;
  }
}

// The longest token that may be used and that the node's string ends with; kRoot if none.
std::uint32_t SpecialTokens::first_output(std::uint32_t node, bool parse_special) const {
  node = nodes_[node].output;
  while (node != kRoot && !parse_special && !nodes_[node].user_defined) {
    node = nodes_[nodes_[node].failure].output;
  }
  return node;
}

std::vector<SpecialTokens::Match> SpecialTokens::longest_matches(std::string_view text,
                                                                 bool parse_special) const {
  std::vector<Match> matches;
  std::uint32_t node = kRoot;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (node == kRoot && !begins_[byte]) continue;
    node = step(node, byte);
    const std::uint32_t output = first_output(node, parse_special);
    if (output != kRoot) matches.push_back({i + 1, output, i + 1});
  }
  return matches;
}

// Lengths are worked off from the longest. A match that runs into one taken before gives way to the next
// shorter token that ends at the same place, unless that place is taken too.
std::vector<SpecialTokens::Match> SpecialTokens::choose(std::string_view text, std::vector<Match> candidates,
                                                        bool parse_special) const {
  std::vector<bool> taken(text.size());
  std::map<std::uint32_t, std::vector<Match>, std::greater<>> by_length;
  for (const Match& match : candidates) by_length[nodes_[match.node].length].push_back(match);
  std::vector<Match> chosen;
  while (!by_length.empty()) {
    auto [length, matches] = std::move(*by_length.begin());
    by_length.erase(by_length.begin());
    std::sort(matches.begin(), matches.end(), [](const Match& a, const Match& b) { return a.end < b.end; });
    for (Match& match : matches) {
      // What is taken is at least as long as this match, so it cannot lie strictly inside it.
      if (taken[match.end - 1]) continue;
      if (taken[match.end - length]) {
        const std::uint32_t shorter = first_output(nodes_[match.node].failure, parse_special);
        if (shorter != kRoot) by_length[nodes_[shorter].length].push_back({match.end, shorter, match.end});
        continue;
      }
      std::size_t& resume = match.resume;
      if (nodes_[match.node].strip_after) {
        while (resume < text.size() && !taken[resume] && is_space(text[resume])) ++resume;
      }
      std::fill(taken.begin() + static_cast<std::ptrdiff_t>(match.end - length),
                taken.begin() + static_cast<std::ptrdiff_t>(resume), true);
      chosen.push_back(match);
    }
  }
  std::sort(chosen.begin(), chosen.end(), [](const Match& a, const Match& b) { return a.end < b.end; });
  return chosen;
}

std::vector<Fragment> SpecialTokens::partition(std::string_view text, bool parse_special) const {
  std::vector<Fragment> fragments;
  std::vector<Match> candidates = longest_matches(text, parse_special);
  std::size_t done = 0;
  const auto add_text = [&](std::size_t end) {
    if (end > done) fragments.push_back({text.substr(done, end - done), kNoToken});
  };
  if (!candidates.empty()) {
    for (const Match& match : choose(text, std::move(candidates), parse_special)) {
      const Node& node = nodes_[match.node];
      add_text(match.end - node.length);
      fragments.push_back({{}, node.token});
      done = match.resume;
    }
  }
  add_text(text.size());
  return fragments;
}

}  // namespace narrows
