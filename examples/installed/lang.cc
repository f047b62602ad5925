// A program in the frontend language: two branches that run at once.
//
//   lang_cc [MODEL_FOLDER]      # without one: the model that ships
#include "espalier/lang.h"

#include <iostream>

namespace {
using namespace espalier::lang;

void judge(State& s, const std::string& essay) {
  s += user("Judge this essay: " + essay);
  auto forks = s.fork(2);
  forks[0] += assistant("It is clear:" + select("clear", {" yes", " no"}));
  forks[1] += assistant("Its grade is" + gen("grade", {.regex = " [A-F]"}));
  s += assistant("Clear:" + forks[0]["clear"] + ", grade" + forks[1]["grade"]);
}

}  // namespace

int main(int argc, char** argv) {
  const auto backend = open_engine(argc > 1 ? argv[1] : "");
  if (!backend) {
    std::cerr << backend.error().to_string() << "\n";
    return 1;
  }
  State state = run(judge, {.backend = *backend}, "Snow is cold.");
  std::cout << state.text() << "\n";
  try {
    std::cout << state["rank"] << "\n";
  } catch (const Error& error) {  // a variable that no gen has written
    std::cout << error.what() << "\n";
  }
  return state.error().ok() ? 0 : 1;
}
