// espalier chat: a conversation on the terminal (or from a pipe), with the model's chat template.
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "apps/commands.h"
#include "apps/line_editor.h"
#include "apps/session.h"
#include "base/base64.h"
#include "media/image.h"
#include "server/chat_format.h"
#include "server/images.h"

namespace espalier::apps {
namespace {

constexpr std::string_view kHelp =
    "/help                 this text\n"
    "/reset                begin anew\n"
    "/system TEXT          instructions for a new conversation; without a text: none\n"
    "/json FILE            answers are JSON of the schema in this file; /json off ends it\n"
    "/image FILE           a picture for the next message\n"
    "/retry                answer the last message again\n"
    "/undo                 forget the last message and its answer\n"
    "/save FILE, /load FILE  the conversation, as a list of messages in JSON\n"
    "/exit                 leave (or Ctrl-D); Ctrl-C ends the answer that runs\n"
    "A line that ends with \\ goes on in the next; \"\"\" begins and ends a text of several "
    "lines.\n";

const std::vector<std::string> kCommands = {"/help",  "/reset", "/system", "/json", "/image",
                                            "/retry", "/undo",  "/save",   "/load", "/exit"};

Result<std::string> read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  if (!in) return fail(error(StatusCode::kNotFound, "{} cannot be read", path));
  return text.str();
}

class ChatConversation {
 public:
  ChatConversation(server::ChatFormat format, std::string system) : format_(std::move(format)) {
    begin(std::move(system));
  }

  void begin(std::string system) {
    system_ = std::move(system);
    begin();
  }
  void begin() {
    messages_.clear();
    if (!system_.empty()) add("system", system_);
  }
  void add(std::string_view role, std::string_view text) {
    messages_.push_back({{"role", boost::json::string(role.data(), role.size())},
                         {"content", boost::json::string(text.data(), text.size())}});
  }
  // What the user says, behind the pictures that were added for it.
  void add_user(std::string_view text) {
    if (pictures_.empty()) return add("user", text);
    boost::json::array parts = std::exchange(pictures_, {});
    parts.push_back({{"type", "text"}, {"text", boost::json::string(text.data(), text.size())}});
    messages_.push_back({{"role", "user"}, {"content", std::move(parts)}});
  }
  // For the next message of the user's, as a data URL.
  Status add_picture(const std::string& path) {
    ESP_ASSIGN_OR_RETURN(const std::string bytes, read_file(path));
    const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
    ESP_ASSIGN_OR_RETURN(const ImageHeader header, read_image_header({data, bytes.size()}, {}));
    std::string type(image_format_name(header.format));
    for (char& c : type) c = static_cast<char>(std::tolower(c));
    pictures_.push_back(
        server::picture_part("data:image/" + type + ";base64," + encode_base64(bytes)));
    return {};
  }
  void drop_last() { messages_.pop_back(); }
  bool ends_with(std::string_view role) const {
    if (messages_.empty()) return false;
    const boost::json::string& last = messages_.back().at("role").as_string();
    return std::string_view(last.data(), last.size()) == role;
  }
  std::string to_json() const { return boost::json::serialize(messages_); }
  // kInvalidArgument unless it is a list of messages with role and content.
  Status load(std::string_view text) {
    boost::system::error_code wrong;
    const boost::json::value value = boost::json::parse(text, wrong);
    const auto is_message = [](const boost::json::value& each) {
      const boost::json::object* const message = each.if_object();
      if (message == nullptr) return false;
      const boost::json::value *role = message->if_contains("role"),
                               *content = message->if_contains("content");
      return role != nullptr && role->is_string() && content != nullptr &&
             (content->is_string() || is_list_of_parts(*content));
    };
    if (wrong || !value.is_array() || !std::ranges::all_of(value.get_array(), is_message))
      return invalid_argument("the file is no list of messages with role and content");
    messages_ = value.get_array();
    return {};
  }
  Result<GenerateRequest> request(const std::string& picture_placeholder) const {
    GenerateRequest request;
    ESP_ASSIGN_OR_RETURN(request.text,
                         format_.render(messages_, {.picture_placeholder = picture_placeholder}));
    request.add_special_tokens = false;  // the template wrote them
    request.images = server::image_inputs(std::make_shared<const server::MediaAccess>(),
                                          server::picture_sources(messages_));
    return request;
  }

