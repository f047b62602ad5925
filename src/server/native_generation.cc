#include "server/native_generation.h"

#include "server/images.h"

namespace espalier::server {
namespace {

// Of an answer that beam search has found.
void write_beam(JsonWriter& w, const Sample& sample) {
  if (!sample.beam) return;
  w.member("beam_score", sample.beam->score)
      .member("cumulative_logprob", sample.beam->cumulative_logprob);
}

class NativeGeneration final : public Generation {
 public:
  NativeGeneration(ContextPtr context, net::ResponsePtr response, std::vector<GenerationItem> items,
                   const NativeRequest& request)
      : Generation(std::move(context), std::move(response), std::move(items), request.stream),
        is_list_(request.is_list),
        with_text_(request.return_text_in_logprobs) {}

 protected:
  Dialect dialect() const override { return Dialect::kNative; }

  void append_events(std::string& out, const Sample& sample) override {
    std::string payload;
    JsonWriter w(payload);
    const bool delta = context().config.answers.incremental_streaming_output;
    write_sample(w, sample, delta ? sample.text_sent : 0, delta ? sample.ids_sent : 0, is_list_);
    net::append_sse(out, payload);
  }

  std::string whole_body() override {
    std::string out;
    JsonWriter w(out);
    if (is_list_) w.begin_array();
    for (const Sample& sample : samples()) write_sample(w, sample, 0, 0, false);
    if (is_list_) w.end_array();
    return out;
  }

 private:
  void write_sample(JsonWriter& w, const Sample& sample, size_t text_begin, size_t ids_begin,
                    bool with_index) const {
    w.begin_object();
    if (context().engine.tokenizer() != nullptr) {
      w.member("text", std::string_view(sample.text).substr(text_begin));
    }
    w.key("output_ids").begin_array();
    for (size_t i = ids_begin; i < sample.ids.size(); ++i) w.value(sample.ids[i]);
    w.end_array().key("meta_info");
    write_meta_info(w, sample, ids_begin);
    if (with_index) w.member("index", sample.index);
    w.end_object();
  }

  // Where cached tokens came from, with SGLang's names; null where they are on the device alone.
  void write_cached_tokens(JsonWriter& w, const RequestStats& s) const {
    const EngineConfig& config = context().engine.config();
    if (!config.tiers.enable_hierarchical_cache) {
      w.null();
      return;
    }
    w.begin_object();
    w.member("device", s.cached_tokens - s.cached_tokens_host - s.cached_tokens_storage);
    w.member("host", s.cached_tokens_host).member("storage", s.cached_tokens_storage);
    if (config.tiers.hicache_storage_backend != "none")
      w.member("storage_backend", config.tiers.hicache_storage_backend);
    w.end_object();
  }

  void write_meta_info(JsonWriter& w, const Sample& sample, size_t ids_begin) const {
    const RequestStats& s = sample.stats;
    w.begin_object().member("id", sample.rid).key("finish_reason");
    write_finish(w, sample);
    w.member("prompt_tokens", s.prompt_tokens).member("completion_tokens", s.completion_tokens);
    w.member("cached_tokens", s.cached_tokens).key("cached_tokens_details");
    write_cached_tokens(w, s);
    w.member("reasoning_tokens", 0)
        .member("weight_version", context().weight_version(s.weight_epoch));
    w.member("num_retractions", s.num_retractions).member("dp_rank", s.dp_rank);
    if (s.forced_tokens > 0) {
      w.member("forced_tokens", s.forced_tokens).member("forwards_saved", s.forwards_saved);
    }
    const bool speculates = context().engine.config().speculation.speculative_algorithm != "none";
    if (speculates || s.drafted_tokens > 0) write_drafts(w, s);
    if (!sample.entries_by_accepted.empty()) {
      w.key("spec_accept_histogram").begin_array();
      for (const int32_t count : sample.entries_by_accepted) w.value(count);
      w.end_array();
    }
    if (sample.item->request.return_token_origins) {
      w.key("output_token_origins").begin_array();
      for (size_t i = ids_begin; i < sample.origins.size(); ++i)
        w.value(token_origin_name(sample.origins[i]));
      w.end_array();
    }
    if (sample.item->request.return_logprob) write_logprobs(w, sample, ids_begin);
    if (sample.item->request.return_hidden_states)
      write_hidden_states(w.key("hidden_states"), sample.hidden_states, sample.hidden_rows_sent,
                          hidden_shape(context(), sample), sample.item->hidden_format);
    write_beam(w, sample);
    if (sample.finish) {
      w.member("e2e_latency", to_seconds(s.finished - s.arrived));
      if (context().config.answers.enable_metrics) write_timings(w, s);
    }
    w.end_object();
  }

  // The counts are there, as 0, for a request that got no draft tokens; the ratios are not.
  static void write_drafts(JsonWriter& w, const RequestStats& s) {
    w.member("drafted_tokens", s.drafted_tokens)
        .member("accepted_drafts", s.accepted_draft_tokens)
        .member("spec_verify_ct", s.verify_steps);
    if (s.drafted_tokens == 0) return;
    const auto accepted = static_cast<double>(s.accepted_draft_tokens);
    w.member("spec_accept_rate", accepted / s.drafted_tokens)
        .member("spec_accept_length", 1 + accepted / s.verify_steps);
  }

