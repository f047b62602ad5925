// llama.cpp's dialect: /completion, /infill and /embedding of its server, with its fields, members
// and errors.
#include <algorithm>
#include <boost/json.hpp>
#include <limits>

#include "server/dialects/chat_dialect.h"
#include "server/dialects/llama_cpp.h"
#include "server/dialects/llama_cpp_request.h"
#include "server/openai_generation.h"
#include "server/start_generation.h"
#include "text/tokenizer/fill_in_the_middle.h"

namespace espalier::server {
namespace {

namespace json = boost::json;

double milliseconds(TimePoint from, TimePoint to) {
  return from == TimePoint{} ? 0.0 : std::max(0.0, to_seconds(to - from) * 1e3);
}

// `count` tokens that took `ms`: "prompt_n", "prompt_ms" and their quotients. `measured` is the
// number of tokens that the time was spent on.
void write_rate(JsonWriter& w, const std::string& name, int32_t count, int32_t measured,
                double ms) {
  const bool any = measured > 0 && ms > 0;
  w.member(name + "_n", count).member(name + "_ms", ms);
  w.member(name + "_per_token_ms", any ? ms / measured : 0.0);
  w.member(name + "_per_second", any ? 1e3 * measured / ms : 0.0);
}

// The first output token comes with the prompt's forward, so the others alone share the time after
// it.
void write_timings(JsonWriter& w, const RequestStats& s) {
  const TimePoint now = s.finished != TimePoint{} ? s.finished : std::chrono::steady_clock::now();
  const int32_t computed = s.prompt_tokens - s.cached_tokens;
  const TimePoint first = s.first_token != TimePoint{} ? s.first_token : now;
  w.key("timings").begin_object().member("cache_n", s.cached_tokens);
  write_rate(w, "prompt", computed, computed, milliseconds(s.scheduled, first));
  write_rate(w, "predicted", s.completion_tokens, s.completion_tokens - 1,
             milliseconds(s.first_token, now));
  w.end_object();
}

// "eos", "limit", "word" or "none".
std::string_view stop_type(const std::optional<FinishReason>& finish) {
  if (!finish) return "none";
  if (finish->type == FinishReason::Type::kLength) return "limit";
  if (finish->type != FinishReason::Type::kStop) return "none";
  return std::holds_alternative<std::string>(finish->matched) ? "word" : "eos";
}

// The members of `body` that `fields` name, under these names; a/b is member b of member a.
std::string select_members(const std::string& body, const std::vector<std::string>& fields) {
  const auto whole = parse_json(body);
  if (!whole) return body;
  json::object out;
  for (const std::string& field : fields) {
    const Json* at = &*whole;
    for (size_t begin = 0; at != nullptr && begin <= field.size();) {
      const size_t end = std::min(field.find('/', begin), field.size());
      at = at->is_object()
               ? at->get_object().if_contains(json::string_view(field.data() + begin, end - begin))
               : nullptr;
      begin = end + 1;
    }
    if (at != nullptr) out[field] = *at;
  }
  return json::serialize(out);
}

class LlamaCompletionGeneration final : public Generation {
 public:
  LlamaCompletionGeneration(const ContextPtr& context, net::ResponsePtr response,
                            std::vector<GenerationItem> items, LlamaCppRequest&& request,
                            std::vector<std::string> prompts)
      : Generation(context, std::move(response), std::move(items), request.stream),
        request_(std::move(request)),
        prompts_(std::move(prompts)) {}

 protected:
  Dialect dialect() const override { return Dialect::kLlamaCpp; }
  Status in_client_names(const Status& status) const override {
    std::string text = status.message();
    for (const auto& [name, other] : {std::pair("max_new_tokens", "n_predict"),
                                      {"repetition_penalty", "repeat_penalty"},
                                      {"sampling_seed", "seed"},
                                      {"ebnf", "grammar"},
                                      {"top_logprobs_num", "n_probs"}})
      text = renamed(std::move(text), name, other);
    return {status.code(), std::move(text)};
  }

  void append_events(std::string& out, const Sample& sample) override {
    std::string payload;
    if (sample.text.size() > sample.text_sent || sample.ids.size() > sample.ids_sent) {
      write_part(payload, sample);
      net::append_sse(out, payload);
    }
    if (!sample.finish) return;
    payload.clear();
    write_final(payload, sample);
    net::append_sse(out, payload);
  }
  void append_end(std::string&) override {}

  std::string whole_body() override {
    std::string out;
    if (samples().size() == 1) {
      write_final(out, samples()[0]);
      return out;
    }
    JsonWriter w(out);
    w.begin_array();
    for (const Sample& sample : samples()) {
      std::string one;
      write_final(one, sample);
      w.raw(one);
    }
    w.end_array();
    return out;
  }

