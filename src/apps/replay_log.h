// The log of a server's requests (--request-log) as requests to send again. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace espalier::apps {

// What the log says of one request.
struct LoggedCall {
  double offset = 0;  // seconds from the first request of the log
  std::string route, body;
  bool redacted = false;  // `body` is without prompts
  int32_t num_samples = 1;
  int32_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  double time_to_first_token = 0, latency = 0;  // seconds; 0: not known
};

struct LoggedCalls {
  std::vector<LoggedCall> calls;  // in order of arrival
  int64_t num_skipped = 0;        // requests that were refused or failed, or whose body is not kept
};
// Of the log's text. kInvalidArgument names the line that is none of a log; a last line without its
// end, as of a log that is being written, is left out.
Result<LoggedCalls> read_replay_log(std::string_view text);

// What is known of the server that a log is replayed to.
struct ReplayTarget {
  std::string model;
  int32_t vocab_size = 0;  // 0: not known, so texts stand for prompts
};

struct ReplayRequest {
  std::string path, body;
  // Of answers whose tokens are timed: streams of one sample of /generate and of OpenAI's
  // completions and chat.
  bool is_timed = false, is_native = false;
  int32_t wanted_tokens = 0;  // of the answer, where it is made that long; 0: it ends by itself
};

// The request to send. What the log left out is made up: texts of as many bytes, and, where a
// request of /generate or /v1/completions has one prompt, as many token ids as were counted, of
// which as many as were cached are the same in all requests. Answers are made as long as they
// were. Grammars, tools, pictures, stop strings, sessions and ids of requests are left out.
// kUnimplemented for a body that does not hold what its route needs.
Result<ReplayRequest> make_replay_request(const LoggedCall& call, uint64_t number,
                                          const ReplayTarget& target);

}  // namespace espalier::apps
