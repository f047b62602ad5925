#include "server/generation.h"

#include <algorithm>

#include "base/log.h"
#include "engine/images/place_images.h"
#include "server/authorize.h"
#include "server/cache_namespace.h"
#include "server/json_memory.h"
#include "server/observations.h"
#include "server/tracing/span_exporter.h"

namespace espalier::server {

namespace {

// The engine's copy; the prompt, which may be long, is moved.
GenerateRequest take_request(GenerationItem& item) {
  std::string text = std::move(item.request.text);
  std::vector<TokenId> ids = std::move(item.request.input_ids);
  std::vector<ImageInput> images = std::move(item.request.images);
  GenerateRequest request = item.request;
  request.images = std::move(images);
  request.text = std::move(text);
  request.input_ids = std::move(ids);
  return request;
}

// What the log-probabilities of an event take.
int64_t logprob_bytes(const TokenEvent& event) {
  size_t num_bytes = 0;
  for (const auto* all : {&event.logprobs, &event.input_logprobs})
    for (const TokenLogprobs& at : *all)
      num_bytes += sizeof(at) + (at.top.size() + at.wanted.size()) * sizeof(at.top.front());
  return static_cast<int64_t>(num_bytes);
}

constexpr int kClientGone = 499;  // in --request-log, as nginx has it

// Of one call: about 500 MB of JSON. A prompt of 128k tokens with 100 of the likeliest is within.
constexpr size_t kLogprobsMax = size_t{1} << 24;

}  // namespace

Generation::Generation(ContextPtr context, net::ResponsePtr response,
                       std::vector<GenerationItem> items, bool stream)
    : context_(std::move(context)),
      response_(std::move(response)),
      items_(std::move(items)),
      stream_(stream),
      logprobs_(context_->outputs()) {
  for (size_t i = 0; i < items_.size(); ++i) {
    GenerateRequest& request = items_[i].request;
    if (request.rid.empty()) request.rid = context_->make_rid();
    // A count that is out of range is the engine's to refuse: it makes no samples then.
    const int32_t n = std::clamp(request.sampling.n, 1, 1024);
    for (int32_t k = 0; k < n; ++k) {
      Sample& sample = samples_.emplace_back();
      sample.item = &items_[i];
      sample.item_index = static_cast<int32_t>(i);
      sample.index = static_cast<int32_t>(samples_.size()) - 1;
      sample.rid = n == 1 ? request.rid : fmt::format("{}_{}", request.rid, k);
    }
  }
  num_open_ = samples_.size();
  num_open_of_.assign(items_.size(), static_cast<int32_t>(samples_.size() / items_.size()));
}

// What was never submitted, or lost its connection with the server, has no other end.
Generation::~Generation() {
  for (const Sample& sample : samples_)
    if (sample.log != nullptr)
      context_->observed->requests.finish(sample.log, "abort", std::chrono::steady_clock::now());
  if (!caller_.record) return;
  caller_.record->stream = stream_;
  if (caller_.tenant != nullptr) caller_.record->tenant = caller_.tenant->name();
  const size_t n = samples_.size() / items_.size();
  for (const Sample& sample : samples_)
    if (sample.log != nullptr)
      caller_.record->add(*sample.log, static_cast<size_t>(sample.index) % n == 0);
}

void Generation::set_caller(Caller caller, MemoryCharge body) {
  caller_ = std::move(caller);
  body_ = std::move(body);
  if (caller_.tenant != nullptr && !caller_.is_line) waiting_.emplace(caller_.tenant);
}

void Generation::begin() {
  const auto self = shared_from_this();
  response_->on_disconnect([self] { self->on_gone(); });
  const auto failed = [&](const Status& status) {
    response_->post([self, status] { self->on_failure(status); });
  };
  for (GenerationItem& item : items_)
    if (item.request.session)
      item.request.session->id =
          owned_id(context_->tenants.get(), caller_.tenant.get(), item.request.session->id);
  if (caller_.tenant != nullptr) {
    for (const GenerationItem& item : items_)
      if (const Status may = caller_.tenant->check_priority(item.request.priority); !may.ok())
        return failed(may);
    if (!admit()) return;
  }
  for (GenerationItem& item : items_) {
    if (const Status ready = prepare(item); !ready.ok()) return failed(ready);
  }
  const TimePoint now = std::chrono::steady_clock::now();
  for (Sample& sample : samples_)
    sample.log = context_->observed->requests.begin(
        sample.rid, caller_.tenant != nullptr ? caller_.tenant->name() : std::string_view(),
        stream_, now);
  for (size_t i = 0; i < items_.size() && !response_->closed(); ++i) {
    const auto submitted =
        context_->engine.submit(take_request(items_[i]), [self, i](TokenEvent&& event) {
          self->response_->post([self, i, event = std::move(event)]() mutable {
            self->on_event(i, std::move(event));
          });
        });
    if (!submitted) return failed(submitted.error());
    num_submitted_ = i + 1;
  }
  // What was submitted while the client went: on_gone() may have missed it, or may never come when
  // the server has stopped meanwhile.
  const State state = state_;
  if (state == State::kGone || (state == State::kActive && response_->closed())) {
    for (size_t i = 0; i < num_submitted_; ++i) {
      context_->engine.abort(items_[i].request.rid, Engine::AbortScope::kExact);
    }
  }
}

// A call takes the tokens that it may need at most, or about that much: a text's tokens are counted
// later. What it has not used by its end comes back.
bool Generation::admit() {
  constexpr int64_t kBytesPerToken = 4, kAnswerTokens = 16;
  int64_t tokens = 0;
  for (GenerationItem& item : items_) {
    GenerateRequest& request = item.request;
    request.tenant = caller_.tenant->name();
    request.tenant_weight = caller_.tenant->weight();
    request.extra_key = cache_namespace(caller_.tenant->name(), request.extra_key);
    const auto answer = request.embed ? 0 : request.sampling.max_new_tokens.value_or(kAnswerTokens);
    tokens += std::ssize(request.input_ids) + std::ssize(request.text) / kBytesPerToken +
              int64_t{answer} * std::clamp(request.sampling.n, 1, 1024);
  }
  const TimePoint now = std::chrono::steady_clock::now();
  const auto wait = caller_.tenant->admit(tokens, now);
  if (!wait) {
    reservation_.emplace(caller_.tenant, tokens);
    return true;
  }
  if (!caller_.is_line) caller_.tenant->count_refusal();
  retry_after_ = std::chrono::ceil<std::chrono::seconds>(*wait).count();
  const Status status =
      error(StatusCode::kResourceExhausted,
            "the limits of this key are reached: try again in {:.1f} s", to_seconds(*wait));
  response_->post([self = shared_from_this(), status] { self->on_failure(status); });
  return false;
}

// Input log-probabilities name their tokens, so the ids must be known here.
Status Generation::prepare(GenerationItem& item) {
  GenerateRequest& request = item.request;
  request.logprob_start_len = item.logprob_start;
  if (item.logprob_start < 0) return {};
  if (request.input_ids.empty()) {
    const Tokenizer* tokenizer = context_->engine.tokenizer();
    if (tokenizer == nullptr) {
      return invalid_argument(
          "text needs a tokenizer, and this server runs without: send input_ids");
    }
    EncodeOptions options;
    options.add_special_tokens = request.add_special_tokens;
    if (const auto& images = context_->engine.model_info().images;
        images && !request.images.empty()) {
      ESP_ASSIGN_OR_RETURN(request.text,
                           mark_pictures(std::move(request.text), *images, request.images.size()));
    }
    const int64_t charged = body_.bytes();
    ESP_RETURN_IF_ERROR(hold_memory(
        body_, charged + std::ssize(request.text) * kTokenizerBytesPerByte, "the prompt's tokens"));
    request.input_ids = tokenizer->encode(request.text, options);
    (void)body_.resize(charged);
  }
  if (request.session) {
    ESP_ASSIGN_OR_RETURN(item.prompt_ids,
                         context_->engine.session_prompt(*request.session, request.input_ids));
  } else {
    item.prompt_ids = request.input_ids;
  }
  if (const auto& images = context_->engine.model_info().images;
      images && !request.images.empty()) {
    ESP_ASSIGN_OR_RETURN(item.prompt_ids,
                         expand_placeholders(std::move(item.prompt_ids), *images,
                                             static_cast<int32_t>(request.images.size())));
  }
  if (static_cast<size_t>(item.logprob_start) > item.prompt_ids.size()) {
    return invalid_argument("logprob_start_len {} is beyond the prompt of {} tokens",
                            item.logprob_start, item.prompt_ids.size());
  }
  const size_t positions = item.prompt_ids.size() - static_cast<size_t>(item.logprob_start);
  const auto top = static_cast<size_t>(std::max(request.top_logprobs_num, 0));
  const auto n = static_cast<size_t>(std::clamp(request.sampling.n, 1, 1024));
  return count_logprobs(positions * (1 + top + request.token_ids_logprob.size()) * n);
}

// Log-probabilities stay in memory until the answer is written, so their number per call is
// bounded.
Status Generation::count_logprobs(size_t more) {
  num_logprobs_ += more;
  if (num_logprobs_ <= kLogprobsMax) return {};
  return invalid_argument(
      "the answer would hold more than {} log-probabilities: ask in one call for fewer of each "
      "position, for fewer positions, samples or prompts",
      kLogprobsMax);
}

HiddenShape hidden_shape(const Context& context, const Sample& sample) {
  return {.hidden_size = static_cast<size_t>(context.engine.model_info().hidden_size),
          .num_layers = sample.item->request.hidden_states_layers.size(),
          .num_prompt = static_cast<size_t>(sample.stats.prompt_tokens)};
}

void Generation::on_event(size_t item_index, TokenEvent&& event) {
  const size_t n = samples_.size() / items_.size();  // the same for every item, as they are parsed
  Sample& sample = samples_[item_index * n + static_cast<size_t>(event.index)];
  observe(sample, event);
  if (event.finish) --num_open_of_[item_index];
  if (state_ != State::kActive) return;
  if (event.finish && is_failure(*event.finish)) return on_failure(event.finish->status);
  size_t num_logprobs = event.logprobs.size();
  for (const TokenLogprobs& at : event.logprobs) num_logprobs += at.top.size() + at.wanted.size();
  if (num_logprobs > 0 || !event.input_logprobs.empty()) {
    Status counted = count_logprobs(num_logprobs);
    if (counted.ok() && !logprobs_.resize(logprobs_.bytes() + logprob_bytes(event)))
      counted = error(StatusCode::kResourceExhausted,
                      "the answers of all requests take what memory there is for them: try again "
                      "later, or ask for fewer log-probabilities");
    if (!counted.ok()) return on_failure(counted);
  }
  if (!event.hidden_states.empty())
    if (const Status charged = charge_hidden_states(logprobs_, event.hidden_states.size());
        !charged.ok())
      return on_failure(charged);
  sample.hidden_states.insert(sample.hidden_states.end(), event.hidden_states.begin(),
                              event.hidden_states.end());
  sample.text += event.text;
  sample.ids.insert(sample.ids.end(), event.ids.begin(), event.ids.end());
  sample.origins.insert(sample.origins.end(), event.origins.begin(), event.origins.end());
  std::move(event.logprobs.begin(), event.logprobs.end(), std::back_inserter(sample.logprobs));
  std::move(event.input_logprobs.begin(), event.input_logprobs.end(),
            std::back_inserter(sample.input_logprobs));
  if (event.next_logprobs) sample.next_logprobs = std::move(event.next_logprobs);
  if (event.beam) sample.beam = event.beam;
  if (!event.embedding.empty()) sample.embedding = std::move(event.embedding);
  sample.entries_by_accepted = std::move(event.entries_by_accepted);
  sample.stats = event.stats;
  sample.finish = std::move(event.finish);
  if (sample.finish) --num_open_;
  if (event.ids.empty() && !sample.finish) return;  // hidden states of a prompt's chunk
  if (stream_) return stream_sample(sample);
  if (num_open_ == 0) finish_whole();
}

bool Generation::is_failure(const FinishReason& finish) const {
  return finish.type == FinishReason::Type::kError ||
         finish.status.code() == StatusCode::kResourceExhausted;
}

void Generation::observe(Sample& sample, const TokenEvent& event) {
  Metrics& metrics = context_->observed->metrics;
  const int32_t priority = sample.item->request.priority;
  const TimePoint now = std::chrono::steady_clock::now();
  if (!event.ids.empty() || event.finish) {
    waiting_.reset();
    body_.release();  // the prompt is computed
  }
  if (sample.log != nullptr) sample.log->update(event.stats);
  if (!event.ids.empty()) {
    if (sample.last_event == TimePoint{}) {
      const RequestStats& s = event.stats;
      const TimePoint first = s.first_token != TimePoint{} ? s.first_token : now;
      metrics.observe_first_token(std::max(0.0, to_seconds(first - s.arrived)), priority);
    } else {
      const int count = static_cast<int>(event.ids.size());
      metrics.observe_inter_token(to_seconds(now - sample.last_event) / count, count, priority);
    }
    sample.last_event = now;
  }
  if (!event.finish) return;
  if (reservation_) {
    const bool first = sample.index % std::max(1, sample.item->request.sampling.n) == 0;
    reservation_->use(event.stats.completion_tokens + (first ? event.stats.prompt_tokens : 0));
  }
  metrics.observe_finish(event.stats, priority);
  if (sample.log != nullptr)
    context_->observed->requests.finish(sample.log, finish_name(*event.finish).data(), now);
  record_span(sample, event, now);
  if (context_->config.telemetry.log_requests) {
    log_info("request rid={} prompt_tokens={} cached_tokens={} completion_tokens={} end={}",
             sample.rid, event.stats.prompt_tokens, event.stats.cached_tokens,
             event.stats.completion_tokens, finish_name(*event.finish));
  }
}

void Generation::record_span(const Sample& sample, const TokenEvent& last, TimePoint now) const {
  SpanExporter* const exporter = context_->observed->spans.get();
  if (exporter == nullptr) return;
  const GenerateRequest& request = sample.item->request;
  RequestSpan span{.parent = caller_.trace,
                   .operation = request.embed ? "embeddings" : caller_.operation,
                   .rid = sample.rid,
                   .model = context_->model_name,
                   .end = std::string(finish_name(*last.finish)),
                   .failure = last.finish->status.message(),
                   .stats = last.stats,
                   .arrived = sample.log != nullptr ? sample.log->arrived : now,
                   .ended = now};
  if (caller_.tenant != nullptr) span.tenant = caller_.tenant->name();
  if (!request.embed) {
    span.temperature = request.sampling.temperature;
    span.top_p = request.sampling.top_p;
    span.max_tokens = request.sampling.max_new_tokens;
  }
  exporter->add(std::move(span));
}

// A client that is behind gets fewer events with more in each: those of /generate hold all so far.
void Generation::stream_sample(Sample& sample) {
  constexpr size_t kBehindBytes = 64 << 10;
  const size_t fresh = sample.ids.size() - sample.ids_sent;
  if (sample.sent_any && !sample.finish &&
      (fresh < static_cast<size_t>(sample.item->stream_interval) ||
       response_->pending_output() > kBehindBytes)) {
    return;
  }
  // Of the event's text while it is written; the connection charges what it then holds.
  const int64_t json_bytes =
      std::ssize(sample.hidden_states) * json_bytes_of_float(sample.item->hidden_format);
  if (!logprobs_.resize(logprobs_.bytes() + json_bytes))
    return on_failure(no_room_for_states(sample.hidden_states.size()));
  if (!streaming_) {
    streaming_ = true;
    response_->start_stream(200, headers(std::string(stream_type())));
  }
  std::string out;
  append_events(out, sample);
  (void)logprobs_.resize(logprobs_.bytes() - json_bytes);
  sample.sent_any = true;
  sample.text_sent = sample.text.size();
  sample.ids_sent = sample.ids.size();
  if (!sample.hidden_states.empty()) {  // each row is sent once
    const size_t num_floats = sample.hidden_states.size();
    sample.hidden_rows_sent += num_floats / hidden_shape(*context_, sample).row_floats();
    (void)logprobs_.resize(logprobs_.bytes() - static_cast<int64_t>(num_floats * sizeof(float)));
    sample.hidden_states.clear();
  }
  if (num_open_ == 0) {
    append_last_events(out);
    append_end(out);
  }
  response_->write(std::move(out));
  if (num_open_ == 0) {
    state_ = State::kAnswered;
    caller_.record.end(200);
    response_->finish();
  }
}

// Millions of log-probabilities take seconds to write. A worker writes them, so that the other
// connections of this I/O thread go on; no event comes any more.
void Generation::finish_whole() {
  constexpr size_t kBytesPerLogprob = 4;  // of a body that is read in the time of writing one
  constexpr size_t kJsonBytes = 24;       // of one in the answer
  size_t num_floats = 0;
  int64_t json_bytes = static_cast<int64_t>(num_logprobs_ * kJsonBytes);
  for (const Sample& sample : samples_) {
    num_floats += sample.hidden_states.size();
    json_bytes +=
        std::ssize(sample.hidden_states) * json_bytes_of_float(sample.item->hidden_format);
  }
  if (!logprobs_.resize(logprobs_.bytes() + json_bytes))
    return on_failure(
        error(StatusCode::kResourceExhausted,
              "the answer holds {} log-probabilities and {} numbers of hidden states, "
              "and there is no memory to write so many: ask for fewer, or try again "
              "later",
              num_logprobs_, num_floats));
  state_ = State::kAnswered;
  caller_.record.end(200);
  context_->run_sized(
      (num_logprobs_ + num_floats) * kBytesPerLogprob, response_, [self = shared_from_this()] {
        std::string body = self->whole_body();
        self->logprobs_.release();  // the connection charges the body
        self->response_->send({200, self->headers("application/json"), std::move(body)});
      });
}

void Generation::on_failure(const Status& engine_status) {
  if (state_ != State::kActive) return;
  state_ = State::kFailed;
  waiting_.reset();
  body_.release();
  logprobs_.release();
  const Status status = in_client_names(engine_status);
  abort_open();
  caller_.record.end(streaming_ ? 200 : http_status(status.code()));
  on_failed(status);
  if (!streaming_) {
    net::HttpResponse answer = retry_after_ != 0
                                   ? rate_limited_response(dialect(), status, retry_after_)
                                   : error_response(dialect(), status);
    add_rate_limits(answer.headers);
    return response_->send(std::move(answer));
  }
  std::string out;
  append_failure(out, status);
  response_->write(std::move(out));
  response_->finish();
}

void Generation::append_failure(std::string& out, const Status& status) {
  net::append_sse(out, stream_error(dialect(), status));
  append_end(out);
}

void Generation::on_gone() {
  if (state_ != State::kActive) return;
  state_ = State::kGone;
  caller_.record.end(kClientGone);
  waiting_.reset();
  body_.release();
  abort_open();
}

// Only what is the engine's and has not ended: another client may use the id of the rest by now.
void Generation::abort_open() {
  for (size_t i = 0; i < num_submitted_; ++i) {
    if (num_open_of_[i] == 0) continue;
    context_->engine.abort(items_[i].request.rid, Engine::AbortScope::kExact);
  }
}

void Generation::add_rate_limits(net::Headers& headers) const {
  if (caller_.tenant == nullptr) return;
  for (auto& header : caller_.tenant->rate_limit_headers(std::chrono::steady_clock::now()))
    headers.push_back(std::move(header));
}

net::Headers Generation::headers(std::string content_type) const {
  int64_t prompt = 0, cached = 0;
  for (const Sample& sample : samples_) {
    prompt += sample.stats.prompt_tokens;
    cached += sample.stats.cached_tokens;
  }
  net::Headers out = {{"Content-Type", std::move(content_type)}};
  if (streaming_) out.emplace_back("Cache-Control", "no-cache");
  out.emplace_back(
      kCacheHitHeader,
      fmt::format("{:.4f}",
                  prompt == 0 ? 0.0 : static_cast<double>(cached) / static_cast<double>(prompt)));
  add_rate_limits(out);
  return out;
}

std::vector<LogprobEntry> input_entries(const Sample& sample) {
  std::vector<LogprobEntry> out;
  const int32_t start = sample.item->logprob_start;
  if (start < 0) return out;
  const auto& ids = sample.item->prompt_ids;
  size_t next = 0;  // of sample.input_logprobs
  for (size_t at = static_cast<size_t>(start); at < ids.size(); ++at) {
    const bool has = at > 0 && next < sample.input_logprobs.size();
    out.push_back({has ? &sample.input_logprobs[next++] : nullptr, ids[at]});
  }
  return out;
}

std::vector<LogprobEntry> output_entries(const Sample& sample, size_t begin) {
  std::vector<LogprobEntry> out;
  for (size_t i = begin; i < sample.ids.size(); ++i) {
    out.push_back({i < sample.logprobs.size() ? &sample.logprobs[i] : nullptr, sample.ids[i]});
  }
  return out;
}

std::string_view finish_name(const FinishReason& finish) {
  switch (finish.type) {
    case FinishReason::Type::kStop:
      return "stop";
    case FinishReason::Type::kLength:
      return "length";
    case FinishReason::Type::kAbort:
      return "abort";
    case FinishReason::Type::kError:
      return "error";
  }
  return "error";
}

void write_matched(JsonWriter& w, const FinishReason& finish) {
  if (const auto* id = std::get_if<TokenId>(&finish.matched)) {
    w.value(*id);
  } else if (const auto* text = std::get_if<std::string>(&finish.matched)) {
    w.value(*text);
  } else {
    w.null();
  }
}

}  // namespace espalier::server
