#include <pybind11/stl.h>

#include <condition_variable>
#include <mutex>

#include "bind.h"

namespace espalier::python {
namespace {

// ---- programs that run on threads of their own ----

// The interpreter waits for them before it ends, as it does for its own threads.
class Running {
 public:
  void begin() {
    std::lock_guard lock(mutex_);
    ++count_;
  }
  // Of one that has begun: what can be cancelled.
  void add(const lang::State& state) {
    std::lock_guard lock(mutex_);
    std::erase_if(streams_, [](const auto& stream) { return stream.expired(); });
    streams_.push_back(state.handle());
  }
  void end() {
    std::lock_guard lock(mutex_);
    if (--count_ == 0) none_.notify_all();
  }
  // Interrupted, it cancels them first.
  void wait() {
    std::unique_lock lock(mutex_);
    const auto is_none = [&] { return count_ == 0; };
    if (lang::wait_until(lock, none_, is_none)) return;
    const std::vector<std::weak_ptr<lang::PromptStream>> streams = streams_;
    lock.unlock();
    for (const auto& weak : streams)
      if (auto stream = weak.lock()) lang::State(std::move(stream)).cancel();
    lock.lock();
    none_.wait(lock, is_none);
  }

 private:
  std::mutex mutex_;
  std::condition_variable none_;
  int count_ = 0;
  std::vector<std::weak_ptr<lang::PromptStream>> streams_;
};
Running& running() {
  static auto* one = new Running;  // threads may look at it until the process is gone
  return *one;
}

// Python objects that C++ threads hold: they go with the interpreter lock held.
template <typename T>
std::shared_ptr<T> guarded(T value) {
  return std::shared_ptr<T>(new T(std::move(value)), [](T* held) {
    const py::gil_scoped_acquire acquire;
    delete held;
  });
}

struct Call {
  py::object function;
  py::tuple arguments;
  py::dict named;
  std::shared_ptr<Shared> shared;

