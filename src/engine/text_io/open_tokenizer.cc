#include "engine/text_io/open_tokenizer.h"

#include "models/model.h"
#include "text/tokenizer/stored_tokenizer.h"

namespace espalier {

Result<std::unique_ptr<Tokenizer>> open_tokenizer(const std::filesystem::path& path) {
  ESP_ASSIGN_OR_RETURN(std::optional<StoredVocabulary> vocabulary, read_model_vocabulary(path));
  if (!vocabulary) return load_tokenizer(path);
  Result<std::unique_ptr<Tokenizer>> tokenizer = make_stored_tokenizer(std::move(*vocabulary));
  if (!tokenizer) return fail(tokenizer.error().with_context(path.string()));
  return tokenizer;
}

}  // namespace espalier
