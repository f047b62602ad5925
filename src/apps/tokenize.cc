// espalier tokenize: texts to ids and back.
#include <fmt/format.h>

#include <boost/json.hpp>
#include <charconv>
#include <iostream>
#include <iterator>

#include "apps/commands.h"
#include "apps/config.h"
#include "apps/session.h"
#include "engine/text_io/open_tokenizer.h"

namespace espalier::apps {
namespace {

namespace json = boost::json;

struct TokenizeOptions {
  bool json = false, no_special = false, decode = false, lines = false, pieces = false;
};

std::string read_input(const std::vector<std::string>& words) {
  if (words.empty()) {
    std::cin.sync_with_stdio(false);
    return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
  }
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

// The input, or its lines; a newline at the very end begins no other line.
std::vector<std::string_view> inputs_of(std::string_view text, bool lines) {
  if (!lines) return {text};
  std::vector<std::string_view> inputs;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    inputs.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return inputs;
}

// "1 2 3", "1,2,3" or "[1, 2, 3]".
Result<std::vector<TokenId>> parse_ids(std::string_view text) {
  std::vector<TokenId> ids;
  const auto is_between = [](char c) {
    return c == ' ' || c == ',' || c == '[' || c == ']' || c == '\n' || c == '\r' || c == '\t';
  };
  for (size_t i = 0; i < text.size();) {
    if (is_between(text[i])) {
      ++i;
      continue;
    }
    TokenId id = 0;
    const auto [end, problem] = std::from_chars(text.data() + i, text.data() + text.size(), id);
    const auto next = static_cast<size_t>(end - text.data());
    if (problem != std::errc() || (next < text.size() && !is_between(text[next]))) {
      return fail(invalid_argument(
          "'{}' is no token id; --decode reads whole numbers, with spaces or commas between them",
          text.substr(i, std::min(text.find_first_of(" ,\n]", i), i + 40) - i)));
    }
    ids.push_back(id);
    i = next;
  }
  return ids;
}

std::string ids_line(const std::vector<TokenId>& ids, bool as_json) {
  std::string out = as_json ? "[" : "";
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) out += as_json ? ", " : " ";
    out += fmt::format_int(ids[i]).str();
  }
  return out += as_json ? "]\n" : "\n";
}

Status decode(const Tokenizer& tokenizer, std::string_view input, const TokenizeOptions& options) {
  ESP_ASSIGN_OR_RETURN(const std::vector<TokenId> ids, parse_ids(input));
  for (const TokenId id : ids) {
    if (id < 0 || id >= tokenizer.vocab_size()) {
      return invalid_argument("there is no token {}; ids are 0 to {}", id,
                              tokenizer.vocab_size() - 1);
    }
  }
  const std::string text = tokenizer.decode(ids, {.skip_special_tokens = options.no_special});
  if (options.json) {
    std::cout << json::serialize(json::value(text)) << '\n';
  } else {
    std::cout << text << (options.lines ? "\n" : "");
  }
  return {};
}

void encode(const Tokenizer& tokenizer, std::string_view input, const TokenizeOptions& options) {
  const std::vector<TokenId> ids =
      tokenizer.encode(input, {.add_special_tokens = !options.no_special});
  if (!options.pieces) {
    std::cout << ids_line(ids, options.json);
    return;
  }
  for (const TokenId id : ids) {
    std::cout << fmt::format("{:>8}  {}\n", id, tokenizer.id_to_token(id));
  }
}

}  // namespace

int run_tokenize(const std::vector<std::string>& args) {
  std::filesystem::path path;
  TokenizeOptions options;
  SettingTable table;
  table.path("tokenizer", path,
             "a model's folder, or a tokenizer.json, .model, .tiktoken or .gguf file");
  table.find("tokenizer")->default_text = "of the model that ships";
  table.toggle("json", options.json, "print JSON: an array of ids; with --decode a string");
  table.toggle("no-special", options.no_special,
               "add no special tokens around a text; with --decode leave them out of it");
  table.toggle("decode", options.decode, "read ids and print their text");
  table.toggle("lines", options.lines, "each line is an input of its own, with a line of output");
  table.toggle("pieces", options.pieces, "print each id with its token, one a line");
  CommandLine command{"espalier tokenize",
                      "Prints the token ids of standard input (or TEXT), or the text of ids.",
                      "Examples:\n  espalier tokenize --tokenizer my-model < text.txt\n"
                      "  echo '1 15043' | espalier tokenize --tokenizer tokenizer.model --decode",
                      "TEXT",
                      {}};
  if (const auto exit_code = parse_command_line(command, table, SettingTable(), args))
    return *exit_code;
  if (options.pieces && (options.json || options.decode)) {
    return report(invalid_argument("--pieces contradicts --json and --decode"), kExitUsage);
  }
  if (path.empty()) {
    Result<std::filesystem::path> model = resolve_model_path({});
    if (!model) return report(model.error(), kExitFailure);
    path = std::move(*model);
  }
  const Result<std::unique_ptr<Tokenizer>> tokenizer = open_tokenizer(path);
  if (!tokenizer) return report(tokenizer.error(), kExitFailure);
  const std::string text = read_input(command.words);
  int64_t line = 0;
  for (const std::string_view input : inputs_of(text, options.lines)) {
    ++line;
    if (!options.decode) {
      encode(**tokenizer, input, options);
    } else if (const Status status = decode(**tokenizer, input, options); !status.ok()) {
      std::cout.flush();
      return report(options.lines ? status.with_context(fmt::format("line {}", line)) : status,
                    kExitFailure);
    }
  }
  std::cout.flush();
  return kExitOk;
}

}  // namespace espalier::apps
