// Expressions: what a program appends to a prompt state. An expression is a list of primitives in
// order; `+` puts two behind each other. Expressions are values, cheap to copy and used by one
// thread at a time; nothing runs until one is appended to a state.
//
//   s += user("Capital of " + country + "?") + assistant(gen("answer", {.stop = "."}));
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "lang/error.h"
#include "lang/options.h"
#include "lang/value.h"

namespace espalier::lang {

enum class Role { kSystem, kUser, kAssistant };
std::string_view role_name(Role role);  // "system"
Result<Role> parse_role(std::string_view name);

// ---- the primitives ----

struct Text {
  std::string text;
};
struct Gen {
  std::string name;  // "": the text goes into the prompt and has no name
  GenOptions options;
};
struct Select {
  std::string name;
  std::vector<std::string> choices;
  ChoicesMethod method = ChoicesMethod::kTokenLengthNormalized;
};
struct Media {
  enum class Kind { kImage, kVideo } kind = Kind::kImage;
  std::string path;        // a file, or "data:...;base64,..."
  int32_t num_frames = 0;  // of a video; 0: the back end's choice
};
struct RoleBegin {
  Role role;
};
struct RoleEnd {
  Role role;
};
// What is appended between the two is the value of `name`.
struct ScopeBegin {
  std::string name;
};
struct ScopeEnd {
  std::string name;
};
// A value that another stream, or this one, computes; the stream waits for it when it comes there.
struct Reference {
  Value value;
};
// Splits what `reasoning` says from the rest of a gen's text, between <think> and </think>: the gen
// keeps the rest, NAME_reasoning_content is the reasoning.
struct Reasoning {
  std::string model_type;
  std::shared_ptr<const Gen> gen;
};

struct Node {
  // Gen is shared because expressions are copied and its options are large; it never changes.
  std::variant<Text, std::shared_ptr<const Gen>, Select, Media, RoleBegin, RoleEnd, ScopeBegin,
               ScopeEnd, Reference, Reasoning>
      what;
  Location where;
};

class Expr {
 public:
  using Where = Location;

  Expr() = default;
  // NOLINTBEGIN: implicit, so that text and values stand in programs as they are
  Expr(const char* text, Where where = std::source_location::current());
  Expr(std::string text, Where where = std::source_location::current());
  Expr(std::string_view text, Where where = std::source_location::current());
  Expr(Value value, Where where = std::source_location::current());
  // NOLINTEND
  explicit Expr(Node node) { nodes_.push_back(std::move(node)); }

  const std::vector<Node>& nodes() const& { return nodes_; }
  std::vector<Node> nodes() && { return std::move(nodes_); }
  bool empty() const { return nodes_.empty(); }

  Expr& operator+=(Expr other);

 private:
  std::vector<Node> nodes_;
};

// Found wherever one side is a primitive or a Value.
Expr operator+(Expr left, Expr right);

using Here = std::source_location;

Expr gen(std::string name = {}, GenOptions options = {}, Location where = Here::current());
Expr gen_int(std::string name = {}, GenOptions options = {}, Location where = Here::current());
Expr gen_string(std::string name = {}, GenOptions options = {}, Location where = Here::current());
Expr select(std::string name, std::vector<std::string> choices,
            ChoicesMethod method = ChoicesMethod::kTokenLengthNormalized,
            Location where = Here::current());
Expr image(std::string path, Location where = Here::current());
Expr video(std::string path, int32_t num_frames, Location where = Here::current());
// `gen_expr` is one gen. kInvalidArgument at its line otherwise.
Expr separate_reasoning(Expr gen_expr, std::string model_type, Location where = Here::current());

// A whole message. (With `using namespace espalier::lang`, an unqualified system("...") is the C
// library's and does not compile: add `using espalier::lang::system;` in your namespace.)
Expr system(Expr content, Location where = Here::current());
Expr user(Expr content, Location where = Here::current());
Expr assistant(Expr content, Location where = Here::current());
Expr role(Role role, Expr content, Location where = Here::current());

Expr system_begin(Location where = Here::current());
Expr system_end(Location where = Here::current());
Expr user_begin(Location where = Here::current());
Expr user_end(Location where = Here::current());
Expr assistant_begin(Location where = Here::current());
Expr assistant_end(Location where = Here::current());

// Values with `separator` between them; waits for none of them.
Expr join(const std::vector<Value>& values, std::string_view separator,
          Location where = Here::current());

}  // namespace espalier::lang