 private:
  static void write_ids(JsonWriter& w, const Sample& sample, size_t begin) {
    w.key("tokens").begin_array();
    for (size_t i = begin; i < sample.ids.size(); ++i) w.value(sample.ids[i]);
    w.end_array();
  }

  void write_part(std::string& out, const Sample& sample) const {
    JsonWriter w(out);
    w.begin_object().member("index", sample.index);
    w.member("content", std::string_view(sample.text).substr(sample.text_sent));
    write_ids(w, sample, sample.ids_sent);
    w.member("stop", false).member("id_slot", -1);
    w.member("tokens_predicted", sample.stats.completion_tokens);
    w.member("tokens_evaluated", sample.stats.prompt_tokens);
    if (request_.timings_per_token) write_timings(w, sample.stats);
    if (request_.n_probs > 0) write_probabilities(w, sample, sample.ids_sent);
    w.end_object();
  }

  // The last event of a stream repeats neither text nor tokens.
  void write_final(std::string& out, const Sample& sample) const {
    const bool whole = !request_.stream;
    std::string body;
    JsonWriter w(body);
    w.begin_object().member("index", sample.index);
    w.member("content", whole ? std::string_view(sample.text) : std::string_view());
    const bool with_ids = whole && request_.return_tokens;
    write_ids(w, sample, with_ids ? 0 : sample.ids.size());
    w.member("id_slot", -1).member("stop", true).member("model", context().model_name);
    write_counts(w, sample.stats);
    w.key("generation_settings");
    write_generation_settings(w, request_);
    w.member("prompt", prompts_[static_cast<size_t>(sample.item_index)]);
    w.member("has_new_line", sample.text.find('\n') != std::string::npos);
    w.member("truncated", false).member("stop_type", stop_type(sample.finish));
    const auto* word = sample.finish ? std::get_if<std::string>(&sample.finish->matched) : nullptr;
    w.member("stopping_word", word != nullptr ? *word : std::string());
    write_timings(w, sample.stats);
    if (whole && request_.n_probs > 0) write_probabilities(w, sample, 0);
    w.end_object();
    out += request_.response_fields.empty() ? body : select_members(body, request_.response_fields);
  }

  // The last token's keys and values are computed only for a token behind it.
  static void write_counts(JsonWriter& w, const RequestStats& s) {
    w.member("tokens_predicted", s.completion_tokens).member("tokens_evaluated", s.prompt_tokens);
    w.member("tokens_cached", std::max(0, s.prompt_tokens + s.completion_tokens - 1));
  }

  void write_probabilities(JsonWriter& w, const Sample& sample, size_t begin) const {
    w.key("completion_probabilities").begin_array();
    for (const LogprobEntry& entry : output_entries(sample, begin)) {
      const float logprob =
          entry.lp != nullptr ? entry.lp->logprob : std::numeric_limits<float>::lowest();
      w.begin_object().member("id", entry.id);
      write_token(w, context(), entry.id, logprob);
      w.key("top_logprobs").begin_array();
      if (entry.lp != nullptr) {
        for (const auto& [id, value] : entry.lp->top) {
          w.begin_object().member("id", id);
          write_token(w, context(), id, value);
          w.end_object();
        }
      }
      w.end_array().end_object();
    }
    w.end_array();
  }

