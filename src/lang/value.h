// A value of a program: a text that is known, an argument of a program that is traced, or a future,
// the variable of a prompt state that a gen or select will fill. Putting it into an expression does
// not wait; reading it does.
#pragma once

#include <iosfwd>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lang/error.h"

namespace espalier::lang {

class PromptStream;  // a prompt state, live or traced; lang/interpreter/stream.h

// What a variable holds: a text, or a list of them (n > 1, or gathered by join).
struct Content {
  std::string text;
  std::vector<std::string> items;
  bool is_list = false;

  friend bool operator==(const Content&, const Content&) = default;
};

// Thread-safe. Reads throw Error with the line of the primitive that failed; get() gives a Status.
class Value {
 public:
  Value() = default;  // ""
  // NOLINTBEGIN: implicit, so that a program's arguments may be texts
  Value(std::string text) : text_(std::move(text)) {}
  Value(std::string_view text) : text_(text) {}
  Value(const char* text) : text_(text) {}
  // NOLINTEND
  // The variable `name` of a stream, read at `where`.
  Value(std::shared_ptr<PromptStream> stream, std::string name, Location where);
  // The argument `name` of a program that is traced.
  static Value argument(std::shared_ptr<PromptStream> tracer, std::string name);

  // Waits for the value. kFailedPrecondition when it is a list (use items), or while the program is
  // traced: control flow that depends on data cannot be compiled.
  Result<std::string> get() const;
  Result<Content> content() const;         // the same, a list too
  std::string str() const;                 // get(), or throws
  std::vector<std::string> items() const;  // content(): the list, or the one text
  bool ready() const;                      // reading it will not wait

  // Implicit, so that a value can stand where a text is wanted. NOLINTNEXTLINE
  operator std::string() const { return str(); }
  // A number, a truth value or a described struct, from the text; lang/typed.h.
  template <typename T>
  T as() const;

  bool is_constant() const { return stream_ == nullptr; }
  bool is_argument() const { return is_argument_; }
  const std::shared_ptr<PromptStream>& stream() const { return stream_; }
  const std::string& name() const { return name_; }
  const std::string& text() const { return text_; }  // of a constant
  const Location& where() const { return where_; }

 private:
  std::shared_ptr<PromptStream> stream_;  // shared: a value keeps its prompt state alive
  std::string name_, text_;
  Location where_;
  bool is_argument_ = false;
};

bool operator==(const Value& value, std::string_view text);
std::ostream& operator<<(std::ostream& out, const Value& value);

}  // namespace espalier::lang
