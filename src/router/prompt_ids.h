// Prompts that workers get as token ids in place of text, so that the router's tokenizer does their
// work.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace espalier::router {

struct PassedRoute;

// A prompt's tokens as the workers' model sees them.
struct TokenizedPrompt {
  std::vector<int32_t> ids;  // empty: not known
  bool is_whole = false;     // else they are the prompt's first ones
};

// Of a request's body. Called on I/O threads, by several at once.
using TokenizePrompt =
    std::function<TokenizedPrompt(const PassedRoute& route, std::string_view body)>;

// Where a route takes a prompt as text, and where as ids.
struct IdsPlace {
  std::string_view text, ids;
  // Members by which an answer depends on the prompt's text, or by which the text is not all of the
  // prompt, unless they are null, false or empty.
  std::vector<std::string_view> kept_by;
};

// `body` with the prompt's ids in place of its text; all other bytes stay. Empty where a worker
// would answer that in another way: a member of `kept_by` is there, or the text is no single one.
// REQUIRES that `body` is JSON; of any other the result has no meaning.
std::string body_with_ids(const IdsPlace& place, std::string_view body,
                          std::span<const int32_t> ids);

// What shows whether a worker has the router's tokenizer: a body of POST /tokenize, and the tokens
// of the answer. The text has what tokenizers differ in: white space, digits, other scripts.
struct TokenProbe {
  std::string body;          // empty: nothing is asked
  std::vector<int32_t> ids;  // by the router's tokenizer
};
TokenProbe make_token_probe(const TokenizePrompt& tokenize);
// Whether the answer of a worker to `probe` has the same tokens.
bool is_answered(const TokenProbe& probe, std::string_view answer);

}  // namespace espalier::router
