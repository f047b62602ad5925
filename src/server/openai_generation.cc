#include "server/openai_generation.h"

#include "server/adapter_choice.h"
#include "server/images.h"

#include <boost/json/array.hpp>
#include <boost/json/value.hpp>
#include <set>

#include "server/dialects/response_store.h"
#include "text/tokenizer/fill_in_the_middle.h"

namespace espalier::server {
namespace {

constexpr float kLogprobMin = -9999.0f;  // what OpenAI sends where a probability is 0

float finite(float logprob) { return logprob > kLogprobMin ? logprob : kLogprobMin; }

// What the two dialects share: ids, usage, the shape of a chunk.
class OpenAiGeneration : public Generation {
 public:
  OpenAiGeneration(ContextPtr context, net::ResponsePtr response, std::vector<GenerationItem> items,
                   const OpenAiCommon& common)
      : Generation(std::move(context), std::move(response), std::move(items), common.stream),
        created_(std::chrono::duration_cast<std::chrono::seconds>(
                     std::chrono::system_clock::now().time_since_epoch())
                     .count()),
        include_usage_(common.include_usage),
        continuous_usage_(common.continuous_usage_stats),
        samples_per_prompt_(static_cast<int32_t>(samples().size() / num_items())) {
    model_ = common.model.empty() ? this->context().model_name : common.model;
    id_ = samples()[0].item->request.rid;
  }

 protected:
  Dialect dialect() const override { return Dialect::kOpenAi; }

  // Of what the sample has generated, where its dialect distinguishes kinds of tokens.
  virtual int64_t reasoning_tokens(const Sample&) const { return 0; }

  void begin_answer(JsonWriter& w, std::string_view object) const {
    w.begin_object().member("id", id_).member("object", object);
    w.member("created", created_).member("model", model_);
  }

  // A choice's end; null where it has none yet.
  static void write_finish(JsonWriter& w, const std::optional<FinishReason>& finish) {
    w.key("finish_reason");
    if (!finish) {
      w.null().key("matched_stop").null();
      return;
    }
    w.value(finish_name(*finish)).key("matched_stop");
    write_matched(w, *finish);
  }

  // Of the sample that ran with the newest weights.
  int32_t last_weight_epoch() const {
    int32_t last = 0;
    for (const Sample& sample : samples()) last = std::max(last, sample.stats.weight_epoch);
    return last;
  }

  // Each prompt counts once, however many choices it has.
  void write_usage(JsonWriter& w, const Sample* only = nullptr) const {
    int64_t prompt = 0, completion = 0, cached = 0, reasoning = 0;
    for (const Sample& sample : samples()) {
      if (only != nullptr && &sample != only) continue;
      completion += sample.stats.completion_tokens;
      reasoning += reasoning_tokens(sample);
      if (only == nullptr && sample.index % samples_per_prompt_ != 0) continue;
      prompt += sample.stats.prompt_tokens;
      cached += sample.stats.cached_tokens;
    }
    w.begin_object().member("prompt_tokens", prompt).member("completion_tokens", completion);
    w.member("total_tokens", prompt + completion).key("prompt_tokens_details");
    if (context().config.answers.enable_cache_report) {
      w.begin_object().member("cached_tokens", cached).end_object();
    } else {
      w.null();
    }
    w.member("reasoning_tokens", reasoning).end_object();
  }

  void end_chunk(JsonWriter& w, const Sample& sample) const {
    w.key("usage");
    continuous_usage_ ? write_usage(w, &sample) : static_cast<void>(w.null());
    w.end_object();
  }

  // Of an answer that beam search has found, once it has ended.
  static void write_beam_score(JsonWriter& w, const Sample& sample) {
    if (!sample.beam) return;
    w.member("beam_score", sample.beam->score)
        .member("cumulative_logprob", sample.beam->cumulative_logprob);
  }

  const std::string& id() const { return id_; }
  const std::string& model() const { return model_; }

  void append_usage_chunk(std::string& out, std::string_view object) const {
    if (!include_usage_) return;
    std::string payload;
    JsonWriter w(payload);
    begin_answer(w, object);
    w.key("choices").begin_array().end_array().key("usage");
    write_usage(w);
    w.end_object();
    net::append_sse(out, payload);
  }

  void end_answer(JsonWriter& w) const {
    w.key("usage");
    write_usage(w);
    w.key("metadata").begin_object();
    w.member("weight_version", context().weight_version(last_weight_epoch())).end_object();
    w.end_object();
  }

