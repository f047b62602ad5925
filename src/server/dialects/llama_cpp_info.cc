// llama.cpp's routes beside generation: what the server is (/props, /slots, /lora-adapters), the
// chat template applied, and texts to tokens and back.
#include <algorithm>
#include <boost/json.hpp>

#include "server/dialects/chat_dialect.h"
#include "server/dialects/llama_cpp.h"
#include "server/dialects/llama_cpp_request.h"
#include "text/unicode/utf8.h"

namespace espalier::server {
namespace {

namespace json = boost::json;

using net::HttpRequest;
using net::HttpResponse;
using net::ResponsePtr;

Status no_tokenizer() {
  return error(StatusCode::kFailedPrecondition,
               "this server runs without a tokenizer (--skip-tokenizer-init)");
}

void send(const ResponsePtr& response, Result<std::string> answer) {
  response->send(answer ? HttpResponse::json(200, std::move(*answer))
                        : error_response(Dialect::kLlamaCpp, answer.error()));
}

void write_modalities(JsonWriter& w) {
  w.key("modalities").begin_object();
  for (const char* name : {"vision", "video", "audio"}) w.member(name, false);
  w.end_object();
}

void write_template_caps(JsonWriter& w, const ChatFormat& format) {
  w.key("chat_template_caps").begin_object();
  for (const char* name : {"supports_tools", "supports_tool_calls", "supports_parallel_tool_calls"})
    w.member(name, format.knows_tools());
  w.member("supports_system_role", true).member("supports_string_content", true).end_object();
}

void handle_props(const ContextPtr& context, HttpRequest&&, ResponsePtr response) {
  const Engine& engine = context->engine;
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("default_generation_settings").begin_object().key("params");
  write_generation_settings(w, LlamaCppRequest{});
  w.member("n_ctx", engine.context_length()).end_object();
  w.member("total_slots", engine.config().schedule.max_running_requests);
  w.member("model_alias", context->model_name);
  w.member("model_path", context->model_name);  // the host's folders are not shown
  write_modalities(w);
  w.member("endpoint_slots", true).member("endpoint_props", false).member("endpoint_metrics", true);
  w.member("chat_template", context->chat ? context->chat->source() : "");
  if (context->chat) write_template_caps(w, *context->chat);
  const Tokenizer* tokenizer = engine.tokenizer();
  const auto bos = tokenizer != nullptr ? tokenizer->bos_id() : std::nullopt;
  w.member("bos_token", bos ? context->token_text(*bos) : "");
  const bool has_eos = tokenizer != nullptr && !tokenizer->vocab().eos_ids.empty();
  w.member("eos_token", has_eos ? context->token_text(tokenizer->vocab().eos_ids[0]) : "");
  w.member("build_info", "espalier " ESPALIER_VERSION).member("is_sleeping", false).end_object();
  send(response, std::move(out));
}

// Running requests stand in the first slots. A slot shows neither text nor settings, since these
// are another client's.
void handle_slots(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  const int32_t running = context->engine.stats().requests.num_running;
  const int32_t total = std::max(context->engine.config().schedule.max_running_requests, running);
  if (running == total && request.query_param("fail_on_no_slot"))
    return send(response, fail(error(StatusCode::kUnavailable, "no slot available")));
  std::string out;
  JsonWriter w(out);
  w.begin_array();
  for (int32_t i = 0; i < total; ++i) {
    w.begin_object().member("id", i).member("n_ctx", context->engine.context_length());
    w.member("speculative", false).member("is_processing", i < running).end_object();
  }
  w.end_array();
  send(response, std::move(out));
}

void handle_lora_adapters(const ContextPtr&, HttpRequest&&, ResponsePtr response) {
  send(response, std::string("[]"));
}

void handle_llama_health(const ContextPtr& context, HttpRequest&&, ResponsePtr response) {
  if (context->stopping)
    return send(response, fail(error(StatusCode::kUnavailable, "the server is stopping")));
  send(response, std::string(R"({"status":"ok"})"));
}

Result<std::string> apply_template(const Context& context, std::string_view body) {
  bool malformed = false;
  ESP_ASSIGN_OR_RETURN(const TokenizeRequest request, parse_tokenize(body, malformed));
  if (request.messages == nullptr) return fail(invalid_argument("messages is missing"));
  if (!context.chat) return fail(context.chat_missing);
  ChatFormat::Options options;
  options.kwargs = request.template_kwargs.get();
  options.continue_final_message = request.continue_final_message;
  options.tools = request.tools.get();
  ESP_ASSIGN_OR_RETURN(const std::string prompt, context.chat->render(*request.messages, options));
  std::string out;
  JsonWriter(out).begin_object().member("prompt", prompt).end_object();
  return out;
}

struct TokenizeBody {
  std::optional<MixedPrompt> content;
  bool add_special = false, parse_special = true, with_pieces = false;
};

const Fields<TokenizeBody>& llama_tokenize_fields() {
  using T = TokenizeBody;
  static const Fields<T> fields = {
      custom<T>("content", "{}", "a text, or a list of texts and token ids",
                [](const Json& value, std::string_view where, T& out) {
                  return read_mixed_prompt(value, where, out.content.emplace());
                }),
      field<T>("add_special", "default false", &T::add_special),
      field<T>("parse_special", "default true: text may spell special tokens", &T::parse_special),
      field<T>("with_pieces", "the tokens' texts beside their ids", &T::with_pieces),
  };
  return fields;
}
std::string tokenize_body_schema() { return schema_of(llama_tokenize_fields()); }

// {"id": 5, "piece": "text"}; bytes where they are part of a character.
void write_piece(JsonWriter& w, const Context& context, TokenId id) {
  const auto& all = context.engine.tokenizer()->vocab().token_bytes;
  const bool known = id >= 0 && static_cast<size_t>(id) < all.size();
  const std::string_view bytes = known ? std::string_view(all[id]) : std::string_view();
  w.begin_object().member("id", id).key("piece");
  if (is_valid_utf8(bytes)) {
    w.value(bytes.empty() ? context.token_text(id) : std::string(bytes));
  } else {
    w.begin_array();
    for (const char c : bytes) w.value(static_cast<int>(static_cast<unsigned char>(c)));
    w.end_array();
  }
  w.end_object();
}

Result<std::string> llama_tokenize(const Context& context, const TokenizeBody& body) {
  const Tokenizer* tokenizer = context.engine.tokenizer();
  if (tokenizer == nullptr) return fail(no_tokenizer());
  EncodeOptions options;
  options.add_special_tokens = body.add_special;
  options.parse_special = body.parse_special;
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("tokens").begin_array();
  if (body.content) {
    for (const TokenId id : encode_mixed_prompt(*tokenizer, *body.content, options))
      body.with_pieces ? write_piece(w, context, id) : static_cast<void>(w.value(id));
  }
  w.end_array().end_object();
  return out;
}

struct DetokenizeBody {
  std::vector<TokenId> tokens;
};

const Fields<DetokenizeBody>& llama_detokenize_fields() {
  using D = DetokenizeBody;
  static const Fields<D> fields = {field<D>("tokens", "token ids", &D::tokens)};
  return fields;
}
std::string detokenize_body_schema() { return schema_of(llama_detokenize_fields()); }

Result<std::string> llama_detokenize(const Context& context, const DetokenizeBody& body) {
  const Tokenizer* tokenizer = context.engine.tokenizer();
  if (tokenizer == nullptr) return fail(no_tokenizer());
  for (const TokenId id : body.tokens)
    if (id < 0 || id >= tokenizer->vocab_size())
      return fail(invalid_argument("tokens: token id {} is outside the vocabulary of {}", id,
                                   tokenizer->vocab_size()));
  std::string out;
  const std::string text = tokenizer->decode(body.tokens, {.skip_special_tokens = false});
  JsonWriter(out).begin_object().member("content", text).end_object();
  return out;
}

// Answers with answer(context, body).
template <typename Answer>
RouteHandler handler_of(Answer answer) {
  return [answer](const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
    send(response, answer(*context, request.body));
  };
}

template <typename T, typename Answer>
RouteHandler handler_of(const Fields<T>& fields, Answer answer) {
  return handler_of(
      [&fields, answer](const Context& context, std::string_view body) -> Result<std::string> {
        bool malformed = false;
        ESP_ASSIGN_OR_RETURN(const T parsed, parse_body(fields, body, malformed));
        return answer(context, parsed);
      });
}

}  // namespace

std::optional<Result<std::string>> llama_cpp_tokenize(const Context& context,
                                                      std::string_view body) {
  bool malformed = false;
  const auto parsed = parse_body(llama_tokenize_fields(), body, malformed);
  if (!parsed || !parsed->content) return std::nullopt;
  return llama_tokenize(context, *parsed);
}

std::vector<Route> llama_cpp_info_routes() {
  using enum Access;
  return {
      {{"GET"}, "/props", kUser, "Model and defaults (llama.cpp)", handle_props},
      {{"GET"}, "/slots", kUser, "Which slots are busy (llama.cpp)", handle_slots},
      {{"GET"}, "/lora-adapters", kUser, "Adapters: none (llama.cpp)", handle_lora_adapters},
      {{"POST"},
       "/apply-template",
       kUser,
       "Messages to a prompt (llama.cpp)",
       handler_of(apply_template),
       "TokenizeRequest",
       tokenize_schema},
  };
}

std::vector<Route> llama_cpp_shared_routes() {
  using enum Access;
  return {
      {{"GET"}, "/health", kOpen, "As /health, with a body (llama.cpp)", handle_llama_health},
      {{"POST"},
       "/tokenize",
       kUser,
       "Text to token ids (llama.cpp)",
       handler_of(llama_tokenize_fields(), llama_tokenize),
       "LlamaCppTokenizeRequest",
       tokenize_body_schema},
      {{"POST"},
       "/detokenize",
       kUser,
       "Token ids to text (llama.cpp)",
       handler_of(llama_detokenize_fields(), llama_detokenize),
       "LlamaCppDetokenizeRequest",
       detokenize_body_schema},
  };
}

}  // namespace espalier::server
