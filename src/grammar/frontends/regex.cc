#include "grammar/frontends/regex.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "grammar/frontends/lookahead.h"
#include "grammar/frontends/regex_tree.h"

namespace espalier::grammar {
namespace {

using Tree = RegexTree;

// bound on the parts of sequences that anchors expand
constexpr size_t kAnchoredPartsMax = 1 << 20;

// Anchors depend on the position in the text, of which there are three kinds: nothing has been
// read, something has been read and more may follow, nothing may follow. A tree becomes a 3 x 3
// matrix of expressions by the kind of position before and after it. ^ passes only at kAtStart, and
// $ leads to kAtEnd, where no byte is read.
constexpr int kAtStart = 0, kInMiddle = 1, kAtEnd = 2;
using PositionMatrix = std::array<std::array<ExprId, 3>, 3>;

// Returns whether the empty text matches; anchors count as passable.
bool nullable(const Tree& tree) {
  switch (tree.kind) {
    case Tree::Kind::kChars:
      return false;
    case Tree::Kind::kSequence:
      for (const Tree& child : tree.children) {
        if (!nullable(child)) return false;
      }
      return true;
    case Tree::Kind::kChoice:
      for (const Tree& child : tree.children) {
        if (nullable(child)) return true;
      }
      return false;
    case Tree::Kind::kRepeat:
      return tree.min == 0 || nullable(tree.children[0]);
    default:
      return true;
  }
}

class Lowering {
 public:
  Lowering(Ir& ir, const RegexOptions& options) : ir_(ir), options_(options) {}

  ExprId whole(const Tree& tree) {
    if (!options_.search && !tree.anchored) return plain(tree);
    const Tree any = any_text();
    if (!tree.anchored) return ir_.sequence({plain(any), plain(tree), plain(any)});
    PositionMatrix all = matrix_of(tree);
    if (options_.search) {
      all = product(product(matrix_of(any), all), matrix_of(any));
    }
    return ir_.choice({all[kAtStart][kAtStart], all[kAtStart][kInMiddle], all[kAtStart][kAtEnd]});
  }
  // The look-aheads whose markers the result of whole() contains.
  const std::vector<Lookahead>& lookaheads() const { return lookaheads_; }
  const Status& status() const { return status_; }  // of look-aheads
  // When true, the result of whole() is meaningless.
  bool too_large() const { return written_ > kAnchoredPartsMax; }

 private:
  static Tree any_text() {
    Tree any = regex_tree(Tree::Kind::kRepeat);
    any.children.push_back(regex_chars({{0, kMaxCodePoint}}));
    any.max = kUnbounded;
    return any;
  }

  ExprId plain(const Tree& tree) {
    switch (tree.kind) {
      case Tree::Kind::kChars:
        return options_.encode ? options_.encode(ir_, tree.chars) : ir_.chars(tree.chars);
      case Tree::Kind::kSequence:
      case Tree::Kind::kChoice: {
        std::vector<ExprId> parts;
        for (const Tree& child : tree.children) parts.push_back(plain(child));
        return tree.kind == Tree::Kind::kSequence ? ir_.sequence(parts) : ir_.choice(parts);
      }
      case Tree::Kind::kRepeat:
        return ir_.repeat(plain(tree.children[0]), tree.min, tree.max);
      default:
        return ir_.empty();
    }
  }

  PositionMatrix nothing() const {
    PositionMatrix out;
    for (auto& row : out) row.fill(ir_.never());
    return out;
  }
  PositionMatrix identity() const {
    PositionMatrix out = nothing();
    for (int i = 0; i < 3; ++i) out[i][i] = ir_.empty();
    return out;
  }
  PositionMatrix sum(const PositionMatrix& a, const PositionMatrix& b) {
    PositionMatrix out = nothing();
    for (int i = 0; i < 3; ++i) {
      for (int j = i; j < 3; ++j) out[i][j] = ir_.choice({a[i][j], b[i][j]});
    }
    return out;
  }
  PositionMatrix product(const PositionMatrix& a, const PositionMatrix& b) {
    PositionMatrix out = nothing();
    if (too_large()) return out;
    for (int i = 0; i < 3; ++i) {
      for (int j = i; j < 3; ++j) {
        std::vector<ExprId> alternatives;
        for (int k = i; k <= j; ++k) {
          alternatives.push_back(ir_.sequence({a[i][k], b[k][j]}));
          written_ += ir_.node(alternatives.back()).count;
        }
        out[i][j] = ir_.choice(alternatives);
      }
    }
    return out;
  }
  // S = 1 + M S. M never leads backwards, so the last row is solved first.
  PositionMatrix star(const PositionMatrix& m) {
    PositionMatrix out = nothing();
    for (int i = 2; i >= 0; --i) {
      const ExprId loop = ir_.star(m[i][i]);
      out[i][i] = loop;
      for (int j = i + 1; j < 3; ++j) {
        std::vector<ExprId> alternatives;
        for (int k = i + 1; k <= j; ++k)
          alternatives.push_back(ir_.sequence({loop, m[i][k], out[k][j]}));
        out[i][j] = ir_.choice(alternatives);
      }
    }
    return out;
  }