 private:
  static bool is_list_of_parts(const boost::json::value& content) {
    return content.is_array() &&
           std::ranges::all_of(content.get_array(), [](const boost::json::value& part) {
             if (!part.is_object()) return false;
             if (server::is_video_part(part)) return server::check_video(part, "").ok();
             return !server::is_picture_part(part) || server::picture_source(part, "").has_value();
           });
  }

  server::ChatFormat format_;
  std::string system_;
  boost::json::array messages_;
  boost::json::array pictures_;  // parts of the next message
};

class Chat {
 public:
  Chat(Engine& engine, ChatConversation& conversation, const SamplingParams& sampling, bool quiet)
      : engine_(engine), conversation_(conversation), sampling_(sampling), quiet_(quiet) {}

  // Reads and answers until the end of input. Returns the exit code.
  int run(LineEditor& lines);

 private:
  std::optional<std::string> read_message(LineEditor& lines) const;
  // Answers the conversation's last message; a failure leaves the conversation without it.
  Status answer();
  bool obey(const std::string& line);
  Status command(const std::string& name, const std::string& argument);
  Status retry();
  Status undo();
  Status set_schema(const std::string& path);
  Status load(const std::string& path);

  Engine& engine_;
  ChatConversation& conversation_;
  SamplingParams sampling_;
  const bool quiet_;
  int exit_code_ = kExitOk;
};

// Empty where the model reads text alone; the engine refuses pictures then.
std::string placeholder_text(const Engine& engine) {
  const auto& images = engine.model_info().images;
  return images ? engine.tokenizer()->id_to_token(images->placeholder) : std::string();
}

Status Chat::answer() {
  Result<GenerateRequest> request = conversation_.request(placeholder_text(engine_));
  if (!request) {
    conversation_.drop_last();
    return request.error();
  }
  request->sampling = sampling_;
  const Result<StreamedAnswer> answer =
      stream(engine_, *std::move(request), [](std::string_view text) {
        std::fwrite(text.data(), 1, text.size(), stdout);
        std::fflush(stdout);
      });
  if (!answer) {
    conversation_.drop_last();
    return answer.error();
  }
  fmt::print("\n");
  if (!quiet_) note(fmt::format("[{}]\n", speed_line(*answer)));
  conversation_.add("assistant", answer->text);
  clear_interrupt();
  return {};
}

Status Chat::undo() {
  if (conversation_.ends_with("assistant")) conversation_.drop_last();
  if (!conversation_.ends_with("user"))
    return error(StatusCode::kFailedPrecondition, "there is no message to take back");
  conversation_.drop_last();
  return {};
}

Status Chat::retry() {
  if (conversation_.ends_with("assistant")) conversation_.drop_last();
  if (!conversation_.ends_with("user"))
    return error(StatusCode::kFailedPrecondition, "there is no message to answer again");
  return answer();
}

Status Chat::set_schema(const std::string& path) {
  sampling_.json_schema.reset();
  if (path == "off") return {};
  if (path.empty()) return invalid_argument("/json takes a file with a JSON Schema, or off");
  ESP_ASSIGN_OR_RETURN(std::string schema, read_file(path));
  SamplingParams stated;
  stated.json_schema = schema;
  const Result<GrammarReport> compiled = engine_.compile_grammar(stated);
  if (!compiled) return compiled.error();
  sampling_.json_schema = std::move(schema);
  return {};
}

Status Chat::load(const std::string& path) {
  ESP_ASSIGN_OR_RETURN(const std::string text, read_file(path));
  return conversation_.load(text);
}

Status Chat::command(const std::string& name, const std::string& argument) {
  if (name == "/help") fmt::print("{}", kHelp);
  if (name == "/reset") conversation_.begin();
  if (name == "/system") conversation_.begin(argument);
  if (name == "/help" || name == "/reset" || name == "/system") return {};
  if (name == "/json") return set_schema(argument);
  if (name == "/image") return conversation_.add_picture(argument);
  if (name == "/retry") return retry();
  if (name == "/undo") return undo();
  if (name == "/save") return write_file(argument, conversation_.to_json() + "\n");
  if (name == "/load") return load(argument);
  return invalid_argument("there is no command {}; /help lists them", name);
}

// False: the conversation ends.
bool Chat::obey(const std::string& line) {
  const size_t space = line.find(' ');
  const std::string name = line.substr(0, space);
  if (name == "/exit" || name == "/quit") return false;
  const std::string argument = space == std::string::npos ? "" : line.substr(space + 1);
  if (const Status status = command(name, argument); !status.ok())
    note(fmt::format("error: {}\n", status.message()));
  return true;
}

// Lines that belong together; nothing at the end of input.
std::optional<std::string> Chat::read_message(LineEditor& lines) const {
  constexpr std::string_view kFence = "\"\"\"";
  std::optional<std::string> line = lines.read("> ");
  if (!line) return std::nullopt;
  std::string text;
  if (line->starts_with(kFence)) {
    text = line->substr(kFence.size());
    if (text.ends_with(kFence)) return text.substr(0, text.size() - kFence.size());
    while ((line = lines.read("| ")) && !line->ends_with(kFence)) text += "\n" + *line;
    if (line) text += "\n" + line->substr(0, line->size() - kFence.size());
    while (!text.empty() && text.front() == '\n') text.erase(0, 1);
    return text;
  }
  while (line && line->ends_with("\\")) {
    text += line->substr(0, line->size() - 1) + "\n";
    line = lines.read("| ");
  }
  return text + line.value_or("");
}

int Chat::run(LineEditor& lines) {
  const bool terminal = isatty(STDIN_FILENO) == 1;
  if (terminal) fmt::print("Talk; /help lists commands, Ctrl-D leaves.\n");
  while (const std::optional<std::string> text = read_message(lines)) {
    std::fflush(stdout);
    if (interrupted()) clear_interrupt();
    if (text->empty()) continue;
    lines.remember(*text);
    if (text->starts_with("/")) {
      if (!obey(*text)) break;
      continue;
    }
    conversation_.add_user(*text);
    if (const Status status = answer(); !status.ok()) exit_code_ = report(status, kExitFailure);
  }
  if (terminal) fmt::print("\n");
  return exit_code_;
}

}  // namespace

