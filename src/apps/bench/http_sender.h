// Sends a workload's turns to a server over HTTP, streaming. Each worker has a sender of its own,
// with a connection that it owns. A failed request is a record with an error, not a Status.
#pragma once

#include <memory>
#include <string>

#include "apps/bench/runner.h"
#include "base/status.h"

namespace espalier::apps {

struct TargetOptions {
  std::string base_url;  // "http://127.0.0.1:30000"
  // sglang: /generate with token ids; sglang-oai: /v1/completions; sglang-oai-chat:
  // /v1/chat/completions (both in text, streamed); sglang-oai-ids: /v1/completions with token ids,
  // for servers that have no /generate; of a conversation without the answers, which come as text.
  std::string backend = "sglang";
  std::string api_key;
  std::string model;  // named in OpenAI requests
  double temperature = 0;
  bool ignore_eos = true;
};

std::unique_ptr<Sender> make_http_sender(const TargetOptions& target);

// What a benchmark must know of a server before it begins.
struct ServerFacts {
  std::string model;
  int32_t context_length = 0;  // tokens; 0: it does not say
  int32_t vocab_size = 0;      // 0: it does not say
};
Result<ServerFacts> read_server_facts(const TargetOptions& target);
Status flush_server_cache(const TargetOptions& target);

}  // namespace espalier::apps