  // Throws what the function throws.
  void operator()(const lang::State& state) const {
    const py::object result = function(State{state, shared}, *arguments, **named);
    shared->result = result;
  }
  // From a thread without the interpreter lock; what it throws needs no interpreter.
  void from_thread(const lang::State& state) const {
    const py::gil_scoped_acquire acquire;
    try {
      (*this)(state);
    } catch (const py::error_already_set& thrown) {
      throw error_of(thrown);
    } catch (const py::builtin_exception& thrown) {
      throw lang::Error(error(StatusCode::kAborted, "the program threw: {}", thrown.what()), {});
    }
  }
};

// One of `how`; absent or None: the
// default.
template <typename T>
T setting(const py::dict& how, const char* name, T otherwise) {
  if (!how.contains(name) || py::object(how[name]).is_none()) return otherwise;
  return py::cast<T>(how[name]);
}

State run(Call call, const lang::RunOptions& options) {
  lang::State state = lang::start(options, here());
  try {
    call(state);
  } catch (const py::error_already_set& thrown) {
    const lang::Error why = error_of(thrown);
    const py::gil_scoped_release release;
    lang::internal::program_threw(state, why, {});
    throw;
  }
  try {
    (void)unlocked([&] { return lang::finish(state); });  // it is in state.error()
  } catch (const py::error_already_set&) {
    const py::gil_scoped_release release;
    state.cancel();
    throw;
  }
  return {state, call.shared};
}

// Returns at once; the state is read while it is written.
State launch(Call call, const lang::RunOptions& options) {
  const auto shared = call.shared;
  const auto held = guarded(std::move(call));
  running().begin();
  const auto body = [held](lang::State& state) {
    struct AtEnd {
      ~AtEnd() { running().end(); }
    } at_end;
    held->from_thread(state);
  };
  const py::gil_scoped_release release;
  const lang::State state = lang::launch(body, options);
  running().add(state);
  return {state, shared};
}

// ---- batches and traces ----

// The function with abstract arguments, one for each parameter.
void call_traced(const py::object& function, lang::State& state,
                 const std::vector<std::string>& parameters, const lang::Arguments& arguments,
                 const std::shared_ptr<lang::PromptStream>& tracer) {
  auto shared = std::make_shared<Shared>();
  shared->is_traced = true;
  py::dict named;
  for (const std::string& name : parameters) {
    const lang::Value* value = arguments.find(name);
    named[py::str(name)] = value != nullptr ? *value : lang::Value::argument(tracer, name);
  }
  try {
    function(State{state, shared}, **named);
  } catch (const py::error_already_set& thrown) {
    throw error_of(thrown);
  }
}

// The rows may hold any object, so that the C++ program has one argument, the row's number; where
// it is traced for its constant prefix, the function gets an abstract argument for each parameter.
py::list run_batch(const py::object& function, const std::vector<std::string>& parameters,
                   const py::list& rows, const lang::BatchOptions& options,
                   const std::string& name) {
  struct Batch {
    py::object function;
    std::vector<Call> calls;
  };
  Batch batch{function, {}};
  std::vector<lang::Arguments> numbers;
  for (size_t i = 0; i < rows.size(); ++i) {
    batch.calls.push_back({function, py::tuple(), py::dict(rows[i]), std::make_shared<Shared>()});
    numbers.push_back({{"row", std::to_string(i)}});
  }
  const auto held = guarded(std::move(batch));
  const lang::Program program(
      name, {"row"},
      lang::Program::Body([held, parameters](lang::State& state, const lang::Arguments& arguments) {
        const lang::Value& row = *arguments.find("row");
        if (!row.is_argument()) {
          held->calls[std::stoul(row.text())].from_thread(state);
        } else {
          const py::gil_scoped_acquire acquire;
          call_traced(held->function, state, parameters, {}, row.stream());
        }
      }));
  const lang::Location where = here();
  const std::vector<lang::State> states =
      unlocked([&] { return lang::run_batch(program, numbers, options, where); });
  py::list all;
  for (size_t i = 0; i < states.size(); ++i) all.append(State{states[i], held->calls[i].shared});
  return all;
}

lang::Program traceable(const py::object& function, const std::vector<std::string>& parameters,
                        const std::string& name) {
  return lang::Program(
      name, parameters,
      lang::Program::Body(
          [&function, &parameters](lang::State& state, const lang::Arguments& arguments) {
            call_traced(function, state, parameters, arguments, nullptr);
          }));
}

lang::Graph trace(const py::object& function, const std::vector<std::string>& parameters,
                  const std::string& name) {
  return value_or_throw(lang::trace(traceable(function, parameters, name)), here());
}

// Computes the constant text with which the program begins; its size in bytes.
size_t cache(const py::object& function, const std::vector<std::string>& parameters,
             const std::string& name, const py::dict& how) {
  const lang::Location where = here();
  const lang::RunOptions options = run_options(py::dict(), how);
  const auto backend = options.backend != nullptr ? options.backend : lang::default_backend();
  if (!backend->can_prefetch()) return 0;
  const std::string prefix = lang::constant_prefix(traceable(function, parameters, name), *backend);
  if (prefix.empty()) return 0;
  lang::State state = lang::start(options, where);
  state += lang::Expr(prefix, where) + lang::gen("", {.max_tokens = 0}, where);
  ok_or_throw(unlocked([&] { return state.sync(); }), where);
  return prefix.size();
}

}  // namespace

lang::RunOptions run_options(const py::dict& defaults, const py::dict& how) {
  lang::RunOptions options{.backend = setting<std::shared_ptr<lang::Backend>>(how, "backend", {}),
                           .defaults = gen_options(defaults)};
  options.num_api_spec_tokens = setting(how, "num_api_spec_tokens", 0);
  options.stream = setting(how, "stream", false);
  options.fork_hint = setting(how, "fork_hint", true);
  options.parallel_encoding = setting(how, "parallel_encoding", true);
  options.recorder = setting<std::shared_ptr<lang::Recorder>>(how, "recorder", {});
  if (options.backend == nullptr && lang::default_backend() == nullptr)
    throw_status(error(StatusCode::kFailedPrecondition,
                       "no back end: pass backend=, or call set_default_backend() first"),
                 here());
  return options;
}

void bind_programs(py::module_& m) {
  m.def("run", [](py::object function, py::tuple arguments, py::dict named,
                  const py::dict& defaults, const py::dict& how) {
    Call call{std::move(function), std::move(arguments), std::move(named),
              std::make_shared<Shared>()};
    call.shared->is_sequential = !setting(how, "use_thread", true);
    const lang::RunOptions options = run_options(defaults, how);
    return options.stream ? launch(std::move(call), options) : run(std::move(call), options);
  });
  m.def("run_batch", [](const py::object& function, const std::vector<std::string>& parameters,
                        const py::list& rows, const py::dict& defaults, const py::dict& how,
                        bool progress_bar, const std::string& name) {
    lang::BatchOptions options{.run = run_options(defaults, how)};
    options.num_threads = setting(how, "num_threads", 0);
    options.prefetch_prefix = setting(how, "prefetch_prefix", true);
    // A part of a larger batch, of which so many were done before.
    const auto before = setting<size_t>(how, "num_done_before", 0);
    const auto total = setting<size_t>(how, "num_in_all", rows.size());
    if (progress_bar)
      options.progress = [bar = lang::progress_bar(name), before, total](size_t done, size_t) {
        bar(before + done, total);
      };
    return run_batch(function, parameters, rows, options, name);
  });
  m.def("trace", trace);
  m.def("cache", cache);
  m.def("_wait_for_programs", [] { unlocked([] { running().wait(); }); });
}

}  // namespace espalier::python