 private:
  const int64_t created_;  // Unix seconds
  const bool include_usage_, continuous_usage_;
  const int32_t samples_per_prompt_;
  std::string model_, id_;
};

// /v1/completions.

class CompletionGeneration final : public OpenAiGeneration {
 public:
  CompletionGeneration(ContextPtr context, net::ResponsePtr response,
                       std::vector<GenerationItem> items, const CompletionRequest& request,
                       std::vector<std::string> echoes)
      : OpenAiGeneration(std::move(context), std::move(response), std::move(items), request),
        echoes_(std::move(echoes)),
        with_logprobs_(request.logprobs.has_value()) {}

 protected:
  void append_events(std::string& out, const Sample& sample) override {
    std::string payload;
    JsonWriter w(payload);
    begin_answer(w, "text_completion");
    w.key("choices").begin_array();
    write_choice(w, sample, sample.text_sent, sample.ids_sent, !sample.sent_any);
    w.end_array();
    end_chunk(w, sample);
    net::append_sse(out, payload);
  }
  void append_last_events(std::string& out) override { append_usage_chunk(out, "text_completion"); }

  std::string whole_body() override {
    std::string out;
    JsonWriter w(out);
    begin_answer(w, "text_completion");
    w.key("choices").begin_array();
    for (const Sample& sample : samples()) write_choice(w, sample, 0, 0, true);
    w.end_array();
    end_answer(w);
    return out;
  }

 private:
  // `first`: with what stands before the completion (the echo and its log-probabilities).
  void write_choice(JsonWriter& w, const Sample& sample, size_t text_begin, size_t ids_begin,
                    bool first) const {
    std::string text;
    if (first && !echoes_.empty()) text = echoes_[static_cast<size_t>(sample.item_index)];
    text += std::string_view(sample.text).substr(text_begin);
    w.begin_object().member("index", sample.index).member("text", text).key("logprobs");
    if (with_logprobs_) {
      std::vector<LogprobEntry> entries;
      if (first) entries = input_entries(sample);
      for (const LogprobEntry& e : output_entries(sample, ids_begin)) entries.push_back(e);
      write_logprobs(w, entries, sample.item->request.top_logprobs_num > 0);
    } else {
      w.null();
    }
    write_finish(w, sample.finish);
    write_beam_score(w, sample);
    w.end_object();
  }

  void write_logprobs(JsonWriter& w, const std::vector<LogprobEntry>& entries,
                      bool with_top) const {
    w.begin_object().key("text_offset").begin_array();
    for (size_t i = 0; i < entries.size(); ++i) w.value(-1);
    w.end_array().key("token_logprobs").begin_array();
    for (const LogprobEntry& e : entries) {
      e.lp != nullptr ? w.value(finite(e.lp->logprob)) : w.null();
    }
    w.end_array().key("tokens").begin_array();
    for (const LogprobEntry& e : entries) w.value(context().token_text(e.id));
    w.end_array().key("top_logprobs").begin_array();
    for (const LogprobEntry& e : entries) {
      if (with_top) write_top(w, e);
    }
    w.end_array().end_object();
  }

  // {text: logprob}; of tokens with the same text the best one stands.
  void write_top(JsonWriter& w, const LogprobEntry& entry) const {
    if (entry.lp == nullptr) {
      w.null();
      return;
    }
    std::set<std::string> seen;
    w.begin_object();
    for (const auto& [id, logprob] : entry.lp->top) {
      const std::string text = context().token_text(id);
      if (seen.insert(text).second) w.member(text, finite(logprob));
    }
    w.end_object();
  }

