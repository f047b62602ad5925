// Which reader a path belongs to.
#include <array>

#include "base/mapped_file.h"
#include "text/tokenizer/hf_tokenizer.h"
#include "text/tokenizer/sentencepiece_tokenizer.h"
#include "text/tokenizer/tiktoken.h"
#include "text/tokenizer/tokenizer.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;

// The vocabulary's file in a model's folder; empty when there is none.
fs::path find_in_folder(const fs::path& folder) {
  std::error_code ignored;
  for (const char* name : {"tokenizer.json", "tokenizer.model", "spiece.model",
                           "sentencepiece.bpe.model", "sentencepiece.model"}) {
    if (fs::exists(folder / name, ignored)) return folder / name;
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.path().extension() == ".tiktoken") return entry.path();
  }
  return {};
}

Result<std::string> read_if_there(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::string();
  return read_text_file(path);
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> load_tokenizer(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    return fail(error(StatusCode::kNotFound,
                      "{} does not exist; give a folder with a tokenizer, or a tokenizer.json, "
                      ".model, .tiktoken or .gguf file",
                      path.string()));
  }
  const bool is_folder = fs::is_directory(path, ignored);
  const fs::path file = is_folder ? find_in_folder(path) : path;
  if (file.empty()) {
    return fail(error(StatusCode::kNotFound,
                      "{}: there is no tokenizer in this folder: neither tokenizer.json nor "
                      "tokenizer.model nor a .tiktoken file",
                      path.string()));
  }
  ESP_ASSIGN_OR_RETURN(const MappedFile mapped, MappedFile::open(file));
  ESP_ASSIGN_OR_RETURN(const std::string config,
                       read_if_there(file.parent_path() / "tokenizer_config.json"));
  const std::string_view text = mapped.text();
  const std::string extension = file.extension().string();
  Result<std::unique_ptr<Tokenizer>> tokenizer =
      fail(error(StatusCode::kUnimplemented,
                 "this is no vocabulary that is known: tokenizer.json, a SentencePiece .model, a "
                 ".tiktoken rank file or a .gguf"));
  if (extension == ".json") {
    tokenizer = parse_hf_tokenizer(text, config);
  } else if (extension == ".tiktoken" || looks_like_tiktoken(text)) {
    const bool is_qwen_class = config.find("\"QWenTokenizer\"") != std::string::npos;
    tokenizer = parse_tiktoken(text, file.filename().string(), is_qwen_class);
  } else if (looks_like_sentencepiece(text)) {
    tokenizer = parse_sentencepiece_tokenizer(text, config);
  }
  if (!tokenizer) return fail(tokenizer.error().with_context(file.string()));
  return tokenizer;
}

}  // namespace espalier