  static void write_timings(JsonWriter& w, const RequestStats& s) {
    if (s.scheduled != TimePoint{}) w.member("queue_time", to_seconds(s.scheduled - s.arrived));
    if (s.first_token == TimePoint{}) return;
    w.member("time_to_first_token", to_seconds(s.first_token - s.arrived));
    const double decode_seconds = to_seconds(s.finished - s.first_token);
    if (s.completion_tokens > 1 && decode_seconds > 0) {
      w.member("decode_throughput", (s.completion_tokens - 1) / decode_seconds);
    }
  }

  static void write_finish(JsonWriter& w, const Sample& sample) {
    if (!sample.finish) {
      w.null();
      return;
    }
    const FinishReason& finish = *sample.finish;
    w.begin_object().member("type", finish_name(finish));
    switch (finish.type) {
      case FinishReason::Type::kStop:
        w.key("matched");
        write_matched(w, finish);
        break;
      case FinishReason::Type::kLength:
        w.member("length", sample.stats.completion_tokens);
        break;
      case FinishReason::Type::kAbort:
      case FinishReason::Type::kError:
        w.member("message", finish.status.message());
        w.member("status_code", http_status(finish.status.code()));
        w.member("err_type", error_type(finish.status.code()));
        break;
    }
    w.end_object();
  }

  void write_logprobs(JsonWriter& w, const Sample& sample, size_t ids_begin) const {
    const auto inputs = input_entries(sample);
    const auto outputs = output_entries(sample, ids_begin);
    // Of a request for prefill only, the lists have one entry: the distribution behind the prompt.
    auto lists = outputs;
    if (sample.next_logprobs) lists.push_back({&*sample.next_logprobs, -1});
    write_entries(w.key("input_token_logprobs"), inputs);
    write_entries(w.key("output_token_logprobs"), outputs);
    w.member("output_token_logprobs_length", sample.ids.size());
    if (sample.item->request.top_logprobs_num > 0) {
      write_lists(w.key("input_top_logprobs"), inputs, &TokenLogprobs::top);
      write_lists(w.key("output_top_logprobs"), lists, &TokenLogprobs::top);
    }
    if (!sample.item->request.token_ids_logprob.empty()) {
      write_lists(w.key("input_token_ids_logprobs"), inputs, &TokenLogprobs::wanted);
      write_lists(w.key("output_token_ids_logprobs"), lists, &TokenLogprobs::wanted);
    }
  }

  // [[logprob or null, id, text or null], ...]
  void write_entries(JsonWriter& w, const std::vector<LogprobEntry>& entries) const {
    w.begin_array();
    for (const LogprobEntry& entry : entries) {
      write_entry(w, entry.lp != nullptr ? std::optional<float>(entry.lp->logprob) : std::nullopt,
                  entry.id);
    }
    w.end_array();
  }

  void write_entry(JsonWriter& w, std::optional<float> logprob, TokenId id) const {
    w.begin_array().value(logprob).value(id);
    if (with_text_) {
      w.value(context().token_text(id));
    } else {
      w.null();
    }
    w.end_array();
  }

  // A list of such lists, null where the position has none.
  void write_lists(JsonWriter& w, const std::vector<LogprobEntry>& entries,
                   std::vector<std::pair<TokenId, float>> TokenLogprobs::*which) const {
    w.begin_array();
    for (const LogprobEntry& entry : entries) {
      if (entry.lp == nullptr) {
        w.null();
        continue;
      }
      w.begin_array();
      for (const auto& [id, logprob] : entry.lp->*which) write_entry(w, logprob, id);
      w.end_array();
    }
    w.end_array();
  }

  const bool is_list_;
  const bool with_text_;
};

// Prefill-only calls that state no start get all input log-probabilities: that is what they are
// for, and what the frontend's unconditional scoring needs.
int32_t resolve_start(const NativeItem& item) {
  const GenerateRequest& r = item.request;
  if (!r.return_logprob) return -1;
  const bool prefill_only = r.sampling.max_new_tokens == 0;
  if (!item.has_logprob_start) return prefill_only ? 0 : -1;
  return std::max(r.logprob_start_len, -1);
}

}  // namespace

std::shared_ptr<Generation> make_native_generation(ContextPtr context, net::ResponsePtr response,
                                                   NativeRequest&& request) {
  std::vector<GenerationItem> items;
  for (NativeItem& native : request.items) {
    GenerationItem& item = items.emplace_back();
    item.logprob_start = resolve_start(native);
    item.hidden_format = native.hidden_format;
    item.stream_interval = native.stream_interval.value_or(context->config.answers.stream_interval);
    item.request = std::move(native.request);
    item.request.images = image_inputs(media_access(*context), std::move(native.pictures));
  }
  return std::make_shared<NativeGeneration>(std::move(context), std::move(response),
                                            std::move(items), request);
}

}  // namespace espalier::server