  const std::vector<std::string> echoes_;  // one for each prompt, or empty
  const bool with_logprobs_;
};

// /v1/chat/completions.

// Clients recognise a length that does not fit by OpenAI's wording, which has the newer name even
// where the request used the older one.
Status in_chat_names(const Status& status, bool has_max_completion_tokens) {
  std::string text = status.message();
  if (has_max_completion_tokens) {
    text = renamed(std::move(text), "max_new_tokens", "max_completion_tokens");
  } else {
    text = renamed(std::move(text), "max_new_tokens is too large",
                   "max_tokens / max_completion_tokens is too large");
  }
  return {status.code(), std::move(text)};
}

// The log-probabilities of a sample's tokens from ids[ids_begin] on, as a chat's choice has them.
void write_chat_logprobs(JsonWriter& w, const Context& context, const Sample& sample,
                         size_t ids_begin) {
  w.begin_object().key("content").begin_array();
  size_t at = ids_begin;
  for (const LogprobEntry& entry : output_entries(sample, ids_begin)) {
    const bool known = at < sample.origins.size();
    write_logprob_entry(w, context, entry,
                        known ? std::optional(sample.origins[at]) : std::nullopt);
    ++at;
  }
  w.end_array().end_object();
}

int64_t count_tokens(const Context& context, const std::string& text) {
  const Tokenizer* const tokenizer = context.engine.tokenizer();
  if (text.empty() || tokenizer == nullptr) return 0;
  EncodeOptions options;
  options.add_special_tokens = false;
  return static_cast<int64_t>(tokenizer->encode(text, options).size());
}

class ChatGeneration final : public OpenAiGeneration {
 public:
  ChatGeneration(ContextPtr context, net::ResponsePtr response, std::vector<GenerationItem> items,
                 const ChatRequest& request, const AnswerFormat& format)
      : OpenAiGeneration(std::move(context), std::move(response), std::move(items), request),
        with_logprobs_(request.logprobs),
        has_max_completion_tokens_(request.max_completion_tokens.has_value()),
        reads_calls_(!format.tool_format.empty()),
        tools_make_grammar_(format.tools_make_grammar),
        stores_(request.store_completion) {
    if (stores_ && request.messages != nullptr) messages_ = request.messages->get_array();
    if (stores_ && request.metadata != nullptr) metadata_ = request.metadata->get_object();
    for (size_t i = 0; i < samples().size(); ++i) {
      answers_.emplace_back(format);
      call_ids_.emplace_back();
    }
  }

 protected:
  Status in_client_names(const Status& status) const override {
    return in_chat_names(in_names_of_tools(status, tools_make_grammar_),
                         has_max_completion_tokens_);
  }

  // The role, reasoning, text, each piece of a call and the end are chunks of their own.
  void append_events(std::string& out, const Sample& sample) override {
    if (!sample.sent_any) {
      append_chunk(out, sample,
                   [](JsonWriter& w) { w.member("role", "assistant").member("content", ""); });
    }
    const ChatAnswer::Delta delta = answer_of(sample).read(sample.text, sample.finish.has_value());
    if (!delta.reasoning.empty())
      append_chunk(out, sample, [](JsonWriter&) {}, {.reasoning = delta.reasoning});
    const bool has_logprobs = with_logprobs_ && sample.ids_sent < sample.ids.size();
    if (!delta.text.empty() || has_logprobs) {
      append_chunk(out, sample, [&](JsonWriter& w) { w.member("content", delta.text); },
                   {.logprobs = true});
    }
    for (const ToolCallParts::Piece& piece : delta.pieces) append_call(out, sample, piece);
    if (sample.finish) append_chunk(out, sample, [](JsonWriter&) {}, {.ends = true});
  }
  void append_last_events(std::string& out) override {
    append_usage_chunk(out, "chat.completion.chunk");
    if (stores_) store(completion_json());
  }
  std::string whole_body() override {
    std::string out = completion_json();
    if (stores_) store(out);
    return out;
  }

  int64_t reasoning_tokens(const Sample& sample) const override {
    return count_tokens(context(), answers_[static_cast<size_t>(sample.index)].reasoning());
  }

 private:
  std::string completion_json() {
    std::string out;
    JsonWriter w(out);
    begin_answer(w, "chat.completion");
    w.key("choices").begin_array();
    for (const Sample& sample : samples()) {
      ChatAnswer& answer = answer_of(sample);
      answer.read(sample.text, true);
      w.begin_object().member("index", sample.index).key("message").begin_object();
      w.member("role", "assistant").key("content");
      if (answer.text().empty() && !answer.calls().empty()) {
        w.null();
      } else {
        w.value(answer.text());
      }
      w.key("reasoning_content");
      answer.reasoning().empty() ? static_cast<void>(w.null())
                                 : static_cast<void>(w.value(answer.reasoning()));
      w.key("tool_calls");
      write_calls(w, sample);
      w.end_object();
      write_logprobs(w, sample, 0);
      write_end(w, sample);
      w.end_object();
    }
    w.end_array();
    end_answer(w);
    return out;
  }

  // Called once, with the last sample's end.
  void store(std::string completion) {
    StoredResponse stored;
    stored.body = std::move(completion);
    stored.messages = std::move(messages_);
    stored.model = model();
    stored.metadata = std::move(metadata_);
    context().responses->put({StoredKey::Kind::kChat, samples()[0].item->request.tenant, id()},
                             std::move(stored), std::chrono::steady_clock::now());
  }

