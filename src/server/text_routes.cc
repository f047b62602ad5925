// POST /tokenize and /detokenize.
#include <boost/json/value.hpp>

#include "engine/images/place_images.h"
#include "server/chat_plan.h"
#include "server/dialects/llama_cpp.h"
#include "server/errors.h"
#include "server/json_memory.h"
#include "server/json_writer.h"
#include "server/openai_request.h"
#include "server/routes.h"

namespace espalier::server {

using net::HttpRequest;
using net::HttpResponse;
using net::ResponsePtr;

namespace {

const Status& no_tokenizer() {
  static const Status status(StatusCode::kFailedPrecondition,
                             "this server runs without a tokenizer (--skip-tokenizer-init)");
  return status;
}

void write_ids(JsonWriter& w, const std::vector<TokenId>& ids) {
  w.begin_array();
  for (const TokenId id : ids) w.value(id);
  w.end_array();
}

Result<std::string> tokenize(const Context& context, const TokenizeRequest& request) {
  const Tokenizer* tokenizer = context.engine.tokenizer();
  if (tokenizer == nullptr) return fail(no_tokenizer());
  EncodeOptions encode;
  encode.add_special_tokens = request.add_special_tokens;
  std::vector<std::vector<TokenId>> all;
  bool is_list = false;
  int64_t num_bytes = 0;
  for (const std::string& text : request.prompt.values) num_bytes += std::ssize(text);
  ESP_RETURN_IF_ERROR(
      JsonChargeScope::charge(num_bytes * kTokenizerBytesPerByte, "the prompt's tokens"));
  if (request.messages != nullptr) {
    if (!context.chat) return fail(context.chat_missing);
    ChatFormat::Options options;
    options.kwargs = request.template_kwargs.get();
    options.continue_final_message = request.continue_final_message;
    if (!request.without_tools) options.tools = request.tools.get();
    if (const auto& images = context.engine.model_info().images)
      options.picture_placeholder = picture_mark(context, *images);
    ESP_ASSIGN_OR_RETURN(std::string text, context.chat->render(*request.messages, options));
    const size_t pictures = num_pictures(*request.messages);
    if (const auto& images = context.engine.model_info().images; images && pictures > 0) {
      ESP_ASSIGN_OR_RETURN(text, mark_pictures(std::move(text), *images, pictures));
    }
    encode.add_special_tokens = false;
    all.push_back(tokenizer->encode(text, encode));
  } else {
    is_list = request.prompt.is_list;
    for (const std::string& text : request.prompt.values) {
      all.push_back(tokenizer->encode(text, encode));
    }
  }
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("tokens");
  if (is_list) w.begin_array();
  for (const auto& ids : all) write_ids(w, ids);
  if (is_list) w.end_array();
  w.key("count");
  if (is_list) w.begin_array();
  for (const auto& ids : all) w.value(ids.size());
  if (is_list) w.end_array();
  w.member("max_model_len", context.engine.context_length()).end_object();
  return out;
}

Result<std::string> detokenize(const Context& context, const DetokenizeRequest& request) {
  const Tokenizer* tokenizer = context.engine.tokenizer();
  if (tokenizer == nullptr) return fail(no_tokenizer());
  DecodeOptions options;
  options.skip_special_tokens = request.skip_special_tokens;
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("text");
  if (request.tokens.is_list) w.begin_array();
  int64_t num_bytes = 0;  // of the texts, and as JSON
  for (const auto& ids : request.tokens.values) {
    for (const TokenId id : ids) {
      if (id >= tokenizer->vocab_size()) {
        return fail(invalid_argument("tokens: token id {} is outside the vocabulary of {}", id,
                                     tokenizer->vocab_size()));
      }
      num_bytes += 3 * std::ssize(context.token_bytes(id));
    }
    ESP_RETURN_IF_ERROR(JsonChargeScope::charge(num_bytes, "the text of these tokens"));
    w.value(tokenizer->decode(ids, options));
  }
  if (request.tokens.is_list) w.end_array();
  w.end_object();
  return out;
}

// `other` answers a body of another dialect, which `parse` refuses.
using OtherDialect = std::optional<Result<std::string>> (*)(const Context&, std::string_view body);
template <typename Parse, typename Answer>
void answer_text(const ContextPtr& context, HttpRequest&& request, ResponsePtr response,
                 Parse parse, Answer answer, OtherDialect other = nullptr) {
  bool malformed = false;
  const auto parsed = parse(request.body, malformed);
  if (!parsed && other != nullptr) {
    if (auto out = other(*context, request.body); out && *out)
      return response->send(HttpResponse::json(200, std::move(**out)));
  }
  if (!parsed && malformed) return response->send(malformed_response(parsed.error()));
  auto out = parsed ? answer(*context, *parsed) : Result<std::string>(fail(parsed.error()));
  response->send(out ? HttpResponse::json(200, std::move(*out))
                     : error_response(Dialect::kOpenAi, out.error()));
}

void handle_tokenize(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  answer_text(context, std::move(request), std::move(response), parse_tokenize, tokenize,
              llama_cpp_tokenize);
}

void handle_detokenize(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  answer_text(context, std::move(request), std::move(response), parse_detokenize, detokenize);
}

}  // namespace

const std::vector<Route>& text_routes() {
  using enum Access;
  static const std::vector<Route> table = {
      {{"POST"},
       "/tokenize",
       kUser,
       "Text to token ids",
       handle_tokenize,
       "TokenizeRequest",
       tokenize_schema},
      {{"POST"},
       "/v1/tokenize",
       kUser,
       "Text to token ids",
       handle_tokenize,
       "TokenizeRequest",
       tokenize_schema},
      {{"POST"},
       "/detokenize",
       kUser,
       "Token ids to text",
       handle_detokenize,
       "DetokenizeRequest",
       detokenize_schema},
      {{"POST"},
       "/v1/detokenize",
       kUser,
       "Token ids to text",
       handle_detokenize,
       "DetokenizeRequest",
       detokenize_schema},
  };
  return table;
}

}  // namespace espalier::server
