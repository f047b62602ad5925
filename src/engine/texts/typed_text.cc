#include "engine/texts/typed_text.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/requests/embedding.h"

namespace espalier {
namespace {

using TextRole = GenerateRequest::TextRole;

// The token behind [CLS] that says whether a text is a query or a document; nothing where the model
// has none.
Result<std::optional<TokenId>> mark_of(const DecoderSpec& spec, TextRole role,
                                       const Tokenizer* tokenizer) {
  const std::string& mark =
      role == TextRole::kQuery ? spec.texts->query_mark : spec.texts->document_mark;
  if (role == TextRole::kNone || mark.empty()) return std::optional<TokenId>();
  if (tokenizer != nullptr) {
    if (const auto id = tokenizer->token_to_id(mark)) return id;
  }
  return fail(error(StatusCode::kFailedPrecondition,
                    "artifact.metadata names the token '{}', and the vocabulary has none", mark));
}

Status check_ids(const std::vector<TokenId>& ids, int32_t vocab_size) {
  for (const TokenId id : ids) {
    if (id >= 0 && id < vocab_size) continue;
    return invalid_argument("Token ID {} is out of vocabulary, whose tokens are in [0, {})", id,
                            vocab_size);
  }
  return {};
}

}  // namespace

Status check_text_request(const GenerateRequest& request, const ModelInfo& info,
                          bool has_tokenizer) {
  ESP_RETURN_IF_ERROR(check_use(request, info));
  const auto refused = [&](const char* what) {
    return error(StatusCode::kUnimplemented, "{} is not for {}, an encoder of texts: leave it out",
                 what, info.architecture);
  };
  if (!request.images.empty()) return refused("image_data");
  if (!request.lora.empty()) return refused("lora_path");
  if (request.session) return refused("session_params");
  if (request.bootstrap) return refused("bootstrap_host");
  if (request.control_vector) return refused("control_vector");
  if (request.return_hidden_states) return refused("return_hidden_states");
  if (request.input_ids.empty() && !has_tokenizer)
    return error(StatusCode::kFailedPrecondition,
                 "the engine runs without a tokenizer (--skip-tokenizer-init): send token ids");
  if (request.truncate_to < -1 || request.truncate_to > info.context_length)
    return invalid_argument(
        "truncate_prompt_tokens is {}, but must be -1 (the model's most) or from 1 to {}",
        request.truncate_to, info.context_length);
  return {};
}

Result<TypedIds> typed_text(const GenerateRequest& request, const DecoderSpec& spec,
                            const Tokenizer* tokenizer) {
  ESP_ASSIGN_OR_RETURN(const std::optional<TokenId> mark,
                       mark_of(spec, request.text_role, tokenizer));
  const size_t marks = mark ? 1 : 0;
  const auto longest = static_cast<size_t>(spec.context_length);
  const size_t cut = request.truncate_to < 0 ? longest : static_cast<size_t>(request.truncate_to);
  TypedIds out;
  if (!request.input_ids.empty()) {
    out.ids = request.input_ids;
    if (cut > 0 && out.ids.size() + marks > cut) out.ids.resize(cut > marks ? cut - marks : 1);
    out.types.resize(out.ids.size());
  } else {
    const std::string* const pair = request.text_pair ? &*request.text_pair : nullptr;
    out =
        tokenizer->encode_typed(request.text, pair, cut > 0 ? std::max(cut - marks, size_t{1}) : 0);
  }
  ESP_RETURN_IF_ERROR(check_ids(out.ids, spec.vocab_size));
  if (out.ids.empty()) return fail(invalid_argument("the text has no token: leave it out"));
  if (mark) {
    out.ids.insert(out.ids.begin() + 1, *mark);
    out.types.insert(out.types.begin(), out.types.front());
  }
  if (out.ids.size() > longest)
    return fail(invalid_argument(
        "the text has {} tokens, and {} takes at most {}: shorten it, or let it be truncated "
        "(truncate_prompt_tokens)",
        out.ids.size(), spec.architecture, longest));
  const int32_t types = std::max(1, spec.texts->token_types);
  for (int32_t& type : out.types) type = std::min(type, types - 1);
  return out;
}

}  // namespace espalier
