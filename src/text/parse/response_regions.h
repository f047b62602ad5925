// Cuts generated text into the fields of a response template while it arrives. Internal to the
// folder.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/parse/response_template.h"
#include "text/parse/tool_call_parser.h"

namespace espalier {

// Not thread-safe; one for each answer. Reads character by character, so it does not matter how the
// text is cut. Outside explicit fields every `open` is looked for, and the implicit field's
// `close`; inside one, its own `close`. Of several delimiters the one that begins first counts,
// then the longest. A delimiter longer than kDelimiterBytesMax is none.
class ResponseRegions {
 public:
  static constexpr size_t kDelimiterBytesMax = 4096;

  struct Part {
    enum class Kind { kOpen, kText, kClose };
    Kind kind = Kind::kText;
    const ResponseField* field = nullptr;  // null: text outside all fields
    std::string text;                      // of kOpen and kClose: the delimiter
    ResponseScope groups;                  // of kOpen and kClose: the delimiter's
  };

  explicit ResponseRegions(std::shared_ptr<const ResponseTemplate> spec);

  // First of all: what the prompt has written of the answer. Returns its parts from the field on in
  // which it ends, if it ends in one.
  std::vector<Part> begin_behind(std::string_view begun_answer);
  void push(std::string_view text, std::vector<Part>& out);
  void finish(std::vector<Part>& out);  // what was pending; no push() may follow

 private:
  struct Watched {
    const ResponseField* field;
    bool is_open;
    PcreRegex::Search search;
  };
  struct Found {
    Watched* watched;
    PcreRegex::Match match;
  };
  void add_character(std::string_view character);
  void process(bool ended, std::vector<Part>& out);
  std::optional<Found> search(bool ended, size_t& pending_from);
  bool is_watched(const Watched& watched) const;
  void emit_text(size_t end, std::vector<Part>& out);
  void emit_delimiter(const Found& found, std::vector<Part>& out);

  const std::shared_ptr<const ResponseTemplate> spec_;
  std::vector<Watched> watched_;
  std::string text_;         // all so far
  std::string scanned_;      // the same, with bytes that are no UTF-8 replaced one by one
  std::string incomplete_;   // bytes of a character that goes on
  size_t position_ = 0;      // what is before it was emitted
  size_t prompt_bytes_ = 0;  // at the beginning of text_, of which nothing is emitted later
  const ResponseField* explicit_ = nullptr;  // the field that is open
};

// The text of an answer and its calls. A call comes when its field ends; one that the end cuts off
// comes if it can be read. What stands between the delimiters and is no call is text, with them.
std::unique_ptr<ToolCallParser> make_response_template_calls(
    std::shared_ptr<const ResponseTemplate> spec, std::shared_ptr<const boost::json::value> tools);

}  // namespace espalier
