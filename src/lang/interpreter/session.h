// What the prompt states of one run share. Internal to the room.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "lang/program.h"

namespace espalier::lang {

// Thread-safe: the options do not change, the counters are atomic.
class Session {
 public:
  explicit Session(RunOptions o);

  const RunOptions& options() const { return options_; }  // its back end may be null
  Backend* backend() const { return options_.backend.get(); }
  int32_t add_stream() { return num_streams_++; }  // its index; 0 is the root
  std::string make_call_id(std::string_view mark = "");

  // Gens run past their stops so that later gens are answered from the same call.
  bool speculates() const;
  // The same for a chat API: its gens wait until their message ends.
  bool defers_messages() const;

 private:
  const RunOptions options_;
  const std::string id_;  // call ids begin with it
  std::atomic<int32_t> num_streams_{0};
  std::atomic<int64_t> num_calls_{0};
};

}  // namespace espalier::lang
