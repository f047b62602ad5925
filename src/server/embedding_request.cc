#include "server/embedding_request.h"

#include <boost/json/value.hpp>

#include "server/request_ids.h"

namespace espalier::server {
namespace {

template <typename T>
Field<T> required(Field<T> field) {
  field.required = true;
  return field;
}

Status read_input(const Json& value, std::string_view where, EmbeddingRequest& out) {
  return read_prompts(value, where, out.input);
}

constexpr const char* kTruncateText =
    "a longer text is cut to so many tokens, -1: to the model's most; default: it is refused "
    "(encoders of texts)";

// A vector of nothing would be the vector of the tokens that the tokenizer adds.
Status check_texts(const EmbeddingRequest& request) {
  for (size_t i = 0; i < request.input.size(); ++i) {
    const TextOrIds& input = request.input[i];
    if (input.is_text && input.text.find_first_not_of(" \t\r\n") == std::string::npos)
      return invalid_argument("input[{}] is empty or white space alone: leave it out", i);
  }
  return {};
}

Fields<EmbeddingRequest> common_fields() {
  using E = EmbeddingRequest;
  return {
      required(custom<E>("input", prompts_schema(), "texts, or their token ids", read_input)),
      field<E>("model", "echoed; one model is served", &E::model),
      field<E>("rid", "request id, for /abort_request", &E::rid),
      field<E>("priority", "larger is sooner, where the scheduler has priorities", &E::priority),
      field<E>("truncate_prompt_tokens", kTruncateText, &E::truncate_to),
      ignored<E>("user"),
      refused<E>("lora_path"),
  };
}

Status read_format(const Json& value, std::string_view where, EmbeddingRequest& out) {
  std::string name;
  ESP_RETURN_IF_ERROR(read_value(value, where, name));
  if (name != "float" && name != "base64") {
    return invalid_argument("{} is '{}'; it must be float or base64", where, name);
  }
  out.base64 = name == "base64";
  return {};
}

const Fields<EmbeddingRequest>& embedding_fields() {
  using E = EmbeddingRequest;
  static const Fields<E> fields = [] {
    Fields<E> f = common_fields();
    f.push_back(custom<E>("encoding_format", R"({"type":"string","enum":["float","base64"]})",
                          "float (default), or base64: little-endian float32", read_format));
    f.push_back(field<E>("dimensions", "the first so many numbers of each vector", &E::dimensions));
    return f;
  }();
  return fields;
}

const Fields<EmbeddingRequest>& classify_fields() {
  static const Fields<EmbeddingRequest> fields = common_fields();
  return fields;
}

Status read_query(const Json& value, std::string_view where, ScoreBody& out) {
  std::vector<TextOrIds> query;
  ESP_RETURN_IF_ERROR(read_prompts(value, where, query));
  if (query.size() != 1) return invalid_argument("{} must be one text or one list of ids", where);
  out.score.query = std::move(query[0].text);
  out.score.query_ids = std::move(query[0].ids);
  return {};
}

Status read_items(const Json& value, std::string_view where, ScoreBody& out) {
  if (value.is_array() && value.get_array().empty()) return {};  // no scores of no items
  std::vector<TextOrIds> items;
  ESP_RETURN_IF_ERROR(read_prompts(value, where, items));
  for (TextOrIds& item : items) {
    if (item.is_text) {
      out.score.items.push_back(std::move(item.text));
    } else {
      out.score.item_ids.push_back(std::move(item.ids));
    }
  }
  return {};
}

// One list for all items, or a list for each.
Status read_labels(const Json& value, std::string_view where, ScoreBody& out) {
  const bool nested =
      value.is_array() && !value.get_array().empty() && value.get_array()[0].is_array();
  if (!nested) return read_value(value, where, out.score.label_token_ids);
  for (size_t i = 0; i < value.get_array().size(); ++i) {
    ESP_RETURN_IF_ERROR(read_value(value.get_array()[i], fmt::format("{}[{}]", where, i),
                                   out.score.item_label_ids.emplace_back()));
  }
  return {};
}

std::string labels_schema() {
  const std::string ids = SchemaOf<std::vector<TokenId>>::get();
  return R"({"anyOf":[)" + ids + R"(,{"type":"array","items":)" + ids + "}]}";
}

const Fields<ScoreBody>& score_fields() {
  using S = ScoreBody;
  static const Fields<S> fields = {
      required(custom<S>("query", prompts_schema(), "text or token ids", read_query)),
      required(
          custom<S>("items", prompts_schema(), "texts or token ids, as the query is", read_items)),
      custom<S>("label_token_ids", labels_schema(),
                "tokens whose probabilities are the scores (generating models), or a list of them "
                "for each item",
                read_labels),
      field<S>(
          "apply_softmax", "over the labels; default: probabilities among all tokens",
          [](S & s) -> auto& { return s.score.apply_softmax; }),
      field<S>(
          "temperature", "divides the log-probabilities of apply_softmax; above 0, default 1",
          [](S & s) -> auto& { return s.score.temperature; }),
      field<S>("return_token_logprobs", "the labels' log-probabilities beside the scores",
               &S::return_token_logprobs),
      field<S>(
          "item_first", "the item stands before the query",
          [](S & s) -> auto& { return s.score.item_first; }),
      field<S>(
          "truncate_prompt_tokens", kTruncateText,
          [](S & s) -> auto& { return s.score.truncate_to; }),
      field<S>("model", "echoed; one model is served", &S::model),
      ignored<S>("user"),
  };
  return fields;
}

// A text, or a list of texts and {"text": ...}.
Status read_documents(const Json& value, std::string_view where, RerankRequest& out) {
  bool is_list = false;
  out.documents.clear();
  ESP_ASSIGN_OR_RETURN(const Elements all, elements(value, where, false, is_list));
  for (const auto& [document, place] : all) {
    const boost::json::object* members = document->if_object();
    const Json* text = members != nullptr ? members->if_contains("text") : document;
    if (text == nullptr) return invalid_argument("{}.text is missing", place);
    ESP_RETURN_IF_ERROR(read_value(*text, place, out.documents.emplace_back()));
  }
  return {};
}

constexpr const char* kDocumentsSchema =
    R"({"type":"array","items":{"anyOf":[{"type":"string"},)"
    R"({"type":"object","properties":{"text":{"type":"string"}}}]}})";

const Fields<RerankRequest>& rerank_fields() {
  using R = RerankRequest;
  static const Fields<R> fields = {
      required(field<R>("query", "what is asked", &R::query)),
      required(custom<R>("documents", kDocumentsSchema, "what may answer it: texts, or {text}",
                         read_documents)),
      field<R>("top_n", "the best so many; default: all", &R::top_n),
      field<R>("return_documents", "their texts in the answer; default true", &R::return_documents),
      field<R>("model", "echoed, where the answer names it", &R::model),
      field<R>("truncate_prompt_tokens", kTruncateText, &R::truncate_to),
      refused<R>("return_embeddings"),
      ignored<R>("user"),
      field<R>("instruct", "what makes a document fit (generating models)", &R::instruct),
  };
  return fields;
}

}  // namespace

Result<EmbeddingRequest> parse_embedding(std::string_view body, bool& malformed) {
  ESP_ASSIGN_OR_RETURN(auto request, parse_body(embedding_fields(), body, malformed));
  ESP_RETURN_IF_ERROR(check_texts(request));
  ESP_RETURN_IF_ERROR(check_samples(request.input.size(), 1));
  ESP_RETURN_IF_ERROR(check_rids(request.rid, request.input.size()));
  return request;
}

Result<EmbeddingRequest> parse_classify(std::string_view body, bool& malformed) {
  ESP_ASSIGN_OR_RETURN(auto request, parse_body(classify_fields(), body, malformed));
  ESP_RETURN_IF_ERROR(check_samples(request.input.size(), 1));
  ESP_RETURN_IF_ERROR(check_rids(request.rid, request.input.size()));
  return request;
}

Result<ScoreBody> parse_score(std::string_view body, bool& malformed) {
  ESP_ASSIGN_OR_RETURN(auto request, parse_body(score_fields(), body, malformed));
  const ScoreRequest& score = request.score;
  const bool any = !score.items.empty() || !score.item_ids.empty();
  if (any && score.query_ids.empty() != score.item_ids.empty()) {
    return fail(invalid_argument("query and items must both be texts or both be token ids"));
  }
  ESP_RETURN_IF_ERROR(check_samples(score.items.size() + score.item_ids.size(), 1));
  return request;
}

Result<RerankRequest> parse_rerank(std::string_view body, bool& malformed) {
  ESP_ASSIGN_OR_RETURN(auto request, parse_body(rerank_fields(), body, malformed));
  if (request.documents.empty()) return fail(invalid_argument("documents is empty"));
  if (request.top_n.value_or(1) < 1) {
    return fail(invalid_argument("top_n is {}: it must be at least 1", *request.top_n));
  }
  ESP_RETURN_IF_ERROR(check_samples(request.documents.size() + 1, 1));
  return request;
}

std::string embedding_schema() { return schema_of(embedding_fields()); }
std::string classify_schema() { return schema_of(classify_fields()); }
std::string score_schema() { return schema_of(score_fields()); }
std::string rerank_schema() { return schema_of(rerank_fields()); }

}  // namespace espalier::server
