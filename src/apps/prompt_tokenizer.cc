#include "apps/prompt_tokenizer.h"

#include <algorithm>
#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <memory>
#include <optional>
#include <utility>

#include "base/log.h"
#include "engine/text_io/open_tokenizer.h"
#include "server/chat_format.h"
#include "server/chat_prompt.h"
#include "server/images.h"
#include "server/openai_request.h"

namespace espalier::apps {

namespace json = boost::json;
using router::TokenizedPrompt;

namespace {

constexpr size_t kTextBytesMax = 64 << 10;

// Immutable; thread-safe.
struct PromptTokenizer {
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<server::ChatFormat> chat;

  TokenizedPrompt encode(std::string_view text, bool add_special_tokens) const {
    const bool is_cut = text.size() > kTextBytesMax;
    std::vector<TokenId> ids = tokenizer->encode(text.substr(0, kTextBytesMax),
                                                 {.add_special_tokens = add_special_tokens});
    // The cut may fall into a word, whose tokens are others then.
    if (is_cut) ids.resize(ids.size() - std::min<size_t>(ids.size(), 16));
    return {std::move(ids), !is_cut};
  }

  // Pictures become tokens by their sizes, which a worker knows.
  TokenizedPrompt of_chat(std::string_view body) const {
    bool malformed = false;
    const Result<server::ChatRequest> request = server::parse_chat(body, malformed);
    const bool is_known = chat && request && request->messages != nullptr &&
                          request->input_ids.empty() && !request->describe_grammar &&
                          server::num_pictures(*request->messages) == 0;
    if (!is_known) return {};
    const Result<std::string> text = server::render_prompt(*chat, *request);
    return text ? encode(*text, false) : TokenizedPrompt();
  }

  TokenizedPrompt of(const router::PassedRoute& route, std::string_view body) const {
    const bool is_chat =
        route.pattern == "/v1/chat/completions" || route.pattern == "/chat/completions";
    const std::string_view field = route.pattern == "/generate"         ? "text"
                                   : route.pattern == "/v1/completions" ? "prompt"
                                                                        : "";
    if (!is_chat && field.empty()) return {};
    if (is_chat) return of_chat(body);
    boost::system::error_code failed;
    const json::value value = json::parse({body.data(), body.size()}, failed);
    if (failed || !value.is_object()) return {};
    const json::value* const text = value.get_object().if_contains(field);
    return text != nullptr && text->is_string() ? encode(text->get_string(), true)
                                                : TokenizedPrompt();
  }
};

}  // namespace

Result<router::TokenizePrompt> make_prompt_tokenizer(const PromptTokenizerConfig& config) {
  if (config.path.empty()) return router::TokenizePrompt();
  auto made = std::make_shared<PromptTokenizer>();  // shared: a function is copied
  auto tokenizer = open_tokenizer(config.path);
  if (!tokenizer) return fail(tokenizer.error().with_context("--tokenizer-path"));
  made->tokenizer = std::move(*tokenizer);
  auto chat = server::ChatFormat::load(config.chat_template, config.path, made->tokenizer.get());
  if (chat) {
    made->chat = std::move(*chat);
  } else if (!config.chat_template.empty()) {
    return fail(chat.error().with_context("--chat-template"));
  } else {
    log_warning("prompts of chats have no tokens here, for {} has no chat template: {}",
                config.path, chat.error().message());
  }
  return router::TokenizePrompt([made = std::shared_ptr<const PromptTokenizer>(std::move(made))](
                                    const router::PassedRoute& route, std::string_view body) {
    return made->of(route, body);
  });
}

}  // namespace espalier::apps
