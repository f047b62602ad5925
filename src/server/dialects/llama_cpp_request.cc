#include "server/dialects/llama_cpp_request.h"

#include <algorithm>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <limits>

#include "server/dialects/chat_dialect.h"

namespace espalier::server {
namespace {

namespace json = boost::json;

using R = LlamaCppRequest;

// A field of the body, and how it stands in `generation_settings` (null: not there).
struct Row {
  Field<R> field;
  std::function<void(JsonWriter&, const R&)> write;
};

template <typename Get>
Row value_row(std::string name, std::string help, Get get) {
  return {field<R>(name, std::move(help), get),
          [name, get](JsonWriter& w, const R& r) { w.member(name, get(r)); }};
}

// A parameter of a sampler that is not there: only the value that turns it off is accepted. `shown`
// is that value in `generation_settings`.
Row off_row(std::string name, double off, std::string shown) {
  const auto read = [off](const Json& value, std::string_view where, R&) -> Status {
    float number = 0;
    if (value.is_bool()) {
      number = value.get_bool() ? 1.0f : 0.0f;
    } else {
      ESP_RETURN_IF_ERROR(read_value(value, where, number));
    }
    if (number == static_cast<float>(off)) return {};
    return error(StatusCode::kUnimplemented, "{} is {}, but only {} is supported: leave it out",
                 where, describe(value), off);
  };
  return {custom<R>(name, "{}", fmt::format("refused unless it is {}", shown), read),
          [name, shown](JsonWriter& w, const R&) { w.key(name).raw(shown); }};
}

// A parameter that is without effect here. Its value in `generation_settings` is llama.cpp's
// default.
Row constant_row(std::string name, std::string value) {
  return {ignored<R>(name), [name, value](JsonWriter& w, const R&) { w.key(name).raw(value); }};
}

Row hidden_row(Field<R> field) { return {std::move(field), nullptr}; }

// llama.cpp's names of the filters, each with its letter in the short form.
struct SamplerName {
  char letter;
  std::string_view name;
};
constexpr SamplerName kSamplerNames[] = {{'e', "penalties"},  {'d', "dry"},   {'s', "top_n_sigma"},
                                         {'k', "top_k"},      {'y', "typ_p"}, {'p', "top_p"},
                                         {'m', "min_p"},      {'x', "xtc"},   {'i', "infill"},
                                         {'t', "temperature"}};

// A list of names, or a string of letters. Unknown names have no effect, as in llama.cpp.
Status read_samplers(const Json& value, std::string_view where, R& out) {
  std::vector<std::string> given;
  ESP_RETURN_IF_ERROR(read_value(value, where, given));
  out.samplers.names.clear();
  if (!value.is_string()) {
    out.samplers.names = std::move(given);
    return {};
  }
  for (const char letter : given[0])
    for (const SamplerName& sampler : kSamplerNames)
      if (sampler.letter == letter) out.samplers.names.emplace_back(sampler.name);
  return {};
}

void write_samplers(JsonWriter& w, const R& r) {
  w.key("samplers").begin_array();
  if (!r.samplers.names.empty()) {
    for (const std::string& name : r.samplers.names) w.value(name);
  } else {
    for (const SamplerName& sampler : kSamplerNames)
      if (sampler.name != "infill") w.value(sampler.name);
  }
  w.end_array();
}

Status read_breakers(const Json& value, std::string_view where, R& out) {
  std::vector<std::string>& breakers = out.samplers.dry_sequence_breakers;
  breakers.clear();
  ESP_RETURN_IF_ERROR(read_value(value, where, breakers));
  return breakers.empty() ? invalid_argument("{} must not be empty", where) : Status();
}

void write_breakers(JsonWriter& w, const R& r) {
  w.key("dry_sequence_breakers").begin_array();
  for (const std::string& text : r.samplers.dry_sequence_breakers) w.value(text);
  w.end_array();
}

// A number, or false: never this token.
Status read_bias(const Json& value, std::string_view where, float& out) {
  if (value.is_bool() && !value.get_bool()) {
    out = -std::numeric_limits<float>::infinity();
    return {};
  }
  return read_value(value, where, out);
}

// [[token or text, bias], ...]
Status read_bias_pairs(const json::array& pairs, std::string_view where, R& out) {
  for (size_t i = 0; i < pairs.size(); ++i) {
    const std::string place = fmt::format("{}[{}]", where, i);
    const json::array* pair = pairs[i].if_array();
    if (pair == nullptr || pair->size() != 2)
      return wrong_type(place, "a list of a token and its bias", pairs[i]);
    LlamaCppBias& bias = out.logit_bias.emplace_back();
    if ((*pair)[0].is_string()) {
      bias.text = std::string(view((*pair)[0].get_string()));
    } else {
      ESP_RETURN_IF_ERROR(read_value((*pair)[0], place + "[0]", bias.id));
    }
    ESP_RETURN_IF_ERROR(read_bias((*pair)[1], place + "[1]", bias.bias));
  }
  return {};
}

// The list above, or {"token or text": bias}.
Status read_logit_bias(const Json& value, std::string_view where, R& out) {
  out.logit_bias.clear();
  if (value.is_array()) return read_bias_pairs(value.get_array(), where, out);
  if (!value.is_object()) return wrong_type(where, "a list of pairs or an object", value);
  for (const auto& member : value.get_object()) {
    LlamaCppBias& bias = out.logit_bias.emplace_back();
    bias.text = std::string(member.key());
    const bool is_id = bias.text.size() <= 9 && !bias.text.empty() &&
                       bias.text.find_first_not_of("0123456789") == std::string::npos;
    if (is_id) bias.id = std::stoi(std::exchange(bias.text, std::string()));
    ESP_RETURN_IF_ERROR(
        read_bias(member.value(), fmt::format("{}.{}", where, member.key()), bias.bias));
  }
  return {};
}

// Biases of texts are those of their tokens, which no setting repeats.
void write_logit_bias(JsonWriter& w, const R& r) {
  w.key("logit_bias").begin_array();
  for (const LlamaCppBias& bias : r.logit_bias) {
    if (bias.text.empty())
      w.begin_object().member("bias", bias.bias).member("token", bias.id).end_object();
  }
  w.end_array();
}

void write_stop(JsonWriter& w, const R& r) {
  w.key("stop").begin_array();
  for (const std::string& stop : r.stop) w.value(stop);
  w.end_array();
}

std::vector<Row> sampler_rows() {
  const auto n_predict = [](auto& r) -> auto& { return r.n_predict; };
  return {
      value_row(
          "seed", "of the draws; -1: any", [](auto& r) -> auto& { return r.samplers.seed; }),
      value_row(
          "temperature", "divides the logits; 0 or less takes the likeliest token",
          [](auto& r) -> auto& { return r.samplers.temperature; }),
      value_row(
          "top_k", "keeps this many likeliest tokens; 0 or less: all",
          [](auto& r) -> auto& { return r.samplers.top_k; }),
      value_row(
          "top_p", "keeps the likeliest tokens that sum to this probability",
          [](auto& r) -> auto& { return r.samplers.top_p; }),
      value_row(
          "min_p", "keeps tokens of at least this share of the likeliest's probability",
          [](auto& r) -> auto& { return r.samplers.min_p; }),
      value_row(
          "top_n_sigma", "keeps tokens within this many deviations of the best; below 0: all",
          [](auto& r) -> auto& { return r.samplers.top_n_sigma; }),
      value_row(
          "repeat_last_n", "0 turns the penalties off; they count the whole text otherwise",
          [](auto& r) -> auto& { return r.samplers.repeat_last_n; }),
      value_row(
          "repeat_penalty", "divides positive and multiplies negative logits of seen tokens",
          [](auto& r) -> auto& { return r.samplers.repeat_penalty; }),
      value_row(
          "presence_penalty", "taken from the logits of tokens in the output",
          [](auto& r) -> auto& { return r.samplers.presence_penalty; }),
      value_row(
          "frequency_penalty", "taken for each time that the output holds a token",
          [](auto& r) -> auto& { return r.samplers.frequency_penalty; }),
      value_row("n_predict", "tokens of the answer at most; -1: up to the context", n_predict),
      value_row("max_tokens", "as n_predict", n_predict),
      value_row(
          "n_probs", "likeliest tokens to return at each position",
          [](auto& r) -> auto& { return r.n_probs; }),
      {custom<R>("samplers", SchemaOf<std::vector<std::string>>::get(),
                 "the filters that apply; their order is fixed", read_samplers),
       write_samplers},
      {custom<R>("logit_bias", R"({"anyOf":[{"type":"array"},{"type":"object"}]})",
                 "[[token id or text, bias or false], ...] or {token: bias}", read_logit_bias),
       write_logit_bias},
  };
}

std::vector<Row> history_rows() {
  return {
      value_row(
          "xtc_probability", "share of draws in which XTC drops likely tokens; 0: off",
          [](auto& r) -> auto& { return r.samplers.xtc_probability; }),
      value_row(
          "xtc_threshold", "the least probability of a token that XTC counts",
          [](auto& r) -> auto& { return r.samplers.xtc_threshold; }),
      value_row(
          "dry_multiplier", "strength of the penalty on tokens that continue a repetition; 0: off",
          [](auto& r) -> auto& { return r.samplers.dry_multiplier; }),
      value_row(
          "dry_base", "by which that penalty grows with each token; below 1: off",
          [](auto& r) -> auto& { return r.samplers.dry_base; }),
      value_row(
          "dry_allowed_length", "tokens of the shortest repetition that is penalised",
          [](auto& r) -> auto& { return r.samplers.dry_allowed_length; }),
      value_row(
          "dry_penalty_last_n", "tokens in which repetitions are looked for; -1: all; 0: off",
          [](auto& r) -> auto& { return r.samplers.dry_penalty_last_n; }),
      {custom<R>("dry_sequence_breakers", SchemaOf<std::vector<std::string>>::get(),
                 "texts that no repetition goes across", read_breakers),
       write_breakers},
  };
}

std::vector<Row> off_rows() {
  return {
      off_row("dynatemp_range", 0, "0.0"),
      off_row("typical_p", 1, "1.0"),
      off_row("mirostat", 0, "0"),
      off_row("adaptive_target", -1, "-1.0"),
      off_row("post_sampling_probs", 0, "false"),
      off_row("grammar_lazy", 0, "false"),
      constant_row("dynatemp_exponent", "1.0"),
      constant_row("mirostat_tau", "5.0"),
      constant_row("mirostat_eta", "0.1"),
      constant_row("adaptive_decay", "0.9"),
      constant_row("n_keep", "0"),
      constant_row("n_discard", "0"),
      constant_row("min_keep", "0"),
      constant_row("grammar_triggers", "[]"),
      constant_row("preserved_tokens", "[]"),
      constant_row("backend_sampling", "false"),
      constant_row("chat_format", R"("Content-only")"),
      constant_row("generation_prompt", R"("")"),
      constant_row("reasoning_format", R"("none")"),
      constant_row("reasoning_in_content", "false"),
      constant_row("speculative.types", R"("none")"),
      hidden_row(off_row("tfs_z", 1, "1.0").field),
      hidden_row(off_row("n", 1, "1").field),
      hidden_row(off_row("n_cmpl", 1, "1").field),
      hidden_row(off_row("n_indent", 0, "0").field),
  };
}

std::vector<Row> answer_rows() {
  return {
      {field<R>("stop", "strings that end the answer", &R::stop), write_stop},
      value_row(
          "ignore_eos", "continues after the end-of-sequence token",
          [](auto& r) -> auto& { return r.ignore_eos; }),
      value_row(
          "stream", "answer as server-sent events", [](auto& r) -> auto& { return r.stream; }),
      value_row(
          "timings_per_token", "timings in each event of a stream",
          [](auto& r) -> auto& { return r.timings_per_token; }),
      value_row(
          "grammar", "a grammar in GBNF that the text must follow",
          [](auto& r) -> auto& { return r.grammar; }),
      hidden_row(custom<R>("json_schema", R"({"type":"object"})",
                           "JSON Schema that the text must follow; grammar goes before it",
                           [](const Json& value, std::string_view where, R& out) -> Status {
                             if (!value.is_object() && !value.is_bool())
                               return wrong_type(where, "a JSON Schema", value);
                             out.json_schema = json::serialize(value);
                             return {};
                           })),
      hidden_row(field<R>("return_tokens", "the answer's ids in `tokens`", &R::return_tokens)),
      hidden_row(
          field<R>("response_fields", "members of the answer; a path is a/b", &R::response_fields)),
      hidden_row(ignored<R>("model")),
      {refused<R>("lora"), [](JsonWriter& w, const R&) { w.key("lora").raw("[]"); }},
      hidden_row(
          refused<R>("image_data", "is not supported: send pictures to /v1/chat/completions")),
      hidden_row(ignored<R>("cache_prompt")),
      hidden_row(ignored<R>("n_cache_reuse")),
      hidden_row(ignored<R>("id_slot")),
      hidden_row(ignored<R>("return_progress")),
      hidden_row(ignored<R>("t_max_prompt_ms")),
      hidden_row(ignored<R>("t_max_predict_ms")),
  };
}

const std::vector<Row>& rows() {
  static const std::vector<Row> all = [] {
    std::vector<Row> joined = sampler_rows();
    for (auto* more : {&history_rows, &off_rows, &answer_rows})
      for (Row& row : more()) joined.push_back(std::move(row));
    return joined;
  }();
  return all;
}

// A list is one prompt where it holds token ids, else a list of prompts.
Status read_llama_prompts(const Json& value, std::string_view where, R& out) {
  const json::array* list = value.if_array();
  const auto is_part = [](const Json& part) { return part.is_number(); };
  const bool is_one = list == nullptr || (std::ranges::any_of(*list, is_part) &&
                                          std::ranges::all_of(*list, [&](const Json& part) {
                                            return is_part(part) || part.is_string();
                                          }));
  out.prompts.clear();
  if (is_one) return read_mixed_prompt(value, where, out.prompts.emplace_back());
  if (list->empty()) return invalid_argument("{} must not be empty", where);
  for (size_t i = 0; i < list->size(); ++i)
    ESP_RETURN_IF_ERROR(
        read_mixed_prompt((*list)[i], fmt::format("{}[{}]", where, i), out.prompts.emplace_back()));
  return {};
}

// [{"text": ..., "filename": ...}, ...]
Status read_extra(const Json& value, std::string_view where, R& out) {
  if (!value.is_array()) return wrong_type(where, "a list of texts", value);
  for (const Json& chunk : value.get_array()) {
    const json::object* members = chunk.if_object();
    if (members == nullptr) return wrong_type(where, "a list of {\"text\": ...}", chunk);
    out.infill.extra.emplace_back(string_member(*members, "text"));
  }
  return {};
}

Fields<R> with_rows(Fields<R> fields) {
  for (const Row& row : rows()) fields.push_back(row.field);
  return fields;
}

const Fields<R>& completion_table() {
  static const Fields<R> fields = [] {
    Fields<R> f = {custom<R>("prompt", "{}", "a text, token ids, a mix, or a list of prompts",
                             read_llama_prompts)};
    f[0].required = true;
    return with_rows(std::move(f));
  }();
  return fields;
}

const Fields<R>& infill_table() {
  static const Fields<R> fields = with_rows({
      field<R>(
          "input_prefix", "the text before the gap",
          [](R & r) -> auto& { return r.infill.prefix; }),
      field<R>(
          "input_suffix", "the text behind the gap",
          [](R & r) -> auto& { return r.infill.suffix; }),
      field<R>(
          "prompt", "how the gap's text begins", [](R & r) -> auto& { return r.infill.prompt; }),
      custom<R>("input_extra", R"({"type":"array","items":{"type":"object"}})",
                "texts of other files: [{text, filename}]", read_extra),
  });
  return fields;
}

Result<R> parse(const Fields<R>& fields, std::string_view body, bool& malformed) {
  ESP_ASSIGN_OR_RETURN(R request, parse_body(fields, body, malformed));
  if (request.n_predict < -1)
    return fail(invalid_argument("n_predict is {}: it must be -1 (up to the context) or at least 0",
                                 request.n_predict));
  std::erase(request.stop, "");
  uint64_t& seed = request.samplers.seed;
  if (seed == std::numeric_limits<uint64_t>::max()) seed = LlamaCppSamplers{}.seed;  // -1
  request.n_probs = std::max(request.n_probs, 0);
  ESP_RETURN_IF_ERROR(check_samples(request.prompts.size(), 1));
  return request;
}

}  // namespace

Status read_mixed_prompt(const Json& value, std::string_view where, MixedPrompt& out) {
  if (const json::object* object = value.if_object()) {
    const Json* text = object->if_contains("prompt_string");
    if (text == nullptr || !text->is_string())
      return invalid_argument("{}.prompt_string is missing: a text", where);
    if (const Json* data = object->if_contains("multimodal_data"); data != nullptr && is_set(*data))
      return error(StatusCode::kUnimplemented,
                   "{}.multimodal_data is not supported: send pictures to /v1/chat/completions",
                   where);
    return read_mixed_prompt(*text, where, out);
  }
  if (value.is_string()) {
    out.push_back({std::string(view(value.get_string())), {}, true});
    return {};
  }
  if (!value.is_array())
    return wrong_type(where, "a text, token ids, a list of both or a list of prompts", value);
  for (size_t i = 0; i < value.get_array().size(); ++i) {
    const Json& part = value.get_array()[i];
    if (part.is_string()) {
      out.push_back({std::string(view(part.get_string())), {}, true});
      continue;
    }
    TokenId id = 0;
    ESP_RETURN_IF_ERROR(read_value(part, fmt::format("{}[{}]", where, i), id));
    if (out.empty() || out.back().is_text) out.push_back({{}, {}, false});
    out.back().ids.push_back(id);
  }
  return {};
}

std::vector<TokenId> encode_mixed_prompt(const Tokenizer& tokenizer, const MixedPrompt& prompt,
                                         EncodeOptions options) {
  std::vector<TokenId> ids;
  for (const TextOrIds& part : prompt) {
    const std::vector<TokenId> more =
        part.is_text ? tokenizer.encode(part.text, options) : part.ids;
    ids.insert(ids.end(), more.begin(), more.end());
    options.add_special_tokens = false;
  }
  return ids;
}

bool LlamaCppSamplers::applies(std::string_view name) const {
  return names.empty() || std::ranges::find(names, name) != names.end();
}

// What turns a filter off in llama.cpp does so here; other values are checked as in every dialect.
void LlamaCppSamplers::set_history_rules(SamplingParams& p) const {
  if (applies("dry") && dry_multiplier != 0 && dry_penalty_last_n != 0 && dry_base >= 1) {
    p.dry_multiplier = dry_multiplier;
    p.dry_base = dry_base;
    p.dry_allowed_length = dry_allowed_length;
    p.dry_range = dry_penalty_last_n;
    p.dry_sequence_breakers = dry_sequence_breakers;
  }
  if (!applies("xtc")) return;
  p.xtc_probability = xtc_probability;
  p.xtc_threshold = xtc_threshold;
}

SamplingParams LlamaCppRequest::sampling() const {
  const LlamaCppSamplers& s = samplers;
  const auto applies = [&](std::string_view name) { return s.applies(name); };
  SamplingParams p;
  if (n_predict >= 0) p.max_new_tokens = n_predict;
  p.to_context = n_predict < 0;
  p.temperature = applies("temperature") ? std::max(s.temperature, 0.0f) : 1.0f;
  p.top_k = applies("top_k") && s.top_k > 0 ? s.top_k : -1;
  p.top_p = applies("top_p") ? std::min(s.top_p, 1.0f) : 1.0f;
  if (*p.top_p <= 0) {  // llama.cpp keeps the likeliest token then
    p.top_k = 1;
    p.top_p = 1.0f;
  }
  p.min_p = applies("min_p") ? std::clamp(s.min_p, 0.0f, 1.0f) : 0.0f;
  p.top_n_sigma = applies("top_n_sigma") ? std::max(s.top_n_sigma, 0.0f) : 0.0f;
  const bool penalises = applies("penalties") && s.repeat_last_n != 0;
  p.repetition_penalty = penalises ? s.repeat_penalty : 1.0f;
  p.presence_penalty = penalises ? s.presence_penalty : 0.0f;
  p.frequency_penalty = penalises ? s.frequency_penalty : 0.0f;
  s.set_history_rules(p);
  if (s.seed != LlamaCppSamplers{}.seed) p.sampling_seed = s.seed;
  p.stop = stop;
  p.ignore_eos = ignore_eos;
  if (!grammar.empty()) {
    p.ebnf = grammar;
  } else if (!json_schema.empty()) {
    p.json_schema = json_schema;
  }
  return p;
}

Result<LlamaCppRequest> parse_llama_cpp_completion(std::string_view body, bool& malformed) {
  return parse(completion_table(), body, malformed);
}
Result<LlamaCppRequest> parse_llama_cpp_infill(std::string_view body, bool& malformed) {
  return parse(infill_table(), body, malformed);
}
std::string llama_cpp_completion_schema() { return schema_of(completion_table()); }
std::string llama_cpp_infill_schema() { return schema_of(infill_table()); }

void write_generation_settings(JsonWriter& w, const LlamaCppRequest& request) {
  w.begin_object();
  for (const Row& row : rows())
    if (row.write) row.write(w, request);
  w.end_object();
}

}  // namespace espalier::server
