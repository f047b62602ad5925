#include "engine/engine_impl.h"

#include <algorithm>
#include <cmath>
#include <future>

#include "base/log.h"
#include "base/memory_reserve.h"
#include "base/rng.h"
#include "engine/beams/beam_params.h"
#include "engine/images/place_images.h"
#include "engine/requests/control_vector.h"
#include "engine/requests/embedding.h"
#include "engine/requests/hidden_states.h"
#include "engine/sampling/logit_library.h"
#include "grammar/conformance.h"
#include "grammar/drawing.h"
#include "text/parse/reasoning_parser.h"
#include "text/parse/tool_call_parser.h"

namespace espalier {
namespace {

// Of the first format whose marks are one token each.
void set_thinking_marks(const Tokenizer& tokenizer, HistoryContext& history) {
  for (const std::string& name : reasoning_format_names()) {
    const auto format = find_reasoning_format(name);
    if (!format) continue;
    const auto begin = tokenizer.token_to_id(format->begin);
    const auto end = tokenizer.token_to_id(format->end);
    if (!begin || !end || *begin == *end) continue;
    history.thinking_begin = *begin;
    history.thinking_end = *end;
    return;
  }
}

SamplingContext make_sampling_context(const EngineConfig& config, const Engine::Parts& parts) {
  SamplingContext c{.vocab_size = parts.info.vocab_size, .eos_ids = parts.info.eos_ids};
  if (c.eos_ids.empty() && parts.tokenizer) c.eos_ids = parts.tokenizer->vocab().eos_ids;
  std::erase_if(c.eos_ids, [&](TokenId id) { return id < 0 || id >= c.vocab_size; });
  if (config.sampling.sampling_defaults == "model") c.defaults = usable_defaults(parts.defaults);
  if (config.grammar.constrained_json_disable_any_whitespace)
    c.json_whitespace = grammar::Whitespace::kCompact;
  c.logprobs_mode =
      parse_logprobs_mode(config.sampling.logprobs_mode).value();  // resolve() has checked it
  if (!parts.tokenizer) return c;
  c.history.token_bytes = parts.tokenizer->vocab().token_bytes;
  set_thinking_marks(*parts.tokenizer, c.history);
  return c;
}

constexpr size_t kReportedForcedMax = 256;  // bytes

// Marks of reasoning and of tool calls that a vocabulary has as special tokens have no bytes there;
// for grammars, which hold models to them, they are their texts.
void name_marks(const Tokenizer& tokenizer, std::deque<std::string>& texts,
                std::vector<std::string_view>& token_bytes) {
  token_bytes.assign(tokenizer.vocab().token_bytes.begin(), tokenizer.vocab().token_bytes.end());
  std::vector<std::string> marks;
  for (const std::string& format : tool_call_format_names())
    for (std::string& mark : tool_call_marks(format)) marks.push_back(std::move(mark));
  for (const std::string& name : reasoning_format_names())
    if (const auto format = find_reasoning_format(name)) {
      marks.push_back(format->begin);
      marks.push_back(format->end);
    }
  for (const std::string& mark : marks) {
    const auto id = tokenizer.token_to_id(mark);
    if (id && token_bytes[static_cast<size_t>(*id)].empty())
      token_bytes[static_cast<size_t>(*id)] = texts.emplace_back(mark);
  }
}

std::unique_ptr<SessionTable> make_sessions(const EngineConfig& c, const Engine::Parts& parts,
                                            const Clock& clock) {
  SessionTable::Config config;
  if (c.cache.max_session_bytes > 0) config.num_bytes_max = c.cache.max_session_bytes;
  if (parts.tokenizer) {
    config.token_bytes = parts.tokenizer->vocab().token_bytes;
    config.leading = parts.tokenizer->encode("");
  }
  return std::make_unique<SessionTable>(std::move(config), clock);
}

int64_t max_samples(const EngineConfig& c) {
  return int64_t{c.schedule.max_running_requests} + c.schedule.max_queued_requests;
}

QueueEvictionRule eviction_rule(const EngineConfig& c) {
  if (c.schedule.fair_share != "none") return QueueEvictionRule::kLargestShare;
  return c.schedule.schedule_policy == "priority" ? QueueEvictionRule::kLowestPriority
                                                  : QueueEvictionRule::kNone;
}

WatchdogLimits watchdog_limits(const EngineConfig& c) {
  const auto duration = [](double seconds) {
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
  };
  return {.soft = duration(c.watch.soft_watchdog_timeout),
          .hard = duration(c.watch.watchdog_timeout)};
}

// Where there are no ModelWeights, or they are not used.
Status why_weights_stay(const ModelInfo& info) {
  if (info.images)
    return error(StatusCode::kUnimplemented,
                 "{} reads pictures, and the weights of its encoder are not replaced: start a "
                 "server with the new model",
                 info.architecture);
  return error(StatusCode::kUnimplemented, "the weights of this engine are not replaced");
}

bool copies_beside_steps(const EngineConfig& c) {
  return c.tiers.enable_hierarchical_cache || c.disaggregation.disaggregation_mode != "null";
}

// Of the memory that is not released, where any is not (ReleasableMemory).
Status why_memory_stays(const EngineConfig& c, const Engine::Parts& parts) {
  if (copies_beside_steps(c))
    return error(StatusCode::kUnimplemented,
                 "keys and values of this server are copied beside its steps "
                 "(--enable-hierarchical-cache, --disaggregation-mode), and their memory is not "
                 "released: release weights alone, or start without");
  if (parts.info.images) return why_weights_stay(parts.info);
  return error(StatusCode::kUnimplemented, "the memory of this engine is not released");
}

ReleasableMemory* releasable_kv(const EngineConfig& c, Executor& executor) {
  if (copies_beside_steps(c)) return nullptr;
  return dynamic_cast<ReleasableMemory*>(&executor);
}

std::string share_of(const EngineConfig& c, const LiveRequest& request) {
  if (c.schedule.fair_share == "tenant")
    return request.tenant.empty() ? request.cache_namespace : request.tenant;
  return c.schedule.fair_share == "priority" ? std::to_string(request.priority) : "";
}

}  // namespace

Result<std::unique_ptr<Engine>> EngineImpl::start(const EngineConfig& config, Parts parts) {
  if (parts.info.vocab_size < 1)
    return fail(invalid_argument("the model's vocab_size is {}", parts.info.vocab_size));
  if (parts.tokenizer && parts.tokenizer->vocab_size() > parts.info.vocab_size)
    log_warning("tokenizer knows more tokens than the model tokenizer={} model={}",
                parts.tokenizer->vocab_size(), parts.info.vocab_size);
  ESP_ASSIGN_OR_RETURN(CacheParts cache, make_cache_parts(config, parts));
  std::shared_ptr<const LogitLibrary> processors;
  if (!config.sampling.logit_processor_library.empty()) {
    ESP_ASSIGN_OR_RETURN(processors, LogitLibrary::open(config.sampling.logit_processor_library));
  }
  std::unique_ptr<EngineImpl> engine(new EngineImpl(config, std::move(parts), std::move(cache)));
  engine->sampling_context_.history.processors = std::move(processors);
  ESP_RETURN_IF_ERROR(engine->load_stated_adapters());
  return std::unique_ptr<Engine>(std::move(engine));
}

EngineImpl::EngineImpl(const EngineConfig& config, Parts parts, CacheParts cache)
    : config_(config),
      parts_(std::move(parts)),
      sampling_context_(make_sampling_context(config, parts_)),
      cache_parts_(std::move(cache)),
      registry_(max_samples(config), eviction_rule(config), config.schedule.max_running_requests),
      adapters_(*parts_.executor, {.rank_max = config.lora.max_lora_rank,
                                   .num_loaded_max = config.lora.max_loaded_loras,
                                   .bytes_max = config.lora.max_lora_bytes}),
      sessions_(make_sessions(config, parts_, clock_)) {
  loop_ = std::make_unique<EngineLoop>(config_, parts_.info, *parts_.executor, cache_parts_,
                                       registry_, *sessions_, parts_.tokenizer.get());
  weights_ = std::make_unique<WeightControl>(
      WeightControl::Parts{.push = [this](Message message) { loop_->push(std::move(message)); },
                           .engine = *this,
                           .weights = parts_.info.images ? nullptr : parts_.weights.get(),
                           .unsupported = why_weights_stay(parts_.info),
                           .kv_cache = releasable_kv(config_, *parts_.executor),
                           .memory_stays = why_memory_stays(config_, parts_)});
  if (const WatchdogLimits limits = watchdog_limits(config_); limits.any())
    watchdog_ = std::make_unique<Watchdog>(limits, loop_->progress());
  if (parts_.image_encoder)
    images_ = std::make_unique<ImagePool>(
        std::move(parts_.image_encoder),
        ImagePoolConfig{.num_threads = config_.images.image_threads,
                        .num_waiting_max = static_cast<size_t>(2 * max_samples(config)),
                        .row_bytes_max = config_.images.image_cache_bytes,
                        .num_rows_max = loop_->max_sequence_tokens(),
                        .limits = {.bytes_max = config_.images.max_image_bytes,
                                   .pixels_max = config_.images.max_image_pixels},
                        .video_seconds_max = config_.images.max_video_seconds,
                        .sound_limits = {.bytes_max = config_.audio.max_audio_bytes,
                                         .seconds_max = config_.audio.max_audio_seconds}});
  if (!parts_.tokenizer) return;
  for (const std::string_view bytes : parts_.tokenizer->vocab().token_bytes)
    bytes_per_token_max_ = std::max(bytes_per_token_max_, 2 * std::ssize(bytes));
  // Room for what the registry admits, and as much again: prompts of requests that were aborted
  // stay in the queue until their turn.
  tokenizers_ = std::make_unique<TokenizerPool>(*parts_.tokenizer, config_.model.tokenizer_threads,
                                                static_cast<size_t>(2 * max_samples(config)));
  if (config_.grammar.grammar_backend == "none") return;
  VocabView vocab = parts_.tokenizer->vocab();
  name_marks(*parts_.tokenizer, mark_texts_, token_bytes_);
  vocab.token_bytes = token_bytes_;
  vocab.eos_ids = sampling_context_.eos_ids;  // the model's, which end a sample
  std::sort(vocab.eos_ids.begin(), vocab.eos_ids.end());
  const grammar::GrammarLimits limits{.compile_seconds_max =
                                          config_.grammar.grammar_compile_seconds};
  grammars_ = std::make_unique<GrammarCompiler>(std::move(vocab), config_.grammar.grammar_threads,
                                                limits, config_.grammar.grammar_cache_bytes);
}

EngineImpl::~EngineImpl() {
  registry_.close();
  tokenizers_.reset();
  grammars_.reset();
  images_.reset();
  weights_.reset();
  watchdog_.reset();  // it reads the progress of the loop
  loop_.reset();
}

Result<std::string> EngineImpl::submit(GenerateRequest request, EventSink sink) {
  if (!restore_memory_reserve())
    return fail(
        error(StatusCode::kResourceExhausted, "the system gives no more memory: try again later"));
  ESP_ASSIGN_OR_RETURN(auto live, prepare(request, std::move(sink)));
  if (live->awaits_tokens && !request.images.empty()) {
    ESP_ASSIGN_OR_RETURN(request.text, mark_pictures(std::move(request.text), *parts_.info.images,
                                                     request.images.size()));
  }
  ESP_ASSIGN_OR_RETURN(const auto admission,
                       registry_.admit({.rid = live->rid,
                                        .num_samples = num_sequences_of(request.sampling),
                                        .priority = live->priority,
                                        .share = share_of(config_, *live)}));
  live->id = admission.id;
  for (const RequestId evicted : admission.evicted) {
    loop_->push(EvictMessage{evicted, registry_.queue_eviction_error()});
    if (grammars_ != nullptr) grammars_->cancel(evicted);
    if (images_ != nullptr) images_->cancel(evicted);
  }
  const RequestId id = live->id;
  std::string rid = live->rid;
  const bool awaits_tokens = live->awaits_tokens;
  const auto grammar = live->sampling.grammar;
  const bool within_budget = live->complete_within_budget;
  loop_->push(ArrivalMessage{std::move(live)});  // before its tokens can be
  if (awaits_tokens) {
    tokenise(id, std::move(request.text), request.add_special_tokens);
  }
  if (!request.images.empty()) {
    const auto done = [this, id](Result<std::vector<EncodedImage>>&& images) {
      loop_->push(ImagesMessage{id, std::move(images)});
    };
    if (Status queued = images_->submit(id, std::move(request.images), done); !queued.ok())
      done(fail(std::move(queued)));
  }
  if (grammar)
    grammars_->compile(*grammar, id, [this, id, within_budget](GrammarCompiler::Compiled made) {
      if (made && within_budget)
        if (Status ready = (*made)->prepare_budget(); !ready.ok()) made = fail(std::move(ready));
      loop_->push(GrammarMessage{id, std::move(made)});
    });
  return rid;
}

void EngineImpl::tokenise(RequestId id, std::string text, bool add_special_tokens) {
  const bool queued =
      tokenizers_->submit(std::move(text), {.add_special_tokens = add_special_tokens},
                          [this, id](Result<std::vector<TokenId>>&& ids) {
                            loop_->push(TokensMessage{id, std::move(ids)});
                          });
  if (!queued)
    loop_->push(TokensMessage{id, fail(error(StatusCode::kResourceExhausted,
                                             "too many prompts wait to be tokenised; try again "
                                             "later"))});
}

namespace {

Status check_inputs(const GenerateRequest& request, const ModelInfo& info, const EngineConfig& c,
                    bool has_encoder) {
  ESP_RETURN_IF_ERROR(check_use(request, info));
  if (request.truncate_to != 0)
    return error(StatusCode::kUnimplemented,
                 "truncate_prompt_tokens is for encoders of texts, and {} is none: shorten the "
                 "text, or leave it out",
                 info.architecture);
  if (request.images.empty()) return {};
  if (!info.images)
    return error(
        StatusCode::kUnimplemented,
        "the prompt has images (image_data, video_data), but {} reads text alone: leave them "
        "out, or "
        "start with a model that reads them",
        info.architecture);
  if (!has_encoder)
    return error(StatusCode::kUnimplemented,
                 "the engine was started without an encoder of pictures");
  if (c.tiers.hicache_storage_backend != "none")
    return error(StatusCode::kUnimplemented,
                 "pictures are not stored in tiers that outlive the engine: start without "
                 "--hicache-storage-backend");
  if (request.session)
    return error(StatusCode::kUnimplemented,
                 "a request of a session takes no pictures yet: send the whole prompt without one");
  if (info.images->num_rows == 0 && request.return_logprob && request.logprob_start_len >= 0)
    return rows_depend_on_sizes();
  if (std::ssize(request.images) > c.images.max_images_per_request)
    return invalid_argument(
        "the request has {} pictures, and at most {} are taken (--max-images-per-request)",
        request.images.size(), c.images.max_images_per_request);
  return {};
}

Status check_budget(const GenerateRequest& request, bool has_grammar) {
  if (!has_grammar)
    return invalid_argument(
        "complete_within_budget plans the end of a grammar, and the request has none: give "
        "json_schema, response_format, regex, ebnf, structural_tag or choices, or leave it out");
  if (request.sampling.token_healing)
    return invalid_argument(
        "complete_within_budget plans no tokens for the text that token_healing generates anew: "
        "leave one out");
  return {};
}

// What a session and token healing ask of a request.
Status check_continuation(const GenerateRequest& request, bool has_tokenizer) {
  if (request.session && request.sampling.n != 1)
    return invalid_argument(
        "n is {}, but a request of a session has one sample: leave n out, or the session",
        request.sampling.n);
  if (request.sampling.token_healing && !has_tokenizer)
    return error(StatusCode::kFailedPrecondition,
                 "token_healing needs a tokenizer, and this engine runs without one "
                 "(skip_tokenizer_init)");
  if (request.sampling.token_healing && request.session)
    return invalid_argument(
        "token_healing takes back tokens of the prompt, which a session keeps: leave one out");
  return {};
}

Status check_shares(const EngineConfig& c, const GenerateRequest& request) {
  if (request.priority != 0 && c.schedule.schedule_policy != "priority" &&
      c.schedule.fair_share != "priority")
    return error(StatusCode::kFailedPrecondition,
                 "priority is {}, but priorities are off: start with --schedule-policy "
                 "priority, or leave it out",
                 request.priority);
  if (!(request.tenant_weight > 0) || !std::isfinite(request.tenant_weight))
    return invalid_argument("tenant_weight is {}; it must be a number above 0",
                            request.tenant_weight);
  return {};
}

// A text that is too long by any count is refused before it is tokenised, for its tokens may take
// 24 times its bytes of memory. A normaliser may shorten a text, so a token may stand for more
// bytes than the longest of the vocabulary has.
Status check_prompt_bytes(size_t num_bytes, int64_t num_tokens, int64_t bytes_per_token) {
  if (static_cast<int64_t>(num_bytes) <= num_tokens * bytes_per_token) return {};
  return invalid_argument(
      "the prompt ({} bytes of text) is longer than the model's context length allows: prompt and "
      "output share {} tokens, and texts of up to {} bytes for each are tried; shorten it",
      num_bytes, num_tokens, bytes_per_token);
}

// Hidden states, and the processors of an operator.
Status resolve_insides(const GenerateRequest& request, const ModelInfo& info,
                       const SamplingContext& context, LiveRequest& live) {
  ESP_ASSIGN_OR_RETURN(live.sampling.spec.hidden_layers, resolve_hidden_layers(request, info));
  ESP_ASSIGN_OR_RETURN(live.sampling.spec.control, resolve_control(request, info));
  ESP_ASSIGN_OR_RETURN(live.hooks,
                       make_hooks(request.sampling, context.history, context.vocab_size));
  return {};
}

Status prepare_samples(const GenerateRequest& request, const Tokenizer* tokenizer,
                       LiveRequest& live) {
  live.samples.reserve(static_cast<size_t>(request.sampling.n));
  ESP_ASSIGN_OR_RETURN(OutputProcessor first, OutputProcessor::create(tokenizer, request.sampling,
                                                                      live.sampling.stop_ids));
  for (int32_t i = 1; i < request.sampling.n; ++i)
    live.samples.push_back({.request = &live, .output = first.sibling()});
  live.samples.push_back({.request = &live, .output = std::move(first)});
  return {};
}

// Where a search is requested: what it keeps, and a state for each beam's sequences.
Status prepare_beams(const GenerateRequest& request, int32_t vocab_size, LiveRequest& live) {
  ESP_ASSIGN_OR_RETURN(const std::optional<BeamOptions> options,
                       resolve_beams(request, live.sampling, vocab_size));
  if (!options) return {};
  const SamplingParams& p = request.sampling;
  live.beams = std::make_unique<BeamState>(
      BeamState{.options = *options, .has_stops = !p.stop.empty() || !p.stop_regex.empty()});
  live.beam_samples.reserve(static_cast<size_t>(options->num_beams));
  for (int32_t i = 0; i < options->num_beams; ++i)
    live.beam_samples.push_back(
        {.request = &live, .output = live.samples[0].output.sibling(), .beam = i});
  return {};
}

// Whether an engine with this compiler (null: none) takes grammars.
Status check_grammars(const GrammarCompiler* compiler, const Engine::Parts& parts) {
  if (compiler != nullptr) return {};
  if (parts.tokenizer == nullptr)
    return error(StatusCode::kFailedPrecondition,
                 "a grammar needs a tokenizer, and this engine runs without one "
                 "(skip_tokenizer_init)");
  return error(StatusCode::kFailedPrecondition,
               "this engine takes no grammars (grammar_backend none)");
}

}  // namespace

Result<std::unique_ptr<LiveRequest>> EngineImpl::prepare(GenerateRequest& request, EventSink sink) {
  ESP_RETURN_IF_ERROR(check_shares(config_, request));
  ESP_RETURN_IF_ERROR(check_inputs(request, parts_.info, config_, images_ != nullptr));
  ESP_RETURN_IF_ERROR(check_bootstrap(config_, request));
  if (request.embed) {
    request.sampling = {.max_new_tokens = 0};
    request.return_logprob = false;  // a vector has none
  }
  ESP_RETURN_IF_ERROR(check_continuation(request, parts_.tokenizer != nullptr));
  auto live = std::make_unique<LiveRequest>();
  ESP_ASSIGN_OR_RETURN(live->sampling, resolve_sampling(request, sampling_context_));
  ESP_RETURN_IF_ERROR(resolve_insides(request, parts_.info, sampling_context_, *live));
  live->awaits_tokens = request.input_ids.empty();
  if (live->awaits_tokens && !parts_.tokenizer)
    return fail(
        error(StatusCode::kFailedPrecondition,
              "this engine runs without a tokenizer (skip_tokenizer_init): give input_ids"));
  if (live->awaits_tokens)
    ESP_RETURN_IF_ERROR(check_prompt_bytes(request.text.size(), loop_->max_sequence_tokens(),
                                           bytes_per_token_max_));
  live->awaits_images = !request.images.empty();
  live->awaits_grammar = live->sampling.grammar.has_value();
  if (live->awaits_grammar) ESP_RETURN_IF_ERROR(check_grammars(grammars_.get(), parts_));
  live->complete_within_budget = request.sampling.complete_within_budget;
  if (live->complete_within_budget)
    ESP_RETURN_IF_ERROR(check_budget(request, live->awaits_grammar));
  ESP_RETURN_IF_ERROR(prepare_samples(request, parts_.tokenizer.get(), *live));
  ESP_RETURN_IF_ERROR(prepare_beams(request, sampling_context_.vocab_size, *live));
  live->rid = request.rid.empty() ? rids_.next() : std::move(request.rid);
  live->seed = request.sampling.sampling_seed.value_or(mix64(config_.sampling.random_seed) +
                                                       mix64(num_seeds_++));
  live->return_logprob = request.return_logprob;
  live->return_token_origins = request.return_token_origins;
  // A stop string that forced tokens complete would end it before their log-probabilities are
  // computed.
  const bool may_stop = !request.sampling.stop.empty() || !request.sampling.stop_regex.empty();
  // Forced tokens are canonical, which may be more tokens than a budget leaves.
  live->jump_forward = request.sampling.jump_forward && !config_.grammar.disable_jump_forward &&
                       !live->complete_within_budget && !request.return_hidden_states &&
                       live->beams == nullptr &&
                       !(live->sampling.spec.computes_forced_logprobs() && may_stop);
  live->draft_tokens =
      live->jump_forward && request.sampling.draft_tokens && !config_.grammar.disable_draft_tokens;
  live->speculates = request.sampling.draft_tokens && live->beams == nullptr;
  live->token_healing = request.sampling.token_healing;
  live->logprob_start_len = request.logprob_start_len;
  live->embed = request.embed;
  live->dimensions = request.dimensions;
  live->priority = request.priority;
  if (!request.lora.empty()) {
    if (!config_.lora.enable_lora)
      return fail(Engine::unload_adapter(request.lora)
                      .with_context("lora_path, or the adapter that model names"));
    ESP_ASSIGN_OR_RETURN(live->adapter, adapters_.acquire(request.lora));
  }
  live->cache_namespace = namespace_of_control(
      live->sampling.spec.control, namespace_of_adapter(live->adapter.id(), request.extra_key));
  live->tenant = std::move(request.tenant);
  live->tenant_weight = request.tenant_weight;
  live->session = std::move(request.session);
  live->bootstrap = std::move(request.bootstrap);
  live->prompt_ids = std::move(request.input_ids);
  live->sink = std::move(sink);
  live->arrived = SteadyClock().now();
  return live;
}

void EngineImpl::abort(std::string_view rid, AbortScope scope) {
  for (RequestId id : registry_.take_for_abort(rid, scope)) {
    loop_->push(AbortMessage{id});
    if (grammars_ != nullptr) grammars_->cancel(id);
    if (images_ != nullptr) images_->cancel(id);
  }
}

namespace {

constexpr size_t kDrawnNodesMax = 100'000;  // of a grammar that is drawn

GrammarCompiler::Compiled compile_and_wait(GrammarCompiler& compiler,
                                           const grammar::GrammarSpec& spec) {
  // Shared: the compiler's thread may still hold its end when the caller has the result.
  auto done = std::make_shared<std::promise<GrammarCompiler::Compiled>>();
  std::future<GrammarCompiler::Compiled> waiting = done->get_future();
  compiler.compile(spec, 0,
                   [done](GrammarCompiler::Compiled made) { done->set_value(std::move(made)); });
  return waiting.get();
}

}  // namespace

// A grammar that is drawn is compiled by the calling thread and for it alone: a picture takes the
// automata of all rules, which cannot be built while a request reads them.
Result<GrammarReport> EngineImpl::compile_grammar(const SamplingParams& params,
                                                  size_t drawn_states) {
  ESP_RETURN_IF_ERROR(check_grammars(grammars_.get(), parts_));
  ESP_ASSIGN_OR_RETURN(const auto spec, resolve_grammar(params, sampling_context_.json_whitespace));
  if (!spec)
    return fail(
        invalid_argument("give a grammar: json_schema, regex, ebnf, structural_tag or choices"));
  const TimePoint start = clock_.now();
  const grammar::GrammarLimits limits{
      .nodes_max = kDrawnNodesMax, .compile_seconds_max = config_.grammar.grammar_compile_seconds};
  const auto compiled = drawn_states > 0
                            ? grammar::compile_grammar(*spec, grammar::byte_trie(), limits)
                            : compile_and_wait(*grammars_, *spec);
  if (!compiled)
    return fail(drawn_states > 0 ? as_request_error(*spec, compiled.error()) : compiled.error());
  const auto& made = *compiled;
  GrammarReport report;
  if (drawn_states > 0) {
    const grammar::Network& network = made->whole_network();
    report.rule_names = network.rule_names;
    report.svg = grammar::draw_svg(network, drawn_states);
  }
  const grammar::GrammarSize size = made->size();
  report.seconds = to_seconds(clock_.now() - start);
  report.num_rules = size.num_rules;
  report.num_states = size.num_nodes;
  report.num_edges = size.num_byte_edges + size.num_call_edges;
  report.num_byte_classes = size.num_byte_classes;
  report.forced = grammar::Matcher(made).forced_bytes(kReportedForcedMax);
  return report;
}

bool EngineImpl::can_join_branches() const {
  const PrefixCache& cache = cache_parts_.caches.first();
  return cache_parts_.caches.size() == 1 && cache.radix_tree() != nullptr &&
         cache.page_size() == 1 && !cache.has_window();
}

void EngineImpl::join_branches(JoinRequest request, JoinDone done) {
  if (!can_join_branches())
    return done(fail(error(StatusCode::kUnimplemented,
                           "this engine's cache joins no branches: it takes a radix cache with "
                           "pages of one token, and no layers with pages of a sliding window")));
  if (Status valid = check_join(request); !valid.ok()) return done(fail(std::move(valid)));
  loop_->push(JoinMessage{std::move(request), std::move(done)});
}

Result<std::string> EngineImpl::open_session(const SessionOptions& options) {
  return sessions_->open(options);
}

Status EngineImpl::close_session(std::string_view id) { return sessions_->close(id); }

Result<std::vector<TokenId>> EngineImpl::session_prompt(const SessionParams& params,
                                                        std::vector<TokenId> ids) {
  return sessions_->prompt(params, std::move(ids));
}

void EngineImpl::read_cache(const CacheNodesQuery& query, CacheNodesDone done) {
  loop_->push(CacheNodesMessage{query, std::move(done)});
}

Result<CacheEvents> EngineImpl::read_cache(uint64_t from, size_t num_events_max) const {
  if (cache_parts_.events == nullptr) return Engine::read_cache(from, num_events_max);
  CacheEvents out = cache_parts_.events->read(from, num_events_max);
  for (CacheEvent& event : out.events) {  // readers know adapters and keys of requests by name
    event.cache_namespace = namespace_without_weights(event.cache_namespace);
    const AdapterNamespace of = adapter_of_namespace(event.cache_namespace);
    event.adapter = adapters_.name_of(of.id);
    if (!event.adapter.empty()) event.cache_namespace = std::string(of.cache_namespace);
  }
  return out;
}

namespace {
// Requests that use an adapter may run so long before unload_adapter() gives up.
constexpr Duration kUnloadTimeout = std::chrono::seconds(120);
}  // namespace

Result<AdapterInfo> EngineImpl::load_adapter(const std::string& name,
                                             const std::filesystem::path& path) {
  if (!config_.lora.enable_lora) return Engine::load_adapter(name, path);
  return adapters_.load(name, path);
}

Status EngineImpl::unload_adapter(const std::string& name) {
  if (!config_.lora.enable_lora) return Engine::unload_adapter(name);
  return adapters_.unload(name, kUnloadTimeout);
}

Status EngineImpl::load_stated_adapters() {
  for (const std::string& stated : config_.lora.lora_paths) {
    const size_t equals = stated.find('=');
    const std::filesystem::path path = stated.substr(equals == std::string::npos ? 0 : equals + 1);
    const std::filesystem::path last = path.has_filename() ? path : path.parent_path();
    const std::string name =
        equals == std::string::npos ? last.filename().string() : stated.substr(0, equals);
    if (const auto info = adapters_.load(name, path); !info) return info.error();
  }
  return {};
}

Status EngineImpl::flush_cache() {
  FlushMessage message;
  std::future<Status> done = message.done.get_future();
  loop_->push(std::move(message));
  const Status status = done.get();
  if (status.ok() && cache_parts_.tiers != nullptr) cache_parts_.tiers->clear_host();
  return status;
}

Result<std::vector<StorageReport>> EngineImpl::storage(const StorageRequest& request) {
  if (request.action == StorageRequest::Action::kAttach && parts_.info.images)
    return fail(error(StatusCode::kUnimplemented,
                      "pictures are not stored in tiers that outlive the engine, and this model "
                      "reads pictures: no storage is attached"));
  return control_storage(cache_parts_.tiers.get(), config_.tiers, request);
}

Status EngineImpl::pause_generation(PauseMode mode) {
  PauseMessage message{.mode = mode};
  std::future<Status> done = message.done.get_future();
  loop_->push(std::move(message));
  return done.get();
}

Status EngineImpl::continue_generation() {
  ContinueMessage message;
  std::future<Status> done = message.done.get_future();
  loop_->push(std::move(message));
  return done.get();
}

void EngineImpl::drain(Duration timeout) {
  registry_.close();
  const TimePoint deadline = clock_.now() + timeout;
  if (registry_.wait_settled(timeout)) {
    if (cache_parts_.disaggregation != nullptr)
      cache_parts_.disaggregation->drain(deadline - clock_.now());
    return;
  }
  abort({}, AbortScope::kAll);
  registry_.wait_settled(std::chrono::hours(24 * 365));
}

EngineStats EngineImpl::stats() const {
  EngineStats s = loop_->stats();
  if (watchdog_ != nullptr) {
    const WatchdogCounts slow = watchdog_->counts();
    s.steps.num_slow = slow.soft;
    s.steps.num_very_slow = slow.hard;
  }
  s.memory.weight_bytes = parts_.info.weight_bytes;
  const MemoryPlan plan = parts_.executor->memory_plan();
  s.memory.scratch_bytes = plan.scratch + plan.steps + plan.encoder;
  s.memory.graph_bytes = plan.graphs;
  s.sessions.num_open = sessions_->num_open();
  s.sessions.bytes = sessions_->num_bytes();
  if (cache_parts_.tiers != nullptr) s.tiers = cache_parts_.tiers->stats();
  if (cache_parts_.disaggregation != nullptr)
    s.disaggregation = cache_parts_.disaggregation->stats();
  if (const CacheEventLog* const events = cache_parts_.events.get()) {
    s.cache_events.num_total = static_cast<int64_t>(events->num_events());
    s.cache_events.num_overwritten = static_cast<int64_t>(events->num_overwritten());
  }
  if (images_ != nullptr) {
    const ImagePoolStats images = images_->stats();
    s.images.num_total = images.num_images_total;
    s.images.num_encoded = images.num_encoded_total;
    s.images.encode_seconds = images.encode_seconds_total;
    s.images.row_bytes = images.row_bytes;
  }
  if (grammars_ != nullptr) {
    const GrammarCompilerStats g = grammars_->stats();
    s.grammars.num_requested = g.requests;
    s.grammars.num_cache_hits = g.cache_hits;
    s.grammars.num_cancelled = g.cancelled;
    s.grammars.num_compiled = g.compiled;
    s.grammars.compile_seconds = g.compile_seconds;
    s.grammars.num_waiting = g.waiting;
    s.grammars.num_kept = g.kept;
    s.grammars.kept_bytes = g.kept_bytes;
  }
  if (parts_.expert_counts) {
    if (auto totals = parts_.expert_counts->read()) s.experts = *std::move(totals);
  }
  const auto type = resolve_kv_type(config_, parts_.info);
  if (type) s.memory.kv_bytes = kv_bytes(config_, parts_.info, *type);
  return s;
}

}  // namespace espalier
