// Ctrl-C as a request to stop what is being computed.
#pragma once

namespace narrows::cli {

// While one lives, SIGINT sets a flag; a second SIGINT before the flag is taken ends the program.
class InterruptScope {
 public:
  InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;
  ~InterruptScope();
};

bool interrupted();     // whether the flag is set
bool take_interrupt();  // the same, and clears it

// Waits until `fd` can be read or has ended. False if the flag is set first.
bool wait_for_input(int fd);

}  // namespace narrows::cli
