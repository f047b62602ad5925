#include "server/request_log.h"

#include <algorithm>

namespace espalier::server {

void LoggedRequest::update(const RequestStats& stats) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  scheduled.store(stats.scheduled, kRelaxed);
  first_token.store(stats.first_token, kRelaxed);
  prompt_tokens.store(stats.prompt_tokens, kRelaxed);
  cached_tokens.store(stats.cached_tokens, kRelaxed);
  completion_tokens.store(stats.completion_tokens, kRelaxed);
}

LoggedRequestPtr RequestLog::begin(std::string_view rid, std::string_view tenant, bool streams,
                                   TimePoint now) {
  auto request = std::make_shared<LoggedRequest>();
  request->rid = rid;
  request->tenant = tenant;
  request->streams = streams;
  request->arrived = now;
  std::lock_guard lock(mutex_);
  request->number = ++last_;
  open_.emplace_hint(open_.end(), request->number, request);
  return request;
}

void RequestLog::finish(const LoggedRequestPtr& request, const char* end, TimePoint now) {
  std::lock_guard lock(mutex_);
  if (open_.erase(request->number) == 0) return;  // it has ended
  request->ended = now;
  request->end = end;
  ended_.push_back(request);
  if (ended_.size() > kEndedMax) ended_.pop_front();
}

std::vector<LoggedRequestPtr> RequestLog::read(uint64_t since) const {
  std::vector<LoggedRequestPtr> out;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [number, request] : open_) out.push_back(request);
    std::ranges::copy_if(ended_, std::back_inserter(out),
                         [&](const LoggedRequestPtr& each) { return each->number >= since; });
  }
  std::ranges::sort(out, {}, [](const LoggedRequestPtr& each) { return each->number; });
  return out;
}

}  // namespace espalier::server
