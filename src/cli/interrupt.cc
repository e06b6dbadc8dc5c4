#include "cli/interrupt.h"

#include <signal.h>

#include <atomic>

namespace narrows::cli {
namespace {

std::atomic<bool> flag{false};
static_assert(std::atomic<bool>::is_always_lock_free);  // a signal handler may use it
struct sigaction before;

extern "C" void on_sigint(int) {
  if (flag.exchange(true)) {
    ::signal(SIGINT, SIG_DFL);
    ::raise(SIGINT);
  }
}

}  // namespace

InterruptScope::InterruptScope() {
  flag = false;
  struct sigaction action {};
  action.sa_handler = on_sigint;
  ::sigemptyset(&action.sa_mask);  // no SA_RESTART: a read at the prompt must return
  ::sigaction(SIGINT, &action, &before);
}

InterruptScope::~InterruptScope() { ::sigaction(SIGINT, &before, nullptr); }

bool interrupted() { return flag; }
bool take_interrupt() { return flag.exchange(false); }

}  // namespace narrows::cli
