// espalier chat: a conversation on the terminal (or from a pipe), with the model's chat template.
#include <unistd.h>

#include <boost/json.hpp>
#include <cerrno>
#include <cstdio>

#include "apps/commands.h"
#include "apps/session.h"
#include "server/chat_format.h"

namespace espalier::apps {
namespace {

constexpr std::string_view kHelp =
    "/reset  begin anew        /system TEXT  instructions for a new conversation\n"
    "/exit   leave (or Ctrl-D)  Ctrl-C        ends the answer that runs\n";

// A line of standard input without its end; nothing at the end of input or on an interrupt.
class LineReader {
 public:
  std::optional<std::string> next() {
    while (true) {
      if (const size_t end = buffer_.find('\n'); end != std::string::npos) {
        std::string line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        return line;
      }
      char bytes[4096];
      const ssize_t count = read(STDIN_FILENO, bytes, sizeof bytes);
      if (count > 0) {
        buffer_.append(bytes, static_cast<size_t>(count));
      } else if (buffer_.empty() || (count < 0 && errno == EINTR)) {
        return std::nullopt;
      } else {
        return std::exchange(buffer_, {});
      }
    }
  }

 private:
  std::string buffer_;
};

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
  void drop_last() { messages_.pop_back(); }
  Result<std::string> prompt() const { return format_.render(messages_, {}); }

 private:
  server::ChatFormat format_;
  std::string system_;
  boost::json::array messages_;
};

// Answers one message. False when the conversation cannot go on.
Status answer(Engine& engine, ChatConversation& conversation, const SamplingParams& sampling,
              const std::string& message, bool quiet) {
  conversation.add("user", message);
  Result<std::string> prompt = conversation.prompt();
  if (!prompt) {
    conversation.drop_last();
    return prompt.error();
  }
  GenerateRequest request;
  request.text = std::move(*prompt);
  request.sampling = sampling;
  request.add_special_tokens = false;  // the template wrote them
  const Result<StreamedAnswer> answer =
      stream(engine, std::move(request), [](std::string_view text) {
        std::fwrite(text.data(), 1, text.size(), stdout);
        std::fflush(stdout);
      });
  if (!answer) {
    conversation.drop_last();
    return answer.error();
  }
  fmt::print("\n");
  if (!quiet) note(fmt::format("[{}]\n", speed_line(*answer)));
  conversation.add("assistant", answer->text);
  clear_interrupt();
  return {};
}

int converse(Engine& engine, ChatConversation& conversation, const SamplingParams& sampling,
             bool quiet) {
  const bool terminal = isatty(STDIN_FILENO) == 1;
  if (terminal) fmt::print("{}", kHelp);
  LineReader reader;
  int exit_code = kExitOk;
  while (true) {
    if (terminal) fmt::print("> ");
    std::fflush(stdout);
    const std::optional<std::string> line = reader.next();
    if (!line || *line == "/exit") break;
    if (line->empty()) continue;
    if (*line == "/reset") {
      conversation.begin();
    } else if (line->starts_with("/system ")) {
      conversation.begin(line->substr(8));
    } else if (*line == "/help") {
      fmt::print("{}", kHelp);
    } else if (line->starts_with("/")) {
      note(fmt::format("there is no command {}; /help lists them\n", *line));
    } else if (Status status = answer(engine, conversation, sampling, *line, quiet); !status.ok()) {
      exit_code = report(status, kExitFailure);
    }
  }
  if (terminal) fmt::print("\n");
  return exit_code;
}

}  // namespace

int run_chat(const std::vector<std::string>& args) {
  AppConfig config;
  config.log_level = "warning";
  SamplingParams sampling;
  sampling.to_context = true;
  std::string system;
  bool quiet = false;
  SettingTable table;
  table.group("Conversation");
  table.text("system", system, "TEXT", "instructions before the conversation");
  table
      .text("chat-template", config.server.chat_template, "FILE",
            "Jinja template, or the path of one")
      .default_text = "the model's";
  table.toggle("quiet", quiet, "no line about speed on standard error");
  add_sampling_settings(table, sampling);
  table.find("max-new-tokens")->default_text = "to the context";
  CommandLine command{"espalier chat",
                      "Talks with a model on the terminal.",
                      "Examples:\n"
                      "  espalier chat\n"
                      "  echo 'What is the capital of France?' | espalier chat --temperature 0",
                      "",
                      {}};
  if (const auto exit_code = parse_engine_command(command, table, config, args)) return *exit_code;
  if (sampling.max_new_tokens) sampling.to_context = false;

  Result<std::unique_ptr<Engine>> engine = start_engine(config);
  if (!engine) return report(engine.error(), kExitFailure);
  Result<server::ChatFormat> format = server::ChatFormat::load(
      config.server.chat_template, config.engine.model_path, (*engine)->tokenizer());
  if (!format) return report(format.error(), kExitFailure);
  ChatConversation conversation(std::move(*format), std::move(system));
  catch_interrupts();
  return converse(**engine, conversation, sampling, quiet);
}

}  // namespace espalier::apps
