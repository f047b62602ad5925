#include "lang/backends/engine_answer.h"

#include <boost/json.hpp>

#include "lang/json_text.h"

namespace espalier::lang {
namespace {

namespace json = boost::json;

std::string_view finish_name(FinishReason::Type type) {
  switch (type) {
    case FinishReason::Type::kStop:
      return "stop";
    case FinishReason::Type::kLength:
      return "length";
    case FinishReason::Type::kAbort:
    case FinishReason::Type::kError:
      return "abort";
  }
  return "";
}

// [[logprob, id, text or null], ...] as the native API has it; a first entry without a
// log-probability where `ids` has one more.
class LogprobsJson {
 public:
  explicit LogprobsJson(const Tokenizer* tokenizer) : tokenizer_(tokenizer) {}  // null: no texts

  std::string entries(const std::vector<TokenLogprobs>& logprobs,
                      const std::vector<TokenId>& ids) const {
    json::array out;
    const size_t first = ids.size() - std::min(ids.size(), logprobs.size());
    for (size_t i = 0; i < first; ++i) out.push_back(json::array{nullptr, ids[i], text(ids[i])});
    for (size_t i = 0; first + i < ids.size(); ++i)
      out.push_back(entry(ids[first + i], logprobs[i].logprob));
    return json::serialize(out);
  }
  // The most probable tokens of each position, or those that were asked for.
  std::string lists(const std::vector<TokenLogprobs>& logprobs,
                    std::vector<std::pair<TokenId, float>> TokenLogprobs::*which) const {
    json::array out;
    for (const TokenLogprobs& position : logprobs) {
      json::array list;
      for (const auto& [id, logprob] : position.*which) list.push_back(entry(id, logprob));
      out.push_back(std::move(list));
    }
    return json::serialize(out);
  }

 private:
  json::value text(TokenId id) const {
    return tokenizer_ == nullptr
               ? json::value(nullptr)
               : json::value(tokenizer_->decode({id}, {.skip_special_tokens = false}));
  }
  json::array entry(TokenId id, float logprob) const { return {logprob, id, text(id)}; }

  const Tokenizer* tokenizer_;
};

}  // namespace

// The common case is written without a JSON library: it is on the engine's thread.
MetaInfo meta_of(const GenerateResult& r, const std::vector<TokenId>& input_ids,
                 const Tokenizer* tokenizer) {
  const LogprobsJson logprobs(tokenizer);
  MetaInfo meta{.id = r.rid, .finish_reason = std::string(finish_name(r.finish.type))};
  std::string finish = fmt::format(R"({{"type":"{}")", meta.finish_reason);
  if (const auto* text = std::get_if<std::string>(&r.finish.matched)) {
    meta.matched = *text;
    finish += R"(,"matched":)" + json_quoted(*text);
  } else if (const auto* id = std::get_if<TokenId>(&r.finish.matched)) {
    meta.matched = std::to_string(*id);
    finish += fmt::format(R"(,"matched":{})", *id);
  } else if (r.finish.type == FinishReason::Type::kLength) {
    finish += fmt::format(R"(,"length":{})", r.stats.completion_tokens);
  }
  meta.prompt_tokens = r.stats.prompt_tokens;
  meta.completion_tokens = r.stats.completion_tokens;
  meta.cached_tokens = r.stats.cached_tokens;
  meta.seconds = to_seconds(r.stats.finished - r.stats.arrived);
  meta.json =
      fmt::format(R"({{"id":{},"finish_reason":{}}},"prompt_tokens":{},"completion_tokens":{},)"
                  R"("cached_tokens":{},"e2e_latency":{:.6f})",
                  json_quoted(r.rid), finish, meta.prompt_tokens, meta.completion_tokens,
                  meta.cached_tokens, meta.seconds);
  const auto append = [&](std::string_view side, const std::vector<TokenLogprobs>& all,
                          const std::vector<TokenId>& ids) {
    meta.json += fmt::format(R"(,"{}_token_logprobs":)", side) + logprobs.entries(all, ids);
    if (all.empty()) return;
    if (!all[0].top.empty())
      meta.json +=
          fmt::format(R"(,"{}_top_logprobs":)", side) + logprobs.lists(all, &TokenLogprobs::top);
    if (!all[0].wanted.empty())
      meta.json += fmt::format(R"(,"{}_token_ids_logprobs":)", side) +
                   logprobs.lists(all, &TokenLogprobs::wanted);
  };
  if (!r.output_logprobs.empty()) append("output", r.output_logprobs, r.output_ids);
  if (r.next_logprobs) append("output", {*r.next_logprobs}, {});
  if (!input_ids.empty()) append("input", r.input_logprobs, input_ids);
  if (r.beam)
    meta.json += fmt::format(R"(,"beam_score":{},"cumulative_logprob":{})", r.beam->score,
                             r.beam->cumulative_logprob);
  meta.json += "}";
  return meta;
}

Progress progress_of(const GenerateResult& r, const RequestStats& stats, int64_t num_reported,
                     const Tokenizer* tokenizer) {
  Progress progress{.prompt_tokens = stats.prompt_tokens,
                    .completion_tokens = static_cast<int64_t>(r.output_ids.size()),
                    .cached_tokens = stats.cached_tokens};
  progress.num_logprobs = static_cast<int64_t>(r.output_logprobs.size());
  if (progress.num_logprobs == num_reported) return progress;
  const std::string list = LogprobsJson(tokenizer).entries(
      {r.output_logprobs.begin() + num_reported, r.output_logprobs.end()},
      {r.output_ids.begin() + num_reported, r.output_ids.end()});
  progress.logprobs = list.substr(1, list.size() - 2);
  return progress;
}

}  // namespace espalier::lang