  const LlamaCppRequest request_;
  const std::vector<std::string> prompts_;  // as `prompt` of the answers shows them
};

Status no_tokenizer(std::string_view what) {
  return error(StatusCode::kFailedPrecondition,
               "{} needs a tokenizer, and this server runs without (--skip-tokenizer-init)", what);
}

// Biases of texts are those of their tokens.
Status add_bias(const Context& context, const LlamaCppRequest& request, SamplingParams& out) {
  const Tokenizer* tokenizer = context.engine.tokenizer();
  for (const LlamaCppBias& bias : request.logit_bias) {
    const float value = std::max(bias.bias, std::numeric_limits<float>::lowest());
    if (bias.text.empty()) {
      out.logit_bias[bias.id] = value;
      continue;
    }
    if (tokenizer == nullptr) return no_tokenizer("logit_bias of a text");
    for (const TokenId id : tokenizer->encode(bias.text, {.add_special_tokens = false}))
      out.logit_bias[id] = value;
  }
  return {};
}

// One text goes to the engine as it is, and so do ids; a mix of both is encoded here.
Status set_prompt(const Context& context, MixedPrompt&& prompt, GenerateRequest& out,
                  std::string& shown) {
  const Tokenizer* tokenizer = context.engine.tokenizer();
  if (prompt.size() == 1 && prompt[0].is_text) {
    shown = prompt[0].text;
    out.text = std::move(prompt[0].text);
    return {};
  }
  const bool has_text = std::ranges::any_of(prompt, &TextOrIds::is_text);
  if (has_text && tokenizer == nullptr) return no_tokenizer("a text in prompt");
  if (has_text) {
    out.input_ids = encode_mixed_prompt(*tokenizer, prompt, {});
  } else if (!prompt.empty()) {
    out.input_ids = std::move(prompt[0].ids);
  }
  if (out.input_ids.empty()) return invalid_argument("prompt holds no token");
  if (tokenizer != nullptr)
    shown = tokenizer->decode(out.input_ids, {.skip_special_tokens = false});
  return {};
}

GenerationItem item_of(const Context& context, const LlamaCppRequest& request,
                       const SamplingParams& sampling) {
  GenerationItem item;
  item.stream_interval = context.config.answers.stream_interval;
  item.request.sampling = sampling;
  item.request.return_logprob = request.n_probs > 0;
  item.request.top_logprobs_num = request.n_probs;
  return item;
}

Result<std::vector<GenerationItem>> completion_items(const Context& context,
                                                     LlamaCppRequest& request,
                                                     std::vector<std::string>& shown) {
  SamplingParams sampling = request.sampling();
  ESP_RETURN_IF_ERROR(add_bias(context, request, sampling));
  std::vector<GenerationItem> items;
  for (MixedPrompt& prompt : request.prompts) {
    GenerationItem& item = items.emplace_back(item_of(context, request, sampling));
    ESP_RETURN_IF_ERROR(set_prompt(context, std::move(prompt), item.request, shown.emplace_back()));
  }
  return items;
}

// The other files stand in front of the gap's frame, as llama.cpp puts them for models without
// tokens that separate files.
Result<std::vector<GenerationItem>> infill_items(const Context& context, LlamaCppRequest& request,
                                                 std::vector<std::string>& shown) {
  const Tokenizer* tokenizer = context.engine.tokenizer();
  const auto tokens = tokenizer != nullptr ? find_fim_tokens(*tokenizer) : std::nullopt;
  if (!tokens)
    return fail(error(StatusCode::kUnimplemented,
                      "/infill needs a model whose vocabulary has tokens for fill in the middle, "
                      "and this one's has none"));
  SamplingParams sampling = request.sampling();
  ESP_RETURN_IF_ERROR(add_bias(context, request, sampling));
  const LlamaCppInfill& infill = request.infill;
  FimPrompt prompt =
      make_fim_prompt(*tokenizer, *tokens, infill.prefix + infill.prompt, infill.suffix);
  std::vector<TokenId> extra;
  for (const std::string& text : infill.extra) {
    const auto ids = tokenizer->encode("\n\n--- snippet ---\n\n" + text,
                                       {.add_special_tokens = false, .parse_special = false});
    extra.insert(extra.end(), ids.begin(), ids.end());
  }
  prompt.ids.insert(prompt.ids.begin(), extra.begin(), extra.end());
  sampling.stop_token_ids = std::move(prompt.end_ids);
  std::vector<GenerationItem> items = {item_of(context, request, sampling)};
  shown.push_back(tokenizer->decode(prompt.ids, {.skip_special_tokens = false}));
  items[0].request.input_ids = std::move(prompt.ids);
  return items;
}

template <typename Items>
std::shared_ptr<Generation> start_llama_completion(const ContextPtr& context,
                                                   const net::ResponsePtr& response,
                                                   LlamaCppRequest&& request, Items make_items) {
  std::vector<std::string> shown;
  auto items = make_items(*context, request, shown);
  if (!items) {
    response->send(error_response(Dialect::kLlamaCpp, items.error()));
    return nullptr;
  }
  return std::make_shared<LlamaCompletionGeneration>(context, response, std::move(*items),
                                                     std::move(request), std::move(shown));
}

void handle_completion(const ContextPtr& context, net::HttpRequest&& request,
                       net::ResponsePtr response) {
  start_generation(context, std::move(request), std::move(response), Dialect::kLlamaCpp,
                   parse_llama_cpp_completion,
                   [](const ContextPtr& c, const net::ResponsePtr& r, LlamaCppRequest&& body) {
                     return start_llama_completion(c, r, std::move(body), completion_items);
                   });
}

void handle_infill(const ContextPtr& context, net::HttpRequest&& request,
                   net::ResponsePtr response) {
  start_generation(context, std::move(request), std::move(response), Dialect::kLlamaCpp,
                   parse_llama_cpp_infill,
                   [](const ContextPtr& c, const net::ResponsePtr& r, LlamaCppRequest&& body) {
                     return start_llama_completion(c, r, std::move(body), infill_items);
                   });
}

struct EmbedRequest {
  std::vector<TextOrIds> input;
};

const Fields<EmbedRequest>& embed_fields() {
  using E = EmbedRequest;
  const auto read = [](const Json& value, std::string_view where, E& out) {
    return read_prompts(value, where, out.input);
  };
  static const Fields<E> fields = {
      custom<E>("content", prompts_schema(), "texts, or their token ids", read),
      custom<E>("input", prompts_schema(), "as content", read),
      ignored<E>("model"),
      ignored<E>("encoding_format"),
      ignored<E>("embd_normalize"),
  };
  return fields;
}
std::string embed_schema() { return schema_of(embed_fields()); }

Result<EmbedRequest> parse_embed(std::string_view body, bool& malformed) {
  ESP_ASSIGN_OR_RETURN(EmbedRequest request, parse_body(embed_fields(), body, malformed));
  if (request.input.empty()) return fail(invalid_argument("content is missing"));
  ESP_RETURN_IF_ERROR(check_samples(request.input.size(), 1));
  return request;
}

// [{"index": 0, "embedding": [[...]]}, ...]
class EmbedGeneration final : public Generation {
 public:
  using Generation::Generation;