  ChatAnswer& answer_of(const Sample& sample) {
    return answers_[static_cast<size_t>(sample.index)];
  }
  // The id of call `index` of a sample, the same in every chunk and in the whole answer.
  const std::string& call_id(const Sample& sample, size_t index) {
    std::vector<std::string>& ids = call_ids_[static_cast<size_t>(sample.index)];
    while (ids.size() <= index) ids.push_back("call_" + context().make_rid().substr(0, 24));
    return ids[index];
  }

  void write_calls(JsonWriter& w, const Sample& sample) {
    const std::vector<ChatAnswer::Call>& calls = answer_of(sample).calls();
    if (calls.empty()) {
      w.null();
      return;
    }
    w.begin_array();
    for (size_t i = 0; i < calls.size(); ++i) {
      w.begin_object().member("id", call_id(sample, i)).member("index", i);
      w.member("type", "function").key("function").begin_object();
      w.member("name", calls[i].name).member("arguments", calls[i].arguments);
      w.end_object().end_object();
    }
    w.end_array();
  }

  // A call that begins has its id and name; its arguments come as they are generated.
  void append_call(std::string& out, const Sample& sample, const ToolCallParts::Piece& piece) {
    const auto index = static_cast<size_t>(piece.index);
    const auto chunk = [&](bool begins, std::string_view arguments) {
      append_chunk(out, sample, [&](JsonWriter& w) {
        if (begins) w.key("content").null();
        w.key("tool_calls").begin_array().begin_object().member("index", index);
        if (begins) w.member("id", call_id(sample, index)).member("type", "function");
        w.key("function").begin_object();
        if (begins) w.member("name", piece.name);
        w.member("arguments", arguments).end_object().end_object().end_array();
      });
    };
    if (!piece.name.empty()) chunk(true, "");
    if (!piece.arguments.empty()) chunk(false, piece.arguments);
  }

  struct ChunkParts {
    std::string_view reasoning = {};
    bool logprobs = false;  // of the tokens that were not sent yet
    bool ends = false;      // the sample's last chunk
  };

  // `write_delta` writes the members of the delta but reasoning_content, which every chunk has:
  // clients read it from each of them without asking whether it is there.
  template <typename WriteDelta>
  void append_chunk(std::string& out, const Sample& sample, WriteDelta write_delta,
                    const ChunkParts& parts = {}) {
    std::string payload;
    JsonWriter w(payload);
    begin_answer(w, "chat.completion.chunk");
    w.key("choices").begin_array().begin_object().member("index", sample.index);
    w.key("delta").begin_object();
    write_delta(w);
    w.key("reasoning_content");
    parts.reasoning.empty() ? static_cast<void>(w.null())
                            : static_cast<void>(w.value(parts.reasoning));
    w.end_object();
    if (parts.logprobs) {
      write_logprobs(w, sample, sample.ids_sent);
    } else {
      w.key("logprobs").null();
    }
    parts.ends ? write_end(w, sample) : write_finish(w, std::nullopt);
    w.end_object().end_array();
    end_chunk(w, sample);
    net::append_sse(out, payload);
  }

  // An answer that stopped behind calls waits for their results.
  void write_end(JsonWriter& w, const Sample& sample) {
    const bool waits = reads_calls_ && !answer_of(sample).calls().empty() && sample.finish &&
                       sample.finish->type == FinishReason::Type::kStop;
    write_beam_score(w, sample);
    if (!waits) return write_finish(w, sample.finish);
    w.member("finish_reason", "tool_calls").key("matched_stop");
    write_matched(w, *sample.finish);
  }

  void write_logprobs(JsonWriter& w, const Sample& sample, size_t ids_begin) const {
    w.key("logprobs");
    with_logprobs_ ? write_chat_logprobs(w, context(), sample, ids_begin)
                   : static_cast<void>(w.null());
  }

