// The prompt state that a program writes to.
#pragma once

#include <concepts>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "lang/backend.h"
#include "lang/expr.h"
#include "lang/value.h"

namespace espalier::lang {

class Forks;

// The name of a variable and the line that names it.
struct Name {
  // NOLINTBEGIN: implicit
  Name(const char* n, Location w = Here::current()) : name(n), where(w) {}
  Name(std::string n, Location w = Here::current()) : name(std::move(n)), where(w) {}
  Name(std::string_view n, Location w = Here::current()) : name(n), where(w) {}
  // NOLINTEND
  std::string name;
  Location where;
};

// Text as it comes: for (const std::string& piece : s.stream("story")) ...
// next() waits for more, so a binding can release its lock around it. One reader a stream.
class TextStream {
 public:
  class Source {
   public:
    virtual ~Source() = default;
    // Waits until there is text beyond `offset`, then appends it to `out`; false at the end.
    virtual Result<bool> read(size_t offset, std::string& out) = 0;
    // What the pieces of text that ended in (begin, end] brought; none: not known.
    virtual std::optional<Progress> progress(size_t, size_t) { return {}; }
  };
  explicit TextStream(std::shared_ptr<Source> source) : source_(std::move(source)) {}

  // False at the end. A failure comes once what was written before it has been read.
  Result<bool> next(std::string& piece);
  // The tokens and log-probabilities of the piece that next() gave last, where the back end reports
  // them.
  std::optional<Progress> progress() const { return source_->progress(begin_, offset_); }

  class Iterator {  // an input iterator; throws Error where the text failed
   public:
    using value_type = std::string;
    using difference_type = std::ptrdiff_t;
    explicit Iterator(TextStream* stream) : stream_(stream) { ++*this; }
    const std::string& operator*() const { return piece_; }
    Iterator& operator++();
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const { return stream_ == nullptr; }

   private:
    TextStream* stream_;
    std::string piece_;
  };
  Iterator begin() { return Iterator(this); }
  std::default_sentinel_t end() const { return {}; }

 private:
  std::shared_ptr<Source> source_;  // shared with the state, which writes it
  size_t begin_ = 0, offset_ = 0;   // of the last piece
};

// Closes what it opened: { auto turn = s.user(); s += "..."; }
class [[nodiscard]] Scope {
 public:
  Scope(std::shared_ptr<PromptStream> stream, Node closing);
  Scope(Scope&& other) noexcept = default;
  Scope& operator=(Scope&&) = delete;
  ~Scope();

 private:
  std::shared_ptr<PromptStream> stream_;  // null after a move
  Node closing_;
};

enum class JoinMode {
  // The branches' variables become lists in the parent.
  kGatherVariables,
  // The branches' texts after the fork are appended to the parent's, in order: each was written,
  // and
  // can be computed, without seeing the others. Where a back end puts cached keys and values behind
  // each other this is an approximation: a branch's tokens keep the keys they got right after the
  // common prefix. A back end that cannot computes the joined text anew, exactly.
  kConcatenateAndAppend,
};

// A handle: copies write to the same prompt state; copy() makes another. Appending never waits,
// reading does. Thread-safe, though only one thread's appends have an order. When the last handle
// and the last Value of a state have gone, what still runs for it is cancelled.
class State {
 public:
  explicit State(std::shared_ptr<PromptStream> stream) : stream_(std::move(stream)) {}

  State& operator+=(Expr expr);
  State& operator+=(int) = delete;  // ::system("...") instead of lang::system
  State& append(Expr expr) { return *this += std::move(expr); }

  // The variable, at once, as a future; reading it waits. Unknown names throw Error here.
  Value operator[](const Name& name) const;
  Value get_var(const Name& name) const { return (*this)[name]; }
  // Without throwing: waits, then the text or what went wrong.
  Result<std::string> get(const Name& name) const;
  template <typename T>
  T get(const Name& name) const;  // lang/typed.h
  bool has(std::string_view name) const;
  void set_var(const Name& name, Value value);
  std::vector<std::string> variable_names() const;
  // Of the gen that filled it; waits.
  MetaInfo meta_info(const Name& name) const;

  std::string text(Location where = Here::current()) const;  // all so far; waits
  std::vector<Message> messages(Location where = Here::current()) const;

  // `n` states that go on from here, each on its own. The prefix is sent ahead (RunOptions).
  Forks fork(int n = 1, Location where = Here::current());
  State copy(Location where = Here::current());
  // The text of a variable, or all of the state's, as it is written: in pieces where the run
  // streams (RunOptions::stream), else a primitive's at once.
  TextStream stream(const Name& name) const;
  TextStream stream(Location where = Here::current()) const;

  Scope system(Location where = Here::current());
  Scope user(Location where = Here::current());
  Scope assistant(Location where = Here::current());
  // What is appended until the scope closes is the value of `name`.
  Scope var_scope(const Name& name);

  Status sync() const;           // waits for all that was appended; the failure, if any
  Status error() const;          // of what was done so far; does not wait
  Location error_place() const;  // the line of the primitive that failed
  void cancel();                 // aborts this state's calls, and those of states forked from it
  const std::shared_ptr<PromptStream>& handle() const { return stream_; }

 private:
  std::shared_ptr<PromptStream> stream_;  // shared by handles and values
};

class Forks {
 public:
  Forks(State parent, std::vector<State> branches)
      : parent_(std::move(parent)), branches_(std::move(branches)) {}

  size_t size() const { return branches_.size(); }
  State& operator[](size_t i) { return branches_.at(i); }
  State& operator[](int i) { return branches_.at(static_cast<size_t>(i)); }
  auto begin() { return branches_.begin(); }
  auto end() { return branches_.end(); }

  Forks& operator+=(const Expr& expr);                // to each
  Forks& operator+=(const std::vector<Expr>& exprs);  // one to each; kInvalidArgument otherwise
  template <std::invocable<int> F>
  Forks& operator+=(F&& make) {  // make(i) to branch i
    for (size_t i = 0; i < size(); ++i) branches_[i] += make(static_cast<int>(i));
    return *this;
  }

  std::vector<Value> operator[](const Name& name) const;  // of each branch
  // Once; a second join is an error at its line.
  void join(JoinMode mode = JoinMode::kGatherVariables, Location where = Here::current());

 private:
  State parent_;
  std::vector<State> branches_;
};

// for (auto [branch, dimension] : zip(forks, dimensions)) ...; as far as the shorter goes.
template <typename A, typename B>
auto zip(A&& a, B&& b) {
  using Left = decltype(*std::begin(a));
  using Right = decltype(*std::begin(b));
  std::vector<std::pair<Left, Right>> pairs;
  auto right = std::begin(b);
  for (auto left = std::begin(a); left != std::end(a) && right != std::end(b); ++left, ++right)
    pairs.emplace_back(*left, *right);
  return pairs;
}

}  // namespace espalier::lang
