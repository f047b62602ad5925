// What a program did and when: a span for each primitive, with the tokens of its call. Times are
// those of the steady clock.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "lang/error.h"

namespace espalier::lang {

struct Span {
  int32_t stream = 0;          // 0: the first prompt state of the run
  int32_t parent_stream = -1;  // the one that it was forked from
  std::string kind;            // "text", "gen", "select", "fork", ...
  std::string name;            // of the variable, or the beginning of the text
  Location where;
  TimePoint submitted{};  // appended by the program
  TimePoint begin{};      // its turn in the stream
  TimePoint end{};
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  Status status;
};

// Thread-safe.
class Recorder {
 public:
  void add(Span span);
  std::vector<Span> spans() const;  // in order of their begin
  // For chrome://tracing and Perfetto: a row for each stream; waiting, where there was any, is a
  // span of its own.
  std::string chrome_trace() const;
  // For people: streams below those they were forked from, a line a primitive.
  std::string tree() const;

 private:
  mutable std::mutex mutex_;
  std::vector<Span> spans_;
};

}  // namespace espalier::lang
