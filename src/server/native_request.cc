#include "server/native_request.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/value.hpp>
#include <iterator>

#include "server/bootstrap_fields.h"
#include "server/cache_namespace.h"
#include "server/json_view.h"
#include "server/request_ids.h"
#include "server/session_fields.h"

namespace espalier::server {
namespace {

struct NativeBody {
  PerItem<std::string> text;
  std::vector<std::vector<TokenId>> input_ids;
  bool has_input_ids = false, input_ids_is_list = false;
  PerItem<NativeSampling> sampling;
  PerItem<std::string> rid, extra_key, cache_salt, lora_path;
  PerItem<bool> return_logprob, return_hidden_states;
  std::vector<int32_t> hidden_states_layers;
  std::string hidden_states_format = "list";
  PerItem<std::optional<int32_t>> logprob_start_len, top_logprobs_num;
  PerItem<std::vector<TokenId>> token_ids_logprob;
  // Of a batch each prompt's, else together.
  std::vector<std::vector<PictureSource>> pictures, videos, sounds;
  std::optional<int32_t> priority, dimensions;
  std::optional<SessionParams> session;
  std::string session_id;
  std::optional<ControlRequest> control_vector;
  BootstrapFields bootstrap;
  bool return_text_in_logprobs = false;
  bool return_token_origins = false;
  bool stream = false;
};

Status read_value(const Json& value, std::string_view where, NativeSampling& out) {
  return read_fields(native_sampling_fields(), value, std::string(where) + ".", out);
}

Status read_sampling(const Json& value, std::string_view where, NativeBody& body) {
  ESP_ASSIGN_OR_RETURN(const Elements all, elements(value, where, false, body.sampling.is_list));
  for (const auto& [element, place] : all) {
    NativeSampling& one = body.sampling.values.emplace_back();
    if (!is_null(*element)) ESP_RETURN_IF_ERROR(read_value(*element, place, one));
  }
  return {};
}

Status read_ids(const Json& value, std::string_view where, NativeBody& body) {
  if (!is_set(value) && value.is_array()) return {};  // [] is absence
  body.has_input_ids = true;
  ESP_ASSIGN_OR_RETURN(const Elements all, elements(value, where, true, body.input_ids_is_list));
  for (const auto& [element, place] : all) {
    ESP_RETURN_IF_ERROR(server::read_value(*element, place, body.input_ids.emplace_back()));
  }
  return {};
}

Status read_adapters(const Json& value, std::string_view where, NativeBody& body) {
  if (!is_set(value) && value.is_array()) return {};  // [] is absence
  return server::read_value(value, where, body.lora_path);
}

Status read_video_data(const Json& value, const std::string& where,
                       std::vector<PictureSource>& out) {
  ESP_RETURN_IF_ERROR(check_video_data(value, where));
  out.push_back(video_data_source(value));
  return {};
}

// "...", or {"url": "..."}.
Status read_sound_data(const Json& value, const std::string& where,
                       std::vector<PictureSource>& out) {
  const Json* url = value.is_object() ? value.get_object().if_contains("url") : &value;
  if (url == nullptr || !url->is_string() || url->get_string().empty())
    return invalid_argument("{} must be a sound's URL or base64, but it is {}", where,
                            describe(value));
  out.push_back({.files = {std::string(view(url->get_string()))}, .is_sound = true});
  return {};
}

// "...", or {"url": "..."}; "video:BASE64" is the file of a video, as SGLang's language sends it.
Status read_picture_data(const Json& value, const std::string& where,
                         std::vector<PictureSource>& out) {
  const Json* url = &value;
  if (value.is_object()) url = value.get_object().if_contains("url");
  if (url == nullptr || !url->is_string() || url->get_string().empty())
    return invalid_argument("{} must be a picture's URL or base64, but it is {}", where,
                            describe(value));
  constexpr std::string_view kVideo = "video:";
  const std::string_view source = view(url->get_string());
  if (source.starts_with(kVideo))
    return read_video_data(Json(boost::json::string(source.substr(kVideo.size()))), where, out);
  out.emplace_back().files.emplace_back(source);
  return {};
}

// Of one prompt one or a list of them; of a batch a list with either for each prompt.
template <typename ReadOne>
Status read_media(const Json& value, std::string_view where, const ReadOne& read_one,
                  std::vector<std::vector<PictureSource>>& out) {
  if (!value.is_array()) return read_one(value, std::string(where), out.emplace_back());
  for (size_t i = 0; i < value.get_array().size(); ++i) {
    const Json& element = value.get_array()[i];
    const std::string place = fmt::format("{}[{}]", where, i);
    std::vector<PictureSource>& own = out.emplace_back();
    if (is_null(element)) continue;
    if (!element.is_array()) {
      ESP_RETURN_IF_ERROR(read_one(element, place, own));
      continue;
    }
    for (size_t k = 0; k < element.get_array().size(); ++k)
      ESP_RETURN_IF_ERROR(read_one(element.get_array()[k], fmt::format("{}[{}]", place, k), own));
  }
  return {};
}

Status read_pictures(const Json& value, std::string_view where, NativeBody& body) {
  return read_media(value, where, read_picture_data, body.pictures);
}

Status read_sounds(const Json& value, std::string_view where, NativeBody& body) {
  return read_media(value, where, read_sound_data, body.sounds);
}

Status read_videos(const Json& value, std::string_view where, NativeBody& body) {
  return read_media(value, where, read_video_data, body.videos);
}

// Layers may be negative, which token ids may not.
Status read_layers(const Json& value, std::string_view where, NativeBody& body) {
  if (!value.is_array())
    return invalid_argument("{} must be a list of integers, but it is {}", where, describe(value));
  for (size_t i = 0; i < value.get_array().size(); ++i) {
    int32_t& layer = body.hidden_states_layers.emplace_back();
    ESP_RETURN_IF_ERROR(
        server::read_value(value.get_array()[i], fmt::format("{}[{}]", where, i), layer));
  }
  return {};
}

void append_hidden_fields(Fields<NativeBody>& fields) {
  using B = NativeBody;
  for (const Field<B>& each :
       {field<B>("return_hidden_states",
                 "hidden states of all tokens but the last in meta_info, with "
                 "--enable-return-hidden-states",
                 &B::return_hidden_states),
        custom<B>("hidden_states_layers", R"({"type":"array","items":{"type":"integer"}})",
                  "which of them: 0 is the embeddings, i what layer i leaves, -1 (the default) "
                  "what the final norm leaves",
                  read_layers),
        field<B>("hidden_states_format",
                 "list (the default), or float32 or bfloat16: base64 of little-endian numbers",
                 &B::hidden_states_format)})
    fields.push_back(each);
}

void append_media_fields(Fields<NativeBody>& fields) {
  using B = NativeBody;
  const Fields<B> own = {
      custom<B>(
          "image_data", R"({"anyOf":[{"type":"string"},{"type":"object"},{"type":"array"}]})",
          "pictures in the order of the prompt's placeholders: URLs or base64; of a batch a list "
          "with one or a list of them for each prompt",
          read_pictures),
      custom<B>(
          "video_data", R"({"anyOf":[{"type":"string"},{"type":"object"},{"type":"array"}]})",
          "videos in the order of their placeholders: URLs or base64 of files, or objects with "
          "url and fps or num_frames; of a batch as image_data",
          read_videos),
      custom<B>("audio_data", R"({"anyOf":[{"type":"string"},{"type":"object"},{"type":"array"}]})",
                "sounds in the order of their placeholders: URLs or base64 of files; of a batch as "
                "image_data",
                read_sounds),
  };
  fields.insert(fields.end(), own.begin(), own.end());
}

const Fields<NativeBody>& native_fields() {
  using B = NativeBody;
  static const Fields<B> fields = [] {
    Fields<B> f = {
        field<B>("text", "the prompt, or a list of prompts", &B::text),
        custom<B>(
            "input_ids",
            R"({"anyOf":[{"type":"array","items":{"type":"integer"}},{"type":"array","items":{"type":"array","items":{"type":"integer"}}}]})",
            "the prompt as token ids, or a list of such, instead of text", read_ids),
        custom<B>(
            "sampling_params",
            R"({"anyOf":[{"$ref":"#/components/schemas/SamplingParams"},{"type":"array","items":{"$ref":"#/components/schemas/SamplingParams"}}]})",
            "for all prompts, or a list with one for each", read_sampling),
        field<B>("rid", "request id, for /abort_request; made up where absent", &B::rid),
        field<B>("stream", "answer as server-sent events", &B::stream),
        field<B>("priority", "larger is sooner, where the scheduler has priorities", &B::priority),
        field<B>("extra_key", "requests of different keys never share cached prefixes",
                 &B::extra_key),
        field<B>("cache_salt", "as extra_key; the two are joined", &B::cache_salt),
        field<B>("dimensions", "of /encode: the first so many numbers of the vector",
                 &B::dimensions),
        field<B>("return_token_origins",
                 "whether each output token was sampled, forced or drafted, in meta_info",
                 &B::return_token_origins),
        refused<B>("input_embeds"),
        session_field<B>(&B::session),
        session_id_field<B>(&B::session_id),
        custom<B>("lora_path",
                  R"({"anyOf":[{"type":"string"},{"type":"array","items":{"type":"string"}}]})",
                  "the name of a loaded LoRA adapter, or a list with one for each", read_adapters),
        control_vector_field<B>([](B & b) -> auto& { return b.control_vector; }),
        refused<B>("lora_id"),
        refused<B>("custom_logit_processor",
                   "holds code, and code from requests is never run: name a processor of the "
                   "server's by sampling_params.logit_processor"),
        refused<B>("return_routed_experts"),
        refused<B>("return_indexer_topk"),
        refused<B>("return_entropy"),
        refused<B>("return_prompt_token_ids"),
        refused<B>("return_sampling_mask"),
        refused<B>("return_bytes"),
        refused<B>("require_reasoning"),
        refused<B>("positional_embed_overrides"),
        refused<B>("multi_item_delimiter_indices"),
        refused<B>("background"),
        ignored<B>("modalities"),
        ignored<B>("custom_labels"),
        ignored<B>("no_logs"),
        ignored<B>("log_metrics"),
        ignored<B>("routing_key"),
        ignored<B>("routed_dp_rank"),
        ignored<B>("conversation_id"),
    };
    append_media_fields(f);
    append_hidden_fields(f);
    append_bootstrap_fields(f);
    for_each_logprob_field([&](const auto& row) {
      f.push_back(field<B>(std::string(row.name), std::string(row.doc), row.param));
    });
    return f;
  }();
  return fields;
}

template <typename X>
X value_or(const PerItem<X>& values, size_t i, X otherwise) {
  const X* value = values.at(i);
  return value != nullptr ? *value : otherwise;
}

NativeItem make_item(const NativeBody& body, size_t i, size_t n) {
  NativeItem item;
  GenerateRequest& r = item.request;
  if (body.has_input_ids) {
    r.input_ids = body.input_ids[i];
  } else {
    r.text = *body.text.at(i);
  }
  if (const NativeSampling* sampling = body.sampling.at(i)) {
    r.sampling = *sampling;
    item.stream_interval = sampling->stream_interval;
  }
  r.rid = rid_of(body.rid, i, n);
  r.return_logprob = value_or(body.return_logprob, i, false);
  const auto start = value_or<std::optional<int32_t>>(body.logprob_start_len, i, std::nullopt);
  item.has_logprob_start = start.has_value();
  r.logprob_start_len = start.value_or(-1);
  if (r.return_logprob) {
    r.top_logprobs_num =
        value_or<std::optional<int32_t>>(body.top_logprobs_num, i, std::nullopt).value_or(0);
    r.token_ids_logprob = value_or<std::vector<TokenId>>(body.token_ids_logprob, i, {});
  }
  r.return_token_origins = body.return_token_origins;
  r.return_hidden_states = value_or(body.return_hidden_states, i, false);
  if (r.return_hidden_states) r.hidden_states_layers = body.hidden_states_layers;
  r.priority = body.priority.value_or(0);
  r.dimensions = body.dimensions.value_or(0);
  r.extra_key = cache_namespace(value_or<std::string>(body.extra_key, i, {}),
                                value_or<std::string>(body.cache_salt, i, {}));
  r.lora = value_or<std::string>(body.lora_path, i, {});
  r.control_vector = body.control_vector;
  r.session = session_of(body.session, body.session_id);
  r.bootstrap = body.bootstrap.at(i);
  return item;
}

Status check_logprob_sizes(const NativeBody& body, size_t n) {
  const bool batch = body.has_input_ids ? body.input_ids_is_list : body.text.is_list;
  Status status;
  if (!batch && body.token_ids_logprob.is_list)
    return invalid_argument("token_ids_logprob of one prompt must be a flat list of integers");
  for_each_logprob_field([&](const auto& row) {
    if constexpr (requires { row.param(body).check_size(row.name, n); })
      if (status.ok()) status = row.param(body).check_size(row.name, n);
  });
  return status;
}

bool is_batch(const NativeBody& body) {
  return body.has_input_ids ? body.input_ids_is_list : body.text.is_list;
}

// A flat list is one prompt's.
Status check_media(const NativeBody& body, size_t n) {
  const auto check_count = [&](const char* field, size_t count) -> Status {
    if (count == 0 || !is_batch(body) || count == n) return {};
    return invalid_argument(
        "{} has entries for {} prompts, but there are {}: give a list with an entry for each "
        "prompt",
        field, count, n);
  };
  ESP_RETURN_IF_ERROR(check_count("image_data", body.pictures.size()));
  ESP_RETURN_IF_ERROR(check_count("video_data", body.videos.size()));
  return check_count("audio_data", body.sounds.size());
}

// Prompt i's, pictures first: the engine brings them into the order of their placeholders.
std::vector<PictureSource> media_of(NativeBody& body, size_t i) {
  std::vector<PictureSource> all;
  for (auto* const list : {&body.pictures, &body.videos, &body.sounds})
    for (size_t k = 0; k < list->size(); ++k)
      if (!is_batch(body) || k == i) std::ranges::move((*list)[k], std::back_inserter(all));
  return all;
}

Status check(const NativeBody& body, size_t n) {
  if (n == 0) return invalid_argument("the batch is empty");
  ESP_RETURN_IF_ERROR(check_media(body, n));
  ESP_RETURN_IF_ERROR(body.return_hidden_states.check_size("return_hidden_states", n));
  if (!body.hidden_states_layers.empty() && body.return_hidden_states.values.empty())
    return invalid_argument(
        "hidden_states_layers is there without return_hidden_states: set that to true");
  ESP_RETURN_IF_ERROR(check_samples(n, 1));
  ESP_RETURN_IF_ERROR(body.sampling.check_size("sampling_params", n));
  ESP_RETURN_IF_ERROR(check_rids(body.rid, n));
  ESP_RETURN_IF_ERROR(body.extra_key.check_size("extra_key", n));
  ESP_RETURN_IF_ERROR(body.cache_salt.check_size("cache_salt", n));
  ESP_RETURN_IF_ERROR(body.lora_path.check_size("lora_path", n));
  ESP_RETURN_IF_ERROR(body.bootstrap.check_size(n));
  ESP_RETURN_IF_ERROR(check_logprob_sizes(body, n));
  if (!body.sampling.values.empty())
    ESP_RETURN_IF_ERROR(check_samples(n, body.sampling.values[0].n));
  for (const NativeSampling& sampling : body.sampling.values) {
    if (sampling.n != body.sampling.values[0].n) {
      return invalid_argument("sampling_params.n must be the same for all prompts of a batch");
    }
    if (sampling.stream_interval.value_or(1) < 1) {
      return invalid_argument("sampling_params.stream_interval must be at least 1");
    }
  }
  return {};
}

Status read_custom_params(const Json& value, std::string_view where, NativeSampling& out) {
  return for_each_member(value, where, [&](std::string_view name, const Json& member) -> Status {
    if (is_null(member)) return {};
    const std::string place = fmt::format("{}.{}", where, name);
    if (name == "thinking_budget") return server::read_value(member, place, out.thinking_budget);
    return error(StatusCode::kUnimplemented,
                 "{} is not supported: custom_params may hold thinking_budget alone", place);
  });
}

}  // namespace

const Fields<NativeSampling>& native_sampling_fields() {
  using S = NativeSampling;
  static const Fields<S> fields = [] {
    Fields<S> f = {
        field<S>("stream_interval", "tokens between two events of a stream", &S::stream_interval),
        custom<S>("custom_params", R"({"type":"object"})",
                  "an object with thinking_budget, which stands for the field of that name",
                  read_custom_params),
    };
    append_sampling_fields(f, kInGenerate, [](S& s) -> S& { return s; });
    for (Field<S>& one : f)
      if (one.name == "max_new_tokens") one.read_null = [](S& s) { s.to_context = true; };
    return f;
  }();
  return fields;
}

Result<NativeRequest> parse_native(std::string_view text, bool& malformed) {
  NativeBody body;
  ESP_RETURN_IF_ERROR(read_body(text, malformed, [&](const Json& value) {
    return read_fields(native_fields(), value, "", body);
  }));
  malformed = false;
  const bool has_text = !body.text.values.empty();
  if (has_text == body.has_input_ids) {
    return fail(invalid_argument("{}", has_text ? "give either text or input_ids, not both"
                                                : "text or input_ids is missing"));
  }
  const size_t n = has_text ? body.text.values.size() : body.input_ids.size();
  ESP_RETURN_IF_ERROR(check(body, n));
  ESP_ASSIGN_OR_RETURN(const HiddenFormat format, parse_hidden_format(body.hidden_states_format));
  NativeRequest request;
  for (size_t i = 0; i < n; ++i) {
    request.items.push_back(make_item(body, i, n));
    request.items.back().pictures = media_of(body, i);
    request.items.back().hidden_format = format;
    if (body.has_input_ids && request.items.back().request.input_ids.empty()) {
      return fail(invalid_argument("input_ids holds no token"));
    }
  }
  request.stream = body.stream;
  request.return_text_in_logprobs = body.return_text_in_logprobs;
  request.is_list = (has_text ? body.text.is_list : body.input_ids_is_list) ||
                    request.items[0].request.sampling.n > 1;
  return request;
}

std::string native_schema() { return schema_of(native_fields()); }
std::string native_sampling_schema() { return schema_of(native_sampling_fields()); }

}  // namespace espalier::server
