// The calls of a prompt state: gens, selects, and what API speculation makes of them.
#include <algorithm>
#include <cmath>

#include "lang/interpreter/live_stream.h"
#include "lang/interpreter/reasoning.h"
#include "lang/pool.h"
#include "lang/recorder.h"

namespace espalier::lang {
namespace {

constexpr int32_t kMaxTokens = 128;  // of a gen that says nothing, as in SGLang
constexpr int kMessageTries = 3;     // of a chat message that must read as its template

// Of each choice [[logprob or null, token id or null, null], ...], as the native API has it.
std::string json_logprobs(const std::vector<ChoiceScore>& scores) {
  std::string out = "[";
  for (const ChoiceScore& score : scores) {
    out += out.size() > 1 ? ",[" : "[";
    for (size_t i = 0; i < score.logprobs.size(); ++i)
      out += fmt::format("{}[{},{},null]", i > 0 ? "," : "",
                         score.logprobs[i] ? fmt::format("{}", *score.logprobs[i]) : "null",
                         i < score.tokens.size() ? std::to_string(score.tokens[i]) : "null");
    out += "]";
  }
  return out + "]";
}

std::string json_numbers(const std::vector<double>& numbers) {
  std::string out = "[";
  for (double number : numbers) out += fmt::format("{}{:.9g}", out.size() > 1 ? "," : "", number);
  return out + "]";
}

bool has_grammar(const GenOptions& o) {
  return !o.regex.empty() || !o.json_schema.empty() || !o.ebnf.empty() || o.dtype != Dtype::kText;
}

std::string_view trim_left(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\n')) text.remove_prefix(1);
  return text;
}

}  // namespace

// Takes a call's events on the back end's threads and hands them to the stream on its pool: many
// pieces of text with one task, in order. It holds neither the stream nor the back end, so that
// neither can end on a thread of the back end's own.
struct LiveStream::Awaited : std::enable_shared_from_this<LiveStream::Awaited> {
  std::weak_ptr<LiveStream> stream;
  uint64_t turn = 0;
  Pool* pool = nullptr;  // the back end's, which outlives its calls

  std::mutex mutex;
  std::string text;
  std::optional<Progress> told, progress;  // of text that comes next, of `text`
  std::optional<Result<Completion>> result;
  bool is_posted = false;  // a task delivers, or will: never two at once

