#include "lang/backend.h"

#include <mutex>

#include "lang/pool.h"

namespace espalier::lang {
namespace {

constexpr int kPoolThreads = 2;  // they only move texts; the calls run elsewhere

}  // namespace

std::string Message::text() const {
  std::string all;
  for (const Part& part : parts) all += part.text;
  return all;
}

struct Backend::Counters {
  std::mutex mutex;
  Usage usage;
};

Backend::Backend()
    : pool_(std::make_unique<Pool>(kPoolThreads)), counters_(std::make_unique<Counters>()) {}
Backend::~Backend() = default;

void Backend::prefetch(std::string, const Prompt&, std::function<void(Status)> done) { done({}); }

void Backend::join(JoinCall, JoinDone done) {
  done(fail(error(StatusCode::kUnimplemented, "{} joins no cached branches", name())));
}

Status Backend::flush_cache() {
  return espalier::error(StatusCode::kUnimplemented, "{} has no cache that can be flushed", name());
}

Result<std::string> Backend::server_info() {
  return fail(
      espalier::error(StatusCode::kUnimplemented, "{} has no information about its server", name()));
}

Usage Backend::usage() const {
  std::lock_guard lock(counters_->mutex);
  return counters_->usage;
}

void Backend::count(const Usage& more) {
  std::lock_guard lock(counters_->mutex);
  Usage& u = counters_->usage;
  u.num_calls += more.num_calls;
  u.num_retries += more.num_retries;
  u.prompt_tokens += more.prompt_tokens;
  u.cached_tokens += more.cached_tokens;
  u.completion_tokens += more.completion_tokens;
  u.dollars += more.dollars;
  u.num_calls_saved += more.num_calls_saved;
  u.prompt_tokens_saved += more.prompt_tokens_saved;
  u.dollars_saved += more.dollars_saved;
}

}  // namespace espalier::lang
