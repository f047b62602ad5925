#include "server/json_memory.h"

#include <algorithm>
#include <boost/json/value.hpp>
#include <utility>

namespace espalier::server {

namespace {

constinit thread_local JsonChargeScope* innermost = nullptr;

// A value stands on the parser's stack, then in its list or object.
constexpr int64_t kValueBytes = 2 * sizeof(boost::json::value);
constexpr int64_t kAllocationBytes = 32;  // of a small one, with what the heap adds
constexpr int64_t kMemberBytes =
    sizeof(boost::json::key_value_pair) - sizeof(boost::json::value) + kAllocationBytes;

// The end of the string whose opening quote stands before `at`.
size_t end_of_string(std::string_view text, size_t at) {
  while ((at = text.find('"', at)) != std::string_view::npos) {
    size_t num_backslashes = 0;
    while (text[at - 1 - num_backslashes] == '\\') ++num_backslashes;
    if (num_backslashes % 2 == 0) return at;
    ++at;
  }
  return text.size();
}

}  // namespace

int64_t json_bytes_max(std::string_view text) {
  int64_t num_bytes = kValueBytes;
  for (size_t at = 0; at < text.size(); ++at) {
    switch (text[at]) {
      case '"': {
        const size_t end = end_of_string(text, at + 1);
        num_bytes += 2 * static_cast<int64_t>(end - at) + kAllocationBytes;
        at = end;
        break;
      }
      case ',':
        num_bytes += kValueBytes;
        break;
      case '[':
      case '{': {
        const bool is_empty = at + 1 < text.size() && (text[at + 1] == ']' || text[at + 1] == '}');
        if (!is_empty) num_bytes += kValueBytes + kAllocationBytes;
        break;
      }
      case ':':
        num_bytes += kMemberBytes;
        break;
      default:
        break;
    }
  }
  return num_bytes;
}

Status hold_memory(MemoryCharge& charge, int64_t num_bytes, std::string_view what) {
  if (charge.resize(num_bytes)) return {};
  if (num_bytes > charge.limit())
    return invalid_argument(
        "{} takes {} bytes of memory, and all bodies together have {} (--max-bodies-bytes): send "
        "less in one request",
        what, num_bytes, charge.limit());
  return error(StatusCode::kResourceExhausted,
               "the bodies of all requests take what memory there is for them: try again later");
}

JsonChargeScope::JsonChargeScope(MemoryCharge& charge)
    : charge_(charge), before_(charge.bytes()), outer_(std::exchange(innermost, this)) {}

JsonChargeScope::~JsonChargeScope() {
  settle();
  innermost = outer_;
}

// A charge that was given away meanwhile holds nothing and stays so.
void JsonChargeScope::settle() {
  if (innermost == nullptr) return;
  (void)innermost->charge_.resize(std::min(innermost->charge_.bytes(), innermost->before_));
}

Status JsonChargeScope::charge(int64_t num_bytes, std::string_view what) {
  if (innermost == nullptr) return {};
  MemoryCharge& charge = innermost->charge_;
  return hold_memory(charge, std::max(charge.bytes(), innermost->before_ + num_bytes), what);
}

}  // namespace espalier::server
