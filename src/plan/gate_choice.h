// Which gate, if any, a site is worth at a price for the bits that it reads.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "plan/sensitivity.h"
#include "subspace/gate_counts.h"

namespace narrows {

// The ratios ρ of every site on a text for several k, and from them the cost of a gate at (k, ε): the price of the bits
// that it reads, plus the sensitivity times the squared error of its fast tokens. That error is estimated as if what
// the basis leaves were spread evenly over all directions: ρ² · E‖x‖² · ‖W‖² / d (Frobenius).
class GateChoices {
 public:
  static GateChoices measure(const std::shared_ptr<Model>& model, const std::string& bases, const std::string& text,
                             const std::vector<SiteSensitivity>& sensitivities);
  // nullopt: the dense site is cheaper than any gate.
  std::optional<SitePlan> choose(const std::string& site, double price) const;

 private:
  struct Choice {
    std::int64_t k;
    double basis_bits, image_bits, dense_bits;
    double error_scale;  // sensitivity · E‖x‖² · ‖W‖² / d
    GateCounts counts;
  };
  std::map<std::string, std::vector<Choice>> choices_;
};

}  // namespace narrows
