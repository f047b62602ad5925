#include "base/thread_stacks.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <thread>

namespace espalier {
namespace {

constexpr int kFramesMax = 48;
constexpr int kHandlerFrames = 2;  // the handler's own, and the one that returns from a signal

// What the handler writes, for one request at a time. `wanted` is the number of the request that a
// thread may answer, 0 once one has begun to; `answered` is that of the last answer.
struct Answer {
  std::atomic<int> wanted{0}, answered{0};
  int num_frames = 0;
  void* frames[kFramesMax];
};
Answer shared_answer;

// A signal that arrives late carries the number of an earlier request and is not answered.
void answer_request(int, siginfo_t* info, void*) {
  const int error_number = errno;
  int number = info->si_value.sival_int;
  if (info->si_code == SI_QUEUE && number != 0 &&
      shared_answer.wanted.compare_exchange_strong(number, 0)) {
    shared_answer.num_frames = ::backtrace(shared_answer.frames, kFramesMax);
    shared_answer.answered.store(info->si_value.sival_int, std::memory_order_release);
  }
  errno = error_number;
}

bool send_request(int tid, int number) {
  siginfo_t info{};
  info.si_signo = SIGURG;
  info.si_code = SI_QUEUE;
  info.si_pid = ::getpid();
  info.si_uid = ::getuid();
  info.si_value.sival_int = number;
  return ::syscall(SYS_rt_tgsigqueueinfo, ::getpid(), tid, SIGURG, &info) == 0;
}

bool await_answer(int number, Duration patience) {
  const SteadyClock clock;
  const TimePoint deadline = clock.now() + patience;
  const auto has_answer = [&] {
    return shared_answer.answered.load(std::memory_order_acquire) == number;
  };
  while (!has_answer()) {
    int wanted = number;
    // The thread has begun to answer where the exchange fails, and an answer takes microseconds.
    if (clock.now() > deadline && shared_answer.wanted.compare_exchange_strong(wanted, 0))
      return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

std::string demangled(const char* name) {
  int failed = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(name, nullptr, nullptr, &failed), std::free);
  return failed == 0 ? text.get() : name;
}

std::string frame_text(void* address) {
  Dl_info info{};
  const auto offset_from = [&](const void* base) {
    return static_cast<const char*>(address) - static_cast<const char*>(base);
  };
  if (::dladdr(address, &info) == 0 || info.dli_fname == nullptr) return fmt::format("{}", address);
  if (info.dli_sname != nullptr)
    return fmt::format("{}+{:#x}", demangled(info.dli_sname), offset_from(info.dli_saddr));
  const std::string module = std::filesystem::path(info.dli_fname).filename().string();
  return fmt::format("{}+{:#x}", module, offset_from(info.dli_fbase));
}

// "123 (name) S ...": a name may hold any character, a parenthesis too.
void read_name_and_state(ThreadStack& thread) {
  std::ifstream file(fmt::format("/proc/self/task/{}/stat", thread.tid));
  std::string line;
  std::getline(file, line);
  const size_t open = line.find('('), close = line.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close + 2 >= line.size()) return;
  thread.name = line.substr(open + 1, close - open - 1);
  thread.state = line[close + 2];
}

// Whether the thread would leave the request pending.
bool blocks_requests(int tid) {
  std::ifstream file(fmt::format("/proc/self/task/{}/status", tid));
  constexpr std::string_view kName = "SigBlk:\t";
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(kName))
      return (std::strtoull(line.c_str() + kName.size(), nullptr, 16) >> (SIGURG - 1) & 1) != 0;
  return false;
}

std::vector<int> thread_ids() {
  std::vector<int> tids;
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", failed)) {
    const std::string name = entry.path().filename().string();
    int tid = 0;
    std::from_chars(name.data(), name.data() + name.size(), tid);
    if (tid != ::gettid()) tids.push_back(tid);
  }
  std::ranges::sort(tids);
  return tids;
}

}  // namespace

std::vector<ThreadStack> read_thread_stacks(Duration patience) {
  static std::mutex mutex;
  static int last_number = 0;
  std::lock_guard lock(mutex);
  void* first[1];
  (void)::backtrace(first, 1);  // loads what backtrace() needs, which a handler may not do
  struct sigaction handler {
  }, before{};
  handler.sa_sigaction = answer_request;
  handler.sa_flags = SA_SIGINFO | SA_RESTART;
  std::vector<ThreadStack> threads;
  if (::sigaction(SIGURG, &handler, &before) != 0) return threads;
  for (const int tid : thread_ids()) {
    ThreadStack& thread = threads.emplace_back();
    thread.tid = tid;
    read_name_and_state(thread);
    if (blocks_requests(tid)) continue;
    shared_answer.wanted = ++last_number;
    if (!send_request(tid, last_number) || !await_answer(last_number, patience)) continue;
    for (int i = kHandlerFrames; i < shared_answer.num_frames; ++i)
      thread.frames.push_back(frame_text(shared_answer.frames[i]));
  }
  shared_answer.wanted = 0;
  ::sigaction(SIGURG, &before, nullptr);  // by default the signal is ignored, a late one too
  return threads;
}

}  // namespace espalier
