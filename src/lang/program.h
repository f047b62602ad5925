// Programs and how they are run.
#pragma once

#include <exception>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "lang/state.h"

namespace espalier::lang {

class Recorder;

struct RunOptions {
  std::shared_ptr<Backend> backend;  // shared by all programs that use it; null: default_backend()
  GenOptions defaults;               // of every gen of the run
  bool stream = false;               // text in pieces, for State::stream
  // A fork sends its prefix ahead, so that it is in the cache before the branches arrive.
  bool fork_hint = true;
  // A join that concatenates keeps the keys and values of its branches where the back end can: an
  // approximation (docs/lang.md). Off: the joined text is computed anew.
  bool parallel_encoding = true;
  // API speculation: a call runs this many tokens past its stop, and later primitives take what
  // matches. 0: off. Of back ends with is_api() alone.
  int32_t num_api_spec_tokens = 0;
  std::shared_ptr<Recorder> recorder;  // lang/recorder.h; null: nothing is recorded
};

// For programs that name no back end; one for the process, as in SGLang's frontend.
void set_default_backend(std::shared_ptr<Backend> backend);
std::shared_ptr<Backend> default_backend();

// An empty prompt state, for hosts that run a program themselves (bindings do). Without a back end
// it takes text, and the first gen fails at its line.
State start(const RunOptions& options, Location where = Here::current());
// The end of such a program: waits for what was appended, then the first failure.
Status finish(State& state);

namespace internal {
// The program threw: its state fails with it, and what it still runs is cancelled.
void program_threw(State& state, const std::exception& why, Location where);
}  // namespace internal

// Runs program(State&, arguments...) and waits until all that it appended is done. What fails, and
// what the program throws, is in the state's error().
template <typename F, typename... Args>
requires std::invocable<F, State&, Args...> State run(F&& program, const RunOptions& options,
                                                      Args&&... arguments) {
  State state = start(options);
  try {
    std::invoke(std::forward<F>(program), state, std::forward<Args>(arguments)...);
  } catch (const std::exception& why) {
    internal::program_threw(state, why, {});
  }
  (void)finish(state);  // it is in state.error()
  return state;
}

// The same on a thread of its own, so that the caller can read the state while it is written:
//   for (const std::string& piece : launch(story, options).stream("story")) ...
State launch(std::function<void(State&)> program, RunOptions options);

// Arguments by name: {{"topic", "sailing"}, {"n", "3"}}.
class Arguments {
 public:
  Arguments() = default;
  Arguments(std::initializer_list<std::pair<std::string, Value>> all) : all_(all) {}

  const Value* find(std::string_view name) const;
  void set(std::string name, Value value);  // replaces
  const std::vector<std::pair<std::string, Value>>& all() const { return all_; }

 private:
  std::vector<std::pair<std::string, Value>> all_;
};

// A program with named arguments: what can be bound, run in batches, traced and compiled.
//
//   const Program tip("tip", {"topic"}, [](State& s, Value topic) {
//     s += "A tip about " + topic + ":" + gen("tip", {.stop = "\n"});
//   });
//
// Immutable and cheap to copy; thread-safe as far as its function is.
class Program {
 public:
  using Body = std::function<void(State&, const Arguments&)>;

  Program(std::string name, std::vector<std::string> parameters, Body body);
  // A function of State& and one Value for each parameter.
  template <typename F>
  requires(!std::is_convertible_v<F, Body>)
      Program(std::string name, const std::vector<std::string>& parameters, F function)
      : Program(std::move(name), parameters,
                Body([parameters, function = std::move(function)](State& s,
                                                                  const Arguments& arguments) {
                  call(function, s, parameters, arguments);
                })) {}

  const std::string& name() const { return name_; }
  const std::vector<std::string>& parameters() const { return parameters_; }
  const Arguments& bound() const { return bound_; }

  // The same with some arguments set.
  Program bind(const Arguments& arguments) const;
  // Fails at once, in the state's error(), for arguments that are missing or unknown.
  State run(const Arguments& arguments, const RunOptions& options,
            Location where = Here::current()) const;
  // The body on a state of the caller's; throws what it throws.
  void operator()(State& state, const Arguments& arguments) const;
  Status check(const Arguments& arguments) const;

 private:
  template <typename F>
  static void call(const F& f, State& s, const std::vector<std::string>& names,
                   const Arguments& given) {
    const auto at = [&](size_t i) -> Value {
      const Value* value = i < names.size() ? given.find(names[i]) : nullptr;
      return value != nullptr ? *value : Value();
    };
    call_with<0>(f, s, at);
  }
  // With as many values as the function takes.
  template <size_t N, typename F, typename At>
  static void call_with(const F& f, State& s, const At& at) {
    static_assert(N <= 12, "a program is a function of State& and Values");
    [&]<size_t... I>(std::index_sequence<I...>) {
      if constexpr (std::is_invocable_v<const F&, State&, decltype((void)I, Value())...>) {
        f(s, at(I)...);
      } else {
        call_with<N + 1>(f, s, at);
      }
    }
    (std::make_index_sequence<N>());
  }

  std::string name_;
  std::vector<std::string> parameters_;
  Body body_;
  Arguments bound_;
};

struct BatchOptions {
  RunOptions run;
  // Programs whose functions are at work at once. Their gens need no thread: one that reads nothing
  // leaves its thread to the next. 0: 96, or fewer.
  int num_threads = 0;
  int num_in_flight_max = 1024;  // programs that have begun and not ended
  // The constant text with which every one of the programs begins is computed first.
  bool prefetch_prefix = true;
  std::function<void(size_t done, size_t total)> progress;  // called one at a time
};

// All of them, in order; each state's error() is its own.
std::vector<State> run_batch(const Program& program, const std::vector<Arguments>& arguments,
                             const BatchOptions& options, Location where = Here::current());

// A progress bar on standard error, for BatchOptions::progress.
std::function<void(size_t, size_t)> progress_bar(std::string title);

}  // namespace espalier::lang