  PositionMatrix matrix_of(const Tree& tree) {
    PositionMatrix out = nothing();
    if (!tree.anchored) return unanchored(plain(tree), nullable(tree));
    switch (tree.kind) {
      case Tree::Kind::kTextStart:
        out[kAtStart][kAtStart] = ir_.empty();
        break;
      case Tree::Kind::kTextEnd:
        out[kAtStart][kAtEnd] = out[kInMiddle][kAtEnd] = out[kAtEnd][kAtEnd] = ir_.empty();
        break;
      case Tree::Kind::kLookahead: {
        // The rest of the text is what the look-ahead matches, and any text behind that.
        const PositionMatrix rest = product(matrix_of(tree.children[0]), matrix_of(any_text()));
        for (int i = 0; i < 3; ++i)
          out[i][i] =
              marker(ir_.choice({rest[i][kAtStart], rest[i][kInMiddle], rest[i][kAtEnd]}), tree);
        break;
      }
      case Tree::Kind::kSequence: {
        out = identity();
        // Adjacent parts without anchors are one factor, whatever their number.
        std::vector<ExprId> run;
        bool run_nullable = true;
        const auto end_run = [&] {
          if (!run.empty()) out = product(out, unanchored(ir_.sequence(run), run_nullable));
          run.clear();
          run_nullable = true;
        };
        for (const Tree& child : tree.children) {
          if (child.anchored) {
            end_run();
            out = product(out, matrix_of(child));
          } else {
            run.push_back(plain(child));
            run_nullable &= nullable(child);
          }
        }
        end_run();
        break;
      }
      case Tree::Kind::kChoice: {
        std::array<std::array<std::vector<ExprId>, 3>, 3> alternatives;
        for (const Tree& child : tree.children) {
          const PositionMatrix inner = matrix_of(child);
          for (int i = 0; i < 3; ++i) {
            for (int j = i; j < 3; ++j) alternatives[i][j].push_back(inner[i][j]);
          }
        }
        for (int i = 0; i < 3; ++i) {
          for (int j = i; j < 3; ++j) out[i][j] = ir_.choice(alternatives[i][j]);
        }
        break;
      }
      case Tree::Kind::kRepeat: {
        const PositionMatrix once = matrix_of(tree.children[0]);
        out = identity();
        for (int32_t i = 0; i < tree.min; ++i) out = product(out, once);
        if (tree.max == kUnbounded) {
          out = product(out, star(once));
        } else {
          const PositionMatrix maybe = sum(identity(), once);
          for (int32_t i = tree.min; i < tree.max; ++i) out = product(out, maybe);
        }
        break;
      }
      default:
        break;
    }
    return out;
  }

  // Returns the marker of a look-ahead whose rest of the text is `language`.
  ExprId marker(ExprId language, const Tree& tree) {
    if (!lookaheads_.empty() && status_.ok() && !too_large()) {
      // The language may hold markers of look-aheads within this one.
      auto resolved = resolve_lookaheads(ir_, language, lookaheads_, options_.limits);
      if (!resolved) status_ = resolved.error();
      language = resolved ? *resolved : ir_.never();
    }
    for (const Lookahead& known : lookaheads_) {
      if (known.language == language && known.wanted == tree.wanted) return ir_.rule(known.marker);
    }
    lookaheads_.push_back({ir_.rules().add("look-ahead"), language, tree.wanted});
    return ir_.rule(lookaheads_.back().marker);
  }

  PositionMatrix unanchored(ExprId expr, bool may_be_empty) const {
    PositionMatrix out = nothing();
    out[kAtStart][kInMiddle] = out[kInMiddle][kInMiddle] = expr;
    if (may_be_empty) out[kAtStart][kAtStart] = out[kAtEnd][kAtEnd] = ir_.empty();
    return out;
  }

  Ir& ir_;
  const RegexOptions& options_;
  std::vector<Lookahead> lookaheads_;
  Status status_;
  size_t written_ = 0;  // parts of sequences made by matrix products
};

}  // namespace

Result<ExprId> parse_regex(Ir& ir, std::string_view pattern, const RegexOptions& options) {
  ESP_ASSIGN_OR_RETURN(const Tree tree, parse_regex_tree(pattern, options.single_quantifiers));
  Lowering lowering(ir, options);
  const ExprId expr = lowering.whole(tree);
  ESP_RETURN_IF_ERROR(lowering.status());
  if (lowering.too_large()) {
    return fail(error(StatusCode::kResourceExhausted,
                      "regex: too many anchors (^, $) once repetitions are written out in '{}'; "
                      "anchor the whole pattern instead of its parts",
                      pattern.substr(0, 200)));
  }
  if (lowering.lookaheads().empty()) return expr;
  return resolve_lookaheads(ir, expr, lowering.lookaheads(), options.limits);
}

}  // namespace espalier::grammar
