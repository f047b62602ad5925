#include "lang/interpreter/gen_runner.h"

#include <algorithm>
#include <cmath>

#include "lang/interpreter/reasoning.h"

namespace espalier::lang {
namespace {

constexpr int32_t kMaxTokens = 128;  // of a gen that states no length, as in SGLang

// For each choice [[logprob or null, token id or null, null], ...], as the native API has it.
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

bool is_reasoning(const Operation& op) {
  const auto* node = std::get_if<Node>(&op.what);
  return node != nullptr && std::holds_alternative<Reasoning>(node->what);
}

}  // namespace

GenOptions GenRunner::complete(const Gen& gen) const {
  GenOptions o = gen.options.with_defaults(session_.options().defaults);
  if (!o.max_tokens) o.max_tokens = kMaxTokens;
  if (const auto& open = text_.written().open) {
    const RoleFrame frame = session_.backend()->role_frame(open->role, text_.previous_role());
    for (const std::string& stop : frame.stop)
      if (std::find(o.stop.begin(), o.stop.end(), stop) == o.stop.end()) o.stop.push_back(stop);
  }
  return o;
}

Step GenRunner::gen(Operation& op, const std::shared_ptr<const Gen>& gen) {
  const Status valid = validate(gen->options);
  if (!valid.ok()) return outcomes_.refuse(op, valid);
  if (session_.backend() == nullptr)
    return outcomes_.refuse(
        op, error(StatusCode::kFailedPrecondition,
                  "a gen without a back end: name one in RunOptions::backend or with "
                  "set_default_backend"));
  const auto& open = text_.written().open;
  if (session_.defers_messages() && open && open->role == Role::kAssistant) {
    message_.add_gen(std::move(op), gen);
    return Step::kDone;
  }
  if (take_ahead(op, *gen)) return Step::kDone;
  return send_gen(op, gen);
}

Step GenRunner::reasoning(Operation& op, const Reasoning& reasoning) {
  if (reasoning.gen == nullptr)
    return outcomes_.refuse(
        op, invalid_argument("separate_reasoning is given one gen and nothing else"));
  if (const auto known = separate_reasoning_text("", reasoning.model_type); !known)
    return outcomes_.refuse(op, known.error());
  const Status valid = validate(reasoning.gen->options);
  if (!valid.ok()) return outcomes_.refuse(op, valid);
  if (session_.backend() == nullptr || session_.defers_messages())
    return outcomes_.refuse(op,
                            error(StatusCode::kFailedPrecondition,
                                  "separate_reasoning needs a back end, and no API speculation"));
  return send_gen(op, reasoning.gen);
}

Step GenRunner::send_gen(Operation& op, const std::shared_ptr<const Gen>& gen) {
  const RunOptions& run = session_.options();
  GenerateCall call{.options = complete(*gen)};
  op.looks_ahead = session_.speculates() && !op.sent_plainly && !call.options.stop.empty() &&
                   call.options.n.value_or(1) == 1 && !has_grammar(call.options) &&
                   !session_.backend()->is_chat();
  if (op.looks_ahead) {
    call.options.max_tokens = std::max(*call.options.max_tokens, run.num_api_spec_tokens);
    call.options.stop.clear();
  }
  op.gen = gen;
  call.stream = run.stream && !op.looks_ahead && !is_reasoning(op);
  return calls_.generate(
      op, std::move(call), [this](Operation& sent, Result<Completion> completion) {
        if (completion) return take_completion(sent, std::move(*completion));
        return outcomes_.refuse(
            sent, completion.error().with_context(fmt::format("gen \"{}\"", sent.gen->name)));
      });
}

Step GenRunner::take_completion(Operation& op, Completion completion) {
  if (completion.samples.empty())
    return outcomes_.refuse(op, error(StatusCode::kInternal, "a completion without a sample"));
  const std::shared_ptr<const Gen> gen = op.gen;
  Sample& first = completion.samples.front();
  count_call(first.meta);
  if (op.looks_ahead) {
    const GenOptions options = complete(*gen);
    auto taken = ahead_.split(first.text, options.stop, first.meta.finish_reason == "stop");
    if (!taken && *options.max_tokens < session_.options().num_api_spec_tokens) {
      // Its own length would have ended it somewhere in between: only the API knows where.
      op.sent_plainly = true;
      return send_gen(op, gen);
    }
    if (taken) first.text = std::move(*taken);
  }
  if (is_reasoning(op)) {
    const auto& reasoning = std::get<Reasoning>(std::get<Node>(op.what).what);
    const auto split = separate_reasoning_text(first.text, reasoning.model_type);
    if (!split) return outcomes_.refuse(op, split.error());
    op.reasoning->fill({.text = split->first});
    first.text = split->second;
  }
  text_.append(first.text);
  text_.set_cached();
  Content content{.text = first.text};
  if (gen->options.n.value_or(1) > 1) {
    content.is_list = true;
    for (Sample& sample : completion.samples) content.items.push_back(std::move(sample.text));
  }
  outcomes_.record(op, &first.meta);
  op.target->fill(std::move(content), std::move(first.meta));
  return Step::kDone;
}

Step GenRunner::select(Operation& op, const Select& select) {
  const Status valid = validate_choices(select.choices);
  if (!valid.ok()) return outcomes_.refuse(op, valid);
  if (session_.backend() == nullptr)
    return outcomes_.refuse(
        op, error(StatusCode::kFailedPrecondition,
                  "a select without a back end: name one in RunOptions::backend or with "
                  "set_default_backend"));
  if (session_.defers_messages() && text_.written().open)
    return outcomes_.refuse(
        op, error(StatusCode::kUnimplemented,
                  "a select inside of a message that API speculation writes whole"));
  ahead_.clear();
  ScoreCall call{.choices = select.choices, .method = select.method};
  return calls_.score(
      op, std::move(call),
      [this, method = select.method](Operation& sent, Result<std::vector<ChoiceScore>> scores) {
        return take_scores(sent, method, std::move(scores));
      });
}

Step GenRunner::take_scores(Operation& op, ChoicesMethod method,
                            Result<std::vector<ChoiceScore>> scores) {
  Result<Decision> decision =
      scores ? decide(method, *scores) : Result<Decision>(fail(scores.error()));
  if (!decision) return outcomes_.refuse(op, decision.error().with_context("select"));
  text_.append(decision->text);
  MetaInfo meta{.finish_reason = "stop"};
  meta.json = fmt::format(
      R"({{"choices_method":"{}","normalized_prompt_logprobs":{},"input_token_logprobs":{}}})",
      choices_method_name(method), json_numbers(decision->scores), json_logprobs(*scores));
  outcomes_.record(op, &meta);
  op.target->fill({.text = decision->text}, std::move(meta));
  return Step::kDone;
}

// What an earlier call wrote beyond its stop, as this gen's text.
bool GenRunner::take_ahead(Operation& op, const Gen& gen) {
  if (ahead_.empty()) return false;
  const GenOptions options = complete(gen);
  std::optional<std::string> taken;
  if (options.n.value_or(1) == 1 && !has_grammar(options)) taken = ahead_.take(options.stop);
  if (!taken) {
    ahead_.clear();
    return false;
  }
  count_saved();
  text_.append(*taken);
  MetaInfo meta{.finish_reason = "stop", .json = R"({"speculated":true})"};
  outcomes_.record(op, &meta);
  op.target->fill({.text = std::move(*taken)}, std::move(meta));
  return true;
}

void GenRunner::count_call(const MetaInfo& meta) {
  last_prompt_tokens_ = meta.prompt_tokens;
  last_prompt_chars_ = text_.written().text.size();
}

// A call that was not made would have sent the prompt as it is now; its tokens are estimated by the
// last call's own count.
void GenRunner::count_saved() {
  Backend& backend = *session_.backend();
  const double tokens_per_char =
      last_prompt_chars_ == 0
          ? 0.25
          : static_cast<double>(last_prompt_tokens_) / static_cast<double>(last_prompt_chars_);
  const auto num_chars = static_cast<double>(text_.written().text.size());
  const int64_t tokens = std::llround(num_chars * tokens_per_char);
  backend.count({.num_calls_saved = 1,
                 .prompt_tokens_saved = tokens,
                 .dollars_saved = static_cast<double>(tokens) * backend.dollars_per_input_token()});
}

Step GenRunner::send_message(Operation& op, std::function<Step(Operation&)> then) {
  GenerateCall call{.options = complete(*message_.gens().front().gen)};
  int32_t sum = 0;
  for (const PendingMessage::PendingGen& pending : message_.gens())
    sum += *complete(*pending.gen).max_tokens;
  call.options.max_tokens = std::max(sum, session_.options().num_api_spec_tokens);
  // Several gens, or text behind a gen, go on past each other's stops.
  if (!message_.ends_with_only_gen()) call.options.stop.clear();
  op.gen = nullptr;
  return calls_.generate(
      op, std::move(call),
      [this, then = std::move(then)](Operation& sent, Result<Completion> completion) {
        if (completion) return take_message(sent, std::move(*completion), then);
        return outcomes_.refuse(sent, completion.error().with_context("the message"));
      });
}

Step GenRunner::take_message(Operation& op, Completion completion,
                             std::function<Step(Operation&)> then) {
  const Sample& first = completion.samples.front();
  count_call(first.meta);
  const auto gen_texts = message_.match(first.text);
  if (!gen_texts) {
    if (message_.may_retry()) return send_message(op, std::move(then));
    return outcomes_.refuse(
        op,
        error(StatusCode::kFailedPrecondition,
              "API speculation: {} answers did not read as the message's template; the last "
              "began \"{}\". State the format in the prompt, or run with num_api_spec_tokens = 0",
              PendingMessage::kTriesMax, first.text.substr(0, 80)));
  }
  write_message(*gen_texts, first.meta);
  message_.clear();
  return then(op);
}

void GenRunner::write_message(const std::vector<std::string>& gen_texts, const MetaInfo& meta) {
  size_t next = 0;
  for (const TemplateItem& item : message_.items()) {
    if (!item.is_hole) {
      text_.append(item.text);
      continue;
    }
    if (next > 0) count_saved();
    text_.append(gen_texts[next]);
    Operation& op = message_.gens()[next].op;
    outcomes_.record(op, &meta);
    op.target->fill({.text = gen_texts[next++]}, meta);
  }
}

}  // namespace espalier::lang
