// espalier generate: continues a prompt, printing the text as it comes.
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <iterator>

#include "apps/commands.h"
#include "apps/session.h"

namespace espalier::apps {
namespace {

// The words of the command line, or all of standard input.
Result<std::string> read_prompt(const std::vector<std::string>& words) {
  std::string prompt;
  for (const std::string& word : words) prompt += (prompt.empty() ? "" : " ") + word;
  if (!prompt.empty()) return prompt;
  if (!words.empty()) return fail(invalid_argument("the prompt is empty"));
  if (isatty(STDIN_FILENO) == 1)
    return fail(invalid_argument("no prompt: give it as an argument or on standard input"));
  prompt.assign(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  if (prompt.empty()) return fail(invalid_argument("the prompt on standard input is empty"));
  return prompt;
}

void print_now(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace

int run_generate(const std::vector<std::string>& args) {
  AppConfig config;
  config.log_level = "warning";
  GenerateRequest request;
  bool quiet = false;
  SettingTable table;
  add_sampling_settings(table, request.sampling);
  table.group("Output");
  table.toggle("quiet", quiet, "no line about speed on standard error");
  CommandLine command{"espalier generate",
                      "Continues a prompt, printing the text as it comes.",
                      "Examples:\n"
                      "  espalier generate 'Once upon a time' --max-new-tokens 64\n"
                      "  cat letter.txt | espalier generate --temperature 0",
                      "PROMPT",
                      {}};
  if (const auto exit_code = parse_engine_command(command, table, config, args)) return *exit_code;
  Result<std::string> prompt = read_prompt(command.words);
  if (!prompt) return report(prompt.error(), kExitUsage);
  request.text = std::move(*prompt);

  Result<std::unique_ptr<Engine>> engine = start_engine(config);
  if (!engine) return report(engine.error(), kExitFailure);
  catch_interrupts();
  const Result<StreamedAnswer> answer = stream(**engine, std::move(request), print_now);
  if (!answer) return report(answer.error(), kExitFailure);
  print_now("\n");
  if (!quiet) note(fmt::format("[{}]\n", speed_line(*answer)));
  return answer->interrupted ? 128 + 2 : kExitOk;
}

}  // namespace espalier::apps
