// espalier tokenize: what a text is to the model.
#include <unistd.h>

#include <iostream>
#include <iterator>

#include "apps/commands.h"
#include "apps/session.h"
#include "text/tokenizer/tokenizer.h"

namespace espalier::apps {

int run_tokenize(const std::vector<std::string>& args) {
  AppConfig config;
  config.log_level = "warning";
  bool ids_only = false, no_special = false;
  SettingTable table;
  table.group("Output");
  table.toggle("ids-only", ids_only, "the ids on one line, separated by spaces");
  table.toggle("no-special-tokens", no_special, "without what the tokenizer adds around a text");
  CommandLine command{"espalier tokenize",
                      "Prints the tokens of a text, one a line: id and token.",
                      "Example:\n  espalier tokenize 'Hello world'",
                      "TEXT",
                      {}};
  if (const auto exit_code = parse_engine_command(command, table, config, args)) return *exit_code;
  std::string text;
  for (const std::string& word : command.words) text += (text.empty() ? "" : " ") + word;
  if (command.words.empty())
    text.assign(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());

  const Result<std::filesystem::path> model = resolve_model_path(config.engine.model_path);
  if (!model) return report(model.error(), kExitFailure);
  const Result<std::unique_ptr<Tokenizer>> tokenizer =
      load_tokenizer(config.engine.tokenizer_path.empty() ? *model : config.engine.tokenizer_path);
  if (!tokenizer) return report(tokenizer.error(), kExitFailure);
  EncodeOptions options;
  options.add_special_tokens = !no_special;
  const std::vector<TokenId> ids = (*tokenizer)->encode(text, options);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids_only) {
      fmt::print("{}{}", i == 0 ? "" : " ", ids[i]);
    } else {
      fmt::print("{:>8}  {}\n", ids[i], (*tokenizer)->id_to_token(ids[i]));
    }
  }
  if (ids_only) fmt::print("\n");
  return kExitOk;
}

}  // namespace espalier::apps
