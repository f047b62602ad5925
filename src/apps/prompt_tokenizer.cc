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

  TokenizedPrompt of_chat(const json::object& body) const {
    const json::value* const messages = body.if_contains("messages");
    if (!chat || messages == nullptr || !messages->is_array()) return {};
    server::ChatFormat::Options options;
    const json::value* const tools = body.if_contains("tools");
    if (tools != nullptr && tools->is_array() && !tools->get_array().empty()) options.tools = tools;
    const json::value* const kwargs = body.if_contains("chat_template_kwargs");
    if (kwargs != nullptr && kwargs->is_object()) options.kwargs = kwargs;
    const json::value* const goes_on = body.if_contains("continue_final_message");
    options.continue_final_message =
        goes_on != nullptr && goes_on->is_bool() && goes_on->get_bool();
    const Result<std::string> text = chat->render(*messages, options);
    return text ? encode(*text, false) : TokenizedPrompt();
  }

  TokenizedPrompt of(const router::PassedRoute& route, std::string_view body) const {
    const bool is_chat =
        route.pattern == "/v1/chat/completions" || route.pattern == "/chat/completions";
    const std::string_view field = route.pattern == "/generate"         ? "text"
                                   : route.pattern == "/v1/completions" ? "prompt"
                                                                        : "";
    if (!is_chat && field.empty()) return {};
    boost::system::error_code failed;
    const json::value value = json::parse({body.data(), body.size()}, failed);
    if (failed || !value.is_object()) return {};
    if (is_chat) return of_chat(value.get_object());
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
