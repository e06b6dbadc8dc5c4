#include "kernels/dispatch.h"

#include "kernels/targets.h"
// After targets.h.
#include <hwy/highway.h>

#include <cstdlib>

#include "base/error.h"

namespace narrows {
namespace {

std::int64_t available() { return hwy::SupportedTargets() & HWY_TARGETS; }

[[maybe_unused]] const bool restricted_by_environment = [] {
  if (const char* name = std::getenv("NARROWS_TARGET"); name && *name) {
    try {
      set_dispatch_target(name);
    } catch (const Error& error) {
      fmt::print(stderr, "narrows: NARROWS_TARGET: {}\n", error.what());
      std::exit(2);
    }
  }
  return true;
}();

}  // namespace

std::vector<std::string> dispatch_targets() {
  std::vector<std::string> names;
  for (std::int64_t rest = available(); rest; rest &= rest - 1) names.emplace_back(hwy::TargetName(rest & -rest));
  return names;
}

std::string dispatch_target() {
  const std::int64_t all = available();
  return hwy::TargetName(all & -all);
}

void set_dispatch_target(std::string_view name) {
  hwy::SetSupportedTargetsForTest(0);
  if (!name.empty()) {
    std::int64_t found = 0;
    for (std::int64_t rest = available(); rest; rest &= rest - 1)
      if (name == hwy::TargetName(rest & -rest)) found = rest & -rest;
    if (!found) fail("{}: expected one of {}", name, fmt::join(dispatch_targets(), ", "));
    hwy::SetSupportedTargetsForTest(found);
  }
  hwy::GetChosenTarget().DeInit();  // the next kernel call chooses anew
}

}  // namespace narrows
