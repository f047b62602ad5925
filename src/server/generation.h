// One HTTP request that generates: its prompts go to the engine, the events of all their samples
// come back, and a dialect writes the answer, whole or as a stream. Internal to the room.
//
// Threads: begin() runs on an I/O thread or a worker; the engine's events are posted to the
// connection's I/O thread, where all state changes and all JSON is written, so the scheduler's
// thread only moves an event. The object lives as long as the engine holds one of its sinks.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/requests/request.h"
#include "server/context.h"
#include "server/errors.h"
#include "server/hidden_states.h"
#include "server/json_writer.h"
#include "server/request_log.h"
#include "server/tracing/request_recorder.h"
#include "server/tracing/request_span.h"
#include "tenants/tenants.h"

namespace espalier::server {

// One prompt.
struct GenerationItem {
  GenerateRequest request;
  // Prompt position from which input log-probabilities are wanted, -1: none. begin() replaces a
  // prompt's text by its ids where they are, for the answer names the tokens.
  int32_t logprob_start = -1;
  std::vector<TokenId> prompt_ids;                   // known where logprob_start >= 0
  int32_t stream_interval = 1;                       // output tokens between two events of a stream
  HiddenFormat hidden_format = HiddenFormat::kList;  // of a request with return_hidden_states
};

// One sample of one prompt, as far as it is.
struct Sample {
  const GenerationItem* item = nullptr;
  int32_t item_index = 0;
  int32_t index = 0;  // in the answer: item_index * n + its number among the prompt's samples
  std::string rid;    // as the client sees it

  std::string text;  // so far
  std::vector<TokenId> ids;
  std::vector<TokenOrigin> origins;            // of ids, where asked for
  std::vector<TokenLogprobs> logprobs;         // the same
  std::vector<TokenLogprobs> input_logprobs;   // of prompt positions max(logprob_start, 1) on
  std::optional<TokenLogprobs> next_logprobs;  // as TokenEvent's
  std::vector<float> embedding;                // of a request with `embed`
  std::vector<float> hidden_states;            // as TokenEvent's, without what a stream has sent
  std::vector<int32_t> entries_by_accepted;    // as TokenEvent's
  std::optional<BeamScore> beam;               // the same
  std::optional<FinishReason> finish;
  RequestStats stats;

  // What a stream has sent of it.
  bool sent_any = false;
  size_t text_sent = 0, ids_sent = 0;
  size_t hidden_rows_sent = 0;
  TimePoint last_event{};
  LoggedRequestPtr log;  // null before begin()
};

// Who made a request, and how.
struct Caller {
  TenantPtr tenant;      // whose key the request brought; null: nobody's
  bool is_line = false;  // it is a line of a batch, which waits where a client is refused
  std::optional<TraceParent> trace;                // its header `traceparent`
  std::string_view operation = "text_completion";  // as RequestSpan names it
  RecordTicket record;                             // of --request-log
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  Generation(ContextPtr context, net::ResponsePtr response, std::vector<GenerationItem> items,
             bool stream);
  virtual ~Generation();

  // Before begin(). `body`: what the parsed request takes, charged until its first token or its
  // end.
  void set_caller(Caller caller, MemoryCharge body);
  // Submits every prompt. All further life is the engine's events.
  void begin();

 protected:
  virtual Dialect dialect() const = 0;
  // A failure with its fields named as this client named them, where the dialect's own names do not
  // suffice.
  virtual Status in_client_names(const Status& status) const { return status; }
  // A stream's events for what is new in `sample` (and for its end): "data: ...\n\n".
  virtual void append_events(std::string& out, const Sample& sample) = 0;
  virtual void append_last_events(std::string&) {}  // before the end
  // How a stream ends, and how it fails once it has begun: [DONE], behind the error.
  virtual void append_end(std::string& out) { net::append_sse(out, "[DONE]"); }
  virtual void append_failure(std::string& out, const Status& status);
  virtual std::string_view stream_type() const { return "text/event-stream; charset=utf-8"; }
  virtual std::string whole_body() = 0;
  virtual void on_failed(const Status&) {}  // before the client is answered
  // Whether a sample's end fails the whole call, as an error does, and one that found no memory.
  virtual bool is_failure(const FinishReason& finish) const;

  const std::vector<Sample>& samples() const { return samples_; }
  size_t num_items() const { return items_.size(); }
  Context& context() const { return *context_; }

 private:
  Status prepare(GenerationItem& item);
  bool admit();
  Status count_logprobs(size_t more);
  void on_event(size_t item_index, TokenEvent&& event);
  void on_failure(const Status& status);
  void on_gone();
  void finish_whole();
  void stream_sample(Sample& sample);
  void observe(Sample& sample, const TokenEvent& event);
  void record_span(const Sample& sample, const TokenEvent& last, TimePoint now) const;
  void abort_open();
  net::Headers headers(std::string content_type) const;
  void add_rate_limits(net::Headers& headers) const;

  const ContextPtr context_;
  const net::ResponsePtr response_;
  std::vector<GenerationItem> items_;
  std::vector<Sample> samples_;
  const bool stream_;
  Caller caller_;
  std::optional<WaitingCall> waiting_;           // a client's, until its first token or its end
  std::optional<TokenReservation> reservation_;  // of the tenant's tokens
  int64_t retry_after_ = 0;                      // seconds, where the tenant's limits refuse it
  MemoryCharge body_;                            // until the first token

  // The I/O thread's.
  bool streaming_ = false;            // the answer's head is out
  size_t num_open_ = 0;               // samples without their terminal event
  std::vector<int32_t> num_open_of_;  // by item
  size_t num_logprobs_ = 0;           // of the answer, so far; of prompts before they are computed
  MemoryCharge logprobs_;             // what they and hidden states take until they are written

  // Read by begin(), which may be on another thread. Once it is not active, events count for
  // nothing.
  enum class State { kActive, kAnswered, kFailed, kGone };
  std::atomic<State> state_{State::kActive};
  std::atomic<size_t> num_submitted_{0};  // items that the engine has taken
};

// Log-probability entries for the answers. Entry i of the input ones stands for prompt position
// logprob_start + i; `lp` is null for position 0, which nothing precedes.
struct LogprobEntry {
  const TokenLogprobs* lp;
  TokenId id;
};
std::vector<LogprobEntry> input_entries(const Sample& sample);
std::vector<LogprobEntry> output_entries(const Sample& sample, size_t begin);  // from ids[begin]

// Of a request with return_hidden_states.
HiddenShape hidden_shape(const Context& context, const Sample& sample);

// "stop", "length" or "abort": OpenAI's finish_reason.
std::string_view finish_name(const FinishReason& finish);
// The stop token's id, the stop string or pattern, or null.
void write_matched(JsonWriter& w, const FinishReason& finish);

}  // namespace espalier::server
