#include "server/chat_plan.h"
#include "engine/images/place_images.h"
#include "server/chat_prompt.h"
#include "server/images.h"
#include "server/json_view.h"

#include <algorithm>
#include <boost/json.hpp>

namespace espalier::server {
namespace {

namespace json = boost::json;
using Choice = ChatRequest::ToolChoice;

std::string name_of(const json::value& tool) {
  return std::string(view(tool.at("function").at("name").get_string()));
}

// The tools that an answer may call; an empty list: none.
Result<json::value> allowed_tools(const ChatRequest& request) {
  if (request.tools == nullptr || request.tool_choice == Choice::kNone)
    return json::value(json::array());
  const json::array& all = request.tools->get_array();
  std::vector<std::string> names = request.allowed_tool_names;
  if (request.tool_choice == Choice::kNamed) names = {request.tool_name};
  if (names.empty()) return json::value(all);
  for (const std::string& name : names)
    if (std::ranges::none_of(all, [&](const json::value& tool) { return name_of(tool) == name; }))
      return fail(
          invalid_argument("Tool '{}' not found in tools list: tool_choice names it", name));
  json::array allowed;
  for (const json::value& tool : all)
    if (std::ranges::find(names, name_of(tool)) != names.end()) allowed.push_back(tool);
  return json::value(std::move(allowed));
}

bool switched_off(const json::value* kwargs) {
  if (kwargs == nullptr) return false;
  for (const char* name : {"enable_thinking", "thinking"}) {
    const json::value* value = kwargs->get_object().if_contains(name);
    if (value != nullptr && value->is_bool() && !value->get_bool()) return true;
  }
  return false;
}

bool ends_with_mark(std::string_view prompt, std::string_view mark) {
  while (!prompt.empty() && (prompt.back() == '\n' || prompt.back() == ' '))
    prompt.remove_suffix(1);
  return prompt.ends_with(mark);
}

bool has_grammar(const SamplingParams& s) {
  return s.json_schema || s.regex || s.ebnf || s.structural_tag || !s.choices.empty();
}

Status plan_tools(const Context& context, ChatRequest& request, AnswerFormat& answer,
                  const json::value& tools) {
  if (tools.get_array().empty()) return {};
  const bool required =
      request.tool_choice == Choice::kRequired || request.tool_choice == Choice::kNamed;
  answer.tool_format = context.tool_call_format;
  if (required && json_when_required(answer.tool_format)) answer.tool_format = "json";
  answer.parallel = request.parallel_tool_calls && request.tool_choice != Choice::kNamed;
  for (const json::value& tool : tools.get_array()) answer.tool_names.push_back(name_of(tool));
  answer.tools = std::make_shared<const json::value>(tools);
  answer.response_template = response_template_of(context);
  SamplingParams& sampling = request.sampling;
  sampling.skip_special_tokens = false;  // the marks of calls may be special tokens
  if (has_grammar(sampling)) {
    if (required)
      return invalid_argument(
          "tool_choice asks for a call and response_format (or another grammar) for something "
          "else; leave one out");
    return {};
  }
  std::string tag =
      tool_call_structural_tag(answer.tool_format, tools,
                               {.required = required,
                                .parallel = answer.parallel,
                                .max_calls = context.config.answers.max_parallel_tool_calls});
  answer.tools_make_grammar = !tag.empty();
  if (!tag.empty()) sampling.structural_tag = std::move(tag);
  return {};
}

void plan_reasoning(const Context& context, ChatRequest& request, std::string_view prompt,
                    AnswerFormat& answer) {
  if (!context.reasoning_format) return;
  ReasoningFormat format = *context.reasoning_format;
  // A response template reads the answer's text too.
  const bool reads_all = format.response_template != nullptr;
  const bool left_out = switched_off(request.template_kwargs.get()) ||
                        (!format.end.empty() && ends_with_mark(prompt, format.end));
  if (left_out && !reads_all) return;
  if (!left_out && !format.end.empty()) {
    if (ends_with_mark(prompt, format.begin)) format.begun_by_template = true;
    request.sampling.reasoning_begin = format.begun_by_template ? "" : format.begin;
    request.sampling.reasoning_end = format.end;
  }
  if (reads_all) format.begun_answer = format.response_template->begun_answer(prompt);
  if (!request.separate_reasoning) return;
  request.sampling.skip_special_tokens = false;
  answer.reasoning = std::move(format);
  answer.stream_reasoning = request.stream_reasoning;
}

// The paper's remedy (appendix B.3) against answers that a grammar distorts: the prompt states the
// constraint.
std::string grammar_note(const SamplingParams& s) {
  if (!s.choices.empty()) {
    std::string out = "Answer with exactly one of these:";
    for (const std::string& choice : s.choices) out += "\n" + choice;
    return out;
  }
  if (s.json_schema) return "Answer with JSON that follows this JSON Schema:\n" + *s.json_schema;
  if (s.regex) return "Answer with a text that matches this regular expression:\n" + *s.regex;
  if (s.ebnf) return "Answer with a text of this grammar:\n" + *s.ebnf;
  return {};
}

ChatFormat::Options template_options(const ChatRequest& request, const json::value& tools) {
  ChatFormat::Options options;
  options.kwargs = request.template_kwargs.get();
  options.reasoning_effort = request.reasoning_effort;
  options.continue_final_message = request.continue_final_message;
  if (!tools.get_array().empty()) options.tools = &tools;
  return options;
}

// A mark of reasoning has fewer tokens, with the white space behind it.
constexpr std::ptrdiff_t kTailTokens = 256;

// What a prompt that is given as tokens would be as text, where that decides anything: its end,
// where marks of reasoning stand, or the whole, which a response template reads.
std::string text_of_ids(const Context& context, const std::vector<TokenId>& ids) {
  const Tokenizer* const tokenizer = context.engine.tokenizer();
  if (ids.empty() || !context.reasoning_format || tokenizer == nullptr) return {};
  DecodeOptions options;
  options.skip_special_tokens = false;
  if (context.reasoning_format->response_template != nullptr || std::ssize(ids) <= kTailTokens)
    return tokenizer->decode(ids, options);
  return tokenizer->decode({ids.end() - kTailTokens, ids.end()}, options);
}

}  // namespace

Result<std::string> render_prompt(const ChatFormat& chat, const ChatRequest& request) {
  ESP_ASSIGN_OR_RETURN(const json::value tools, allowed_tools(request));
  return chat.render(*request.messages, template_options(request, tools));
}

std::string picture_mark(const Context& context, const ImagesInfo& images) {
  return images.mark.empty() ? context.token_text(images.placeholder) : std::string(images.mark);
}

Result<ChatPlan> plan_chat(const Context& context, ChatRequest& request) {
  ChatPlan plan;
  ESP_ASSIGN_OR_RETURN(const json::value tools, allowed_tools(request));
  ESP_RETURN_IF_ERROR(plan_tools(context, request, plan.answer, tools));
  // Prompts that are given as tokens have the pictures of the messages at their placeholders.
  if (request.messages != nullptr) plan.pictures = picture_sources(*request.messages);
  if (request.input_ids.empty()) {
    if (!context.chat) return fail(context.chat_missing);
    ChatFormat::Options options = template_options(request, tools);
    if (request.describe_grammar) options.system_note = grammar_note(request.sampling);
    const auto& images = context.engine.model_info().images;
    if (images && !plan.pictures.empty())
      options.picture_placeholder = picture_mark(context, *images);
    ESP_ASSIGN_OR_RETURN(plan.prompt, context.chat->render(*request.messages, options));
  }
  const std::string of_ids = text_of_ids(context, request.input_ids);
  plan_reasoning(context, request, of_ids.empty() ? plan.prompt : of_ids, plan.answer);
  return plan;
}

Status in_names_of_tools(const Status& status, bool tools_make_grammar) {
  constexpr std::string_view kSchema = ".json_schema: ";
  const std::string_view text = status.message();
  const size_t at = text.find(kSchema);
  if (!tools_make_grammar || !text.starts_with("structural_tag.") || at == std::string_view::npos)
    return status;
  return {status.code(), fmt::format("tools: a function has an invalid 'parameters' schema: {}",
                                     text.substr(at + kSchema.size()))};
}

std::shared_ptr<const ResponseTemplate> response_template_of(const Context& context) {
  if (!context.chat || !context.chat->response_template()) return nullptr;
  return *context.chat->response_template();
}

Result<size_t> count_prompt_tokens(const Context& context, const ChatPlan& plan) {
  const Tokenizer* tokenizer = context.engine.tokenizer();
  if (tokenizer == nullptr)
    return fail(error(StatusCode::kFailedPrecondition, "this server runs without a tokenizer"));
  EncodeOptions options;
  options.add_special_tokens = false;
  const auto& images = context.engine.model_info().images;
  const bool has_pictures = images && !plan.pictures.empty();
  if (!has_pictures) return tokenizer->encode(plan.prompt, options).size();
  ESP_ASSIGN_OR_RETURN(const std::string marked,
                       mark_pictures(plan.prompt, *images, plan.pictures.size()));
  const size_t count = tokenizer->encode(marked, options).size();
  if (images->num_rows == 0) return fail(rows_depend_on_sizes());
  return count + plan.pictures.size() * static_cast<size_t>(images->num_rows - 1);
}

}  // namespace espalier::server
