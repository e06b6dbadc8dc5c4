// The one exception type of narrows, and the way to throw it.
#pragma once
#include <fmt/format.h>

#include "narrows/error.h"

namespace narrows {

// Throws Error with a formatted message: one line, which names the file, tensor or flag at fault and says
// what was expected.
template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace narrows