int run_chat(const std::vector<std::string>& args) {
  AppConfig config;
  config.log_level = "warning";
  SamplingParams sampling;
  sampling.to_context = true;
  std::string system;
  std::filesystem::path history;
  std::vector<std::string> images;
  bool quiet = false;
  SettingTable table;
  table.group("Conversation");
  table.text("system", system, "TEXT", "instructions before the conversation");
  Setting& image = table.list("image", images, "FILE",
                              "a picture for the first message (JPEG, PNG, WebP, GIF or BMP)");
  image.default_text = "none";
  table
      .text("chat-template", config.server.answers.chat_template, "FILE",
            "Jinja template, or the path of one")
      .default_text = "the model's";
  table.toggle("quiet", quiet, "no line about speed on standard error");
  table.path("history", history, "file of what was typed; off: none is kept").default_text =
      "espalier/chat_history in the folder of XDG_STATE_HOME";
  add_sampling_settings(table, sampling);
  table.find("max-new-tokens")->default_text = "to the context";
  CommandLine command{"espalier chat",
                      "Talks with a model on the terminal.",
                      "Examples:\n"
                      "  espalier chat\n"
                      "  espalier chat --model-path seeing --image shapes.png\n"
                      "  espalier chat --model-path llava-hf/llava-1.5-7b-hf --image sea.jpg\n"
                      "  echo 'What is the capital of France?' | espalier chat --temperature 0",
                      "",
                      {}};
  if (const auto exit_code = parse_engine_command(command, table, config, args)) return *exit_code;
  if (sampling.max_new_tokens) sampling.to_context = false;

  Result<std::unique_ptr<Engine>> engine = start_engine(config);
  if (!engine) return report(engine.error(), kExitFailure);
  Result<server::ChatFormat> format = server::ChatFormat::load(
      config.server.answers.chat_template, config.engine.model.model_path, (*engine)->tokenizer());
  if (!format) return report(format.error(), kExitFailure);
  ChatConversation conversation(std::move(*format), std::move(system));
  for (const std::string& path : images)
    if (const Status added = conversation.add_picture(path); !added.ok())
      return report(added.with_context("--image " + path), kExitUsage);
  catch_interrupts();
  if (history.empty()) history = default_history_file();
  LineEditor lines(history == "off" ? std::filesystem::path() : history, kCommands);
  return Chat(**engine, conversation, sampling, quiet).run(lines);
}

}  // namespace espalier::apps
