// From a list of messages to the prompt's text: the model's chat template and what surrounds it.
#pragma once

#include <boost/json/fwd.hpp>
#include <filesystem>
#include <optional>
#include <string>

#include "base/status.h"
#include "text/parse/reasoning_parser.h"
#include "text/parse/response_template.h"
#include "text/template/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace espalier::server {

// Immutable; thread-safe.
class ChatFormat {
 public:
  // Whether a template that is stated (its path or its text, not empty) can be read and compiled.
  static Status check(const std::string& stated);

  // `stated`: a template's path or its text, or empty for the folder's own. kNotFound when there is
  // none at all; a template that does not compile is kInvalidArgument. `tokenizer` may be null.
  static Result<ChatFormat> load(const std::string& stated, const std::filesystem::path& folder,
                                 const Tokenizer* tokenizer);

  struct Options {
    const boost::json::value* kwargs = nullptr;  // an object: more variables; may be null
    std::optional<std::string> reasoning_effort;
    bool continue_final_message = false;        // the last message's text ends the prompt
    const boost::json::value* tools = nullptr;  // a list that is not empty, or null
    std::string picture_placeholder;            // for templates that take no parts
    std::string system_note;                    // stands behind what the system message says
  };
  // `messages`: a checked list (openai_request.h). The text holds its special tokens itself: encode
  // it with add_special_tokens off.
  Result<std::string> render(const boost::json::value& messages, const Options& options) const;

  // Asks whether `document` answers `query`, "yes" or "no": with the template itself where it is a
  // reranker's (its messages are the two, of the roles query and document; `instruct` a variable),
  // else as Qwen3 Reranker is asked (Zhang et al. 2025), as a chat. An empty `instruct` is the
  // template's own or that model's.
  Result<std::string> render_rerank(std::string_view query, std::string_view document,
                                    std::string_view instruct) const;

  // The format of tool calls that the template speaks; "json" where it knows no tools: they are
  // then described in the system message, and calls and their results are rendered as text.
  const std::string& tool_call_format() const { return tool_call_format_; }
  const std::string& reasoning_format() const { return reasoning_format_; }  // "": none
  const std::string& source() const { return source_; }                      // the template's text
  bool knows_tools() const { return knows_tools_; }
  // Of the model's tokenizer_config.json; kFailedPrecondition where it has none that can be used.
  const Result<std::shared_ptr<const ResponseTemplate>>& response_template() const {
    return response_template_;
  }

 private:
  explicit ChatFormat(ChatTemplate compiled);
  void detect_formats(const std::string& response_template);
  ChatTemplate template_;
  std::string source_;
  std::string bos_token_, eos_token_;
  bool takes_parts_ = false;      // content may stay a list of parts
  bool needs_parts_ = false;      // and must be one, for the template loops over it
  bool knows_developer_ = false;  // else that role is called system
  bool knows_tools_ = false;
  bool reranks_ = false;  // the template itself asks for "yes" or "no"
  std::string tool_call_format_, reasoning_format_;
  Result<std::shared_ptr<const ResponseTemplate>> response_template_;
};

// By name, with the response template of `chat` (which may be null) where that is the format.
Result<ReasoningFormat> named_reasoning_format(std::string_view name, const ChatFormat* chat);

}  // namespace espalier::server
