// Memory that the JSON of large bodies takes, charged to the account of bodies before it is parsed:
// a list of a million zeros is 2 MB as text and 48 MB while it is read. Internal to the room.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/memory_account.h"
#include "base/status.h"

namespace espalier::server {

// Not less than what the values of `text`, the parser and a reader that copies its strings take
// together. One pass over the text, which need not be JSON. Pure.
int64_t json_bytes_max(std::string_view text);

// Holds `num_bytes` in `charge` from now on. kResourceExhausted where its account has not so much
// left now, kInvalidArgument where it never has; `what` begins that message: "the body is JSON
// that".
Status hold_memory(MemoryCharge& charge, int64_t num_bytes, std::string_view what);

// What a tokenizer takes for a text while it encodes it, tokens included: most for a text that is
// one word.
inline constexpr int64_t kTokenizerBytesPerByte = 24;

// The JSON that this thread parses is charged to `charge`, beside what that holds, while the scope
// lasts. Scopes nest; the innermost counts. What is parsed in one scope one after the other is
// charged once, as the largest of it.
class JsonChargeScope {
 public:
  explicit JsonChargeScope(MemoryCharge& charge);  // which outlives the scope
  ~JsonChargeScope();
  JsonChargeScope(const JsonChargeScope&) = delete;
  JsonChargeScope& operator=(const JsonChargeScope&) = delete;

  // hold_memory() for this thread's innermost scope; without one everything is granted.
  static Status charge(int64_t num_bytes, std::string_view what);
  // Gives back what was charged in the innermost scope.
  static void settle();

 private:
  MemoryCharge& charge_;
  const int64_t before_;  // before the scope
  JsonChargeScope* const outer_;
};

}  // namespace espalier::server
