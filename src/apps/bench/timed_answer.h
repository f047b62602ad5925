// An answer of a server, gathered from the events of its stream, with the times of its tokens.
#pragma once

#include <boost/json/value.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "apps/bench/runner.h"

namespace espalier::apps {

// The member at a path of keys and indices ("/choices/0/delta"); null, `otherwise` or "" when there
// is none.
const boost::json::value* json_at(const boost::json::value& root, std::string_view path);
int32_t int_at(const boost::json::value& root, std::string_view path, int32_t otherwise);
std::string text_at(const boost::json::value& root, std::string_view path);

// Of /generate (native) or of OpenAI's completions and chat; of one sample. Used by one thread.
class TimedAnswer {
 public:
  explicit TimedAnswer(bool native) : native_(native), timer_(now_seconds()) {}

  // False once the answer is wrong.
  bool on_event(std::string_view data);
  // A record of it all; `wanted_tokens` where `ignore_eos` made the answer that long.
  RequestRecord finish(int32_t wanted_tokens, bool ignore_eos);
  bool fail(std::string error) {
    error_ = std::move(error);
    return false;
  }
  const std::vector<int32_t>& output_ids() const { return output_ids_; }
  const std::string& text() const { return text_; }

 private:
  void on_native(const boost::json::value& event);
  void on_openai(const boost::json::value& event);

  const bool native_;
  TokenTimer timer_;
  bool ended_ = false;
  std::string error_, text_;
  int32_t prompt_tokens_ = 0, cached_tokens_ = 0, events_with_text_ = 0;
  std::vector<int32_t> output_ids_;
};

}  // namespace espalier::apps
