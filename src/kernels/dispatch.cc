#include "kernels/dispatch.h"

#include "kernels/targets.h"
// After targets.h.
#include <hwy/highway.h>

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

#include "base/error.h"

namespace narrows {
namespace {

constexpr std::string_view kAmx = "AMX";

std::int64_t available() { return hwy::SupportedTargets() & HWY_TARGETS; }

// AMX needs the processor's word and the kernel's leave, asked for once: the tile registers add 8 KB to a thread's state.
bool amx_granted() {
  static const bool granted = [] {
    constexpr unsigned kTileAndInt8 = 1u << 24 | 1u << 25;
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
    unsigned a = 0, b = 0, c = 0, d = 0;
    return (HWY_TARGETS & HWY_AVX3_DL) != 0 && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & kTileAndInt8) == kTileAndInt8 &&
           ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return granted;
}

bool amx_available() { return (available() & HWY_AVX3_DL) != 0 && amx_granted(); }

std::atomic<bool> amx_allowed{true};

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

bool use_amx() { return amx_allowed.load(std::memory_order_relaxed) && amx_granted(); }

std::vector<std::string> dispatch_targets() {
  std::vector<std::string> names;
  if (amx_available() && amx_allowed) names.emplace_back(kAmx);
  for (std::int64_t rest = available(); rest; rest &= rest - 1) names.emplace_back(hwy::TargetName(rest & -rest));
  return names;
}

std::string dispatch_target() {
  return dispatch_targets().front();
}

void set_dispatch_target(std::string_view name) {
  hwy::SetSupportedTargetsForTest(0);
  amx_allowed = true;
  if (name == kAmx && amx_available()) {
    hwy::SetSupportedTargetsForTest(HWY_AVX3_DL);
  } else if (!name.empty()) {
    std::int64_t found = 0;
    for (std::int64_t rest = available(); rest; rest &= rest - 1)
      if (name == hwy::TargetName(rest & -rest)) found = rest & -rest;
    if (!found) fail("{}: expected one of {}", name, fmt::join(dispatch_targets(), ", "));
    hwy::SetSupportedTargetsForTest(found);
    amx_allowed = false;
  }
  hwy::GetChosenTarget().DeInit();  // the next kernel call chooses anew
}

}  // namespace narrows
