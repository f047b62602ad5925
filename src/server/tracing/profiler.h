// The profile of a server's engine: one at a time, from /start_profile to the file of its trace.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "server/context.h"
#include "server/tracing/profile_folder.h"

namespace espalier::server {

// Thread-safe. A part of the context that its calls get; a trace is written by one of its workers.
// A context that goes before the profile has ended is not kept for it: the profile is lost.
class Profiler {
 public:
  // The path of the profile's trace, or why there is none. Called on any thread.
  using Answer = std::function<void(const Result<std::filesystem::path>&)>;

  // Answers when the engine has taken the profile in. kFailedPrecondition while there is one.
  void start(const ContextPtr& context, const ProfileOptions& options, std::filesystem::path path,
             Answer answer);
  // Answers when the trace has been written. kFailedPrecondition where there is no profile.
  void stop(const ContextPtr& context, Answer answer);
  bool is_active() const;  // from start() until the trace is written

 private:
  void on_started(const Status& status, const Answer& answer);
  void on_recorded(const ContextPtr& context, StepProfile&& profile);
  void end(const Status& status);

  mutable std::mutex mutex_;
  bool active_ = false;           // from start() until the trace is written; guarded, as are:
  std::filesystem::path path_;    // of its trace
  std::vector<Answer> stopping_;  // calls of stop()
};

}  // namespace espalier::server