  const bool with_logprobs_;
  const bool has_max_completion_tokens_;  // the request named its length so
  const bool reads_calls_;
  const bool tools_make_grammar_;
  const bool stores_;
  boost::json::array messages_;      // of the request, where the answer is stored
  boost::json::object metadata_;     // the same
  std::vector<ChatAnswer> answers_;  // one for each sample
  std::vector<std::vector<std::string>> call_ids_;
};

// Makes the prompt of a completion that fills a gap before `suffix`.
Status fill_gap(const Context& context, std::string_view suffix, GenerateRequest& request) {
  const Tokenizer* tokenizer = context.engine.tokenizer();
  const auto tokens = tokenizer != nullptr ? find_fim_tokens(*tokenizer) : std::nullopt;
  if (!tokens)
    return error(StatusCode::kUnimplemented,
                 "suffix (fill in the middle) needs a model whose vocabulary has tokens for it, "
                 "and this one's has none: leave it out");
  if (!request.input_ids.empty())
    return invalid_argument(
        "suffix needs a prompt of text, but it is a list of token ids: send the text, or ids that "
        "hold the model's tokens for fill in the middle without suffix");
  if (request.sampling.token_healing)
    return invalid_argument(
        "token_healing takes back the prompt's end, which suffix sets: leave "
        "one of them out");
  FimPrompt prompt = make_fim_prompt(*tokenizer, *tokens, request.text, suffix);
  request.text.clear();
  request.input_ids = std::move(prompt.ids);
  std::vector<TokenId>& stops = request.sampling.stop_token_ids;
  stops.insert(stops.end(), prompt.end_ids.begin(), prompt.end_ids.end());
  return {};
}

}  // namespace

void write_token(JsonWriter& w, const Context& context, TokenId id, float logprob) {
  const std::string text = context.token_text(id);
  std::string_view bytes = context.token_bytes(id);
  if (bytes.empty()) bytes = text;
  w.member("token", text).key("bytes").begin_array();
  for (const char c : bytes) w.value(static_cast<int>(static_cast<unsigned char>(c)));
  w.end_array().member("logprob", finite(logprob));
}

void write_logprob_entry(JsonWriter& w, const Context& context, const LogprobEntry& entry,
                         std::optional<TokenOrigin> origin) {
  w.begin_object();
  if (origin) w.member("token_id", entry.id).member("origin", token_origin_name(*origin));
  write_token(w, context, entry.id, entry.lp != nullptr ? entry.lp->logprob : kLogprobMin);
  w.key("top_logprobs").begin_array();
  if (entry.lp != nullptr) {
    for (const auto& [id, logprob] : entry.lp->top) {
      w.begin_object();
      if (origin) w.member("token_id", id);
      write_token(w, context, id, logprob);
      w.end_object();
    }
  }
  w.end_array().end_object();
}

std::shared_ptr<Generation> make_completion_generation(ContextPtr context,
                                                       net::ResponsePtr response,
                                                       CompletionRequest&& request) {
  std::vector<GenerationItem> items;
  std::vector<std::string> echoes;
  const Tokenizer* tokenizer = context->engine.tokenizer();
  for (size_t i = 0; i < request.prompts.size(); ++i) {
    CompletionRequest::Prompt& prompt = request.prompts[i];
    GenerationItem& item = items.emplace_back();
    item.stream_interval = context->config.answers.stream_interval;
    item.request = request.make_request(i, request.prompts.size());
    choose_adapter(*context, request.model, item.request);
    item.request.return_logprob = request.logprobs.has_value();
    item.request.top_logprobs_num = request.logprobs.value_or(0);
    if (request.logprobs && request.echo) item.logprob_start = 0;
    if (request.echo) {
      const bool can_decode = !prompt.is_text && tokenizer != nullptr;
      echoes.push_back(can_decode ? tokenizer->decode(prompt.ids) : prompt.text);
    }
    item.request.text = std::move(prompt.text);
    item.request.input_ids = std::move(prompt.ids);
    if (request.suffix.empty()) continue;
    if (const Status filled = fill_gap(*context, request.suffix, item.request); !filled.ok()) {
      response->send(error_response(Dialect::kOpenAi, filled));
      return nullptr;
    }
  }
  return std::make_shared<CompletionGeneration>(std::move(context), std::move(response),
                                                std::move(items), request, std::move(echoes));
}

GenerationItem chat_item(const Context& context, ChatRequest& request, ChatPlan& plan) {
  GenerationItem item;
  item.stream_interval = context.config.answers.stream_interval;
  item.request = request.make_request(0, 1);
  choose_adapter(context, request.model, item.request);
  item.request.return_logprob = request.logprobs;
  item.request.top_logprobs_num = request.top_logprobs;
  item.request.return_token_origins = request.return_token_origins;
  item.request.text = std::move(plan.prompt);
  item.request.input_ids = std::move(request.input_ids);
  item.request.add_special_tokens = false;  // the template has put them
  item.request.images = image_inputs(media_access(context), std::move(plan.pictures));
  return item;
}

std::shared_ptr<Generation> make_chat_generation(ContextPtr context, net::ResponsePtr response,
                                                 ChatRequest&& request, ChatPlan&& plan) {
  std::vector<GenerationItem> items = {chat_item(*context, request, plan)};
  return std::make_shared<ChatGeneration>(std::move(context), std::move(response), std::move(items),
                                          request, plan.answer);
}

}  // namespace espalier::server
