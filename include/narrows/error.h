// Errors of narrows.
#pragma once
#include <stdexcept>

namespace narrows {

// Thrown for everything that input, the machine or the caller can get wrong. what() is one line that names the
// file, tensor or flag at fault and what was expected.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace narrows