  void add(std::string_view delta) {
    std::lock_guard lock(mutex);
    text += delta;
    if (told) progress = progress ? merged(*progress, *told) : std::move(*told);
    told.reset();
    post();
  }
  void tell(Progress p) {
    std::lock_guard lock(mutex);
    told = std::move(p);
  }
  void finish(Result<Completion> r) {
    std::lock_guard lock(mutex);
    result = std::move(r);
    post();
  }
  void post() {
    if (is_posted) return;
    is_posted = true;
    post_task();
  }
  void post_task() {
    pool->post([self = shared_from_this()] { self->deliver(); });
  }
  void deliver() {
    std::string delta;
    std::optional<Progress> brought;
    std::optional<Result<Completion>> end;
    {
      std::lock_guard lock(mutex);
      delta.swap(text);
      brought.swap(progress);
      end.swap(result);
    }
    const std::shared_ptr<LiveStream> target = stream.lock();
    if (target == nullptr) return;
    if (!delta.empty()) target->grow(turn, delta, std::move(brought));
    if (end) target->finish_call(turn, std::move(*end));
    std::lock_guard lock(mutex);
    is_posted = !text.empty() || result;
    if (is_posted) post_task();
  }
};

bool LiveStream::speculates() const {
  const RunOptions& o = session_->options;
  return o.num_api_spec_tokens > 0 && o.backend != nullptr && o.backend->is_api();
}

bool LiveStream::defers() const { return speculates() && session_->options.backend->is_chat(); }

Prompt LiveStream::prompt() const {
  Prompt p;
  p.text = written_.text;
  p.open = written_.open;
  p.media = written_.media;
  p.joined = written_.joined;
  if (session_->options.backend->is_chat() || !p.media.empty()) p.messages = written_.messages;
  return p;
}

GenOptions LiveStream::complete(const Gen& gen) const {
  GenOptions o = gen.options.with_defaults(session_->options.defaults);
  if (!o.max_tokens) o.max_tokens = kMaxTokens;
  if (written_.open) {
    const RoleFrame frame =
        session_->options.backend->role_frame(written_.open->role, previous_role());
    for (const std::string& stop : frame.stop)
      if (std::find(o.stop.begin(), o.stop.end(), stop) == o.stop.end()) o.stop.push_back(stop);
  }
  return o;
}

// Suspends the stream until the call that follows has ended. Null when the program was cancelled
// meanwhile; the operation has then been failed.
std::shared_ptr<LiveStream::Awaited> LiveStream::begin_call(Operation& op) {
  auto awaited = std::make_shared<Awaited>();
  awaited->stream = std::static_pointer_cast<LiveStream>(shared_from_this());
  awaited->pool = &session_->options.backend->pool();
  {
    std::lock_guard lock(mutex_);
    if (error_.ok()) {
      current_ = std::move(op);
      awaited->turn = ++turn_;
      call_id_ = fmt::format("{}-{}", session_->id, session_->num_calls++);
      gen_begin_ = written_.text.size();
      return awaited;
    }
  }
  skip(op);
  return nullptr;
}

// After the back end was given a call: a cancel that came before the back end knew it is told now.
void LiveStream::sent_call(uint64_t turn) {
  std::string id;
  {
    std::lock_guard lock(mutex_);
    if (cancelled_ && turn == turn_) id = call_id_;
  }
  if (!id.empty()) session_->options.backend->cancel(id);
}

LiveStream::Step LiveStream::step(Operation& op, const std::shared_ptr<const Gen>& gen) {
  const Status valid = validate(gen->options);
  if (!valid.ok()) return refuse(op, valid);
  if (session_->options.backend == nullptr)
    return refuse(op, espalier::error(StatusCode::kFailedPrecondition,
                                      "a gen without a back end: name one in RunOptions::backend "
                                      "or with set_default_backend"));
  if (defers() && written_.open && written_.open->role == Role::kAssistant) {
    deferred_.push_back({.is_hole = true, .stops = gen->options.stop});
    deferred_gens_.emplace_back(std::move(op), gen);
    return Step::kDone;
  }
  if (take_ahead(op, *gen)) return Step::kDone;
  return send_gen(op, *gen);
}

LiveStream::Step LiveStream::step(Operation& op, const Reasoning& reasoning) {
  if (reasoning.gen == nullptr)
    return refuse(op, invalid_argument("separate_reasoning is given one gen and nothing else"));
  if (const auto known = separate_reasoning_text("", reasoning.model_type); !known)
    return refuse(op, known.error());
  const Node node{reasoning, op.where};
  const Status valid = validate(reasoning.gen->options);
  if (!valid.ok()) return refuse(op, valid);
  if (session_->options.backend == nullptr || defers())
    return refuse(op,
                  espalier::error(StatusCode::kFailedPrecondition,
                                  "separate_reasoning needs a back end, and no API speculation"));
  op.what = node;
  return send_gen(op, *reasoning.gen);
}

LiveStream::Step LiveStream::send_gen(Operation& op, const Gen& gen) {
  GenerateCall call{.options = complete(gen)};
  const bool looks_ahead = speculates() && !op.sent_plainly && !call.options.stop.empty() &&
                           call.options.n.value_or(1) == 1 && !has_grammar(call.options) &&
                           !session_->options.backend->is_chat();
  if (looks_ahead) {
    call.options.max_tokens =
        std::max(*call.options.max_tokens, session_->options.num_api_spec_tokens);
    call.options.stop.clear();
  }
  op.looks_ahead = looks_ahead;
  op.gen = std::make_shared<const Gen>(gen);
  const auto* node = std::get_if<Node>(&op.what);
  const bool is_reasoning = node != nullptr && std::holds_alternative<Reasoning>(node->what);
  call.stream = session_->options.stream && !looks_ahead && !is_reasoning;
  const std::shared_ptr<Awaited> awaited = begin_call(op);
  if (awaited == nullptr) return Step::kDone;
  call.id = call_id_;
  call.prompt = prompt();
  // The answer may come, and the stream go on, before generate() returns.
  const auto self = shared_from_this();
  CallEvents events{.on_done = [awaited](Result<Completion> r) { awaited->finish(std::move(r)); }};
  if (call.stream) {
    events.on_text = [awaited](std::string_view delta) { awaited->add(delta); };
    events.on_progress = [awaited](Progress p) { awaited->tell(std::move(p)); };
  }
  session_->options.backend->generate(std::move(call), std::move(events));
  sent_call(awaited->turn);
  return Step::kSuspended;
}

void LiveStream::grow(uint64_t turn, std::string_view delta, std::optional<Progress> progress) {
  VariablePtr target;
  {
    std::lock_guard lock(mutex_);
    if (turn != turn_) return;
    target = current_.target;
  }
  write(delta);
  if (target != nullptr) target->append(delta, std::move(progress));
}

void LiveStream::finish_call(uint64_t turn, Result<Completion> result) {
  Operation op;
  bool failed = false;
  {
    std::lock_guard lock(mutex_);
    if (turn != turn_ || call_id_.empty()) return;
    call_id_.clear();
    op = std::move(current_);
    failed = !error_.ok();
    // What was streamed is part of what has now come whole.
    const size_t num_streamed = written_.text.size() - gen_begin_;
    written_.text.resize(gen_begin_);
    if (written_.open && num_streamed > 0) {
      std::string& part = written_.open->parts.back().text;
      part.resize(part.size() - num_streamed);
    }
  }
  const bool is_message = op.gen == nullptr;
  if (failed) {
    skip(op);
  } else if (!result) {
    const std::string what = is_message ? "the message" : fmt::format("gen \"{}\"", op.gen->name);
    fail_op(op, result.error().with_context(what));
  } else if (is_message) {
    if (take_message(op, std::move(*result)) == Step::kSuspended) return;
  } else {
    const std::shared_ptr<const Gen> gen = op.gen;
    if (take_completion(op, *gen, std::move(*result)) == Step::kSuspended) return;
  }
  drain();
}

LiveStream::Step LiveStream::take_completion(Operation& op, const Gen& gen, Completion completion) {
  if (completion.samples.empty())
    return refuse(op, espalier::error(StatusCode::kInternal, "a completion without a sample"));
  Sample& first = completion.samples.front();
  last_prompt_tokens_ = first.meta.prompt_tokens;
  last_prompt_chars_ = written_.text.size();
  if (op.looks_ahead) {
    const GenOptions options = complete(gen);
    const bool ended = first.meta.finish_reason == "stop";
    auto taken = ahead_.split(first.text, options.stop, ended);
    if (!taken && *options.max_tokens < session_->options.num_api_spec_tokens) {
      // Its own length would have ended it somewhere in between: only the API knows where.
      op.sent_plainly = true;
      return send_gen(op, gen);
    }
    if (taken) first.text = std::move(*taken);
  }
  if (const auto* node = std::get_if<Node>(&op.what)) {
    if (const auto* reasoning = std::get_if<Reasoning>(&node->what)) {
      const auto split = separate_reasoning_text(first.text, reasoning->model_type);
      if (!split) return refuse(op, split.error());
      op.reasoning->fill({.text = split->first});
      first.text = split->second;
    }
  }
  write(first.text);
  {
    std::lock_guard lock(mutex_);
    written_.cached_chars = written_.text.size();
  }
  Content content{.text = first.text};
  if (gen.options.n.value_or(1) > 1) {
    content.is_list = true;
    for (Sample& sample : completion.samples) content.items.push_back(std::move(sample.text));
  }
  record(op, &first.meta);
  op.target->fill(std::move(content), std::move(first.meta));
  return Step::kDone;
}

// ---- select ----

LiveStream::Step LiveStream::step(Operation& op, const Select& select) {
  const Status valid = validate_choices(select.choices);
  if (!valid.ok()) return refuse(op, valid);
  if (session_->options.backend == nullptr)
    return refuse(op, espalier::error(StatusCode::kFailedPrecondition,
                                      "a select without a back end: name one in "
                                      "RunOptions::backend or with set_default_backend"));
  if (defers() && written_.open)
    return refuse(op, espalier::error(StatusCode::kUnimplemented,
                                      "a select inside of a message that API speculation writes "
                                      "whole"));
  ahead_.clear();
  op.method = select.method;
  ScoreCall call{.choices = select.choices, .method = select.method};
  const std::shared_ptr<Awaited> awaited = begin_call(op);
  if (awaited == nullptr) return Step::kDone;
  call.id = call_id_;
  call.prompt = prompt();
  const auto self = shared_from_this();
  session_->options.backend->score(std::move(call),
                                   [weak = awaited->stream, turn = awaited->turn,
                                    pool = awaited->pool](Result<std::vector<ChoiceScore>> scores) {
                                     pool->post([weak, turn, scores = std::move(scores)]() mutable {
                                       if (const auto stream = weak.lock())
                                         stream->finish_score(turn, std::move(scores));
                                     });
                                   });
  sent_call(awaited->turn);
  return Step::kSuspended;
}

void LiveStream::finish_score(uint64_t turn, Result<std::vector<ChoiceScore>> result) {
  Operation op;
  bool failed = false;
  {
    std::lock_guard lock(mutex_);
    if (turn != turn_ || call_id_.empty()) return;
    call_id_.clear();
    op = std::move(current_);
    failed = !error_.ok();
  }
  Result<Decision> decision =
      result ? decide(op.method, *result) : Result<Decision>(espalier::fail(result.error()));
  if (failed) {
    skip(op);
  } else if (!decision) {
    fail_op(op, decision.error().with_context("select"));
  } else {
    write(decision->text);
    MetaInfo meta{.finish_reason = "stop"};
    meta.json = fmt::format(
        R"({{"choices_method":"{}","normalized_prompt_logprobs":{},"input_token_logprobs":{}}})",
        choices_method_name(op.method), json_numbers(decision->scores), json_logprobs(*result));
    record(op, &meta);
    op.target->fill({.text = decision->text}, std::move(meta));
  }
  drain();
}

// ---- concatenate and append ----

// The texts are appended when the back end has answered, whatever it says.
LiveStream::Step LiveStream::send_join(Operation& op, const std::vector<BranchText>& texts) {
  const std::shared_ptr<Awaited> awaited = begin_call(op);
  if (awaited == nullptr) return Step::kDone;
  JoinCall call{.id = call_id_, .prompt = prompt()};
  for (const BranchText& branch : texts)
    if (!branch.text.empty()) call.branches.push_back(branch.text);
  const auto self = shared_from_this();
  session_->options.backend->join(
      std::move(call), [weak = awaited->stream, turn = awaited->turn,
                        pool = awaited->pool](Result<std::shared_ptr<const JoinedPrefix>> result) {
        pool->post([weak, turn, result = std::move(result)]() mutable {
          if (const auto stream = weak.lock()) stream->finish_join(turn, std::move(result));
        });
      });
  sent_call(awaited->turn);
  return Step::kSuspended;
}

void LiveStream::finish_join(uint64_t turn, Result<std::shared_ptr<const JoinedPrefix>> result) {
  Operation op;
  bool failed = false;
  {
    std::lock_guard lock(mutex_);
    if (turn != turn_ || call_id_.empty()) return;
    call_id_.clear();
    op = std::move(current_);
    failed = !error_.ok();
  }
  if (failed) {
    skip(op);
  } else {
    append_branches(branch_texts(std::get<ConcatOp>(op.what)));
    if (result) {
      std::lock_guard lock(mutex_);
      written_.joined = std::move(*result);
      written_.cached_chars = written_.text.size();
    }
    record(op);
  }
  drain();
}

// ---- API speculation ----

// What an earlier call wrote too much, as this gen's text.
bool LiveStream::take_ahead(Operation& op, const Gen& gen) {
  if (ahead_.empty()) return false;
  const GenOptions options = complete(gen);
  std::optional<std::string> taken;
  if (options.n.value_or(1) == 1 && !has_grammar(options)) taken = ahead_.take(options.stop);
  if (!taken) {
    ahead_.clear();
    return false;
  }
  count_saved();
  write(*taken);
  MetaInfo meta{.finish_reason = "stop", .json = R"({"speculated":true})"};
  record(op, &meta);
  op.target->fill({.text = std::move(*taken)}, std::move(meta));
  return true;
}

// A call that was not made would have sent the prompt as it is now; its tokens are estimated by the
// last call's own count.
void LiveStream::count_saved() {
  Backend& backend = *session_->options.backend;
  const double tokens_per_char =
      last_prompt_chars_ == 0
          ? 0.25
          : static_cast<double>(last_prompt_tokens_) / static_cast<double>(last_prompt_chars_);
  const int64_t tokens = std::llround(static_cast<double>(written_.text.size()) * tokens_per_char);
  backend.count({.num_calls_saved = 1,
                 .prompt_tokens_saved = tokens,
                 .dollars_saved = static_cast<double>(tokens) * backend.dollars_per_input_token()});
}

// `op` is the end of the role.
LiveStream::Step LiveStream::send_message(Operation& op) {
  GenerateCall call{.options = complete(*deferred_gens_.front().second)};
  int32_t sum = 0;
  for (const auto& [deferred, gen] : deferred_gens_) sum += *complete(*gen).max_tokens;
  call.options.max_tokens = std::max(sum, session_->options.num_api_spec_tokens);
  // One gen that ends the message stops where it says; several go on past each other's stops.
  if (deferred_gens_.size() > 1 || !deferred_.back().is_hole) call.options.stop.clear();
  op.gen = nullptr;
  const std::shared_ptr<Awaited> awaited = begin_call(op);
  if (awaited == nullptr) return Step::kDone;
  call.id = call_id_;
  call.prompt = prompt();
  const auto self = shared_from_this();
  session_->options.backend->generate(std::move(call), {.on_done = [awaited](Result<Completion> r) {
                                        awaited->finish(std::move(r));
                                      }});
  sent_call(awaited->turn);
  return Step::kSuspended;
}

LiveStream::Step LiveStream::take_message(Operation& op, Completion completion) {
  const Sample& first = completion.samples.front();
  last_prompt_tokens_ = first.meta.prompt_tokens;
  last_prompt_chars_ = written_.text.size();
  std::vector<TemplateItem> items;  // constants that follow each other are one
  for (const TemplateItem& item : deferred_) {
    if (!item.is_hole && !items.empty() && !items.back().is_hole) {
      items.back().text += item.text;
    } else {
      items.push_back(item);
    }
  }
  // APIs give messages without the white space before them.
  std::string_view text = first.text;
  if (!items.front().is_hole) {
    items.front().text = trim_left(items.front().text);
    text = trim_left(text);
  }
  const auto holes = match_template(items, text);
  if (!holes) {
    if (++message_tries_ < kMessageTries) return send_message(op);
    message_tries_ = 0;
    return refuse(op, espalier::error(StatusCode::kFailedPrecondition,
                                      "API speculation: {} answers did not read as the message's "
                                      "template; the last began \"{}\". Tell the model the format, "
                                      "or run with num_api_spec_tokens = 0",
                                      kMessageTries, first.text.substr(0, 80)));
  }
  message_tries_ = 0;
  size_t next = 0;
  for (const TemplateItem& item : deferred_) {
    if (!item.is_hole) {
      write(item.text);
      continue;
    }
    if (next > 0) count_saved();
    write((*holes)[next]);
    Operation& gen = deferred_gens_[next].first;
    record(gen, &first.meta);
    gen.target->fill({.text = (*holes)[next++]}, first.meta);
  }
  deferred_.clear();
  deferred_gens_.clear();
  const Node end = std::get<Node>(op.what);
  return step(op, std::get<RoleEnd>(end.what));
}

// ---- what is remembered of each primitive ----

namespace {

struct Kind {
  std::string operator()(const Text& t) { return named("text", t.text.substr(0, 40)); }
  std::string operator()(const std::shared_ptr<const Gen>& g) { return named("gen", g->name); }
  std::string operator()(const Select& s) { return named("select", s.name); }
  std::string operator()(const Media& m) {
    return named(m.kind == Media::Kind::kImage ? "image" : "video", m.path.substr(0, 40));
  }
  std::string operator()(const RoleBegin& r) { return named("role", role_name(r.role)); }
  std::string operator()(const RoleEnd& r) { return named("role", role_name(r.role)); }
  std::string operator()(const ScopeBegin& s) { return named("scope", s.name); }
  std::string operator()(const ScopeEnd& s) { return named("scope", s.name); }
  std::string operator()(const Reference& r) { return named("value", r.value.name()); }
  std::string operator()(const Reasoning& r) {
    return named("reasoning", r.gen != nullptr ? r.gen->name : "");
  }
  std::string named(std::string kind, std::string_view its_name) {
    name = its_name;
    return kind;
  }
  std::string name;
};

}  // namespace

void LiveStream::record(const Operation& op, const MetaInfo* meta, const Status& status) {
  Recorder* recorder = session_->options.recorder.get();
  if (recorder == nullptr) return;
  Span span{.stream = index_, .parent_stream = parent_index_, .where = op.where};
  Kind kind;
  if (op.gen != nullptr) {
    span.kind = kind(op.gen);
  } else if (const auto* node = std::get_if<Node>(&op.what)) {
    span.kind = std::visit(kind, node->what);
  } else if (std::holds_alternative<ForkOp>(op.what)) {
    span.kind = "fork";
  } else if (std::holds_alternative<ReferenceOp>(op.what)) {
    span.kind = "value";
  } else {
    span.kind = std::holds_alternative<SetOp>(op.what) ? "set" : "join";
  }
  span.name = kind.name;
  span.submitted = op.submitted;
  span.begin = begin_;
  span.end = SteadyClock().now();
  if (meta != nullptr) {
    span.prompt_tokens = meta->prompt_tokens;
    span.cached_tokens = meta->cached_tokens;
    span.completion_tokens = meta->completion_tokens;
  }
  span.status = status;
  recorder->add(std::move(span));
}

}  // namespace espalier::lang