 protected:
  Dialect dialect() const override { return Dialect::kLlamaCpp; }
  void append_events(std::string&, const Sample&) override {}
  // An aborted text has no vector.
  bool is_failure(const FinishReason& finish) const override {
    return finish.type == FinishReason::Type::kAbort || Generation::is_failure(finish);
  }
  std::string whole_body() override {
    std::string out;
    JsonWriter w(out);
    w.begin_array();
    for (const Sample& sample : samples()) {
      w.begin_object().member("index", sample.index).key("embedding").begin_array().begin_array();
      for (const float number : sample.embedding) w.value(number);
      w.end_array().end_array().end_object();
    }
    w.end_array();
    return out;
  }
};

std::shared_ptr<Generation> start_embed(const ContextPtr& context, const net::ResponsePtr& response,
                                        EmbedRequest&& request) {
  std::vector<GenerationItem> items;
  for (TextOrIds& input : request.input) {
    GenerateRequest& item = items.emplace_back().request;
    item.embed = true;
    item.text = std::move(input.text);
    item.input_ids = std::move(input.ids);
  }
  return std::make_shared<EmbedGeneration>(context, response, std::move(items), false);
}

void handle_embed(const ContextPtr& context, net::HttpRequest&& request,
                  net::ResponsePtr response) {
  start_generation(context, std::move(request), std::move(response), Dialect::kLlamaCpp,
                   parse_embed, start_embed);
}

Route post(std::string pattern, std::string summary, RouteHandler handler, std::string body,
           std::string (*schema)()) {
  return {{"POST"},           std::move(pattern), Access::kUser, std::move(summary),
          std::move(handler), std::move(body),    schema};
}

std::vector<Route> answer_routes() {
  std::vector<Route> out;
  for (const char* path : {"/completion", "/completions"})
    out.push_back(post(path, "Complete (llama.cpp)", handle_completion, "LlamaCppCompletionRequest",
                       llama_cpp_completion_schema));
  out.push_back(post("/infill", "Fill a gap (llama.cpp)", handle_infill, "LlamaCppInfillRequest",
                     llama_cpp_infill_schema));
  for (const char* path : {"/embedding", "/embeddings"})
    out.push_back(post(path, "Vectors of texts (llama.cpp)", handle_embed,
                       "LlamaCppEmbeddingRequest", embed_schema));
  return out;
}

// llama.cpp's server has these in OpenAI's shape, as this one does.
std::vector<Route> openai_routes() {
  std::vector<Route> out;
  for (const auto* group : {&generate_routes(), &info_routes()})
    for (const Route& route : *group)
      for (const char* path :
           {"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/models", "/metrics"})
        if (route.pattern == path) out.push_back(route);
  return out;
}

}  // namespace

const std::vector<Route>& llama_cpp_routes() {
  static const std::vector<Route> table = [] {
    std::vector<Route> all = answer_routes();
    for (Route& route : llama_cpp_info_routes()) all.push_back(std::move(route));
    std::vector<Route> prefixed = all;
    for (Route& route : llama_cpp_shared_routes()) prefixed.push_back(std::move(route));
    for (Route& route : openai_routes()) prefixed.push_back(std::move(route));
    for (Route& route : prefixed) {
      route.pattern = std::string(kLlamaCppPrefix) + route.pattern;
      all.push_back(std::move(route));
    }
    return all;
  }();
  return table;
}

}  // namespace espalier::server
