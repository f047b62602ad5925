#include "lang/program.h"

#include <algorithm>
#include <mutex>
#include <thread>

#include "base/check.h"
#include "base/thread.h"
#include "lang/interpreter/live_stream.h"

namespace espalier::lang {
namespace {

struct Default {
  std::mutex mutex;
  std::shared_ptr<Backend> backend;
};
Default& the_default() {
  static Default one;
  return one;
}

LiveStream& live(State& state) { return static_cast<LiveStream&>(*state.handle()); }

}  // namespace

void set_default_backend(std::shared_ptr<Backend> backend) {
  std::lock_guard lock(the_default().mutex);
  the_default().backend.swap(backend);
}

std::shared_ptr<Backend> default_backend() {
  std::lock_guard lock(the_default().mutex);
  return the_default().backend;
}

State start(const RunOptions& options, Location) {
  RunOptions complete = options;
  if (complete.backend == nullptr) complete.backend = default_backend();
  return State(LiveStream::root(std::move(complete)));
}

Status finish(State& state) { return state.sync(); }

void internal::program_threw(State& state, const std::exception& why, Location where) {
  const auto* error = dynamic_cast<const Error*>(&why);
  if (error != nullptr) {
    state.handle()->fail_with(error->status(), error->where());
  } else {
    state.handle()->fail_with(
        espalier::error(StatusCode::kAborted, "the program threw: {}", why.what()), where);
  }
  state.cancel();
}

State launch(std::function<void(State&)> program, RunOptions options) {
  State state = start(options);
  std::mutex mutex;
  std::condition_variable changed;
  bool is_bound = false;
  std::thread thread([&, state, program = std::move(program)]() mutable {
    set_thread_name("esp-program");
    {
      std::lock_guard lock(mutex);
      live(state).set_writer(std::this_thread::get_id());
      is_bound = true;
      changed.notify_one();
    }
    try {
      program(state);
    } catch (const std::exception& why) {
      internal::program_threw(state, why, {});
    }
    live(state).set_writer({});
  });
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return is_bound; });
  thread.detach();  // it holds the state, and nothing else that could go before it
  return state;
}

const Value* Arguments::find(std::string_view name) const {
  for (const auto& [key, value] : all_)
    if (key == name) return &value;
  return nullptr;
}

void Arguments::set(std::string name, Value value) {
  for (auto& [key, old] : all_) {
    if (key != name) continue;
    old = std::move(value);
    return;
  }
  all_.emplace_back(std::move(name), std::move(value));
}

Program::Program(std::string name, std::vector<std::string> parameters, Body body)
    : name_(std::move(name)), parameters_(std::move(parameters)), body_(std::move(body)) {}

Program Program::bind(const Arguments& arguments) const {
  Program bound = *this;
  for (const auto& [name, value] : arguments.all()) bound.bound_.set(name, value);
  return bound;
}

Status Program::check(const Arguments& arguments) const {
  for (const auto* list : {&bound_, &arguments})
    for (const auto& [name, value] : list->all())
      if (std::find(parameters_.begin(), parameters_.end(), name) == parameters_.end())
        return invalid_argument("{} has no argument \"{}\"", name_, name);
  for (const std::string& name : parameters_)
    if (arguments.find(name) == nullptr && bound_.find(name) == nullptr)
      return invalid_argument("{} is not given its argument \"{}\"", name_, name);
  return {};
}

void Program::operator()(State& state, const Arguments& arguments) const {
  if (bound_.all().empty()) return body_(state, arguments);
  Arguments all = bound_;
  for (const auto& [name, value] : arguments.all()) all.set(name, value);
  body_(state, all);
}

State Program::run(const Arguments& arguments, const RunOptions& options, Location where) const {
  State state = start(options, where);
  if (Status status = check(arguments); !status.ok()) {
    state.handle()->fail_with(std::move(status), where);
    return state;
  }
  try {
    (*this)(state, arguments);
  } catch (const std::exception& why) {
    internal::program_threw(state, why, where);
  }
  (void)finish(state);  // what failed is in state.error()
  return state;
}

}  // namespace espalier::lang
