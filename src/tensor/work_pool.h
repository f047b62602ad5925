// The pool of compute threads: one a core, pinned. Between operations they spin for at most 50
// microseconds and then park, so an idle process uses no processor.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace espalier {

// Thread safety: run() and parallel_for() are called from one thread at a time (the executor's),
// which works as thread 0.
class WorkPool {
 public:
  // num_threads: 0 starts one for each usable core. first_cpu: thread 0 belongs to this one of the
  // usable cores, for pools that run side by side. Never fails: a thread that cannot be pinned, or
  // has no core left, is left unpinned.
  explicit WorkPool(int num_threads = 0, int first_cpu = 0);
  ~WorkPool();
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;

  int num_threads() const;

  // Binds the calling thread to the processor of thread 0, so that it never shares one with a
  // worker; for a thread that does little else than run(). False where the system refuses.
  bool bind_caller();

  // Calls fn(thread) once on each thread, [0, num_threads), and returns when all have.
  // Allocates nothing; fn is borrowed for the call.
  template <typename Fn>
  void run(const Fn& fn) {
    run_raw([](const void* f, int thread) { (*static_cast<const Fn*>(f))(thread); }, &fn);
  }

  // Calls fn(begin, end) over [0, count) in ranges of at most `grain`, which idle threads take as
  // they come: for work of uneven cost. Which thread takes which range is not fixed; results must
  // not depend on it.
  template <typename Fn>
  void parallel_for(int64_t count, int64_t grain, const Fn& fn) {
    parallel_for_raw(
        count, grain,
        [](const void* f, int64_t begin, int64_t end) { (*static_cast<const Fn*>(f))(begin, end); },
        &fn);
  }

 private:
  using RawFn = void (*)(const void*, int);
  using RawRangeFn = void (*)(const void*, int64_t, int64_t);
  void run_raw(RawFn fn, const void* data);
  void parallel_for_raw(int64_t count, int64_t grain, RawRangeFn fn, const void* data);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace espalier
