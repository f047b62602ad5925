// espalier template: the prompt that a chat template makes of messages.
#include <algorithm>
#include <boost/json.hpp>
#include <iostream>
#include <iterator>

#include "apps/command_line.h"
#include "apps/commands.h"
#include "base/mapped_file.h"
#include "engine/text_io/open_tokenizer.h"
#include "text/template/chat_template.h"

namespace espalier::apps {
namespace {

namespace json = boost::json;

struct TemplateOptions {
  std::filesystem::path chat_template, messages, tools;
  std::string bos_token, eos_token, kwargs;
  bool no_generation_prompt = false;
};

Result<std::string> read_file(const std::filesystem::path& path) {
  if (path != "-") return read_text_file(path);
  return std::string(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
}

std::string name_of(const std::filesystem::path& path) {
  return path == "-" ? "standard input" : path.string();
}

Result<json::value> read_json(const std::filesystem::path& path) {
  ESP_ASSIGN_OR_RETURN(const std::string text, read_file(path));
  json::error_code problem;
  json::stream_parser parser;
  const size_t end = parser.write_some(text, problem);
  const bool more = !problem && end < text.size();
  if (!problem && !more) parser.finish(problem);
  if (!problem && !more) return parser.release();
  const std::string_view before = std::string_view(text).substr(0, end);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  return fail(invalid_argument("{} is not JSON: {}, in line {} behind {} bytes", name_of(path),
                               more ? "more than one value" : problem.message(), line, end));
}

// A template's text, or, for a folder, a tokenizer_config.json or a GGUF, the model's own.
Result<ChatTemplateSource> read_template(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return find_chat_template(path);
  if (path.filename() == "tokenizer_config.json") {
    return find_chat_template(path.has_parent_path() ? path.parent_path() : ".");
  }
  if (path.extension() == ".gguf") {
    ESP_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, open_tokenizer(path));
    ChatTemplateSource stored = stored_chat_template(*tokenizer);
    if (!stored.source.empty()) return stored;
    return fail(error(StatusCode::kNotFound, "{} holds no chat template", path.string()));
  }
  ESP_ASSIGN_OR_RETURN(std::string source, read_file(path));
  return ChatTemplateSource{std::move(source), "", ""};
}

// The list of messages, or an object whose members are variables, "messages" among them.
Status add_messages(const std::filesystem::path& path, json::object& variables) {
  ESP_ASSIGN_OR_RETURN(json::value value, read_json(path));
  if (value.is_array()) {
    variables["messages"] = std::move(value);
    return {};
  }
  json::object* members = value.if_object();
  if (members == nullptr || !members->contains("messages")) {
    return invalid_argument(
        "{}: give a list of messages ([{{\"role\": \"user\", \"content\": \"Hello\"}}]), or an "
        "object with \"messages\" and other variables of the template",
        name_of(path));
  }
  for (auto& member : *members) variables[member.key()] = std::move(member.value());
  return {};
}

Status add_kwargs(const std::string& text, json::object& variables) {
  if (text.empty()) return {};
  json::error_code problem;
  json::value value = json::parse(text, problem);
  if (problem || !value.is_object()) {
    return invalid_argument("--kwargs should be an object of JSON, and is {}", text);
  }
  for (auto& member : value.get_object()) variables[member.key()] = std::move(member.value());
  return {};
}

Result<std::string> render(const TemplateOptions& options) {
  ESP_ASSIGN_OR_RETURN(const ChatTemplateSource source, read_template(options.chat_template));
  auto compiled = ChatTemplate::compile(source.source);
  if (!compiled) return fail(compiled.error().with_context(options.chat_template.string()));
  json::object variables;
  variables["tools"] = nullptr;
  variables["documents"] = nullptr;
  variables["add_generation_prompt"] = !options.no_generation_prompt;
  variables["bos_token"] = options.bos_token.empty() ? source.bos_token : options.bos_token;
  variables["eos_token"] = options.eos_token.empty() ? source.eos_token : options.eos_token;
  ESP_RETURN_IF_ERROR(add_messages(options.messages, variables));
  if (!options.tools.empty()) {
    ESP_ASSIGN_OR_RETURN(json::value tools, read_json(options.tools));
    if (!tools.is_array()) {
      return fail(invalid_argument("{}: give a list of tools", name_of(options.tools)));
    }
    variables["tools"] = std::move(tools);
  }
  ESP_RETURN_IF_ERROR(add_kwargs(options.kwargs, variables));
  return compiled->render(variables);
}

}  // namespace

int run_template(const std::vector<std::string>& args) {
  TemplateOptions options;
  SettingTable table;
  table.path("chat-template", options.chat_template,
             "a Jinja template, or a model's folder that has one");
  table.path("messages", options.messages,
             "JSON: a list of messages, or an object with \"messages\" and other variables; - "
             "reads standard input");
  table.path("tools", options.tools, "JSON: a list of tools");
  table.text("bos-token", options.bos_token, "S", "what bos_token is in the template");
  table.text("eos-token", options.eos_token, "S", "what eos_token is in the template");
  table.text("kwargs", options.kwargs, "JSON", "an object of further variables");
  table.toggle("no-generation-prompt", options.no_generation_prompt,
               "end with the last message, not with the beginning of an answer");
  CommandLine command{"espalier template",
                      "Prints the prompt that a chat template makes of messages.",
                      "Example:\n  espalier template --chat-template chat_template.jinja "
                      "--messages messages.json --bos-token '<s>'",
                      "",
                      {}};
  if (const auto exit_code = parse_command_line(command, table, SettingTable(), args))
    return *exit_code;
  for (const auto& [name, path] : {std::pair{"--chat-template", options.chat_template},
                                   std::pair{"--messages", options.messages}}) {
    if (path.empty()) return report(invalid_argument("{} is missing", name), kExitUsage);
  }
  if ((options.chat_template == "-") + (options.messages == "-") + (options.tools == "-") > 1) {
    return report(invalid_argument("standard input (-) can be one of the files"), kExitUsage);
  }
  const Result<std::string> prompt = render(options);
  if (!prompt) return report(prompt.error(), kExitFailure);
  std::cout << *prompt << std::flush;
  return kExitOk;
}

}  // namespace espalier::apps
