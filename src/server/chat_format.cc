#include "server/chat_format.h"

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <cctype>

#include "base/log.h"
#include "base/mapped_file.h"
#include "server/images.h"
#include "server/json_view.h"
#include "text/parse/tool_call_parser.h"

namespace espalier::server {

namespace json = boost::json;

namespace {

// The texts of a list of parts, as templates that know only strings want them. Pictures stand in
// lines of their own. kUnimplemented: a video, whose placeholder such a template does not know.
Result<std::string> join_parts(const json::array& parts, std::string_view picture_placeholder) {
  std::string out;
  bool begins_line = true;
  for (const json::value& part : parts) {
    if (is_video_part(part)) {
      return fail(error(StatusCode::kUnimplemented,
                        "the chat template takes texts alone, in which a video has no "
                        "placeholder: send its frames as pictures"));
    }
    if (is_picture_part(part) || is_sound_part(part)) {
      if (!begins_line) out += '\n';
      out.append(picture_placeholder).append("\n");
      begins_line = true;
      continue;
    }
    const json::value* text = part.get_object().if_contains("text");
    if (text == nullptr || !text->is_string()) continue;
    if (!begins_line) out += ' ';
    out += view(text->get_string());
    begins_line = out.empty();
  }
  return out;
}

// Templates know pictures as {"type": "image"}, videos as {"type": "video"} and sounds as
// {"type": "audio"}, wherever they come from.
void name_pictures(json::array& parts) {
  for (json::value& part : parts)
    if (is_video_part(part)) {
      part = json::object{{"type", "video"}};
    } else if (is_picture_part(part)) {
      part = json::object{{"type", "image"}};
    } else if (is_sound_part(part)) {
      part = json::object{{"type", "audio"}};
    }
}

// Whether "for NAME in" stands before a position.
bool ends_with_loop(std::string_view before) {
  if (!before.ends_with(" in ")) return false;
  before.remove_suffix(4);
  while (!before.empty() &&
         (std::isalnum(static_cast<unsigned char>(before.back())) != 0 || before.back() == '_'))
    before.remove_suffix(1);
  return before.ends_with("for ");
}

// Templates of models that see may loop over content without asking whether it is a list.
bool loops_over_content(std::string_view source) {
  if (source.find("is string") != std::string_view::npos) return false;
  for (const std::string_view content :
       {"message['content']", "message[\"content\"]", "message.content"})
    for (size_t at = source.find(content); at != std::string_view::npos;
         at = source.find(content, at + 1))
      if (ends_with_loop(source.substr(0, at))) return true;
  return false;
}

// Templates expect a call's arguments as an object; clients send them as a string of JSON.
void parse_arguments(json::object& message) {
  json::value* calls = message.if_contains("tool_calls");
  if (calls == nullptr || !calls->is_array()) return;
  for (json::value& call : calls->get_array()) {
    json::value* function = call.is_object() ? call.get_object().if_contains("function") : nullptr;
    json::value* arguments = function != nullptr && function->is_object()
                                 ? function->get_object().if_contains("arguments")
                                 : nullptr;
    if (arguments == nullptr || !arguments->is_string()) continue;
    json::error_code ec;
    json::value parsed = json::parse(arguments->get_string(), ec);
    if (!ec && parsed.is_object()) *arguments = std::move(parsed);
  }
}

// What a template that knows no tools cannot say, said as text.
std::string describe_tools(const json::value& tools) {
  std::string out =
      "You can call functions. To call some, answer with nothing but a JSON list of calls: "
      "[{\"name\": ..., \"parameters\": {...}}]. The functions are:";
  for (const json::value& tool : tools.get_array())
    out += "\n" + json::serialize(tool.at("function"));
  return out;
}

void write_calls_as_text(json::object& message) {
  if (view(message.at("role").get_string()) == "tool") {
    message["role"] = "user";
    const json::value& content = message["content"];
    message["content"] =
        "Result of the call: " +
        (content.is_string() ? std::string(view(content.get_string())) : json::serialize(content));
    return;
  }
  const json::value* calls = message.if_contains("tool_calls");
  if (calls == nullptr || !calls->is_array() || calls->get_array().empty()) return;
  json::array listed;
  for (const json::value& call : calls->get_array()) {
    const json::object* function = call.is_object() && call.get_object().contains("function")
                                       ? call.at("function").if_object()
                                       : nullptr;
    if (function == nullptr) continue;
    const json::value* name = function->if_contains("name");
    const json::value* arguments = function->if_contains("arguments");
    listed.push_back({{"name", name != nullptr ? *name : json::value("")},
                      {"parameters", arguments != nullptr ? *arguments : json::object{}}});
  }
  std::string text;
  if (const json::value* content = message.if_contains("content");
      content != nullptr && content->is_string())
    text = view(content->get_string());
  message["content"] = text + json::serialize(listed);
}

constexpr std::string_view kYesOrNo = R"("yes" or "no")";

// Behind what the first message says where that is the system's, else as one of its own.
void add_system_note(json::array& messages, const std::string& note) {
  if (!messages.empty()) {
    json::object& first = messages.front().get_object();
    const std::string_view role = view(first.at("role").get_string());
    json::value& content = first["content"];
    if ((role == "system" || role == "developer") && content.is_string()) {
      content = std::string(view(content.get_string())) + "\n\n" + note;
      return;
    }
  }
  messages.insert(messages.begin(), json::object{{"role", "system"}, {"content", note}});
}

constexpr std::string_view kStatedName = "--chat-template";

// A template's own text is known by its marks; anything else is the path of one.
Result<std::string> read_stated(const std::string& stated) {
  if (stated.find("{{") != std::string::npos || stated.find("{%") != std::string::npos)
    return stated;
  auto text = read_text_file(stated);
  if (!text) return fail(text.error().with_context(kStatedName));
  return text;
}

}  // namespace

Status ChatFormat::check(const std::string& stated) {
  ESP_ASSIGN_OR_RETURN(const std::string source, read_stated(stated));
  const auto compiled = ChatTemplate::compile(source);
  return compiled ? Status() : compiled.error().with_context(kStatedName);
}

Result<ChatFormat> ChatFormat::load(const std::string& stated, const std::filesystem::path& folder,
                                    const Tokenizer* tokenizer) {
  const auto own = find_chat_template(folder);
  ChatTemplateSource stored;
  if (tokenizer != nullptr) stored = stored_chat_template(*tokenizer);
  const ChatTemplateSource& found = own ? *own : stored;
  std::string source, name(kStatedName);
  if (!stated.empty()) {
    ESP_ASSIGN_OR_RETURN(source, read_stated(stated));
  } else if (!own && stored.source.empty()) {
    return fail(own.error());
  } else {
    source = found.source;
    name = own ? "the model's chat template" : "the chat template in the model's file";
  }
  auto compiled = ChatTemplate::compile(source);
  if (!compiled) return fail(compiled.error().with_context(name));
  ChatFormat format(std::move(*compiled));
  format.bos_token_ = found.bos_token;
  format.eos_token_ = found.eos_token;
  for (const char* sign : {"['type']", "[\"type\"]", ".type", "content is string"}) {
    format.takes_parts_ |= source.find(sign) != std::string::npos;
  }
  format.needs_parts_ = format.takes_parts_ && loops_over_content(source);
  format.knows_developer_ = source.find("developer") != std::string::npos;
  format.knows_tools_ = source.find("tools") != std::string::npos;
  format.reranks_ = source.find(kYesOrNo) != std::string::npos;
  format.source_ = std::move(source);
  format.detect_formats(found.response_template);
  return format;
}

ChatFormat::ChatFormat(ChatTemplate compiled)
    : template_(std::move(compiled)),
      response_template_(
          fail(error(StatusCode::kFailedPrecondition,
                     "the model's tokenizer_config.json has no response_template"))) {}

// What the chat template shows goes before the response template, as in SGLang.
void ChatFormat::detect_formats(const std::string& response_template) {
  reasoning_format_ = detect_reasoning_format(source_);
  tool_call_format_ = knows_tools_ ? detect_tool_call_format(source_) : std::string("json");
  if (response_template.empty()) return;
  json::error_code code;
  const json::value spec = json::parse(response_template, code);
  response_template_ = ResponseTemplate::parse(spec);
  if (!response_template_) {
    log_warning("the model's response template is not used: {}",
                response_template_.error().message());
    return;
  }
  using Role = ResponseField::Role;
  const auto has = [&](Role role) { return (*response_template_)->find(role) != nullptr; };
  if (reasoning_format_.empty() && has(Role::kReasoning)) reasoning_format_ = "response_template";
  if (knows_tools_ && tool_call_format_ == "json" && has(Role::kCalls))
    tool_call_format_ = "response_template";
}

Result<ReasoningFormat> named_reasoning_format(std::string_view name, const ChatFormat* chat) {
  if (name != "response_template") return find_reasoning_format(name);
  if (chat == nullptr || !chat->response_template())
    return fail(error(StatusCode::kFailedPrecondition,
                      "reasoning_parser: response_template needs a model whose "
                      "tokenizer_config.json has a response_template"));
  return reasoning_format_of(*chat->response_template());
}

Result<std::string> ChatFormat::render(const json::value& messages, const Options& options) const {
  json::array list = messages.get_array();
  for (json::value& entry : list) {
    json::object& message = entry.get_object();
    json::value& content = message["content"];
    if (content.is_array() && !takes_parts_) {
      ESP_ASSIGN_OR_RETURN(const std::string text,
                           join_parts(content.get_array(), options.picture_placeholder));
      content = json::string(text);
    }
    if (content.is_array()) name_pictures(content.get_array());
    if (content.is_null()) content = "";
    json::value& role = message["role"];
    if (!knows_developer_ && view(role.get_string()) == "developer") role = "system";
    parse_arguments(message);
    if (!knows_tools_) write_calls_as_text(message);
    if (needs_parts_ && content.is_string())
      content = json::array{json::object{{"type", "text"}, {"text", std::move(content)}}};
  }
  if (options.tools != nullptr && !knows_tools_)
    add_system_note(list, describe_tools(*options.tools));
  if (!options.system_note.empty()) add_system_note(list, options.system_note);
  std::string beginning;  // of the answer
  if (options.continue_final_message) {
    const json::value* content =
        list.empty() ? nullptr : list.back().get_object().if_contains("content");
    if (content == nullptr || view(list.back().at("role").get_string()) != "assistant") {
      return fail(
          invalid_argument("continue_final_message needs a last message whose role is assistant"));
    }
    if (content->is_array()) {
      ESP_ASSIGN_OR_RETURN(beginning,
                           join_parts(content->get_array(), options.picture_placeholder));
    } else {
      beginning = view(content->get_string());
    }
    list.pop_back();
  }
  json::object variables;
  variables["messages"] = std::move(list);
  variables["tools"] = options.tools != nullptr ? *options.tools : json::value(nullptr);
  variables["add_generation_prompt"] = true;
  variables["bos_token"] = bos_token_;
  variables["eos_token"] = eos_token_;
  if (options.reasoning_effort) variables["reasoning_effort"] = *options.reasoning_effort;
  if (options.kwargs != nullptr) {
    for (const auto& member : options.kwargs->get_object()) {
      variables[member.key()] = member.value();
    }
  }
  auto text = template_.render(variables);
  if (!text && text.error().code() == StatusCode::kResourceExhausted)  // no busy server
    return fail(invalid_argument("chat template: {}; send fewer or shorter messages",
                                 text.error().message()));
  if (!text) return fail(text.error().with_context("chat template"));
  return *text + beginning;
}

Result<std::string> ChatFormat::render_rerank(std::string_view query, std::string_view document,
                                              std::string_view instruct) const {
  const auto message = [](const char* role, std::string_view content) {
    return json::object{{"role", role}, {"content", json::string(content)}};
  };
  if (reranks_) {
    json::object variables{{"messages", {message("query", query), message("document", document)}},
                           {"tools", nullptr},
                           {"add_generation_prompt", true},
                           {"bos_token", bos_token_},
                           {"eos_token", eos_token_}};
    if (!instruct.empty()) {
      for (const char* name : {"instruct", "instruction"}) variables[name] = instruct;
    }
    auto text = template_.render(variables);
    if (!text) return fail(text.error().with_context("chat template"));
    return text;
  }
  if (instruct.empty()) {
    instruct = "Given a web search query, retrieve relevant passages that answer the query";
  }
  const std::string task = fmt::format(
      "Judge whether the Document meets the requirements based on the Query and the Instruct "
      "provided. Note that the answer can only be {}.",
      kYesOrNo);
  const std::string what =
      fmt::format("<Instruct>: {}\n<Query>: {}\n<Document>: {}", instruct, query, document);
  const json::value kwargs{{"enable_thinking", false}};
  const Options options{.kwargs = &kwargs};
  auto text = render(json::array{message("system", task), message("user", what)}, options);
  // Some templates refuse a system message.
  return text ? text : render(json::array{message("user", task + "\n\n" + what)}, options);
}

}  // namespace espalier::server
