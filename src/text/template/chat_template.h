// Chat templates: Jinja, as Hugging Face's apply_chat_template renders it.
#pragma once

#include <boost/json/fwd.hpp>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "text/tokenizer/tokenizer.h"

namespace espalier {

// A compiled template. Immutable; thread-safe.
class ChatTemplate {
 public:
  // Compiles `source`, at most kSourceBytesMax. kInvalidArgument names the line and the construct
  // that is not understood.
  static Result<ChatTemplate> compile(std::string_view source);
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  static constexpr size_t kSourceBytesMax = 1 << 20;

  // Renders with `variables` (an object: messages, tools, add_generation_prompt, bos_token,
  // eos_token and whatever chat_template_kwargs brings). trim_blocks and lstrip_blocks are on, as
  // in Hugging Face. raise_exception in the template is kInvalidArgument with its message. Bounded:
  // kResourceExhausted after 10 million steps, `seconds_max`, 64 MiB of output, or too deep a
  // recursion. `now`: the time that strftime_now formats, in local time; by default the clock's.
  Result<std::string> render(const boost::json::object& variables,
                             std::optional<std::time_t> now = std::nullopt,
                             double seconds_max = 5) const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

// The chat_template of a model folder: chat_template.jinja, else chat_template.json's, else
// tokenizer_config.json's (the one named "default" where it is a list). kNotFound when there is
// none, and for a path that is a file, because a file's template comes with its tokenizer.
struct ChatTemplateSource {
  std::string source;
  std::string bos_token, eos_token;  // "" when there is none
  std::string response_template;     // tokenizer_config.json's, as JSON; "" when there is none
};
Result<ChatTemplateSource> find_chat_template(const std::filesystem::path& folder);
// The template in the tokenizer's own file, such as a GGUF; `source` is "" for a file without one.
ChatTemplateSource stored_chat_template(const Tokenizer& tokenizer);

}  // namespace espalier
