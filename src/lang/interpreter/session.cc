#include "lang/interpreter/session.h"

#include <random>

namespace espalier::lang {
namespace {

std::string make_session_id() {
  static const uint64_t process = std::random_device{}() * 0x9e3779b97f4a7c15ull;
  static std::atomic<uint64_t> next{0};
  return fmt::format("lang-{:08x}-{}", process >> 32, next++);
}

}  // namespace

Session::Session(RunOptions o) : options_(std::move(o)), id_(make_session_id()) {}

std::string Session::make_call_id(std::string_view mark) {
  return fmt::format("{}-{}{}", id_, mark, num_calls_++);
}

bool Session::speculates() const {
  return options_.num_api_spec_tokens > 0 && backend() != nullptr && backend()->is_api();
}

bool Session::defers_messages() const { return speculates() && backend()->is_chat(); }

}  // namespace espalier::lang
