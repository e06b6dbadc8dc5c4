// Finds the tokens that are written out in a text ("<|im_end|>") and cuts the text at them.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tokenizer/flat_map.h"
#include "tokenizer/vocabulary.h"

namespace narrows {

// A stretch of text, or a token if `token` is not kNoToken.
struct Fragment {
  std::string_view text;
  TokenId token = kNoToken;
};

// An Aho-Corasick automaton over the control, unknown and user-defined tokens of a vocabulary.
class SpecialTokens {
 public:
  explicit SpecialTokens(const Vocabulary& vocabulary);

  // Longer tokens are taken first, wherever they are; of equally long ones the leftmost. Control and unknown
  // tokens only if `parse_special`. No fragment is empty.
  std::vector<Fragment> partition(std::string_view text, bool parse_special) const;

 private:
  static constexpr std::uint32_t kRoot = 0;
  struct Node {
    std::uint32_t failure = kRoot;  // the longest proper suffix of this node's string that is a node
    std::uint32_t output = kRoot;   // this node or the nearest on its chain of failures that spells a token
    std::uint32_t length = 0;       // of the string
    TokenId token = kNoToken;
    bool user_defined = false;
    bool strip_after = false;
  };
  struct Match {
    std::size_t end;  // of the token in the text
    std::uint32_t node;
    std::size_t resume;  // where the text goes on: `end`, or after the white space that the token swallows
  };

  void add(std::string_view spelling, const Node& properties, std::vector<std::uint64_t>& edges);
  void link(const std::vector<std::uint64_t>& edges);
  std::uint32_t step(std::uint32_t node, unsigned char byte) const;
  std::uint32_t first_output(std::uint32_t node, bool parse_special) const;
  std::vector<Match> longest_matches(std::string_view text, bool parse_special) const;
  std::vector<Match> choose(std::string_view text, std::vector<Match> candidates, bool parse_special) const;

  static std::uint64_t edge(std::uint32_t node, unsigned char byte) {
    return std::uint64_t{node} << 8 | byte;
  }

  std::vector<Node> nodes_;
  FlatMap<std::uint32_t> next_;
  std::array<bool, 256> begins_{};  // whether a token begins with this byte
};

}  // namespace narrows
