#include "cli/interrupt.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/error.h"

namespace narrows::cli {
namespace {

std::atomic<bool> flag{false};
static_assert(std::atomic<bool>::is_always_lock_free);  // a signal handler may use it
struct sigaction before;

int event = -1;  // readable while the flag is set

extern "C" void on_sigint(int) {
  const int error = errno;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(event, &one, sizeof one);
  errno = error;
  if (flag.exchange(true)) {
    ::signal(SIGINT, SIG_DFL);
    ::raise(SIGINT);
  }
}

}  // namespace

InterruptScope::InterruptScope() {
  if (event < 0) event = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (event < 0) fail("eventfd: {}", std::strerror(errno));
  take_interrupt();
  struct sigaction action {};
  action.sa_handler = on_sigint;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, &before);
}

InterruptScope::~InterruptScope() { ::sigaction(SIGINT, &before, nullptr); }

bool interrupted() { return flag; }

bool take_interrupt() {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t cleared = ::read(event, &count, sizeof count);
  return flag.exchange(false);
}

bool wait_for_input(int fd) {
  // An interrupted read would not do: the signal may come just before it, or to another thread.
  pollfd waiting[2] = {{fd, POLLIN, 0}, {event, POLLIN, 0}};
  while (::poll(waiting, 2, -1) < 0)
    if (errno != EINTR) return true;  // the read that follows tells
  return waiting[1].revents == 0;
}

}  // namespace narrows::cli
