// A matcher to hold the grammar engine to, written the slow and plain way: expressions, and what is
// left of them after a byte (Brzozowski's derivatives). Reads its own subset of regular
// expressions, EBNF and JSON Schema, and shares no code with src/grammar.
#pragma once

#include <array>
#include <bitset>
#include <boost/json.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace espalier::naive {

using Expr = uint32_t;
inline constexpr Expr kNever = 0, kEmpty = 1;  // matches nothing; matches the empty text
inline constexpr int32_t kNoEnd = -1;

struct CodePoints {
  uint32_t low, high;
};

// How one character is written: in UTF-8; inside a JSON string in any way, or as serialisers write.
enum class Writing : uint8_t { kPlain, kJson, kJsonCanonical };

enum class Space : uint8_t { kCompact, kBounded, kAny };

// An arena of expressions; equal ones have one number. Not thread-safe.
class Naive {
 public:
  Naive();

  Expr text(std::string_view bytes);
  Expr one_of(std::vector<CodePoints> characters, Writing writing);
  Expr sequence(std::vector<Expr> parts);
  Expr either(std::vector<Expr> parts);
  Expr repeat(Expr part, int32_t min, int32_t max);
  Expr maybe(Expr part) { return either({part, kEmpty}); }
  Expr both(Expr a, Expr b) { return product(a, b, true); }    // of regular parts
  Expr minus(Expr a, Expr b) { return product(a, b, false); }  // a, but not b
  Expr integer_between(std::optional<int64_t> low, std::optional<int64_t> high);
  Expr new_rule();  // its body is set later; it may recurse, but not begin with itself
  void set_rule(Expr rule, Expr body);
  // Ends the making of rules: those that nothing can match become kNever.
  void settle();

  // What is left after the byte: kNever exactly when no text goes on so.
  Expr after(Expr expr, uint8_t byte);
  Expr after(Expr expr, std::string_view bytes);
  bool may_end(Expr expr);

 private:
  enum class Op : uint8_t {
    kNever,
    kEmpty,
    kText,
    kChar,
    kSequence,
    kEither,
    kRepeat,
    kBoth,
    kMinus,
    kInteger,
    kRule
  };
  struct Node {
    Op op = Op::kNever;
    Expr a = 0, b = 0;  // kText: a is the place in its bytes; kRule: a is its number
    int32_t min = 0, max = 0;
    std::vector<Expr> parts;
    std::string bytes;  // kText: all; kChar, kInteger: what was read of it
    friend bool operator<(const Node& x, const Node& y) {
      return std::tie(x.op, x.a, x.b, x.min, x.max, x.parts, x.bytes) <
             std::tie(y.op, y.a, y.b, y.min, y.max, y.parts, y.bytes);
    }
  };
  struct Characters {
    std::vector<CodePoints> ranges;
    Writing writing;
  };
  struct Bounds {
    std::optional<int64_t> low, high;
  };

  Expr intern(Node node);
  Expr product(Expr a, Expr b, bool both);
  bool product_lives(Expr a, Expr b, bool both);
  Expr derive(Expr expr, uint8_t byte);
  Expr derive_char(const Node& node, uint8_t byte);
  Expr derive_integer(const Node& node, uint8_t byte);
  bool lives(Expr expr, const std::vector<bool>& rule_lives) const;

  std::vector<Node> nodes_;
  std::map<Node, Expr> index_;
  std::vector<Characters> characters_;
  std::vector<Bounds> bounds_;
  std::vector<Expr> rules_;  // bodies
  std::map<std::pair<std::pair<Expr, Expr>, bool>, bool> product_lives_;
  std::vector<std::unique_ptr<std::array<Expr, 256>>> after_;
  std::vector<int8_t> may_end_;  // -1: not known
};

// What the texts mean; nothing where they use what is not of this subset.
std::optional<Expr> regex(Naive& naive, std::string_view pattern, Writing writing, bool search);
std::optional<Expr> ebnf(Naive& naive, std::string_view text);
std::optional<Expr> json_schema(Naive& naive, const boost::json::value& schema, Space space);

}  // namespace espalier::naive
