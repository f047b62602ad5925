// The requests in flight and the last ones that have ended, for an observer: when each came, was
// scheduled, gave its first token and ended. No prompt and no answer is kept.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "seams/token_event.h"

namespace espalier::server {

// One sample of a request. What changes while it runs is atomic: its connection's thread writes it,
// and any thread reads it.
struct LoggedRequest {
  uint64_t number = 0;  // 1, 2, 3 ... in order of arrival
  std::string rid;
  std::string tenant;
  bool streams = false;
  TimePoint arrived{};
  std::atomic<TimePoint> scheduled{TimePoint{}}, first_token{TimePoint{}}, ended{TimePoint{}};
  std::atomic<int32_t> prompt_tokens{0}, cached_tokens{0}, completion_tokens{0};
  std::atomic<const char*> end{""};  // "stop", "length", "abort" or "error"; "" while it runs

  void update(const RequestStats& stats);
};
using LoggedRequestPtr = std::shared_ptr<LoggedRequest>;  // shared by the log and who updates it

// Thread-safe. A request costs two short locks and a step in a map of those in flight; its tokens
// cost none.
class RequestLog {
 public:
  static constexpr size_t kEndedMax = 256;  // of those that have ended; the oldest are dropped

  LoggedRequestPtr begin(std::string_view rid, std::string_view tenant, bool streams,
                         TimePoint now);
  // `end` is one of the words above.
  void finish(const LoggedRequestPtr& request, const char* end, TimePoint now);

  // Of requests in flight, and of those that ended, numbered `since` or later; in order of arrival.
  std::vector<LoggedRequestPtr> read(uint64_t since) const;

 private:
  mutable std::mutex mutex_;
  uint64_t last_ = 0;                          // number
  std::map<uint64_t, LoggedRequestPtr> open_;  // by number
  std::deque<LoggedRequestPtr> ended_;         // in order of their ends
};

}  // namespace espalier::server
