#include "base/fatal_exit.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <new>
#include <string_view>
#include <thread>

#include "base/log.h"

namespace espalier {
namespace {

// Takes no memory.
[[noreturn]] void on_terminate() {
  constexpr std::string_view kText =
      "espalier: the system gives no more memory; ending. Free memory, or lower "
      "--mem-fraction-static, --max-total-tokens or --max-running-requests\n";
  try {
    if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const std::bad_alloc&) {
    static_cast<void>(!write(STDERR_FILENO, kText.data(), kText.size()));
    _exit(kExitCannotGoOn);
  } catch (...) {
  }
  std::abort();
}

}  // namespace

void end_process_soon(const Status& why) {
  std::thread([why] {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    log_error("ending error=\"{}\" what_to_do=\"start the process anew\"", why.message());
    _exit(kExitCannotGoOn);
  }).detach();
}

void report_memory_exhaustion() { std::set_terminate(on_terminate); }

}  // namespace espalier
