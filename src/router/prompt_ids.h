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

// What of a worker's reading of prompts is known to be as the router's: it may get ids for it.
struct TakenIds {
  bool texts = false;  // its tokenizer
  bool chats = false;  // and its chat template
  bool operator==(const TakenIds&) const = default;
};

// Where a route takes a prompt as text, and where as ids.
struct IdsPlace {
  // Of a chat `text` is empty: its messages stay, for tools, grammars and pictures are read from
  // them, and its ids stand beside them.
  std::string_view text, ids;
  // Members by which an answer depends on the prompt's text, or by which the text is not all of the
  // prompt, unless they are null, false or empty.
  std::vector<std::string_view> kept_by;

  bool is_taken(const TakenIds& taken) const { return text.empty() ? taken.chats : taken.texts; }
};

// `body` with the prompt's ids in place of its text, or beside its messages; all other bytes stay.
// Empty where a worker would answer that in another way: a member of `kept_by` is there, or the
// text is no single one. REQUIRES that `body` is JSON; of any other the result has no meaning.
std::string body_with_ids(const IdsPlace& place, std::string_view body,
                          std::span<const int32_t> ids);

// A body of POST /tokenize, and the tokens of the answer by the router's tokenizer.
struct TokenQuestion {
  std::string body;
  std::vector<int32_t> ids;
};
// Whether a worker's answer has the same tokens. False where the router knows none.
bool is_answered(const TokenQuestion& question, std::string_view answer);

// What shows whether a worker has the router's tokenizer, and whether its chat template. The text
// has what tokenizers differ in (white space, digits, other scripts), the chats what templates do:
// a system message, turns of both sides, tools, calls and their results.
struct TokenProbe {
  std::vector<TokenQuestion> texts;  // empty: nothing is asked
  std::vector<TokenQuestion> chats;  // empty: there is no chat template here
};
TokenProbe make_token_probe(const TokenizePrompt& tokenize);

}  // namespace espalier::router
