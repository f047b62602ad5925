// libFuzzer: the bodies of requests, read by each of the server's parsers. A refusal says why.
#include "base/check.h"
#include "server/embedding_request.h"
#include "server/native_request.h"
#include "server/openai_request.h"

namespace {

template <typename Parsed>
void check(const Parsed& parsed) {
  if (!parsed) ESP_CHECK(!parsed.error().message().empty(), "refused without a reason");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace espalier::server;
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  bool malformed = false;
  check(parse_native(body, malformed));
  check(parse_completion(body, malformed));
  check(parse_chat(body, malformed));
  check(parse_tokenize(body, malformed));
  check(parse_detokenize(body, malformed));
  check(parse_embedding(body, malformed));
  check(parse_classify(body, malformed));
  check(parse_score(body, malformed));
  check(parse_rerank(body, malformed));
  return 0;
}
