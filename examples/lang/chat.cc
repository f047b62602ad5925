// A conversation of several turns, each answer printed as it is written. Questions come from the
// command line after the back end, or are three of its own.
#include "example.h"

namespace {
using namespace espalier::lang;
using espalier::lang::system;  // not the C library's

void talk(State& s, const std::vector<std::string>& questions) {
  s += system("You are a helpful assistant.");
  for (size_t i = 0; i < questions.size(); ++i) {
    s += user(questions[i]);
    s += assistant(gen("answer" + std::to_string(i), {.max_tokens = 48, .temperature = 0}));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto backend = example::backend(argc, argv);
  if (!backend) return example::end(backend.error());
  std::vector<std::string> questions(argv + std::min(argc, 2), argv + argc);
  if (questions.empty())
    questions = {"What is the capital of France?", "What is 12 plus 30?", "Tell me a short story."};
  State state =
      launch([&](State& s) { talk(s, questions); }, {.backend = *backend, .stream = true});
  try {
    for (size_t i = 0; i < questions.size(); ++i) {
      std::cout << "> " << questions[i] << "\n";
      for (const std::string& piece : state.stream("answer" + std::to_string(i)))
        std::cout << piece << std::flush;
      std::cout << "\n";
    }
  } catch (const Error&) {  // told below
  }
  (void)state.sync();
  return example::end(state);
}
